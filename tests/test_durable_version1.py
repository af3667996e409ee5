"""Files of version 1, from before there were facts, validity and history: they load and answer as they did.

The bytes below are what a server of that version wrote, and the replies what it answered, at JUNE.
"""

from __future__ import annotations

import base64
import zlib
from pathlib import Path

import pytest
from harness import JUNE, Clock, Running, Wire, Word


def unpacked(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))


MANIFEST = b"file appendonly.aof.1.base.rcl seq 1 type b\nfile appendonly.aof.2.incr.aof seq 2 type i\n"

BASE = unpacked(
    "eNrFl01rG0cYxyXHoSSkHyC3Zc+KmPedLQHbsVVialKQT6UYdyONrCUrrVmtkrhOIPdA6NU9lFxz7GfIsS700EPpqcce+iH6PDMjaWVQUq9o"
    "O/Ls62+e+T8vM5K7nd2dg4O9ew92Djv36Ke3G9ds31/c3fr58mCrUbMllDbWaeXQBE/M2SQYJuOT4PFZgA/6eV70ksH7d/bqWZ4NVo4v8nw0"
    "TLKs7vzDfGTW0Q/aUflcMRzMBwVfHZ+Dw0X9+ZuVXqfdhY5Fs1lz/OYaY7FtNNZrm2uOb645/vlv3776AY38deX8H433bfvV7z9Wx21f1/+N"
    "teLxh98//txavv94u+Hnbv5P+Wu8vbi4hedfLi/v1Bh+w/dm7fp3n6Y91o/Bhtex6a9vXkP/bA3frLGem9eY65/sA80Vz+eaPrJOmivsbF+x"
    "t7HC3ndfvFiyex5OTK9M8/Ek/Cw4D5/CTV7g9ddKtALsnHMax4wR2QrC+wMRHsE57VuGMg1AK6Ax1TpWkYbr8NASpXleOiZmwMQAUcm0YorR"
    "OTQyZWIhJlUrQFuEaK0IJxVDyYlFOCOtAPVQpaiSMpKVuYqRYzQAzHahOOWSL+bCb2FkhIB5FGoWOmZxhEM8Al61MzNGSlJQjZ1xoFjEJEH3"
    "p2Lh3ByNlEOVoEIw8LJCWg9npBLEeSkhXpxqjN4V0nIREc4iZRB9FgsVVyeHgMwsRkrboEDMIAfM+rLEWUpz74zgERdKLZnrFSYpTd9ysXLh"
    "k0TEVDGN0bufastNT/szLlZkNdc3ST9Lx8bmnrBZQlSMZCREBZ2YIk0yB2rtQclExISmpAKmo9O8KJNxz1m1IfZWNQSLM2t14AXkvWMfHsqo"
    "z03MFZeMSafUeT5MJseu4H0tE1vMnJNIQm1g0MIXU+qkTl2FUY4eoFUWSeBAi6wINeOySI0jBdG+hCgD5zlZKgwkz47hp93TGR5hkrDABSFM"
    "c02UxVkFnxc6lRwlYC0xQRiootWcnuaTsgIrAp65v0oJw9tZGTkCowh2YAFKKqqliUtngeKmgJ4ppSWBKCwX8SifByBiFkPLGoqdEhgyY87C"
    "o5e2AsoyHbsFfh6O8j4mOHz41YPu/l6IuUxH8IC55VGkPXy7++Xh/qMOvn1m0pOh22VIm0MeSNseKB6IdDnOBsdZOkC7igiNfoaD6QR2PLTV"
    "7X6OhjL4iYu3ZnySpZMhPnpC4QFt4z70GK5IW4DehcTDzk539+FCIvnXJB6ApZ3uh1SSdlxRefTym0/c3v6r/+L66c3+667/P6rzaO/233go"
    "ww0="
)

