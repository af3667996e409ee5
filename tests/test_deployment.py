"""What runs the server for others: signals and systemd, health checks, container and unit files, backup and restore."""

from __future__ import annotations

import configparser
import grp
import importlib.util
import json
import os
import pwd
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from certificates import Authority
from harness import PATIENCE_S, Process, Running, free_port
from manager import Manager, Service
from packaging.requirements import Requirement
from recalld.server import cli, embedder, sd_notify

ROOT = Path(__file__).resolve().parents[1]
CONF = ROOT / "conf"
Start = Callable[..., Running]
CLI = shutil.which("redis-cli") or ""


# --check-config and ping


def test_check_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Good, bad and missing files, and overrides as the server takes them. The shipped files are good."""
    good, bad = tmp_path / "good.conf", tmp_path / "bad.conf"
    good.write_text("port 7000\n")
    bad.write_text("timeout 5\nprot 7000\n")
    for path in (good, CONF / "recalld.conf", CONF / "docker" / "recalld.conf"):
        assert cli.main(["--check-config", str(path)]) == 0
        assert capsys.readouterr().out == f"{path}: good\n"
    assert cli.main(["--check-config", str(bad)]) == 1
    assert f"at line 2 of {bad}\n>>> 'prot 7000'" in capsys.readouterr().err
    assert cli.main(["--check-config", str(good), "--timeout", "x"]) == 1
    assert "--timeout x" in capsys.readouterr().err
    users = tmp_path / "users.acl"
    users.write_text("user ann on nopass ~ann:* +@read\n")
    assert cli.main(["--check-config", str(good), "--aclfile", str(users)]) == 0
    users.write_text("user ann on nopass +nonsense\n")
    assert cli.main(["--check-config", str(good), "--aclfile", str(users)]) == 1
    assert f"{users}:1: " in capsys.readouterr().err
    for words in ([], ["--port", "1"], [str(tmp_path / "none.conf")]):
        assert cli.main(["--check-config", *words]) == 1
        assert capsys.readouterr().err


def test_check_config_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It may run beside the server of the same file: no port is opened, no file is made."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        conf = tmp_path / "recalld.conf"
        folder = tmp_path / "data"
        conf.write_text(f"port {taken.getsockname()[1]}\ndir {folder}\nlogfile {tmp_path}/log\n")
        assert cli.main(["--check-config", str(conf)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["recalld.conf"]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("port 7001\nmetrics-port 7001\n", "metrics-port and port are both 7001"),
        ("console-port 7171\n", "console-port and port are both 7171"),
        ("bind 10.0.0.1\nconsole-port 7171\nconsole-bind 0.0.0.0\n", "console-port and port are both 7171"),
        ("bind * -::*\nmetrics-port 7171\n", "metrics-port and port are both 7171"),
        ("bind 10.0.0.1\nmetrics-port 7171\n", ""),
        ("bind 0.0.0.0\nmetrics-port 7171\nmetrics-bind ::1\n", ""),
        ("port 0\nmetrics-port 0\nconsole-port 0\n", ""),
    ],
)
def test_check_config_finds_a_port_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: str, said: str
) -> None:
    """A server with these would not start; the same port of different addresses is none."""
    conf = tmp_path / "recalld.conf"
    conf.write_text(f"appendonly no\n{lines}")
    assert cli.main(["--check-config", str(conf)]) == bool(said)
    assert capsys.readouterr().err.startswith(said)


def test_check_config_asks_for_packages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each setting that needs an extra; without the setting nobody misses it. All that is wrong is said at once."""
    conf = tmp_path / "recalld.conf"
    conf.write_text("metrics-port 9171\nconsole-port 9172\nmem-default-embedder local\n")
    assert cli.main(["--check-config", str(conf)]) == 0
    capsys.readouterr()
    for module in [name for name in sys.modules if name.startswith("recalld.server.console")]:
        monkeypatch.delitem(sys.modules, module)
    for name in ("prometheus_client", "starlette.applications"):
        monkeypatch.setitem(sys.modules, name, None)
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(embedder, "find_spec", lambda name: None if name == "onnxruntime" else find_spec(name))
    embedder.need.cache_clear()
    try:
        assert cli.main(["--check-config", str(conf)]) == 1
        assert re.findall(r"pip install 'recalld\[(\w+)]'", capsys.readouterr().err) == ["metrics", "console", "local"]
        conf.write_text("port 7171\n")
        assert cli.main(["--check-config", str(conf)]) == 0
    finally:
        embedder.need.cache_clear()


