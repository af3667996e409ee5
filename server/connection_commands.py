"""The connection itself: handshake, password, name, what is known of the clients, and how to be rid of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..protocol.reply import OK, PONG, Replies, SimpleString, Verbatim
from .acl import decoded
from .arguments import integer
from .client_line import client_line
from .commands import command, container
from .errors import CommandError, shown_word, syntax_error
from .info import REDIS_VERSION

if TYPE_CHECKING:
    from .client import Client

_SESSION = "noscript loading stale"
_HANDSHAKE = "noscript loading stale fast no_auth allow_busy"
_ADMIN = "admin noscript loading stale"
# Redis has no limit. ACL LOG, SLOWLOG and the audit keep the name with each entry: a longer one would fill the memory.
_NAME_BYTES = 256


def _integer(word: bytes, complaint: str) -> int:
    """A signed 64-bit decimal; the error says `complaint`."""
    try:
        return integer(word)
    except CommandError:
        raise CommandError(complaint) from None


def _positive(word: bytes, complaint: str) -> int:
    value = _integer(word, complaint)
    if value < 1:
        raise CommandError(complaint)
    return value


# Handshake


@command(
    "HELLO",
    arity=-1,
    flags=_HANDSHAKE,
    usage="HELLO [protover [AUTH username password] [SETNAME clientname]]",
    group="connection",
    options=[
        "protover: the version of RESP to speak from now on, 2 or 3 (as it is)",
        "AUTH username password, SETNAME clientname: as AUTH and CLIENT SETNAME",
    ],
)
def hello(ctx: Client, args: list[bytes]) -> dict[str, Any]:
    """Choose the protocol version, log in and name the connection in one step; reply with who the server is."""
    proto, user, name = ctx.proto, None, None
    if args:
        proto = _integer(args[0], "Protocol version is not an integer or out of range")
        if proto not in (2, 3):
            raise CommandError("unsupported protocol version", "NOPROTO")
    at = 1
    while at < len(args):
        word, left = args[at].upper(), len(args) - at - 1
        if word == b"AUTH" and left >= 2:
            user = args[at + 1 : at + 3]
            at += 3
        elif word == b"SETNAME" and left >= 1:
            name = _client_name(args[at + 1])
            at += 2
        else:
            raise CommandError(f"Syntax error in HELLO option '{shown_word(args[at], 'replace')}'")
    if user is not None:
        ctx.server.acl.log_in(ctx, user[0], user[1], b"HELLO")
    if not ctx.authenticated:
        raise CommandError(
            "HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass>"
            " option can be used to authenticate the client and select the RESP protocol version at the same time",
            "NOAUTH",
        )
    if name is not None:
        ctx.name = name
    ctx.proto = proto
    return {
        "server": "redis",
        "version": REDIS_VERSION,
        "proto": proto,
        "id": ctx.id,
        "mode": "standalone",
        "role": "master",
        "modules": [],
    }


@command("AUTH", arity=-2, flags=_HANDSHAKE, usage="AUTH [username] password", group="connection")
def auth(ctx: Client, args: list[bytes]) -> SimpleString:
    """Log in; without a username as the user `default`, whose password `requirepass` may be."""
    if len(args) > 2:
        raise syntax_error()
    acl = ctx.server.acl
    if len(args) == 1 and acl.default.nopass:
        raise CommandError(
            "AUTH <password> called without any password configured for the default user. Are you sure your"
            " configuration is correct?"
        )
    name, password = args if len(args) == 2 else (b"default", args[0])
    acl.log_in(ctx, name, password, b"AUTH")
    return OK


@command("PING", arity=-1, flags="fast", usage="PING [message]", group="connection")
def ping(ctx: Client, args: list[bytes]) -> Any:
    """Reply with PONG, or with the message."""
    if len(args) > 1:
        raise CommandError("wrong number of arguments for 'ping' command")
    if ctx.proto == 2 and (ctx.channels or ctx.patterns):
        # A subscriber on RESP2 expects arrays that begin with what they are.
        return [b"pong", args[0] if args else b""]
    return args[0] if args else PONG


@command("ECHO", arity=2, flags="loading stale fast", usage="ECHO message", group="connection")
def echo(ctx: Client, args: list[bytes]) -> bytes:
    """Reply with the message."""
    return args[0]


@command("SELECT", arity=2, flags="loading stale fast", usage="SELECT index", group="connection")
def select(ctx: Client, args: list[bytes]) -> SimpleString:
    """Choose the database: there is one, 0."""
    if integer(args[0]) != 0:
        raise CommandError("DB index is out of range")
    return OK


@command("QUIT", arity=-1, flags=_HANDSHAKE, usage="QUIT", group="connection")
def quit_(ctx: Client, args: list[bytes]) -> SimpleString:
    """Close the connection once everything before is answered."""
    ctx.close_after_reply = True
    return OK


@command("RESET", arity=1, flags=_HANDSHAKE, usage="RESET", group="connection")
def reset(ctx: Client, args: list[bytes]) -> SimpleString | Replies:
    """Put the connection back to where it began: RESP2, no transaction, subscriptions, MONITOR or name, logged out."""
    ctx.discard_transaction()
    if not ctx.server.pubsub.drop_some(ctx):  # others have their turn between
        ctx.connection.rest = [[b"reset"]]
        return Replies()
    ctx.server.observer.forget(ctx)
    ctx.proto = 2
    ctx.name = b""
    ctx.reply_mode = "on"
    ctx.no_evict = False
    ctx.no_touch = False
    ctx.log_out()
    return SimpleString("RESET")


# CLIENT: oneself

container("CLIENT", summary="Look at connections, and steer them.", group="connection")


@command("CLIENT ID", arity=2, flags=_SESSION, usage="CLIENT ID", group="connection")
def client_id(ctx: Client, args: list[bytes]) -> int:
    """Reply with the connection's id: each has a higher one than all before it."""
    return ctx.id