#: A record more, and another half-life.
INCR = unpacked(
    "eNp9kc1OwzAMx3uOlHeoBKcdKrv5XC9obC1UmjZUtgPHdgkMgZi07QF4dJxmUxHT8MWO7b/tnzKSnN0azppyOpnPZ/QQnE2WFQXIWR6c5sy6"
    "DqTToLDrtAWq3PxNFcKgktL5QpFghCKOelqv4qiP6DbBjTlzu90+bV+Pfp8etz7t2oOniuUsSb7vErIoh0wFAUVoLOQmh96u5UgwHE5kCLn8"
    "t/cSo/VGO9yoArUNHGE/3TtdLqr6Yd2UAw1hPr7cN/VsWKlD43O9KON6yIT6zdEHeK7BKYX9PRQ0TRU/w3+9fb4ftqdyJs7SKyyXEBadQgeS"
    "IGjJD0/DVdI="
)

#: The memory k as it was in the base.
PAYLOAD = unpacked(
    "eNq9lktrG0ccwKW4KcS0HyDQw7JnRcz7UQJ52SEBJy0yPZRizEZaWUv2YVarJI5jyFfIJeAcQnrMLT33WOjJhRzbnnrsIR+i///Mar0N1GBt"
    "6GifM7+Z/3u0o81bN7a2Nq5sfHfv2yv0y/VR/X7zxvYmvvfO2V4dX77228nWtd6KLaK9Tq2axcHD+GAezKJ8L3hwEGDHpCjKcTT95a17OnN+"
    "WRTZLErTVeXPiizuoj/ojpo3GsPlXOv163PVdhnO9Q7zP6vPVduFbuHvJLvX0XfYnvz+9PlrXORDff+f59ft+vM/f1ppfv+TxOGvuv7/Pvc+"
    "sNZRdtf49d4cH1/C+/uTky9WmL5Wn6vnv//1O3ihX/twra6HC+fUf1nDFz9BPXXdB/r/0d/o9eHsejkM5/G4Sop8Hn4dHIaP4KUo8fkHJQaB"
    "GQScW6rxGATh1akId+CeTBxBGYwzOJQ1QghDNYxtO6KKn1SesQBwCZCRwggmGW2gLK4iBzGpvCxCjFGEE366ULTnEM7IIACNOFWKKim1bMkq"
    "M88YAJBjklpiLFOsgfA/DxlQcxAQd9QjYMwwjfNmEA5BtDVaaLTn6kKcWrQEJWUOpExYKZhBoQ3pzGpIXZsmLTWcGnTZR2TuvU0cJ4mRGqS3"
    "MfTBcj1NhPMDuIlaCID4mPOUMnXwiBJaCt62ZFzGURVPkDMc7KCgIdUc3GoNcWFOjAMX+5MGtOoMcBJHkzTJYyStIp7kWlBoRpAWOY/LJEpd"
    "YhAmPCg10RSSg7W4JNsvyirKx7Fn0R9OvOXCSEYodelYiy/Gu7V7KJU+MtxYTiCO3Dky8ZbPovmuz3CfvrgipqchQliqDObUswX1mi6yZZLX"
    "BjEtiZYgQbYUjfOqTGJPcuFLxljBJVOEtZyO3MEufDk9qmFBXP6gR5VkXBrill2wFt5kNhUa6wzTW2nDlWWynXH7xbxqwZKrJsdP0xdGl0nk"
    "CVdRlHFiDaO2xWKtNKgivvDAW6CEpdL+K4GzojFfuR0DnWUZBVwatUQOwp0jF/2qSnJf0IdhVkwwuuGd72+O7m6EGMgkgw7mK6NMxjh665vt"
    "u/c3cfRxnOzN/K5ChrilkKG7ULwQ6QOcTnfTZIrrKiIM6h5OF3PY33Ct0eg2LpTCByS+xvlemsxn2PWQQgcd4r7zAJ7IUBztHL3/3O+RX130"
    "9x/f/fHz8vt/8/7G+kv74td/AOcvh1s="
)

FOLDER = {
    "appendonly.aof.manifest": MANIFEST,
    "appendonly.aof.1.base.rcl": BASE,
    "appendonly.aof.2.incr.aof": INCR,
}

