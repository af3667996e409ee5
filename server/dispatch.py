"""From words to a reply value: lookup, arity, authentication, queueing, errors.

Rule 1: this is the only place that turns an exception into a reply.
Rule 2: a refused command has changed nothing, so every check comes before the handler runs.
"""

from __future__ import annotations

import logging
from asyncio import Future
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from ..index.errors import BadMemory
from ..protocol.reply import QUEUED, ErrorReply, Replies
from .arguments import NAME_BYTES
from .audit import READS
from .command_keys import reach
from .commands import TABLE, Command, PendingWrite
from .errors import ERROR_CHARS, CommandError

if TYPE_CHECKING:
    from .client import Client
    from .server import HeldBack

log = logging.getLogger("recalld")

# Commands that run at once although MULTI is open.
_NOT_QUEUED = frozenset({"exec", "discard", "multi", "watch", "quit", "reset"})
# Whose words may be any number, as threads read them.
_ANY_WORDS = frozenset({"mem.madd"})
# What a command may have, or what a record may, all its words together: but for a payload, and each for itself in
# MEM.MADD, as threads read those. Few words of which none was put together apart (connection.APART_BYTES) are not
# counted: they have no more.
_MOST_BYTES = 32 << 20
_FEW = 32
# The commands that may: those that take texts, vectors, ids, metadata, messages or a payload, or any number of keys or
# channels. The words of the others are names, numbers and patterns, which are decoded and compared.
_TAKES_LONG = frozenset(
    (
        "ping echo publish subscribe unsubscribe psubscribe punsubscribe pubsub|numsub"
        " del unlink exists touch watch restore"
        " mem.add mem.madd mem.get mem.mget mem.del mem.setmeta mem.delmeta mem.expire mem.verify mem.scan mem.list"
        " mem.forget mem.search mem.vsearch mem.query mem.explain mem.recall mem.analyze mem.consult"
        " mem.fact mem.facts mem.invalidate mem.entity"
    ).split()
)
_MOST_BYTES_OF_OTHERS = 1 << 20
# Of a record beside text, id, metadata and tags: its vector, and the command's own words.
_OTHER_BYTES = 1 << 20
# What a word takes beside its bytes, about: the object, and its place in a list; and a queued command as so many words.
_WORD_COSTS, _WORDS_OF_COMMAND = 48, 4
# Keys of the commands that MULTI queues: a set of so many grows in ten milliseconds.
_KEYS_OF_TRANSACTION = 250_000
# What RESP2 may send while subscribed: its replies and the messages share one stream.
_SUBSCRIBED = frozenset(
    {"subscribe", "unsubscribe", "psubscribe", "punsubscribe", "ping", "quit", "reset"}
)

# The spelling that arrived -> entry of a command without subcommands: most clients send one spelling, so the
# lower-casing is paid once.
_plain: dict[bytes, Command] = {}
_SPELLINGS_MAX = 4096


# What a web page can make a browser send to this port: the lines behind would be commands of its choosing.
_HTTP = frozenset({b"post", b"host:"})


class CrossProtocol(Exception):
    """The peer speaks HTTP: the connection is to be closed, and nothing else of it is run."""


class Paused(Exception):
    """CLIENT PAUSE, a large change of its memory or a transaction that is under way holds this command back: the
    connection is to be put in `waiting`, from where it is made to try again (`Server.resume`)."""

    def __init__(self, waiting: HeldBack) -> None:
        self.waiting = waiting


def find(args: list[bytes]) -> Command:
    """The table's entry for `args`; raises CommandError."""
    name = args[0][:NAME_BYTES]
    entry = TABLE.get(name.lower().decode("latin-1"))
    if entry is None:
        if name.lower() in _HTTP:
            raise CrossProtocol
        raise unknown_command(args)
    if not entry.subcommands:
        if len(_plain) < _SPELLINGS_MAX:
            _plain[name] = entry
        return entry
    if len(args) == 1:
        if entry.handler is not None:
            return entry
        raise wrong_arity(entry)
    sub = entry.subcommands.get(args[1][:NAME_BYTES].lower().decode("latin-1"))
    if sub is None:
        word = args[1][:128].decode("utf-8", "replace")
        raise CommandError(f"unknown subcommand '{word}'. Try {entry.name.upper()} HELP.")
    return sub


