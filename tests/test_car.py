"""`recalld export --car`, read by others' CAR, CBOR and CID."""

from __future__ import annotations

import io
import socket
from pathlib import Path
from typing import Any

import dag_cbor
import pytest
from harness import JUNE, Running, Wire
from hypothesis import given
from hypothesis import strategies as st
from multiformats import CID, multihash, varint
from oracle import cid as content_id
from recalld.server import car, cli


def read(data: bytes) -> tuple[CID, dict[CID, bytes], list[CID]]:
    """The root, every block, checked against its CID, and the order in which they stand."""
    file = io.BytesIO(data)
    header: Any = dag_cbor.decode(file.read(varint.decode(file)))
    assert header.keys() == {"roots", "version"} and header["version"] == 1
    [root] = header["roots"]
    blocks: dict[CID, bytes] = {}
    order = []
    while file.tell() < len(data):
        section = file.read(varint.decode(file))
        cid = CID.decode(section[:36])
        block = section[36:]
        assert (cid.version, cid.hashfun.name) == (1, "sha2-256")
        assert cid.digest == multihash.digest(block, "sha2-256")
        blocks[cid] = block
        order.append(cid)
    return root, blocks, order


def contents(data: bytes) -> dict[bytes, dict[bytes, bytes]]:
    """Key -> id -> text, by the links from the root; nothing else may be in the file."""
    root, blocks, order = read(data)
    assert order[-1] == root and root.codec.name == "dag-cbor"
    about: Any = dag_cbor.decode(blocks[root])
    assert about["recalld"] == 1
    reached = {root}
    found: dict[bytes, dict[bytes, bytes]] = {}
    for memory in about["memories"]:
        texts: dict[bytes, bytes] = {}
        for page in memory["pages"]:
            reached.add(page)
            records: Any = dag_cbor.decode(blocks[page])
            assert 0 < len(records) <= 1000
            for record_id, link in records:
                assert link.codec.name == "raw" and order.index(link) < order.index(page)
                reached.add(link)
                texts[record_id] = blocks[link]
        assert len(texts) == memory["records"]
        found[memory["key"]] = texts
    assert reached == blocks.keys()
    return found


def export(server: Running, path: Path | str, *words: str) -> int:
    return cli.main(["export", "--car", str(path), *words, "--url", f"redis://127.0.0.1:{server.port}"])


@pytest.fixture
def filled(server: Running, wire: Wire) -> Running:
    for key in (b"one", b"two", b"\xff key", b"empty"):
        wire("MEM.CREATE", key, "MODE", "SEARCH", "HISTORY", "ALL")
    wire("MEM.ADD", "one", "ID", "a", "TEXT", "hello world")
    wire("MEM.ADD", "one", "ID", b"\xfe", "TEXT", b"\xff\x00")
    wire("MEM.ADD", "one", "ID", "e", "TEXT", "")
    wire("MEM.ADD", "one", "ID", "a2", "TEXT", "hello world")
    wire("MEM.ADD", "one", "ID", "later", "TEXT", "later", "VALIDAT", JUNE + 1000)
    wire("MEM.ADD", "one", "ID", "later", "TEXT", "LATER", "VALIDAT", JUNE + 1000)
    wire("MEM.FACT", "two", "ann", "likes", "tea", "ID", "f")
    wire("MEM.ADD", b"\xff key", "ID", "long", "TEXT", "x" * 65536)
    return server


WHOLE = {
    b"one": {b"a": b"hello world", b"\xfe": b"\xff\x00", b"e": b"", b"a2": b"hello world", b"later": b"LATER"},
    b"two": {b"f": b"ann likes tea"},
    b"\xff key": {b"long": b"x" * 65536},
    b"empty": {},
}


def test_every_memory_and_text(filled: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As others read it, every block under its CID; the CIDs are those that MEM.GET shows."""
    path = tmp_path / "all.car"
    assert export(filled, path) == 0
    assert capsys.readouterr().err == "exported: 4 memories, 7 records\n"
    assert contents(path.read_bytes()) == WHOLE
    assert path.stat().st_mode & 0o777 == 0o600
    names = {cid.encode("base32").encode() for cid in read(path.read_bytes())[1] if cid.codec.name == "raw"}
    assert names == {content_id(text) for texts in WHOLE.values() for text in texts.values()}
    assert b"bafkreifzjut3te2nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e" in names  # hello world


def test_named_memories(filled: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "some.car"
    assert export(filled, path, "two", "empty", "two") == 0
    assert contents(path.read_bytes()) == {key: WHOLE[key] for key in (b"two", b"empty")}
    before = path.read_bytes()
    capsys.readouterr()
    assert export(filled, path, "two", "none") == 1
    assert capsys.readouterr().err == "recalld export: there is no memory 'none'\n"
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["some.car"]


def test_pages(server: Running, wire: Wire, tmp_path: Path) -> None:
    """More records than a page or a round trip takes; the same memory gives the same bytes."""
    wire("MEM.CREATE", "ns", "MODE", "SEARCH")
    size = 2100
    wire("MEM.MADD", "ns", size, *(word for n in range(size) for word in ("RECORD", "ID", n, "TEXT", f"text {n}")))
    for name in ("one", "two"):
        assert export(server, tmp_path / name) == 0
    data = (tmp_path / "one").read_bytes()
    assert contents(data) == {b"ns": {b"%d" % n: b"text %d" % n for n in range(size)}}
    assert (tmp_path / "two").read_bytes() == data


def test_standard_output(filled: Running, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert export(filled, "-", "one") == 0
    assert contents(capfdbinary.readouterr().out) == {b"one": WHOLE[b"one"]}


def test_nobody_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert cli.main(["export", "--car", str(tmp_path / "x"), "--url", f"redis://127.0.0.1:{port}"]) == 1
    assert capsys.readouterr().err.startswith("recalld export: cannot reach")
    assert not list(tmp_path.iterdir())


VALUES = st.recursive(
    st.integers(0, 2**64 - 1) | st.binary() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_our_cbor_is_theirs(value: Any) -> None:
    assert car.dag_cbor(value) == dag_cbor.encode(value)


@pytest.mark.parametrize("number", [0, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32])
def test_lengths_and_links(number: int) -> None:
    assert car.dag_cbor(number) == dag_cbor.encode(number)
    assert car.varint(number) == varint.encode(number)
    block = b"%d" % number
    cid = CID("base32", 1, "raw", multihash.digest(block, "sha2-256"))
    assert bytes(cid) == car.cid_of(0x55, block)
    assert car.dag_cbor([car.cid_of(0x55, block)]) == dag_cbor.encode([cid])