def test_check_config_asks_for_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That folders are folders, and that there is one where a log file is to be made."""
    conf, file = tmp_path / "recalld.conf", tmp_path / "file"
    conf.write_text("port 7171\n")
    file.touch()
    for words, reason in (
        (["--dir", str(file)], f"dir: '{file}' is no folder"),
        (["--dir", str(file / "below")], f"dir: '{file}' is no folder"),
        (["--logfile", str(tmp_path)], f"logfile: '{tmp_path}' is a folder"),
        (["--logfile", str(tmp_path / "none" / "log")], f"logfile: there is no folder '{tmp_path}/none'"),
        (["--mem-audit-file", str(tmp_path / "none" / "x")], f"mem-audit-file: there is no folder '{tmp_path}/none'"),
        (["--aclfile", str(tmp_path / "none")], f"opening file '{tmp_path}/none': No such file or directory"),
    ):
        assert cli.main(["--check-config", str(conf), *words]) == 1
        assert reason in capsys.readouterr().err
    for words in (
        ["--dir", str(file), "--appendonly", "no"],
        ["--dir", str(tmp_path / "a" / "b"), "--logfile", str(file)],
    ):
        assert cli.main(["--check-config", str(conf), *words]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "recalld.conf"]


def test_check_config_looks_as_its_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is not to be written to is said; root, whom nothing stops, asks as nobody."""
    conf, data, logs = tmp_path / "recalld.conf", tmp_path / "data", tmp_path / "logs"
    conf.write_text(f"dir {data}\n")
    logfile, part = logs / "recalld.log", data / "appendonlydir" / "appendonly.aof.1.incr.aof"
    part.parent.mkdir(parents=True)
    logs.mkdir()
    for path in (logfile, part):
        path.touch(0o400)
    nobody, uid = 65_534, os.geteuid()
    if uid == 0:
        for folder in (data, part.parent):
            os.chown(folder, nobody, nobody)
        for folder in (tmp_path, *tmp_path.parents):  # pytest's own folders are for their owner alone
            folder.chmod(folder.stat().st_mode | 0o011)
        os.seteuid(nobody)
    try:
        assert cli.main(["--check-config", str(conf)]) == 1
        assert capsys.readouterr().err == f"dir: '{part}' may not be read and written by this user\n"
        assert cli.main(["--check-config", str(conf), "--appendonly", "no", "--logfile", str(logfile)]) == 1
        assert capsys.readouterr().err == f"logfile: '{logfile}' may not be written by this user\n"
        part.parent.chmod(0o500)
        assert cli.main(["--check-config", str(conf)]) == 1
        assert "may not be read and written by this user" in capsys.readouterr().err
    finally:
        os.seteuid(uid)
        part.parent.chmod(0o700)