def unknown_command(args: list[bytes]) -> CommandError:
    """Redis's own text, with the arguments cut where Redis cuts them."""
    shown = ""
    for word in args[1:]:
        if len(shown) >= 128:
            break
        shown += f"'{word[: 128 - len(shown)].decode('utf-8', 'replace')}' "
    name = args[0][:128].decode("utf-8", "replace")
    return CommandError(f"unknown command '{name}', with args beginning with: {shown}")


def wrong_arity(entry: Command) -> CommandError:
    return CommandError(f"wrong number of arguments for '{entry.name}' command")


def execute(ctx: Client, args: list[bytes]) -> Any:
    """Run one command for a client: a reply value, an ErrorReply, or a Future of one. Raises only Paused."""
    server = ctx.server
    ctx.now = server.clock()
    entry = _plain.get(args[0])
    try:
        if entry is None:
            entry = find(args)
        if not entry.arity_ok(len(args)):
            raise wrong_arity(entry)
        name = entry.name
        if len(args) > _FEW or ctx.has_long_words or name not in _TAKES_LONG:
            _check_size(ctx, name, args)
        if name not in ctx.granted:
            server.acl.check(ctx, entry, args)
        if ctx.proto == 2 and (ctx.channels or ctx.patterns) and name not in _SUBSCRIBED:
            raise CommandError(
                f"Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in"
                " this context"
            )
        if server.log.failure is not None and ctx.would_write(entry):
            raise CommandError(server.log.failure, "MISCONF")
        if server.eviction.limit and not _has_memory(ctx, entry, args):
            if (waiting := server.transactions.first_waiting) is not None and server.eviction.is_held:
                raise Paused(waiting)
            raise CommandError("command not allowed when used memory > 'maxmemory'.", "OOM")
        if ctx.multi is not None and name not in _NOT_QUEUED:
            if "no_multi" in entry.flags:
                raise CommandError("Command not allowed inside a transaction")
            _queue(ctx, entry, args)
            ctx.last_command = name
            return QUEUED
    except CrossProtocol:
        log.warning(
            "Possible SECURITY ATTACK detected: %s sends POST or Host: lines, as a browser does when a web page tries"
            " to have commands run here. Connection aborted.",
            ctx.addr,
        )
        ctx.close_after_reply = True
        return Replies()
    except CommandError as error:
        ctx.has_long_words = False
        if entry is not None:
            server.observer.times.rejected[entry.name] += 1
        if args[0][:NAME_BYTES].lower() == b"exec":
            ctx.discard_transaction()
            reason = error.message if error.code == "ERR" else error.wire
            error = CommandError(f"Transaction discarded because of: {reason}", "EXECABORT")
        elif ctx.multi is not None:
            ctx.multi.failed = True
        return _error(ctx, error.code, error.message)
    if server.pause_until and server.holds(ctx, entry):
        raise Paused(server.paused)
    if server.changing or server.transactions.matters:
        held_in = server.holding(ctx, entry, args)
        if held_in is not None:
            raise Paused(held_in)
    ctx.last_command = name
    return call(ctx, entry, args)


def _check_size(ctx: Client, name: str, args: list[bytes]) -> None:
    """Refuse what would take long on the loop; raises CommandError."""
    config, has_long_words = ctx.server.config, ctx.has_long_words
    ctx.has_long_words = False
    most = config["max-command-words"]
    if len(args) > most and name not in _ANY_WORDS:
        raise CommandError(f"a command of {len(args)} words exceeds max-command-words ({most}); send it as several")
    what, most = "command", _MOST_BYTES if name in _TAKES_LONG else _MOST_BYTES_OF_OTHERS
    if name in _ANY_WORDS:
        what, size = "word", max(map(len, args)) if has_long_words else 0
    else:
        size = sum(map(len, args))
    if name == "restore":
        size -= len(args[3])
    if size > most and name in _TAKES_LONG:
        most = max(most, config["mem-max-text-bytes"] + config["mem-max-meta-bytes"] + _OTHER_BYTES)
    if size > most:
        raise CommandError(f"a {what} of {size} bytes exceeds the {most} that '{name}' takes")