@command("CLIENT GETNAME", arity=2, flags=_SESSION, usage="CLIENT GETNAME", group="connection")
def client_getname(ctx: Client, args: list[bytes]) -> bytes | None:
    """Reply with the connection's name."""
    return ctx.name or None


@command("CLIENT SETNAME", arity=3, flags=_SESSION, usage="CLIENT SETNAME connection-name", group="connection")
def client_setname(ctx: Client, args: list[bytes]) -> SimpleString:
    """Name the connection, for CLIENT LIST; an empty name takes it away."""
    ctx.name = _client_name(args[0])
    return OK


def _client_name(word: bytes) -> bytes:
    if len(word) > _NAME_BYTES:
        raise CommandError(f"Client names cannot be longer than {_NAME_BYTES} bytes.")
    if not _is_plain(word):
        raise CommandError("Client names cannot contain spaces, newlines or special characters.")
    return word


def _is_plain(word: bytes) -> bool:
    """Whether a word can stand in a line of CLIENT LIST: printable ASCII without spaces."""
    return all(0x21 <= byte <= 0x7E for byte in word)


@command(
    "CLIENT SETINFO",
    arity=4,
    flags=_SESSION,
    usage="CLIENT SETINFO LIB-NAME libname | LIB-VER libver",
    group="connection",
)
def client_setinfo(ctx: Client, args: list[bytes]) -> SimpleString:
    """Say which client library this is, and which version, for CLIENT LIST."""
    attribute, value = args[0].decode("utf-8", "replace"), args[1]
    if attribute.lower() not in ("lib-name", "lib-ver"):
        raise CommandError(f"Unrecognized option '{attribute}'")
    if len(value) > _NAME_BYTES:
        raise CommandError(f"{attribute} cannot be longer than {_NAME_BYTES} bytes.")
    if not _is_plain(value):
        raise CommandError(f"{attribute} cannot contain spaces, newlines or special characters.")
    if attribute.lower() == "lib-name":
        ctx.lib_name = value
    else:
        ctx.lib_ver = value
    return OK


