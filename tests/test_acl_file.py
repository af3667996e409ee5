"""aclfile, ACL LOAD and ACL SAVE, and users in the config file."""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from harness import Clock, Process, Running, Wire
from recalld.server.config import Config, ConfigError

Start = Callable[..., Running]
PASS = sha256(b"p").hexdigest()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An ACL file with two users."""
    path = tmp_path / "users.acl"
    path.write_text(f"user default on nopass ~* &* +@all\n\n  user bob on  #{PASS} ~b:* +@all (~c +ttl)\n")
    return path


def lines(wire: Wire, errors: str = "strict") -> list[str]:
    return [line.decode("utf-8", errors) for line in wire("ACL", "LIST")]


BOB = f"user bob on #{PASS} ~b:* resetchannels +@all (~c resetchannels -@all +ttl)"
DEFAULT = "user default on nopass ~* &* +@all"


def test_users_are_there_at_start(running: Start, path: Path) -> None:
    server = running(clock=Clock(), aclfile=str(path))
    assert lines(server.wire()) == [BOB, DEFAULT]
    bob = server.wire()
    assert bob("AUTH", "bob", "p") == "OK"
    assert bob.error("EXISTS", "x").startswith("NOPERM")
    assert bob("EXISTS", "b:1") == 0


def test_save_and_load(running: Start, path: Path) -> None:
    server = running(clock=Clock(), aclfile=str(path))
    wire = server.wire()
    wire("ACL", "SETUSER", "eve", "on", ">secret", "allkeys", "+@read", "-type")
    assert wire("ACL", "SAVE") == "OK"
    saved = lines(wire)
    assert path.read_text() == "".join(line + "\n" for line in saved)
    assert "secret" not in path.read_text()
    wire("ACL", "DELUSER", "eve")
    wire("ACL", "SETUSER", "new", "on")
    assert wire("ACL", "LOAD") == "OK"
    assert lines(wire) == saved
    server.restart()
    assert lines(server.wire()) == saved


def test_save_replaces_the_file_at_once(running: Start, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rights of the old file stay, a link stays one, and a rename that fails leaves nothing behind."""
    link = path.with_name("link.acl")
    link.symlink_to(path)
    path.chmod(0o640)
    server = running(clock=Clock(), aclfile=str(link))
    wire = server.wire()
    wire("ACL", "SETUSER", "eve")
    before, number = path.read_bytes(), path.stat().st_ino

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", fail)
    assert wire.error("ACL", "SAVE").startswith("ERR There was an error trying to save the ACLs.")
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert sorted(each.name for each in path.parent.iterdir()) == ["link.acl", "users.acl"]
    assert wire("ACL", "SAVE") == "OK"
    assert link.is_symlink()
    assert path.stat().st_ino != number
    assert path.stat().st_mode & 0o777 == 0o640
    assert b"user eve off" in path.read_bytes()
    path.unlink()
    assert wire("ACL", "SAVE") == "OK"
    assert path.stat().st_mode & 0o777 == 0o600


def test_load_is_all_or_nothing(running: Start, path: Path) -> None:
    server = running(clock=Clock(), aclfile=str(path))
    wire = server.wire()
    before = lines(wire)
    path.write_text(
        "user good on +@all\n"
        "user bad +nonsense -@nothing\n"
        "# a comment\n"
        "user\n"
        "user good off\n"
        "user worse >SECRET #SECRET\n"
        "user open (+ping\n"
        "user tab\tbed on\n"
    )
    error = wire.error("ACL", "LOAD")
    for number, reason in (
        (2, "Error in applying operation '+nonsense': Unknown command or category name in ACL"),
        (3, "should start with user keyword followed by the username"),
        (4, "should start with user keyword followed by the username"),
        (5, "duplicate user 'good'"),
        (6, "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters"),
        (7, "Unmatched parenthesis in acl selector"),
        (8, "the username contains invalid characters"),
    ):
        assert f"{path}:{number}: {reason}." in error
    assert f"{path}:1:" not in error
    assert "SECRET" not in error
    assert error.endswith("WARNING: ACL errors detected, no change to the previously active ACL rules was performed")
    assert lines(wire) == before
    path.write_text("user\n" * 15)
    error = wire.error("ACL", "LOAD")
    assert f"{path}:10: " in error and f"{path}:11:" not in error and " And 5 more. WARNING: ACL errors" in error
    path.unlink()
    assert wire.error("ACL", "LOAD") == f"ERR Error loading ACLs, opening file '{path}': No such file or directory"
    assert lines(wire) == before


def test_load_cuts_who_is_gone(running: Start, path: Path) -> None:
    server = running(clock=Clock(), aclfile=str(path))
    wire, bob, eve, listener = (server.wire() for _ in range(4))
    wire("ACL", "SETUSER", "eve", "on", ">p", "+@all")
    wire("ACL", "SETUSER", "bob", "&c")
    bob("AUTH", "bob", "p")
    eve("AUTH", "eve", "p")
    listener("AUTH", "bob", "p")
    listener("SUBSCRIBE", "c")
    assert wire("ACL", "LOAD") == "OK"
    assert bob("PING") == "PONG"
    for gone in (eve, listener):
        with pytest.raises((EOFError, ConnectionError)):
            gone("PING")