def test_ping(running: Start, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """0 where a server answers, also one that only wants a password; 1 where none does, in time."""
    url = f"redis://127.0.0.1:{running().port}"
    assert cli.main(["ping", "--url", url]) == 0
    monkeypatch.setenv("RECALLD_URL", url)
    assert cli.main(["ping"]) == 0
    locked = running(requirepass="sesame").port
    assert cli.main(["ping", "--url", f"redis://127.0.0.1:{locked}"]) == 0
    assert cli.main(["ping", "--url", f"redis://:sesame@127.0.0.1:{locked}"]) == 0
    assert capsys.readouterr().out == "PONG\n" * 4
    assert cli.main(["ping", "--url", f"redis://:wrong@127.0.0.1:{locked}"]) == 1
    assert "WRONGPASS" in capsys.readouterr().err
    full = running(maxclients="1")
    wire = full.wire()
    assert wire("PING") == "PONG"
    assert cli.main(["ping", "--url", f"redis://127.0.0.1:{full.port}"]) == 1
    assert "max number of clients" in capsys.readouterr().err
    assert cli.main(["ping", "--url", f"redis://127.0.0.1:{free_port()}"]) == 1
    assert "cannot reach" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        assert cli.main(["ping", "--url", url, "--timeout", "0.1"]) == 1
        assert capsys.readouterr().err == "no answer: timed out\n"


# systemd


def test_what_systemd_is_told(tmp_path: Path) -> None:
    """READY once it listens, RELOADING and READY around a reload, WATCHDOG again and again, STOPPING at the end."""
    with Service(tmp_path, environ={"WATCHDOG_USEC": "50000"}) as service:
        assert service.manager.seen[0] == {"STATUS": "Loading the log"}
        assert service.manager.seen[-1]["READY"] == "1"
        assert service.wire()("PING") == "PONG"  # ready means ready
        for _ in range(3):
            assert service.manager.wait_for("WATCHDOG") == {"WATCHDOG": "1"}
        service.send(signal.SIGHUP)
        reloading = service.manager.wait_for("RELOADING")
        assert reloading["RELOADING"] == "1" and int(reloading["MONOTONIC_USEC"]) > 0
        service.manager.wait_for("READY")
        service.manager.wait_for("WATCHDOG")
        service.send(signal.SIGTERM)
        assert service.manager.wait_for("STOPPING")["STOPPING"] == "1"
        assert service.end() == 0


def test_a_watchdog_that_is_not_ours(tmp_path: Path) -> None:
    """WATCHDOG_PID names another process, or there is no watchdog: nothing is said of one."""
    for environ in ({"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}, {}):
        with Service(tmp_path, environ=environ) as service:
            service.send(signal.SIGTERM)
            service.manager.wait_for("STOPPING")
            assert service.end() == 0
            assert not any("WATCHDOG" in message for message in service.manager.seen)
        service.manager.path.unlink()


def test_an_abstract_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("")  # any abstract name
        receiver.settimeout(PATIENCE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + receiver.getsockname()[1:].decode())
        notifier = sd_notify.Notifier()
        assert "NOTIFY_SOCKET" not in os.environ  # no child may speak for the service
        notifier.ready("here")
        assert receiver.recv(100) == b"READY=1\nSTATUS=here"


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither without systemd, nor when its socket is gone."""
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    sd_notify.Notifier().stopping()
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    sd_notify.Notifier().stopping()


# SIGHUP


def test_sighup_opens_the_log_files_again(tmp_path: Path) -> None:
    """As logrotate does it: rename, SIGHUP; from then on the new files, and in the old ones all that was before."""
    logfile, audit = tmp_path / "recalld.log", tmp_path / "audit.jsonl"
    # At this level the reload itself writes no line, with which the server would notice a new file by itself.
    words = ("--logfile", str(logfile), "--loglevel", "warning", "--mem-audit", "all", "--mem-audit-file", str(audit))
    with Service(tmp_path, *words) as service:
        wire = service.wire()
        wire("MEM.CREATE", "k", "MODE", "SEARCH")
        wire("MEM.ADD", "k", "ID", "a", "TEXT", "tea")
        wire("MEM.GET", "k", "a")
        for path in (logfile, audit):
            path.rename(f"{path}.1")
        service.send(signal.SIGHUP)
        service.manager.wait_for("RELOADING")
        service.manager.wait_for("READY")
        assert logfile.exists() and audit.exists()
        wire("MEM.GET", "k", "b")
        service.send(signal.SIGTERM)
        assert service.end() == 0
    assert "Received SIGTERM" in logfile.read_text()
    assert "Ready to accept connections" in Path(f"{logfile}.1").read_text()
    # The line of the first read may have been on its way to the file; none is lost, none stands twice.
    new, old = (path.read_text().splitlines() for path in (audit, Path(f"{audit}.1")))
    assert [json.loads(line)["query"] for line in old + new] == ["a", "b"]
    assert json.loads(new[-1])["query"] == "b"


def test_a_log_file_that_cannot_be_opened_goes_on(tmp_path: Path) -> None:
    """Its folder is gone, its name is taken by a folder: the old file is written to."""
    audit = tmp_path / "audit.jsonl"
    with Service(tmp_path, "--mem-audit", "all", "--mem-audit-file", str(audit)) as service:
        wire = service.wire()
        wire("MEM.CREATE", "k", "MODE", "SEARCH")
        audit.rename(tmp_path / "old")
        audit.mkdir()
        service.send(signal.SIGHUP)
        service.manager.wait_for("RELOADING")
        service.manager.wait_for("READY")
        wire("MEM.GET", "k", "a")
        service.send(signal.SIGTERM)
        assert service.end() == 0
        assert f"Can't reopen '{audit}', the old file goes on: Is a directory" in service.output
    assert json.loads((tmp_path / "old").read_text())["query"] == "a"


def test_sighup_reads_the_tls_files_again(tmp_path: Path) -> None:
    """A good pair is taken, a bad one logged, and the last good one stays."""
    ca = Authority(tmp_path)
    mine = ca.issue("server")
    port = free_port()
    words = ("--tls-port", str(port), "--tls-cert-file", str(mine.cert), "--tls-key-file", str(mine.key))

    def shown() -> int:
        context = ssl.create_default_context(cafile=ca.path)
        raw = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        with context.wrap_socket(raw, server_hostname="localhost") as sock:
            certificate = sock.getpeercert()
        assert certificate is not None
        return int(str(certificate["serialNumber"]), 16)

    with Service(tmp_path, *words, "--tls-auth-clients", "no") as service:
        assert shown() == mine.serial

        def reload() -> None:
            service.send(signal.SIGHUP)
            service.manager.wait_for("RELOADING")
            service.manager.wait_for("READY")

        new = ca.issue("server")
        reload()
        assert shown() == new.serial
        ca.issue("server")
        new.key.write_text("no key")
        reload()
        assert shown() == new.serial
        service.send(signal.SIGTERM)
        assert service.end() == 0
        assert "TLS files reloaded" in service.output
        assert "TLS files not reloaded, the ones in use stay: tls-cert-file" in service.output


# Open files


def test_more_clients_than_files(tmp_path: Path) -> None:
    """Whatever the limit is at start: it is raised where it may be, else there are fewer clients, and each further one
    is told so; what the log needs is always left."""

    def started(soft: int, hard: int) -> Process:
        limit = ["sh", "-c", f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$0" "$@"']
        return Process(tmp_path, "--maxclients", "150", prefix=limit)

    with started(130, 1_000) as server:
        assert server.wire()("CONFIG", "GET", "maxclients")[1] == b"150"
        assert server.wire()("CONFIG", "SET", "maxclients", "200") == "OK"
        assert "try with 904" in server.wire().error("CONFIG", "SET", "maxclients", "2000")
        assert server.wire()("CONFIG", "GET", "maxclients")[1] == b"200"
    with started(130, 130) as server:
        assert any("maxclients 150 takes 246 open files" in line for line in server.log)
        wire = server.wire()
        assert wire("CONFIG", "GET", "maxclients")[1] == b"34"
        wire("MEM.CREATE", "k", "MODE", "SEARCH")
        wires = [server.wire() for _ in range(33)]
        for _ in range(50):
            with server.raw() as sock:
                assert sock.recv(100) == b"-ERR max number of clients reached\r\n"
        assert [each("PING") for each in wires] == ["PONG"] * 33
        assert wire("SAVE") == "OK"  # there are files left to write
    with pytest.raises(RuntimeError, match="raise `ulimit -n`"):
        started(90, 90)


# Containers


def instructions() -> list[list[tuple[str, str]]]:
    """The Dockerfile's stages: (instruction, rest), lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (CONF / "docker" / "Dockerfile").read_text(), flags=re.MULTILINE)
    stages: list[list[tuple[str, str]]] = [[]]
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if line.strip():
            word, _, rest = line.partition(" ")
            if word == "FROM":
                stages.append([])
            stages[-1].append((word, rest))
    return stages


def test_the_image_is_pinned() -> None:
    """No `latest`, no open version: base image by minor version and distribution, packages to the last digit."""
    args, build, final = instructions()
    assert re.fullmatch(r"PYTHON=3\.\d+-slim-[a-z]+", dict(args)["ARG"])
    assert [dict(stage)["FROM"].split()[0] for stage in (build, final)] == ["python:${PYTHON}"] * 2
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert Requirement(f"python{project['requires-python']}").specifier.contains(dict(args)["ARG"][7:].split("-")[0])
    lines = (CONF / "docker" / "constraints.txt").read_text().splitlines()
    pins = {(pin := Requirement(line)).name.lower(): pin for line in lines if not line.startswith("#")}
    wanted = [*project["dependencies"], *project["optional-dependencies"]["metrics"]]
    needs = {(need := Requirement(line)).name.lower(): need for line in wanted}
    assert pins.keys() == needs.keys()
    for name, pin in pins.items():
        [version] = pin.specifier
        assert version.operator == "==" and "*" not in version.version, name
        assert needs[name].specifier.contains(version.version), name


def test_the_image_holds_what_runs_and_no_more() -> None:
    _, build, final = instructions()
    [install] = [rest for word, rest in build if word == "RUN" and "--constraint" in rest]
    assert "--only-binary=:all:" in install and "/build/constraints.txt" in install
    commands = [rest for word, rest in final if word == "RUN"]
    assert not any(re.search(r"\b(apt|apt-get|pip|gcc|curl|wget)\b", command) for command in commands)
    copied = [rest.split() for word, rest in final if word == "COPY"]
    assert ["--from=build", "/opt/recalld", "/opt/recalld"] in copied
    words = [word for word, _ in final]
    values = dict(final)
    # Not root, and nothing behind USER needs to be.
    assert values["USER"] == "7171" and "RUN" not in words[words.index("USER") :]
    assert any("useradd" in command and "--uid 7171 " in command for command in commands)
    assert values["VOLUME"] == values["WORKDIR"] == "/data"
    assert any("-o recalld" in command and "/data" in command for command in commands)
    limits = r"--interval=\d+s --timeout=\d+s --start-period=\d+s --retries=\d+"
    check = re.fullmatch(rf"{limits} CMD (\[.*\])", values["HEALTHCHECK"])
    assert check and json.loads(check[1]) == ["recalld", "ping"]
    assert json.loads(values["ENTRYPOINT"]) == ["recalld"]  # itself process 1, so that it gets the signals
    assert json.loads(values["CMD"]) == ["/etc/recalld/recalld.conf"]
    assert values["STOPSIGNAL"] == "SIGTERM"


def test_the_build_sees_what_it_copies() -> None:
    """Each source of a COPY is there, and let through by the ignore file, which lets nothing else in."""
    _, build, final = instructions()
    lines = (CONF / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    allowed = {rule[1:] for rule in rules if rule.startswith("!")}
    sources = [
        source
        for word, rest in (*build, *final)
        if word == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
    ]
    assert all((ROOT / source).exists() for source in sources)
    assert {source.partition("/")[0] for source in sources} == allowed


def test_compose() -> None:
    compose: dict[str, Any] = yaml.safe_load((CONF / "docker" / "compose.yaml").read_text())
    [service] = compose["services"].values()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert service["image"] == f"recalld:{version}"
    context = (CONF / "docker" / service["build"]["context"]).resolve()
    assert context == ROOT and (context / service["build"]["dockerfile"]).is_file()
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    mounts = {target: source for source, target in (re.split(":(?=/)", volume) for volume in service["volumes"])}
    assert mounts["/data"] == "data" and "data" in compose["volumes"]
    # The default has no password: whoever sets one keeps it out of what the build copies.
    assert mounts["/etc/recalld/recalld.conf:ro"] == "${RECALLD_CONF:-./recalld.conf}"
    assert not any(line.startswith("requirepass") for line in (CONF / "docker" / "recalld.conf").open())
    assert compose["name"] == "recalld"  # else everybody's folder `docker` has the same volume
    timeout_s = int(cli.Config.load(str(CONF / "docker" / "recalld.conf"))["shutdown-timeout"])
    assert int(service["stop_grace_period"].removesuffix("s")) > timeout_s


# Unit and logrotate files


class Unit(configparser.ConfigParser):
    """A unit file; of a name that stands twice the last one counts, which is enough here."""

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def unit() -> configparser.SectionProxy:
    parsed = Unit(strict=False, interpolation=None)
    parsed.read(CONF / "systemd" / "recalld.service")
    return parsed["Service"]


def test_the_unit_drains_and_reloads() -> None:
    service = unit()
    assert (service["Type"], service["ExecReload"]) == ("notify", "/bin/kill -HUP $MAINPID")
    assert service["User"] == service["Group"] == "recalld"
    assert int(service["TimeoutStopSec"]) > int(cli.Config.defaults()["shutdown-timeout"])
    assert int(service["LimitNOFILE"]) > cli.Config.defaults()["maxclients"]
    assert service["ExecStart"].split()[0].endswith("/bin/recalld")
    path, overrides = cli.parse(service["ExecStart"].split()[1:])
    assert path == "/etc/recalld/recalld.conf" and overrides == [("dir", ["/var/lib/recalld"])]


@pytest.fixture
def unit_here(tmp_path: Path) -> Path:
    """The unit with a command that is on this machine."""
    text = (CONF / "systemd" / "recalld.service").read_text()
    path = tmp_path / "recalld.service"
    path.write_text(text.replace("/opt/recalld/bin/recalld", sys.executable))
    return path


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze on PATH (Debian: systemd)")
def test_systemd_reads_the_unit(unit_here: Path) -> None:
    done = subprocess.run(["systemd-analyze", "verify", unit_here], capture_output=True, text=True, timeout=PATIENCE_S)
    said = [line for line in done.stderr.splitlines() if "recalld.service" in line]
    assert (done.returncode, said) == (0, []), done.stderr


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze on PATH (Debian: systemd)")
def test_systemd_finds_the_sandbox_tight(unit_here: Path) -> None:
    """systemd's own rating, from 0 (tight) to 10; a service without sandbox has 9.2."""
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", unit_here]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze cannot look at files")
    assert done.returncode == 0, done.stdout[-500:] + done.stderr


def test_logrotate_names_files_that_the_unit_may_write() -> None:
    text = (CONF / "logrotate" / "recalld").read_text()
    [paths] = re.findall(r"^(/.*)\{$", text, flags=re.MULTILINE)
    assert all(path.startswith(f"/var/log/{unit()['LogsDirectory']}/") for path in paths.split())
    assert re.search(r"postrotate\n\s*systemctl reload recalld\.service .*\n\s*endscript", text)
    assert "copytruncate" not in text  # it loses lines, and is not needed


@pytest.mark.skipif(not shutil.which("logrotate"), reason="needs logrotate on PATH")
def test_logrotate_rotates(tmp_path: Path) -> None:
    """As this user, in a folder of the test: both logs are renamed, made anew, and the server is told once."""
    logs, told = tmp_path / "logs", tmp_path / "told"
    logs.mkdir(mode=0o750)
    for name in ("recalld.log", "audit.jsonl"):
        (logs / name).write_text("a line\n")
    me = f"{pwd.getpwuid(os.geteuid()).pw_name} {grp.getgrgid(os.getegid()).gr_name}"
    text = (CONF / "logrotate" / "recalld").read_text()
    for old, new in (
        ("/var/log/recalld", str(logs)),
        ("recalld recalld", me),
        ("systemctl reload recalld.service", f"echo reload >>{told}"),
    ):
        assert old in text
        text = text.replace(old, new)
    config = tmp_path / "logrotate.conf"
    config.write_text(text.replace(">/dev/null 2>&1 || true", ""))
    config.chmod(0o644)
    command = ["logrotate", "--force", "--state", str(tmp_path / "state"), str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert {path.name: path.read_text() for path in logs.iterdir()} == {
        **dict.fromkeys(("recalld.log.1", "audit.jsonl.1"), "a line\n"),
        **dict.fromkeys(("recalld.log", "audit.jsonl"), ""),
    }
    assert told.read_text() == "reload\n"  # once for both


def test_the_page_names_files_that_are_there() -> None:
    text = (ROOT / "docs" / "deployment.md").read_text()
    named = set(re.findall(r"conf/[\w./-]+\w", text))
    assert named and all((ROOT / name).is_file() for name in named)
    shipped = {path.relative_to(ROOT).as_posix() for path in CONF.rglob("*") if path.is_file() and path.parent != CONF}
    beside = {f"conf/docker/{name}" for name in ("Dockerfile.dockerignore", "compose.yaml")}
    assert {name for name in shipped if "__pycache__" not in name} - beside <= named


# Backup


class Writer(threading.Thread):
    """Adds records without pause; `kept` counts those that were acknowledged."""

    def __init__(self, service: Service) -> None:
        super().__init__(daemon=True)
        self._wire = service.wire()
        self._stop_now = threading.Event()
        self.kept = 0

    def run(self) -> None:
        while not self._stop_now.is_set():
            replies = self._wire.pipeline(*[("MEM.ADD", "k", "TEXT", "word " * 50)] * 20)
            self.kept = int(replies[-1])

    def stop(self) -> None:
        self._stop_now.set()
        self.join(PATIENCE_S)


def recipe(*starts: str) -> str:
    """The one block of commands in docs/deployment.md that begins so."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "deployment.md").read_text(), flags=re.DOTALL)
    [block] = [block for block in blocks if block.startswith(starts)]
    return str(block)


def shell(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a person would, with this tree's `recalld` on PATH."""
    (folder / "bin").mkdir(exist_ok=True)
    command = folder / "bin" / "recalld"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m recalld.server "$@"\n')
    command.chmod(0o755)
    environ = os.environ | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"} | variables
    return subprocess.run(
        ["sh", "-euc", script], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=2 * PATIENCE_S
    )


@pytest.mark.skipif(not CLI, reason="needs redis-cli on PATH (Debian: redis-tools)")
def test_backup_and_restore_as_the_page_says(tmp_path: Path) -> None:
    """Under load: what was acknowledged before the backup is in it, of what came later a prefix; nothing is torn."""
    data, target, new = (tmp_path / name for name in ("data", "monday", "restored"))
    data.mkdir()
    with Service(data, "--requirepass", "sesame", "--auto-aof-rewrite-percentage", "33") as service:
        wire = service.wire()
        wire("AUTH", "sesame")
        wire("MEM.CREATE", "k", "MODE", "SEARCH")
        wire("CONFIG", "SET", "requirepass", "")
        writer = Writer(service)
        writer.start()
        while writer.kept < 200:
            pass
        before = writer.kept
        wire("CONFIG", "SET", "requirepass", "sesame")
        script = recipe("conf/backup/").replace("/var/lib/recalld", str(data))
        script = script.replace("/var/backups/recalld/monday", str(target))
        done = shell(script, tmp_path, RECALLD_CLI=f"{CLI} -p {service.port}", REDISCLI_AUTH="sesame")
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout == f"recalld-backup: {target} is whole\n"
        writer.stop()
        after = writer.kept
        assert wire("CONFIG", "GET", "auto-aof-rewrite-percentage")[1] == b"33"  # as before
    assert after > before
    done = shell(recipe('recalld check-aof "$TARGET"'), tmp_path, TARGET=str(target), NEW_DIR=str(new))
    assert done.returncode == 0, done.stdout + done.stderr
    with Service(new) as service:
        wire = service.wire()
        count = wire("MEM.CARD", "k")
        assert before <= count <= after + 20
        assert wire("MEM.GET", "k", str(count)) is not None  # ids are 1, 2, ..: no hole
    assert not [path.name for path in target.rglob("*") if "before-fix" in path.name or path.name == "lock"]


@pytest.mark.skipif(not CLI, reason="needs redis-cli on PATH (Debian: redis-tools)")
def test_a_backup_that_fails_says_so(tmp_path: Path) -> None:
    """No password, no server, a target that is there, a log that is damaged: an error, and the setting as before."""
    data = tmp_path / "data"
    data.mkdir()
    target = tmp_path / "copy"

    def back_up(port: int, password: str = "sesame") -> subprocess.CompletedProcess[str]:
        script = f"conf/backup/recalld-backup {data} {target}"
        return shell(script, tmp_path, RECALLD_CLI=f"{CLI} -p {port}", REDISCLI_AUTH=password)

    with Service(data, "--requirepass", "sesame") as service:
        wire = service.wire()
        wire("AUTH", "sesame")
        wire("MEM.CREATE", "k", "MODE", "SEARCH")
        assert back_up(service.port, "wrong").returncode != 0
        assert back_up(free_port()).returncode != 0
        assert not target.exists()
        target.mkdir()
        done = back_up(service.port)
        assert done.returncode == 1 and "is there already" in done.stderr
        target.rmdir()
        assert wire("MEM.ADD", "k", "TEXT", "tea") == b"1"
        assert back_up(service.port).returncode == 0
        shutil.rmtree(target)
        # A base file that has lost a bit since it was written: the copy has it too, and check-aof sees it.
        (tmp_path / "bin" / "cp").write_text(
            '#!/bin/sh\n/bin/cp "$@" && for base in "$3"/appendonlydir/*.base.rcl; do printf x >> "$base"; done\n'
        )
        (tmp_path / "bin" / "cp").chmod(0o755)
        done = back_up(service.port)
        assert done.returncode == 1 and "Cutting cannot mend this" in done.stderr
        assert wire("CONFIG", "GET", "auto-aof-rewrite-percentage")[1] == b"100"


def test_the_manager_stand_in_reads_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = Manager(tmp_path)
    monkeypatch.setenv("NOTIFY_SOCKET", str(manager.path))
    sd_notify.Notifier().ready("a=b")
    assert manager.next() == {"READY": "1", "STATUS": "a=b"}
    manager.close()