QUERY: list[Word] = ["TEXT", "door keys", "FVEC", 2, 0.6, 0.8, "WITHSCORES", "WITHTAGS"]
HITS = [
    [
        b"a",
        b"the keys hang by the door",
        [b"home"],
        b"score 0.016328 keyword 1.083733 vector 1.0000 recency 0.965936 importance 0.5000".split(),
    ],
    [
        b"c",
        b"door after the base",
        [],
        b"score 0.016066 keyword 0.129861 vector 0.6000 recency 1.0000 importance 0.5000".split(),
    ],
    [
        b"1",
        "café door".encode(),
        [],
        b"score 0.008104 keyword 0.141531 recency 1.0000 importance 0.7500".split(),
    ],
]
#: MEM.GET's pairs that it gave; pttl as well, at JUNE.
RECORDS: dict[str, dict[bytes, object]] = {
    "a": {
        b"text": b"the keys hang by the door",
        b"importance": b"0.5",
        b"created_at": b"1780271995000",
        b"updated_at": b"1780271995000",
        b"pttl": b"-1",
        b"cid": b"bafkreiboatsym3wodkjsrjvfmw44jn3h3shaiqfcny2pkahyobx776v3n4",
        b"tags": [b"home"],
        b"meta": [b"room", b"hall"],
        b"vector": b"\x9a\x99\x19?\xcd\xccL?",
    },
    "1": {
        b"text": "café door".encode(),
        b"importance": b"0.75",
        b"created_at": b"1780272000000",
        b"pttl": b"3600000",
        b"vector": None,
    },
}


def check_records(wire: Wire, history: bytes | int = 0) -> None:
    for record_id, wanted in RECORDS.items():
        pairs = wire("MEM.GET", "k", record_id, "WITHMETA", "WITHVEC")
        found = dict(zip(pairs[::2], pairs[1::2], strict=True))
        assert {name: found[name] for name in wanted} == wanted
    config = wire("MEM.CONFIG", "k")
    found = dict(zip(config[::2], config[1::2], strict=True))
    assert (found[b"fusion"], found[b"k1"], found[b"history"]) == (b"RRF", b"1.3", history)


@pytest.mark.parametrize("rewritten", [False, True])
def test_a_folder_of_version_1(tmp_path: Path, rewritten: bool) -> None:
    """All of it is there, to the last digit of a score; facts and history can be added to it, and it is rewritten in
    the form of today."""
    folder = tmp_path / "appendonlydir"
    folder.mkdir()
    for name, data in FOLDER.items():
        (folder / name).write_bytes(data)
    assert BASE.startswith(b"RECALLD-BASE-1\r\n")
    with Running(clock=Clock(JUNE), dir=tmp_path) as server:
        wire = server.wire()
        if rewritten:
            assert wire("SAVE") == "OK"
            (base,) = folder.glob("*.base.rcl")
            assert base.read_bytes().startswith(b"RECALLD-BASE-2\r\n")
            server.restart()
            wire = server.wire()
        check_records(wire)
        assert wire("MEM.SCAN", "k", 0) == [b"0", [b"a", b"1", b"c"]]
        assert wire("MEM.QUERY", "k", *QUERY) == HITS
        assert wire("PTTL", "other") == 90_000
        assert wire("MEM.SEARCH", "other", "wolf") == [[b"1", b"wolf"]]
        assert wire("MEM.ADD", "k", "TEXT", "the counter goes on") == b"2"
        wire("MEM.CONFIG", "k", "HISTORY", "ALL")
        wire("MEM.FACT", "k", "ann", "works at", "Acme", "TYPE", "ORG", "ID", "f")
        before = wire("MEM.FACTS", "k"), wire("MEM.ENTITIES", "k")
        server.restart()
        wire = server.wire()
        assert (wire("MEM.FACTS", "k"), wire("MEM.ENTITIES", "k")) == before
        check_records(wire, b"ALL")


def test_a_payload_of_version_1(wire: Wire) -> None:
    """RESTORE takes it; what DUMP gives of it then is of today."""
    assert PAYLOAD.startswith(b"RECALLD-DUMP-1\r\n")
    assert wire("RESTORE", "k", 0, PAYLOAD) == "OK"
    check_records(wire)
    assert wire("MEM.SCAN", "k", 0) == [b"0", [b"a", b"1"]]
    payload = wire("DUMP", "k")
    assert payload.startswith(b"RECALLD-DUMP-2\r\n")
    wire("RESTORE", "twin", 0, payload)
    assert wire("DUMP", "twin") == payload
