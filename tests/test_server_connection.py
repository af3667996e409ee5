"""HELLO, AUTH, CLIENT and the rest of what concerns the connection itself, by bytes and by redis-py."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
import redis
from harness import AT_ONCE, HOUR, JUNE, SECOND, Clock, Running, Wire, flat_pairs, pack

Start = Callable[..., Running]


def fields(line: bytes) -> dict[str, str]:
    """One line of CLIENT LIST."""
    return dict(field.split("=", 1) for field in line.decode().split())


def client_list(wire: Wire, *words: str | int) -> list[dict[str, str]]:
    return [fields(line) for line in wire("CLIENT", "LIST", *words).splitlines()]


def is_closed(wire: Wire) -> bool:
    """Whether the server has ended the connection; what it had sent before is read and dropped."""
    try:
        while wire.sock.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.fixture
def other(server: Running) -> Iterator[Wire]:
    """A second connection, which the server has accepted."""
    wire = server.wire()
    wire("PING")
    yield wire
    wire.close()


# HELLO


def test_hello_replies_with_who_the_server_is(wire: Wire) -> None:
    """The same seven fields on both protocols: a flat array on RESP2, a map on RESP3, which then goes on."""
    two, three = flat_pairs(wire("HELLO", 2)), wire("HELLO", 3)
    assert list(two) == [b"server", b"version", b"proto", b"id", b"mode", b"role", b"modules"]
    assert two == {**three, b"proto": 2}
    assert (three[b"server"], three[b"version"], three[b"proto"]) == (b"redis", b"7.4.0", 3)
    assert (three[b"mode"], three[b"role"], three[b"modules"]) == (b"standalone", b"master", [])
    assert three[b"id"] == wire("CLIENT", "ID")
    assert wire.raw("CLIENT", "GETNAME") == b"_\r\n"


def test_hello_without_a_version_changes_nothing(wire3: Wire) -> None:
    assert wire3("HELLO")[b"proto"] == 3
    wire3("HELLO", 2)
    assert flat_pairs(wire3("HELLO"))[b"proto"] == 2


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["4"], "NOPROTO unsupported protocol version"),
        (["1"], "NOPROTO unsupported protocol version"),
        (["abc"], "ERR Protocol version is not an integer or out of range"),
        (["3", "AUTH", "default"], "ERR Syntax error in HELLO option 'AUTH'"),
        (["3", "SETNAME"], "ERR Syntax error in HELLO option 'SETNAME'"),
        (["3", "FOO"], "ERR Syntax error in HELLO option 'FOO'"),
        (
            ["3", "SETNAME", "a b"],
            "ERR Client names cannot contain spaces, newlines or special characters.",
        ),
        (["3", "AUTH", "nobody", "x"], "WRONGPASS invalid username-password pair or user is disabled."),
    ],
)
def test_a_refused_hello_changes_nothing(wire: Wire, words: list[str], error: str) -> None:
    assert wire.error("HELLO", *words) == error
    assert wire.raw("CLIENT", "GETNAME") == b"$-1\r\n"


def test_hello_sets_the_name(wire: Wire) -> None:
    wire("HELLO", 3, "setname", "agent-7", "auth", "default", "any password will do where none is set")
    assert wire("CLIENT", "GETNAME") == b"agent-7"


# AUTH


def test_a_password_is_asked_for(running: Start) -> None:
    """Without it only HELLO, AUTH, QUIT and RESET; lookup and arity errors still come first, as in Redis."""
    server = running(requirepass="grüß gott")
    wire = server.wire()
    assert wire.error("PING") == "NOAUTH Authentication required."
    assert wire.error("EXISTS", "a") == "NOAUTH Authentication required."
    assert wire.error("EXISTS") == "ERR wrong number of arguments for 'exists' command"
    assert wire.error("HELLO", 3).startswith("NOAUTH HELLO must be called with the client already authenticated")
    wrong = "WRONGPASS invalid username-password pair or user is disabled."
    assert wire.error("AUTH", "guess") == wrong
    assert wire.error("AUTH", "") == wrong
    assert wire.error("AUTH", "root", "grüß gott") == wrong
    assert wire.error("PING") == "NOAUTH Authentication required."
    assert wire("AUTH", "grüß gott") == "OK"
    assert wire("PING") == "PONG"
    assert wire.error("AUTH", "guess") == wrong
    assert wire("PING") == "PONG"  # a failed AUTH does not log out


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_logs_in(running: Start, protocol: int) -> None:
    server = running(requirepass="sesame")
    assert server.client(protocol, password="sesame").ping()
    assert server.client(protocol, username="default", password="sesame").ping()
    with pytest.raises(redis.AuthenticationError):
        server.client(protocol, password="wrong", retry=AT_ONCE).ping()


def test_hello_logs_in(running: Start) -> None:
    wire = running(requirepass="sesame").wire()
    assert wire.error("HELLO", 3, "AUTH", "default", "x").startswith("WRONGPASS")
    assert wire("HELLO", 3, "AUTH", "default", "sesame")[b"proto"] == 3
    assert wire("PING") == "PONG"


def test_auth_without_a_password_set(wire: Wire) -> None:
    """As in Redis: one word is a mistake worth telling, the user `default` with any password is let in."""
    assert wire.error("AUTH", "x").startswith("ERR AUTH <password> called without any password configured")
    assert wire("AUTH", "default", "x") == "OK"
    assert wire.error("AUTH", "a", "b", "c") == "ERR syntax error"


def test_the_limits_before_login_end_with_it(running: Start) -> None:
    """Before AUTH a command of eleven words is a protocol error; behind it, in the same read, it is none."""
    server = running(requirepass="sesame")
    wire = server.wire()
    wire.send("EXISTS", *"abcdefghij")
    assert str(wire.read()) == "ERR Protocol error: unauthenticated multibulk length"
    assert is_closed(wire)
    replies = server.wire().pipeline(("AUTH", "sesame"), ("EXISTS", *"abcdefghij"))
    assert replies == ["OK", 0]


def test_a_new_password_holds_for_new_connections(running: Start) -> None:
    server = running()
    old = server.wire()
    old("CONFIG", "SET", "requirepass", "sesame")
    assert old("PING") == "PONG"
    assert server.wire().error("PING") == "NOAUTH Authentication required."
    old("RESET")
    assert old.error("PING") == "NOAUTH Authentication required."


# PING, ECHO, SELECT, QUIT, RESET


def test_ping_echo_select(wire: Wire) -> None:
    assert wire.raw("PING") == b"+PONG\r\n"
    assert wire.raw("PING", b"\r\n\0") == b"$3\r\n\r\n\0\r\n"
    assert wire.error("PING", "a", "b") == "ERR wrong number of arguments for 'ping' command"
    assert wire("ECHO", b"\xff") == b"\xff"
    assert wire("SELECT", 0) == "OK"
    assert wire.error("SELECT", 1) == "ERR DB index is out of range"
    assert wire.error("SELECT", -1) == "ERR DB index is out of range"
    assert wire.error("SELECT", "x") == "ERR value is not an integer or out of range"


def test_quit_answers_what_came_before_and_runs_nothing_behind(server: Running, wire: Wire, other: Wire) -> None:
    other.sock.sendall(pack("PING") + pack("QUIT") + pack("MEM.CREATE", "k", "MODE", "SEARCH"))
    assert [other.read(), other.read()] == ["PONG", "OK"]
    assert is_closed(other)
    assert wire("EXISTS", "k") == 0


def test_quit_behind_a_thread_runs_nothing_behind(wire: Wire, other: Wire) -> None:
    """KEYS over many keys is matched in a thread; when its reply is there, the connection looks for more to run."""
    wire.pipeline(*(("MEM.CREATE", f"k{n}", "MODE", "SEARCH") for n in range(1200)))
    other.sock.sendall(pack("KEYS", "k1199") + pack("QUIT") + pack("MEM.CREATE", "late", "MODE", "SEARCH"))
    assert [other.read(), other.read()] == [[b"k1199"], "OK"]
    assert is_closed(other)
    assert wire("EXISTS", "late") == 0


def test_quit_closes_a_connection_that_wants_no_replies(wire: Wire, other: Wire) -> None:
    other.sock.sendall(pack("CLIENT", "REPLY", "OFF") + pack("QUIT") + pack("MEM.CREATE", "k", "MODE", "SEARCH"))
    assert is_closed(other)
    assert wire("EXISTS", "k") == 0


def test_reset_puts_everything_back(wire3: Wire, other: Wire) -> None:
    other("MEM.CREATE", "k", "MODE", "SEARCH")
    wire3("CLIENT", "SETNAME", "me")
    wire3("CLIENT", "NO-EVICT", "on")
    wire3("CLIENT", "NO-TOUCH", "on")
    wire3("SUBSCRIBE", "news")
    wire3("WATCH", "k")
    wire3("MULTI")
    wire3("PING")
    wire3.send("RESET")
    assert wire3.read() == "RESET"
    assert wire3.raw("CLIENT", "GETNAME") == b"$-1\r\n"  # RESP2 again, and no name
    line = fields(wire3("CLIENT", "INFO"))
    assert (line["flags"], line["sub"], line["multi"], line["watch"], line["resp"]) == ("N", "0", "-1", "0", "2")
    assert other("PUBLISH", "news", "x") == 0
    assert wire3.error("EXEC") == "ERR EXEC without MULTI"


def test_reset_makes_replies_come_again(wire: Wire) -> None:
    wire.send("CLIENT", "REPLY", "OFF")
    assert wire("RESET") == "RESET"


# CLIENT: oneself


def test_names(wire: Wire) -> None:
    assert wire("CLIENT", "GETNAME") is None
    assert wire("CLIENT", "SETNAME", "agent-7") == "OK"
    assert wire("CLIENT", "GETNAME") == b"agent-7"
    refused = "ERR Client names cannot contain spaces, newlines or special characters."
    for name in ("a b", "a\n", "a\x7f", "ä"):
        assert wire.error("CLIENT", "SETNAME", name) == refused
    assert wire("CLIENT", "SETNAME", "") == "OK"
    assert wire("CLIENT", "GETNAME") is None


def test_ids_grow(wire: Wire, other: Wire) -> None:
    assert 0 < wire("CLIENT", "ID") < other("CLIENT", "ID")


def test_setinfo(wire: Wire) -> None:
    assert wire("CLIENT", "SETINFO", "LIB-NAME", "recall-py(sync)") == "OK"
    assert wire("CLIENT", "SETINFO", "lib-ver", "1.2") == "OK"
    assert wire.error("CLIENT", "SETINFO", "lib-ver", "1 2").startswith("ERR lib-ver cannot contain spaces")
    assert wire.error("CLIENT", "SETINFO", "lib-age", "1") == "ERR Unrecognized option 'lib-age'"
    line = fields(wire("CLIENT", "INFO"))
    assert (line["lib-name"], line["lib-ver"]) == ("recall-py(sync)", "1.2")


def test_info_is_the_line_of_list(server: Running, clock: Clock, wire: Wire) -> None:
    wire("CLIENT", "SETNAME", "me")
    wire("MULTI")
    wire("PING")
    wire("DISCARD")
    clock.advance(5 * SECOND)
    line = fields(wire("CLIENT", "INFO"))
    assert line["id"] == str(wire("CLIENT", "ID"))
    host, port = wire.sock.getsockname()
    assert line["addr"] == f"{host}:{port}"
    assert line["laddr"] == f"127.0.0.1:{server.port}"
    assert (line["name"], line["user"], line["db"], line["resp"]) == ("me", "default", "0", "2")
    assert (line["age"], line["idle"], line["cmd"], line["multi"]) == ("5", "5", "client|info", "-1")
    listed = client_list(wire, "ID", line["id"])[0]
    assert listed == {**line, "idle": "0", "cmd": "client|list"}


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_reads_the_list(server: Running, protocol: int) -> None:
    with server.client(protocol, decode_responses=True, client_name="py") as client:
        mine = client.client_info()
        assert (mine["name"], mine["resp"], mine["lib-name"]) == ("py", str(protocol), "redis-py")
        assert [line["id"] for line in client.client_list(client_id=[mine["id"]])] == [str(mine["id"])]


def test_list_adds_up_what_is_held(wire: Wire, other: Wire) -> None:
    """Input that is no whole command yet, and what is queued."""
    other.sock.sendall(pack("MULTI") + pack("ECHO", "12345") + pack("ECHO", "678") + b"*2\r\n$4\r\nPI")
    assert [other.read() for _ in range(3)] == ["OK", "QUEUED", "QUEUED"]
    line = client_list(wire)[-1]
    assert (line["multi"], line["multi-mem"], line["flags"]) == ("2", "592", "x")  # 48 bytes a word, and for four more
    assert (line["qbuf"], line["omem"], line["tot-mem"]) == ("10", "0", "602")


def test_list_by_type_and_id(server: Running, wire: Wire, other: Wire) -> None:
    me, they = wire("CLIENT", "ID"), other("CLIENT", "ID")
    other("SUBSCRIBE", "news")
    assert [int(line["id"]) for line in client_list(wire, "TYPE", "pubsub")] == [they]
    assert [line["flags"] for line in client_list(wire, "ID", they)] == ["P"]
    normal = [int(line["id"]) for line in client_list(wire, "TYPE", "normal")]
    assert me in normal
    assert they not in normal
    assert wire("CLIENT", "LIST", "TYPE", "replica") == b""
    assert [int(line["id"]) for line in client_list(wire, "ID", they, 1 << 40, me)] == [they, me]
    assert wire.error("CLIENT", "LIST", "TYPE", "foo") == "ERR Unknown client type 'foo'"
    assert wire.error("CLIENT", "LIST", "ID", "x") == "ERR Invalid client ID"
    assert wire.error("CLIENT", "LIST", "ID") == "ERR syntax error"
    assert wire.error("CLIENT", "LIST", "FOO") == "ERR syntax error"


# CLIENT REPLY: bytes, since a reply that must not come cannot be read


def test_reply_skip_mutes_itself_and_the_next(wire: Wire) -> None:
    wire.sock.sendall(pack("CLIENT", "REPLY", "SKIP") + pack("ECHO", "a") + pack("ECHO", "b") + pack("ECHO", "c"))
    assert [wire.read(), wire.read()] == [b"b", b"c"]


def test_reply_off_lasts_until_on(wire: Wire) -> None:
    off, skip, on = (pack("CLIENT", "REPLY", mode) for mode in ("off", "skip", "on"))
    wire.sock.sendall(off + pack("ECHO", "a") + pack("NONSENSE") + skip + pack("ECHO", "b") + on + pack("ECHO", "c"))
    assert [wire.read(), wire.read()] == ["OK", b"c"]
    assert wire.error("CLIENT", "REPLY", "MAYBE") == "ERR syntax error"


def test_reply_off_does_not_mute_subscriptions(wire: Wire, other: Wire) -> None:
    """As in Redis: confirmations and messages are no replies."""
    wire.send("CLIENT", "REPLY", "OFF")
    wire.send("SUBSCRIBE", "news")
    assert wire.read() == [b"subscribe", b"news", 1]
    other("PUBLISH", "news", "x")
    assert wire.read() == [b"message", b"news", b"x"]


def test_reply_off_mutes_what_threads_answer(server: Running, wire: Wire) -> None:
    """KEYS over many keys is matched in a thread; muted, it still runs before what follows."""
    wire.pipeline(*(("MEM.CREATE", f"k{n}", "MODE", "SEARCH") for n in range(1200)))
    wire.sock.sendall(pack("CLIENT", "REPLY", "SKIP") + pack("KEYS", "k1*") + pack("KEYS", "k11?") + pack("ECHO", "a"))
    assert sorted(wire.read()) == [b"k11%d" % n for n in range(10)]
    assert wire.read() == b"a"


# CLIENT KILL


def test_kill_by_address(wire: Wire, other: Wire) -> None:
    address = "{}:{}".format(*other.sock.getsockname())
    assert wire("CLIENT", "KILL", address) == "OK"
    assert is_closed(other)
    assert wire.error("CLIENT", "KILL", address) == "ERR No such client"


def test_kill_oneself_answers_first(wire: Wire, other: Wire) -> None:
    wire.sock.sendall(pack("CLIENT", "KILL", "{}:{}".format(*wire.sock.getsockname())) + pack("ECHO", "not run"))
    assert wire.read() == "OK"
    assert is_closed(wire)
    assert other("CLIENT", "KILL", "ID", other("CLIENT", "ID"), "SKIPME", "no") == 1
    assert is_closed(other)


def test_kill_filters_are_anded(server: Running, clock: Clock, wire: Wire, other: Wire) -> None:
    they = other("CLIENT", "ID")
    address = "{}:{}".format(*other.sock.getsockname())
    assert wire("CLIENT", "KILL", "ID", wire("CLIENT", "ID")) == 0  # oneself is spared
    assert wire("CLIENT", "KILL", "ID", they, "TYPE", "pubsub") == 0
    assert wire("CLIENT", "KILL", "ID", they, "ADDR", "127.0.0.1:1") == 0
    assert wire("CLIENT", "KILL", "ID", they, "MAXAGE", 60) == 0
    assert wire("CLIENT", "KILL", "ID", they, "LADDR", address) == 0
    clock.advance(60 * SECOND)
    words = ["ID", they, "ADDR", address, "LADDR", f"127.0.0.1:{server.port}", "TYPE", "normal", "USER", "default"]
    assert wire("CLIENT", "KILL", *words, "MAXAGE", 60) == 1
    assert is_closed(other)


def test_kill_subscribers(wire: Wire, other: Wire) -> None:
    other("SUBSCRIBE", "news")
    assert wire("CLIENT", "KILL", "TYPE", "PUBSUB") == 1
    assert is_closed(other)
    assert wire("PUBLISH", "news", "x") == 0


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["ID", "abc"], "ERR client-id should be greater than 0"),
        (["ID", "0"], "ERR client-id should be greater than 0"),
        (["TYPE", "foo"], "ERR Unknown client type 'foo'"),
        (["USER", "nobody"], "ERR No such user 'nobody'"),
        (["SKIPME", "maybe"], "ERR syntax error"),
        (["MAXAGE", "x"], "ERR maxage is not an integer or out of range"),
        (["MAXAGE", "0"], "ERR maxage should be greater than 0"),
        (["ADDR", "1:1", "LADDR"], "ERR syntax error"),
        (["FOO", "bar"], "ERR syntax error"),
    ],
)
def test_kill_refuses(wire: Wire, words: list[str], error: str) -> None:
    assert wire.error("CLIENT", "KILL", *words) == error


# CLIENT PAUSE


def test_pause_write_holds_writes_back_until_it_is_over(clock: Clock, wire: Wire, other: Wire) -> None:
    assert wire("CLIENT", "PAUSE", HOUR, "WRITE") == "OK"
    other.send("MEM.CREATE", "k", "MODE", "SEARCH")
    other.send("EXISTS", "k")
    assert wire("EXISTS", "k") == 0  # reads go on
    assert client_list(wire, "ID", wire("CLIENT", "ID"))[0]["flags"] == "N"
    clock.advance(HOUR)
    assert [other.read(), other.read()] == ["OK", 1]


def test_pause_holds_what_was_sent_not_what_was_queued(wire: Wire, other: Wire) -> None:
    """Under WRITE a transaction is held at its EXEC, and only if it writes; PUBLISH is held too, as in Redis."""
    wire("CLIENT", "PAUSE", HOUR, "WRITE")
    assert other.pipeline(("MULTI",), ("PING",), ("EXEC",)) == ["OK", "QUEUED", ["PONG"]]
    other.sock.sendall(pack("MULTI") + pack("DEL", "k") + pack("EXEC") + pack("PUBLISH", "news", "x"))
    assert [other.read(), other.read()] == ["OK", "QUEUED"]
    assert fields(wire("CLIENT", "LIST").splitlines()[-1])["flags"] == "xb"
    assert wire("CLIENT", "UNPAUSE") == "OK"
    assert [other.read(), other.read()] == [[0], 0]


def test_pause_all_holds_everything_but_its_own_end(clock: Clock, wire: Wire, other: Wire) -> None:
    wire("CLIENT", "PAUSE", HOUR)
    other.send("PING")
    assert wire("CLIENT", "PAUSE", 1, "WRITE") == "OK"  # neither shortens nor weakens it
    clock.advance(HOUR - 1)
    assert wire("CLIENT", "PAUSE", 0) == "OK"
    assert select.select([other.sock], [], [], 0)[0] == []
    assert wire("CLIENT", "UNPAUSE") == "OK"
    assert other.read() == "PONG"


def test_pause_refuses(wire: Wire) -> None:
    assert wire.error("CLIENT", "PAUSE", "x") == "ERR timeout is not an integer or out of range"
    assert wire.error("CLIENT", "PAUSE", -1) == "ERR timeout is negative"
    assert wire.error("CLIENT", "PAUSE", 1, "SOME") == "ERR CLIENT PAUSE mode must be WRITE or ALL"


def test_no_evict_and_no_touch(wire: Wire) -> None:
    assert wire("CLIENT", "NO-EVICT", "on") == "OK"
    assert wire("CLIENT", "NO-TOUCH", "ON") == "OK"
    assert fields(wire("CLIENT", "INFO"))["flags"] == "eT"
    assert wire("CLIENT", "NO-EVICT", "off") == "OK"
    assert fields(wire("CLIENT", "INFO"))["flags"] == "T"
    assert wire.error("CLIENT", "NO-TOUCH", "maybe") == "ERR syntax error"


# The connection as such


def test_more_clients_than_maxclients(running: Start) -> None:
    server = running(maxclients="1")
    first = server.wire()
    assert first("PING") == "PONG"
    second = server.wire()
    assert str(second.read()) == "ERR max number of clients reached"
    assert is_closed(second)
    assert b"rejected_connections:1\r\n" in first("INFO", "stats")


def test_idle_clients_are_closed(running: Start) -> None:
    """`timeout` counts from the last command, and spares subscribers."""
    clock = Clock()
    server = running(clock=clock, timeout="10")
    idle, subscriber = server.wire(), server.wire()
    idle("PING")
    subscriber("SUBSCRIBE", "news")
    clock.advance(11 * SECOND)
    assert is_closed(idle)
    publisher = server.wire()
    assert publisher("PUBLISH", "news", "x") == 1


def test_half_closed_client_gets_all_its_replies(server: Running, wire: Wire) -> None:
    """`printf .. | nc`: the end of input is not the end of the replies, not even of those behind a thread."""
    wire.pipeline(*(("MEM.CREATE", f"k{n}", "MODE", "SEARCH") for n in range(1200)))
    with server.raw() as sock:
        sock.sendall(b"KEYS k1199\r\nPING\r\n" * 300 + b"ECHO end\r\n")
        sock.shutdown(socket.SHUT_WR)
        said = b"".join(iter(lambda: sock.recv(65536), b""))
    assert said == b"*1\r\n$5\r\nk1199\r\n+PONG\r\n" * 300 + b"$3\r\nend\r\n"


def test_protocol_error_answers_and_closes(wire: Wire, other: Wire) -> None:
    other.sock.sendall(pack("ECHO", "a") + b"*1\r\n!\r\n" + pack("ECHO", "b"))
    assert other.read() == b"a"
    assert str(other.read()) == "ERR Protocol error: expected '$', got '!'"
    assert is_closed(other)
    assert wire("PING") == "PONG"


def test_unknown_commands_get_redis_words(wire: Wire) -> None:
    said = wire.error("get", "a b", "c")
    assert said == "ERR unknown command 'get', with args beginning with: 'a b' 'c' "
    assert wire.error("CLIENT", "DANCE") == "ERR unknown subcommand 'DANCE'. Try CLIENT HELP."
    assert wire.error("CLIENT") == "ERR wrong number of arguments for 'client' command"
    assert wire.error("CLIENT", "ID", "x") == "ERR wrong number of arguments for 'client|id' command"


def test_time_is_the_clock(clock: Clock, wire: Wire) -> None:
    clock.advance(123)
    assert wire("TIME") == [b"%d" % (JUNE // 1000), b"123000"]


@pytest.mark.parametrize(
    "start", [b"POST / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: here\r\n", b"*1\r\n$5\r\nhost:\r\n"]
)
def test_http_closes_the_connection(wire: Wire, start: bytes) -> None:
    """A web page must not have commands run by a browser that posts them to this port."""
    wire("MEM.CREATE", "k", "MODE", "SEARCH")
    with closing(socket.create_connection(wire.sock.getpeername())) as browser:
        browser.settimeout(10)
        browser.sendall(start + b"\r\nFLUSHALL\r\n")
        while browser.recv(4096):
            pass
    assert wire("EXISTS", "k") == 1


def test_a_reply_beyond_the_normal_limit_ends_the_connection(running: Callable[..., Running]) -> None:
    """client-output-buffer-limit normal: one that is left unread beyond it."""
    server = running(client_output_buffer_limit="normal 1mb 0 0")
    wire = server.wire()
    wire.send("ECHO", b"x" * 20_000_000)
    assert is_closed(wire)
    assert server.wire()("PING") == "PONG"


def test_many_large_replies_to_a_reader_arrive(running: Callable[..., Running]) -> None:
    """Replies of queries that ran in a thread leave as the client reads: together they may exceed the output limit."""
    server = running(client_output_buffer_limit="normal 4mb 0 0")
    wire = server.wire()
    wire("MEM.CREATE", "m", "MODE", "SEARCH")
    wire.pipeline(*[("MEM.ADD", "m", "ID", n, "TEXT", f"hello {n} " + "x" * 4000) for n in range(300)])
    filters = [word for n in range(4) for word in ("FILTER", f"f{n}", "NE", "1")]
    query = pack("MEM.SEARCH", "m", "hello", "TOPK", 300, *filters)
    wire.sock.sendall(query * 40)
    replies = [wire.read() for _ in range(40)]
    assert all(len(hits) == 300 for hits in replies)
    assert wire("PING") == "PONG"
