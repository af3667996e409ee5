"""Errors that a client caused or must hear of."""

from __future__ import annotations


class CommandError(Exception):
    """A refused command: `-CODE message`. The connection stays open and nothing has changed.

    `message` is what follows the code on the wire; the default code is ERR.
    """

    def __init__(self, message: str, code: str = "ERR") -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def wire(self) -> str:
        return f"{self.code} {self.message}"


#: So much of an error's message is sent.
ERROR_CHARS = 4096
# A character has four bytes at most.
_SHOWN_BYTES = 4 * ERROR_CHARS


def shown_word(word: bytes, errors: str = "surrogateescape") -> str:
    """A client's word for an error's message; of one that is too long to be sent, no more than is sent."""
    return word[:_SHOWN_BYTES].decode("utf-8", errors)


def syntax_error() -> CommandError:
    return CommandError("syntax error")


def not_an_integer() -> CommandError:
    return CommandError("value is not an integer or out of range")


def not_a_float() -> CommandError:
    return CommandError("value is not a valid float")