def test_a_file_without_the_default_user(running: Start, path: Path) -> None:
    """It is as requirepass has it: a password that was set stays one."""
    path.write_text("user bob on >p +@all\n")
    server = running(clock=Clock(), aclfile=str(path), requirepass="secret")
    wire = server.wire()
    assert wire.error("PING") == "NOAUTH Authentication required."
    assert wire("AUTH", "secret") == "OK"
    wire("ACL", "SETUSER", "default", "-echo", ">other")
    assert wire("ACL", "LOAD") == "OK"
    assert lines(wire)[1] == f"user default on #{sha256(b'secret').hexdigest()} ~* &* +@all"


def test_the_file_decides_on_the_default_user(running: Start, path: Path) -> None:
    path.write_text("user default on >filed ~* &* +@all\n")
    server = running(clock=Clock(), aclfile=str(path), requirepass="secret")
    wire = server.wire()
    assert wire.error("AUTH", "secret").startswith("WRONGPASS")
    assert wire("AUTH", "filed") == "OK"


def test_without_a_file(running: Start) -> None:
    wire = running(clock=Clock()).wire()
    for sub in ("LOAD", "SAVE"):
        assert wire.error("ACL", sub).startswith("ERR This Redis instance is not configured to use an ACL file.")


def test_a_bad_file_keeps_the_server_from_starting(running: Start, path: Path) -> None:
    path.write_text("user bob on\nuser eve +nonsense\n")
    with pytest.raises(ConfigError, match=f"{path}:2: Error in applying operation '\\+nonsense'"):
        running(aclfile=str(path))
    with pytest.raises(ConfigError, match="No such file or directory"):
        running(aclfile=str(path) + ".missing")


def test_the_process_says_why_it_does_not_start(path: Path, tmp_path: Path) -> None:
    path.write_text("user eve >SECRET +nonsense\n")
    with pytest.raises(RuntimeError) as caught:
        Process(tmp_path / "data", "--aclfile", str(path), "--appendonly", "no")
    assert f"Aborting startup because of ACL errors: {path}:1:" in str(caught.value)
    assert "SECRET" not in str(caught.value)


# The config file


def configured(tmp_path: Path, text: str) -> Config:
    conf = tmp_path / "recalld.conf"
    conf.write_text("timeout 0\n" + text)
    return Config.load(str(conf), [("bind", ["127.0.0.1"]), ("port", ["0"]), ("appendonly", ["no"])])


def test_user_lines_of_the_config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, running: Start) -> None:
    config = configured(tmp_path, 'user bob on ">p w" ~b +@all (~c +ttl)\nUSER default on >d +@all\n')
    monkeypatch.setattr(Config, "load", lambda *_: config)
    server = running(clock=Clock())
    wire = server.wire()
    assert wire.error("PING") == "NOAUTH Authentication required."
    assert wire("AUTH", "bob", "p w") == "OK"
    assert wire("ACL", "GETUSER", "bob")[7] == b"~b"
    assert wire("ACL", "USERS") == [b"bob", b"default"]


def test_config_rewrite_keeps_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, running: Start) -> None:
    """What it writes makes the same users again, whatever bytes are in their rules."""
    config = configured(tmp_path, "# people\nuser bob on >p\nuser gone on\nuser eve on +ping ~x\n")
    monkeypatch.setattr(Config, "load", lambda *_: config)
    server = running(clock=Clock())
    wire = server.wire()
    wire("ACL", "DELUSER", "gone")
    wire("ACL", "SETUSER", "bob", "+echo")
    wire("ACL", "SETUSER", "new", b"~\"a'\\\xff#", "(+ping ~a)")
    wire("CONFIG", "REWRITE")
    users = lines(wire, "replace")
    assert [user.split()[1] for user in users] == ["bob", "default", "eve", "new"]
    monkeypatch.undo()
    again = Config.load(str(tmp_path / "recalld.conf"))
    monkeypatch.setattr(Config, "load", lambda *_: again)
    server.restart()
    assert lines(server.wire(), "replace") == users


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("user bob on\nuser eve nonsense SECRET\n", r"recalld\.conf:3: Syntax error"),
        ("user bob +nonsense\n", r"recalld\.conf:2: Error in applying operation '\+nonsense'"),
        ("user bob on\nuser bob on\n", r"recalld\.conf:3: duplicate user 'bob'"),
        ("user\n", r"recalld\.conf:2: should start with user keyword followed by the username"),
        ("user bob on\naclfile /none\n", "either in aclfile or in lines of the config file, not in both"),
    ],
)
def test_bad_user_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, running: Start, text: str, why: str
) -> None:
    config = configured(tmp_path, text)
    monkeypatch.setattr(Config, "load", lambda *_: config)
    with pytest.raises(ConfigError, match=why) as caught:
        running()
    assert "SECRET" not in str(caught.value)