def _queue(ctx: Client, entry: Command, args: list[bytes]) -> None:
    """Keep a command for EXEC; raises CommandError, and then the transaction holds nothing any more."""
    queue = ctx.multi
    if queue is None or queue.failed:  # EXEC will refuse it
        return
    size = sum(map(len, args)) + _WORD_COSTS * (len(args) + _WORDS_OF_COMMAND)
    limit = ctx.server.config["client-query-buffer-limit"]
    if queue.size + size > limit:
        ctx.server.release(queue.empty())
        raise CommandError(f"the commands of the transaction exceed client-query-buffer-limit ({limit} bytes)")
    queue.add(entry, args, size)
    if len(queue.keys) > _KEYS_OF_TRANSACTION:
        ctx.server.release(queue.empty())
        raise CommandError(f"a transaction may be about {_KEYS_OF_TRANSACTION} keys; send the rest as another one")


def _has_memory(ctx: Client, entry: Command, args: list[bytes]) -> bool:
    """Whether maxmemory lets the command run, or be queued, once other memories have made room for it."""
    queue = ctx.multi
    if queue is not None and entry.name == "exec":
        return not queue.needs_memory or ctx.server.eviction.make_room(ctx.now, queue.keys)
    if "denyoom" not in entry.flags and (queue is None or entry.name in _NOT_QUEUED):
        return True
    return ctx.server.eviction.make_room(ctx.now, set(entry.keys_in(args)))


def call(ctx: Client, entry: Command, words: list[bytes]) -> Any:
    """Run a command whose checks have passed: a reply value, an ErrorReply, or a Future of one."""
    server = ctx.server
    observer = server.observer
    handler: Any = entry.handler
    args = words[entry.words :]
    audited = server.audit.on and entry.name in READS
    began = perf_counter_ns()
    try:
        reply = server.audit.run(ctx, entry, args) if audited else handler(ctx, args)
    except Exception as error:
        reply = error_reply(ctx, entry.name, error)
    took = perf_counter_ns() - began
    if isinstance(reply, Future):
        if isinstance(reply, PendingWrite):
            ctx.goes_on = reach(entry, words)
        observer.begun(ctx, entry, words, began, reply)
    else:
        observer.samples[entry.name].append(took)
        if took >= observer.notable_ns:
            observer.note(ctx, entry, words, took)
    return reply


def error_reply(ctx: Client, name: str, error: BaseException) -> ErrorReply:
    """The reply for what a handler raised, at once or in its future."""
    ctx.server.observer.times.failed[name] += 1
    if isinstance(error, CommandError):
        return _error(ctx, error.code, error.message)
    if isinstance(error, BadMemory):
        return _error(ctx, "ERR", str(error))
    log.error("internal error in %s", name, exc_info=error)
    return _error(ctx, "ERR", "internal error; the server's log has the details")


def _error(ctx: Client, code: str, message: str) -> ErrorReply:
    ctx.server.stats.error_codes[code] += 1
    if len(message) > ERROR_CHARS:  # it shows a word that the client sent
        message = message[:ERROR_CHARS] + "..."
    return ErrorReply(f"{code} {message}")


def settled(ctx: Client, name: str, reply: Future[Any]) -> Any:
    """The value of a finished reply future, its exception turned into an ErrorReply."""
    if reply.cancelled():
        return ErrorReply("ERR the server is shutting down")
    error = reply.exception()
    return reply.result() if error is None else error_reply(ctx, name, error)