@command(
    "CLIENT REPLY",
    arity=3,
    flags=_SESSION,
    usage="CLIENT REPLY ON|OFF|SKIP",
    group="connection",
    options=["OFF: none from now on, to this command neither", "SKIP: none to the next command"],
)
def client_reply(ctx: Client, args: list[bytes]) -> SimpleString:
    """Choose whether the connection gets replies."""
    mode = args[0].lower()
    if mode == b"on":
        ctx.reply_mode = "on"
    elif mode == b"off":
        ctx.reply_mode = "off"
    elif mode == b"skip":
        if ctx.reply_mode != "off":
            ctx.reply_mode = "skip-next"
    else:
        raise syntax_error()
    return OK


@command("CLIENT NO-EVICT", arity=3, flags=_ADMIN, usage="CLIENT NO-EVICT ON|OFF", group="connection")
def client_no_evict(ctx: Client, args: list[bytes]) -> SimpleString:
    """Mark the connection as one to keep where clients are evicted for their memory; none are, here."""
    ctx.no_evict = _on_off(args[0])
    return OK


@command("CLIENT NO-TOUCH", arity=3, flags=_SESSION, usage="CLIENT NO-TOUCH ON|OFF", group="connection")
def client_no_touch(ctx: Client, args: list[bytes]) -> SimpleString:
    """Say that what the connection reads shall not count as used."""
    ctx.no_touch = _on_off(args[0])
    return OK


def _on_off(word: bytes) -> bool:
    if word.lower() not in (b"on", b"off"):
        raise syntax_error()
    return word.lower() == b"on"


# CLIENT: the others


@command("CLIENT INFO", arity=2, flags=_SESSION, usage="CLIENT INFO", group="connection")
def client_info(ctx: Client, args: list[bytes]) -> Verbatim:
    """Describe this connection, as CLIENT LIST does."""
    return Verbatim(client_line(ctx, ctx.now))


@command(
    "CLIENT LIST",
    arity=-2,
    flags=_ADMIN,
    usage="CLIENT LIST [TYPE NORMAL|MASTER|REPLICA|PUBSUB] [ID client-id [client-id ...]]",
    complexity="O(clients)",
    group="connection",
)
def client_list(ctx: Client, args: list[bytes]) -> Verbatim:
    """Describe the connections, a line for each."""
    clients = ctx.server.clients
    shown = list(clients.values())
    if args:
        option = args[0].lower()
        if option == b"type" and len(args) == 2:
            kind = _client_type(args[1])
            shown = [client for client in shown if _type_of(client) == kind]
        elif option == b"id" and len(args) > 1:
            ids = [_integer(word, "Invalid client ID") for word in args[1:]]
            shown = [clients[id_] for id_ in dict.fromkeys(ids) if id_ in clients]
        else:
            raise syntax_error()
    return Verbatim("".join(client_line(client, ctx.now) for client in shown))


def _client_type(word: bytes) -> str:
    kind = word.lower().decode("utf-8", "replace")
    if kind not in ("normal", "master", "slave", "replica", "pubsub"):
        raise CommandError(f"Unknown client type '{shown_word(word, 'replace')}'")
    return kind


def _type_of(client: Client) -> str:
    return "pubsub" if client.channels or client.patterns else "normal"


