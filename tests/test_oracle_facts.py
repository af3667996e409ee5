"""Random histories of facts against a bitemporal model in plain Python, across restarts and rewrites.

The model keeps every version of every fact in a list and answers by reading SPEC section 6 over it, row by row. After
each step it is asked at a random moment, and at a random moment of knowing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from conftest import LONG
from durable import eventually
from harness import Clock, Running, Wire

NEVER = 1 << 62
SECOND = 1000
NAMES = ("a", "b", "A")
IDS = ("x", "y", "z")


@dataclass(frozen=True)
class Version:
    """One version of one fact; `serial` is the record's, `known_to` NEVER in the current one."""

    id: str
    serial: int
    subject: str
    object: str
    type: str
    confidence: float
    quote: str
    written: int
    since: int
    valid_at: int
    valid_until: int
    known_to: int = NEVER
    invalid_at: int = NEVER
    supersedes: str = ""
    superseded_by: str = ""


class Model:
    """`history` is in ms, 0 for none, NEVER for all."""

    def __init__(self, history: int, now: int) -> None:
        self.history = history
        self.now = now
        self.versions: list[Version] = []
        self.deadlines: dict[int, int] = {}  # by serial
        self.next_id = 1
        self.serial = 0

    def advance(self, now: int) -> None:
        self.now = now
        gone = {serial for serial, deadline in self.deadlines.items() if deadline <= now}
        self.versions = [each for each in self.versions if each.serial not in gone]

    def current(self, record_id: str) -> Version | None:
        return next((each for each in self.versions if each.id == record_id and each.known_to == NEVER), None)

    def ids(self) -> list[str]:
        return sorted(each.id for each in self.versions if each.known_to == NEVER)

    def end(self, record_id: str, until: int) -> None:
        """Whatever version of `record_id` goes on after `until` ends then; without history it is gone."""
        kept = []
        for each in self.versions:
            if each.id == record_id and each.known_to > until:
                if not self.history or each.since >= until:
                    continue
                each = replace(each, known_to=until)
            kept.append(each)
        self.versions = kept

    def begin(self, version: Version) -> None:
        self.end(version.id, version.since)
        self.versions.append(version)

    def same(self, wanted: Version, besides: str) -> Version | None:
        found = [
            each
            for each in self.versions
            if each.known_to == NEVER
            and each.id != besides
            and each.invalid_at > self.now
            and (each.subject, each.object, each.valid_until) == (wanted.subject, wanted.object, wanted.valid_until)
            and (each.type == wanted.type or "" in (each.type, wanted.type))
        ]
        return min(found, key=lambda each: (each.type != wanted.type, each.id), default=None)

    def fact(
        self,
        subject: str,
        spoken: str,
        kind: str,
        at: int | None,
        valid_at: int | None,
        valid_until: int | None,
        confidence: float,
        quote: str | None,
        record_id: str | None,
        supersedes: str | None,
        ttl_ms: int,
    ) -> str:
        stated = self.now if at is None else at
        known = min(stated, self.now)
        wanted = Version(
            id=record_id or "",
            serial=0,
            subject=subject,
            object=spoken.lower() if kind else spoken,
            type=kind,
            confidence=confidence,
            quote=quote or "",
            written=known,
            since=known,
            valid_at=stated if valid_at is None else valid_at,
            valid_until=NEVER if valid_until is None else valid_until,
            supersedes=supersedes or "",
        )
        old = self.same(wanted, supersedes or "")
        if old is None and kind:
            old = self.same(replace(wanted, object=spoken), supersedes or "")
        if old is not None:
            told = replace(
                old,
                object=wanted.object if kind else old.object,
                type=kind or old.type,
                confidence=max(old.confidence, confidence),
                quote=old.quote if quote is None else quote,
                supersedes=supersedes or old.supersedes,
            )
            if told != old or ttl_ms:
                self.begin(replace(told, since=max(known, old.written)))
        else:
            if record_id is None:
                while self.current(str(self.next_id)) is not None:
                    self.next_id += 1
                record_id = str(self.next_id)
                self.next_id += 1
            over = self.current(record_id)
            if over is None:
                self.serial += 1
            told = replace(wanted, id=record_id, serial=self.serial if over is None else over.serial)
            self.begin(told)
        if ttl_ms:
            self.deadlines[told.serial] = self.now + ttl_ms
        if supersedes:
            lost = self.current(supersedes)
            assert lost is not None
            invalid_at = min(lost.invalid_at, stated)
            if (invalid_at, told.id) != (lost.invalid_at, lost.superseded_by):
                self._invalidated(lost, invalid_at, told.id)
        return told.id

    def invalidate(self, record_id: str, at: int | None, clear: bool) -> int | str:
        old = self.current(record_id)
        if old is None:
            return 0
        invalid_at = NEVER if clear else min(old.invalid_at, self.now) if at is None else at
        superseded_by = "" if clear else old.superseded_by
        if (invalid_at, superseded_by) == (old.invalid_at, old.superseded_by):
            return 0
        if invalid_at > max(self.now, old.invalid_at):
            same = self.same(old, record_id)
            if same is not None:
                return f"ERR fact '{same.id}' says the same"
        self._invalidated(old, invalid_at, superseded_by)
        return 1

    def _invalidated(self, old: Version, invalid_at: int, superseded_by: str) -> None:
        said = self.now if invalid_at == old.invalid_at else min(invalid_at, self.now)
        since = max(said, old.written)
        self.begin(replace(old, invalid_at=invalid_at, superseded_by=superseded_by, since=since))

    def delete(self, record_id: str) -> None:
        self.end(record_id, self.now)

    def seen(self, t: int | None, k: int | None, invalidated: bool) -> list[Version]:
        """What MEM.FACTS shows."""
        t = self.now if t is None else t
        k = self.now if k is None else k
        horizon = self.now - self.history if self.history < NEVER else -NEVER
        found = []
        for each in self.versions:
            if each.known_to != NEVER and each.known_to <= horizon:
                continue
            since = each.since if each.since > horizon else each.written
            if not (since <= k < each.known_to and each.valid_at <= t < each.valid_until):
                continue
            known = each.since > horizon or k >= self.now
            if each.invalid_at > (t if known else min(t, k)) or invalidated:
                found.append(each)
        return sorted(found, key=lambda each: (each.valid_at, each.id))


