"""What goes wrong on the wire."""


class ProtocolError(Exception):
    """The peer broke the framing: answer `-ERR Protocol error: <message>` and close the connection."""