@command(
    "CLIENT KILL",
    arity=-3,
    flags=_ADMIN,
    usage="CLIENT KILL ip:port | [ID client-id] [TYPE NORMAL|MASTER|REPLICA|PUBSUB] [USER username] [ADDR ip:port]"
    " [LADDR ip:port] [SKIPME YES|NO] [MAXAGE seconds]",
    complexity="O(clients)",
    group="connection",
    options=[
        "ip:port: the client at that address, which may be this one; the options below are all to hold instead",
        "ADDR ip:port, LADDR ip:port: the client's own address, and the one of the server that it connected to",
        "SKIPME YES|NO: whether to spare this connection (YES)",
        "MAXAGE seconds: only those connected for at least so long",
    ],
)
def client_kill(ctx: Client, args: list[bytes]) -> SimpleString | int:
    """Close connections; reply with how many."""
    if len(args) == 1:
        address = args[0].decode("utf-8", "replace")
        victims = [client for client in ctx.server.clients.values() if client.addr == address]
        if not victims:
            raise CommandError("No such client")
        _kill(ctx, victims)
        return OK
    wanted, age_s, skip_me = _kill_filters(ctx, args)
    victims = [
        client
        for client in ctx.server.clients.values()
        if all(_KILL_BY[option](client) == value for option, value in wanted.items())
        and (ctx.now - client.created_ms) // 1000 >= age_s
        and not (skip_me and client is ctx)
    ]
    _kill(ctx, victims)
    return len(victims)


_KILL_BY: dict[bytes, Callable[[Client], int | str]] = {
    b"id": lambda client: client.id,
    b"addr": lambda client: client.addr,
    b"laddr": lambda client: client.laddr,
    b"type": _type_of,
    b"user": lambda client: client.user,
}


def _kill_filters(ctx: Client, args: list[bytes]) -> tuple[dict[bytes, int | str], int, bool]:
    """What a client must be for CLIENT KILL, the age it must have, and whether the one who asks is spared."""
    wanted: dict[bytes, int | str] = {}
    age_s, skip_me = 0, True
    if len(args) % 2:
        raise syntax_error()
    for word, value in zip(args[::2], args[1::2], strict=True):
        option = word.lower()
        text = value.decode("utf-8", "replace")
        match option:
            case b"id":
                wanted[option] = _positive(value, "client-id should be greater than 0")
            case b"addr" | b"laddr":
                wanted[option] = text
            case b"type":
                wanted[option] = _client_type(value)
            case b"user":
                if decoded(value) not in ctx.server.acl.users:
                    raise CommandError(f"No such user '{text}'")
                wanted[option] = decoded(value)
            case b"skipme":
                if value.lower() not in (b"yes", b"no"):
                    raise syntax_error()
                skip_me = value.lower() == b"yes"
            case b"maxage":
                _integer(value, "maxage is not an integer or out of range")
                age_s = _positive(value, "maxage should be greater than 0")
            case _:
                raise syntax_error()
    return wanted, age_s, skip_me


def _kill(ctx: Client, victims: list[Client]) -> None:
    for client in victims:
        if client is ctx:
            ctx.close_after_reply = True
        else:
            client.connection.abort()


@command(
    "CLIENT PAUSE",
    arity=-3,
    flags=_ADMIN,
    usage="CLIENT PAUSE timeout [WRITE|ALL]",
    group="connection",
    options=[
        "timeout: in milliseconds; a pause that is on is made longer by it, never shorter",
        "WRITE|ALL: hold back what would write, and PUBLISH, or all but CLIENT PAUSE and UNPAUSE (ALL)",
    ],
)
def client_pause(ctx: Client, args: list[bytes]) -> SimpleString:
    """Hold the commands of all clients back for a while."""
    mode = args[1].lower() if len(args) > 1 else b"all"
    if mode not in (b"write", b"all") or len(args) > 2:
        raise CommandError("CLIENT PAUSE mode must be WRITE or ALL")
    timeout_ms = _integer(args[0], "timeout is not an integer or out of range")
    if timeout_ms < 0:
        raise CommandError("timeout is negative")
    ctx.server.pause(ctx.now, timeout_ms, writes_only=mode == b"write")
    return OK


@command(
    "CLIENT UNPAUSE",
    arity=2,
    flags=_ADMIN,
    usage="CLIENT UNPAUSE",
    complexity="O(clients)",
    group="connection",
)
def client_unpause(ctx: Client, args: list[bytes]) -> SimpleString:
    """Let the clients go on that CLIENT PAUSE holds back."""
    ctx.server.unpause()
    return OK