def shown(reply: Any) -> list[tuple[Any, ...]]:
    """What a reply of MEM.FACTS says."""
    total, maps = reply
    assert total == len(maps)
    found = []
    for each in maps:
        text = [
            (each[name.encode()] or b"").decode()
            for name in ("id", "subject", "object", "entity_type", "quote", "supersedes", "superseded_by")
        ]
        times = [
            NEVER if each[name] is None else int(each[name]) for name in (b"valid_at", b"valid_until", b"invalid_at")
        ]
        found.append((*text, *times, each[b"confidence"]))
    return found


def expected(versions: list[Version]) -> list[tuple[Any, ...]]:
    return [
        (
            *(each.id, each.subject, each.object, each.type, each.quote, each.supersedes, each.superseded_by),
            *(each.valid_at, each.valid_until, each.invalid_at, each.confidence),
        )
        for each in versions
    ]


@pytest.mark.parametrize("history", ["0", "20", "ALL"])
@pytest.mark.parametrize("seed", range(4))
def test_random_histories(tmp_path: Path, history: str, seed: int) -> None:
    rng = Random(f"{history} {seed}")
    clock = Clock()
    with Running(clock=clock, dir=tmp_path) as server:
        wire = server.wire(3)
        wire("MEM.CREATE", "k", "MODE", "SEARCH", "HISTORY", history)
        model = Model(NEVER if history == "ALL" else int(history) * SECOND, clock.now_ms)
        start = clock.now_ms
        for step in range(250):
            _step(rng, wire, model)
            if rng.random() < 0.6:
                clock.advance(rng.choice((1, 1, SECOND, 3 * SECOND)))
                model.advance(clock.now_ms)
            if step % 50 == 49:
                if rng.random() < 0.7:
                    wire("BGREWRITEAOF")
                    eventually(lambda wire=wire: b"aof_rewrite_in_progress:0" in wire("INFO", "persistence"))
                server.restart()
                wire = server.wire(3)
            _compare(rng, wire, model, start)


def _step(rng: Random, wire: Wire, model: Model) -> None:
    now = model.now

    def near() -> int:
        return now + rng.randint(-12, 6) * SECOND

    chance = rng.random()
    some_id = rng.choice((*model.ids(), *IDS))
    if chance < 0.6:
        subject, spoken, kind = rng.choice(("ann", "bob")), rng.choice(NAMES), rng.choice(("", "", "ORG", "FOOD"))
        at = near() if rng.random() < 0.3 else None
        valid_at = near() if rng.random() < 0.4 else None
        begins = (now if at is None else at) if valid_at is None else valid_at
        valid_until = begins + rng.randint(1, 9) * SECOND if rng.random() < 0.2 else None
        confidence = rng.choice((0.25, 0.5, 1.0))
        quote = rng.choice((None, None, "q", "r"))
        record_id = rng.choice(IDS) if rng.random() < 0.3 else None
        supersedes = rng.choice(model.ids()) if model.ids() and rng.random() < 0.3 else None
        ttl = rng.randint(1, 20) if rng.random() < 0.1 else 0
        if supersedes == record_id:
            supersedes = None
        words: list[Any] = ["MEM.FACT", "k", subject, "likes", spoken, "CONFIDENCE", confidence]
        for name, value in (
            *(("TYPE", kind or None), ("AT", at), ("VALIDAT", valid_at), ("VALIDUNTIL", valid_until)),
            *(("QUOTE", quote), ("ID", record_id), ("SUPERSEDES", supersedes), ("TTL", ttl or None)),
        ):
            if value is not None:
                words += [name, value]
        made = model.fact(
            subject, spoken, kind, at, valid_at, valid_until, confidence, quote, record_id, supersedes, ttl * SECOND
        )
        assert wire(*words).decode() == made, words
    elif chance < 0.85:
        at, clear = rng.choice(((None, False), (near(), False), (None, True)))
        wire.send("MEM.INVALIDATE", "k", some_id, *(["AT", at] if at is not None else ["CLEAR"] if clear else []))
        reply = wire.read()
        assert (reply if isinstance(reply, int) else str(reply)) == model.invalidate(some_id, at, clear)
    elif chance < 0.9:
        assert wire("MEM.DEL", "k", some_id) == (model.current(some_id) is not None)
        model.delete(some_id)


def _compare(rng: Random, wire: Wire, model: Model, start: int) -> None:
    moments: list[tuple[int | None, int | None]] = [(None, None)]
    for _ in range(2 if LONG else 1):
        t = rng.choice((None, rng.randint(start - 15 * SECOND, model.now + 10 * SECOND)))
        k = rng.choice((None, rng.randint(start - 15 * SECOND, model.now)))
        moments.append((t, k))
    asked = [(t, k, invalidated) for t, k in moments for invalidated in (False, True)]
    commands = [
        [
            *("MEM.FACTS", "k", "LIMIT", 1000),
            *([] if t is None else ["ASOF", t]),
            *([] if k is None else ["KNOWNAT", k]),
            *(["INVALIDATED"] * invalidated),
        ]
        for t, k, invalidated in asked
    ]
    *replies, card = wire.pipeline(*commands, ["MEM.CARD", "k"])
    for moment, reply in zip(asked, replies, strict=True):
        assert shown(reply) == expected(model.seen(*moment)), (moment, model.now)
    assert card == len(model.seen(None, None, False))
