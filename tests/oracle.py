"""A memory in plain Python: every record looked at, every formula of SPEC.md written out, float64 throughout.

Only the words of a text come from the product (recalld.index.analyzer); all that is done with them is written here.

An answer is compared with `Answer.check`. Two things keep it from asking for the last bit, which another order of
summing may turn: records whose scores lie closer than CLOSE may stand in either order, and under RRF, where such a bit
can move a rank, a score is an interval. Records that are alike in all that the score is made of must still come in
the order of ties: newer `updated_at` first, then the smaller id.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import itertools
import math
import re
import struct
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from decimal import Decimal

from recalld.index.analyzer import Analyzer, QueryTerm, Vocabulary
from recalld.index.names import words as whole_words

CLOSE = 1e-9
#: How far a reported score may be from ours.
TOLERANCE = 1e-5
MAX_WORDS = 1024

Vector = tuple[float, ...]
#: field, operator, value
Filter = tuple[bytes, str, bytes]
#: ANY or ALL, tags
TagTest = tuple[str, tuple[bytes, ...]]
#: term, idf, tf, its part of the BM25 score
TermPart = tuple[str, float, float, float]


def float32(values: Iterable[float]) -> Vector:
    values = tuple(values)
    return struct.unpack(f"<{len(values)}f", blob(values))


def blob(vector: Vector) -> bytes:
    """VEC's value: little-endian float32."""
    return struct.pack(f"<{len(vector)}f", *vector)


def unit(vector: Vector) -> Vector:
    norm = math.hypot(*vector)
    return tuple(x / norm for x in vector)


def dot(a: Vector, b: Vector) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def cid(text: bytes) -> bytes:
    """CIDv1, raw, sha2-256, base32."""
    digest = b"\x01\x55\x12\x20" + hashlib.sha256(text).digest()
    return b"b" + base64.b32encode(digest).rstrip(b"=").lower()


@dataclass(frozen=True)
class Record:
    """As stored; a change is a new one."""

    id: bytes
    text: bytes
    vector: Vector | None
    meta: dict[bytes, bytes]
    tags: tuple[bytes, ...]
    importance: float
    created_at: int
    updated_at: int
    deadline: int | None
    tfs: dict[int, float] = field(repr=False)
    doc_len: int

    @property
    def newest_first(self) -> tuple[int, bytes]:
        return (-self.updated_at, self.id)


@dataclass
class Query:
    """MEM.SEARCH, MEM.VSEARCH or MEM.QUERY; what is None was not given."""

    kind: str
    text: bytes | None = None
    vector: Vector | None = None
    filters: Sequence[Filter] = ()
    tags: Sequence[TagTest] = ()
    minscore: float | None = None
    weights: tuple[float, float, float, float] | None = None
    half_life: int | None = None
    fusion: str | None = None
    rrf_k: int = 60
    minsim: float | None = None
    diversity: float | None = None

    def words(self, key: bytes = b"ns") -> list[bytes | str | int | float]:
        """The command that asks it."""
        words: list[bytes | str | int | float] = [f"MEM.{self.kind}", key]
        if self.text is not None:
            words += [self.text] if self.kind == "SEARCH" else ["TEXT", self.text]
        if self.vector is not None:
            words += ["VEC", blob(self.vector)]
        for clause in self.filters:
            words += ["FILTER", *clause]
        for how, tags in self.tags:
            words += ["TAGS", how, len(tags), *tags]
        for name in ("minscore", "half_life", "fusion", "minsim", "diversity"):
            value = getattr(self, name)
            if value is not None:
                words += [name.replace("_", ""), value]
        if self.weights is not None:
            words += ["WEIGHTS", *self.weights]
        if self.rrf_k != 60:
            words += ["RRFK", self.rrf_k]
        return words


@dataclass
class Signal:
    raw: float
    scaled: float
    weight: float
    low: float  # contribution to the score, at least and at most
    high: float
    rank_low: int  # the best rank, and the worst, among the matching records that survive the filters
    rank_high: int


@dataclass
class Match:
    record: Record
    keyword: float | None
    similarity: float | None
    linear: float
    low: float
    high: float
    signals: dict[str, Signal]
    term_parts: list[TermPart]
    boost: float  # TAGBOOST, in `keyword`
    below_average: bool  # clearly, so that its scaled similarity is 0 to the last bit
    alike: tuple[object, ...]  # all that the score is made of


class Memory:
    """What MEM.CREATE makes; `now` is unix milliseconds."""

    def __init__(
        self,
        mode: str = "HYBRID",
        dim: int = 0,
        metric: str = "COSINE",
        weights: tuple[float, float, float, float] = (0.35, 0.50, 0.10, 0.05),
        half_life: int = 604800,
        fusion: str = "LINEAR",
        lang: str = "english",
        k1: float = 0.9,
        b: float = 0.4,
        tagboost: float = 0.0,
    ) -> None:
        self.tagboost = tagboost
        self.mode, self.dim, self.metric, self.weights = mode, dim, metric, weights
        self.half_life, self.fusion, self.lang, self.k1, self.b = half_life, fusion, lang, k1, b
        self.analyzer = Analyzer(lang, Vocabulary())
        self.records: dict[bytes, Record] = {}
        self.next_id = 1

    def copy(self) -> Memory:
        """An independent twin: records are never changed in place."""
        twin = copy.copy(self)
        twin.records = dict(self.records)
        return twin

    # -- records

    def expire(self, now: int) -> list[bytes]:
        """Drop the records whose deadline has come; their ids."""
        gone = [r.id for r in self.records.values() if r.deadline is not None and r.deadline <= now]
        for record_id in gone:
            del self.records[record_id]
        return gone

    def add(
        self,
        now: int,
        record_id: bytes | None,
        text: bytes,
        vector: Vector | None = None,
        meta: Iterable[tuple[bytes, bytes]] = (),
        tags: Sequence[bytes] | None = None,
        importance: float | None = None,
        ttl: int | None = None,
        at: int | None = None,
        keepvec: bool = False,
    ) -> bytes:
        """Add or replace; the id. Nothing is refused here."""
        if record_id is None:
            while b"%d" % self.next_id in self.records:
                self.next_id += 1
            record_id = b"%d" % self.next_id
            self.next_id += 1
        old = self.records.get(record_id)
        at = now if at is None else at
        if vector is not None:
            vector = float32(unit(float32(vector))) if self.metric == "COSINE" else float32(vector)
        elif old is not None and (keepvec or old.text == text):
            vector = old.vector
        deadline = now + ttl * 1000 if ttl is not None else old.deadline if old else None
        if self.mode == "VECTOR":
            tfs, doc_len = {}, 0
        else:
            document = self.analyzer.document(text, MAX_WORDS)
            tfs = {term: tf / 2 for term, tf in zip(document.terms, document.tfs, strict=True)}
            doc_len = document.doc_len
        self.records[record_id] = Record(
            record_id,
            text,
            vector,
            {**(old.meta if old else {}), **dict(meta)},
            unique(tags) if tags is not None else old.tags if old else (),
            importance if importance is not None else old.importance if old else 0.5,
            old.created_at if old else at,
            at,
            deadline,
            tfs,
            doc_len,
        )
        return record_id

    def info(self) -> dict[str, float]:
        records = self.records.values()
        return {
            "records": len(records),
            "vectors": sum(r.vector is not None for r in records),
            "terms": len({term for r in records for term in r.tfs}),
            "avg_doc_len": self._avgdl(),
        }

    def select(self, filters: Sequence[Filter], tags: Sequence[TagTest] = ()) -> list[Record]:
        """The records that pass, in the order of MEM.LIST."""
        return sorted((r for r in self.records.values() if survives(r, filters, tags)), key=lambda r: r.newest_first)

    # -- the four signals

    def _avgdl(self) -> float:
        return sum(r.doc_len for r in self.records.values()) / len(self.records) if self.records else 0.0

    def bm25(self, terms: Sequence[QueryTerm]) -> dict[bytes, list[TermPart]]:
        """For each record the query terms that it holds."""
        n, avgdl = len(self.records), self._avgdl()
        found: dict[bytes, list[TermPart]] = {record_id: [] for record_id in self.records}
        for term, term_id, weight in terms:
            holders = [r for r in self.records.values() if term_id in r.tfs]
            idf = math.log(1 + (n - len(holders) + 0.5) / (len(holders) + 0.5))
            for record in holders:
                tf = record.tfs[term_id]
                norm = self.k1 * (1 - self.b + self.b * record.doc_len / avgdl)
                part = weight * idf * tf * (self.k1 + 1) / (tf + norm)
                found[record.id].append((term, idf, tf, part))
        return found

    def similarity(self, a: Vector, b: Vector) -> float:
        """By the metric; stored unit vectors are so to float32 only."""
        if self.metric == "COSINE":
            return dot(unit(a), unit(b))
        return 1 / (1 + math.dist(a, b)) if self.metric == "L2" else dot(a, b)

    def gravity(self, query: Vector) -> float:
        """The query's similarity to the memory as a whole, SPEC's g."""
        vectors = [r.vector for r in self.records.values() if r.vector is not None]
        return math.fsum(dot(query, v) for v in vectors) / (len(vectors) + 20)

    def _scale(self, s: float, g: float) -> float:
        if self.metric == "COSINE":
            return max(0.0, (s - g) / (1 - g))
        return s if self.metric == "L2" else (1 + s / (1 + abs(s))) / 2

    # -- queries

    def answer(self, q: Query, now: int) -> Answer:
        """All hits, best first, before OFFSET and TOPK."""
        matched = self._matches(q, now)
        survivors = [m for m in matched if survives(m.record, q.filters, q.tags)]
        _rank(survivors)
        for match in survivors:
            self._score(match, q)
        limit = q.minscore if q.minscore is not None else -math.inf
        hits, doubtful, below_minscore = [], set(), 0
        for match in survivors:
            margin = (match.linear if q.kind == "QUERY" else match.low) - limit
            below_minscore += margin < 0
            if q.minsim is not None:
                margin = min(margin, -math.inf if match.similarity is None else match.similarity - q.minsim)
            if abs(margin) < CLOSE:
                doubtful.add(match.record.id)
            if margin >= 0:
                hits.append(match)
        hits.sort(key=lambda m: (-m.low, m.record.newest_first))
        return Answer(self, q, hits, doubtful, len(matched), len(matched) - len(survivors), below_minscore)

    def _matches(self, q: Query, now: int) -> list[Match]:
        """The records with a keyword score, or with a vector where the query has one; LINEAR's parts of each."""
        query_vector = None
        if q.vector is not None:
            query_vector = unit(float32(q.vector)) if self.metric == "COSINE" else float32(q.vector)
        terms = self.analyzer.query(q.text, MAX_WORDS) if q.text is not None else []
        g = self.gravity(query_vector) if query_vector is not None and self.metric == "COSINE" else 0.0
        parts = self.bm25(terms)
        bm25 = {record_id: sum(part for *_, part in found) for record_id, found in parts.items()}
        boosts = dict.fromkeys(bm25, 0.0)
        if q.text is not None and self.tagboost:
            asked = list(whole_words(q.text))
            for record in self.records.values():
                if bm25[record.id] > 0 or (query_vector is not None and record.vector is not None):
                    boosts[record.id] = self.tagboost * sum(_holds_words(asked, tag) for tag in record.tags)
                    bm25[record.id] += boosts[record.id]
        best = max(bm25.values(), default=0.0)
        matched = []
        for record in self.records.values():
            keyword = bm25[record.id] if bm25[record.id] > 0 else None
            similarity = None
            if query_vector is not None and record.vector is not None:
                similarity = self.similarity(query_vector, record.vector)
            if keyword is None and similarity is None:
                continue
            recency = 0.5 ** (max(0, now - record.updated_at) / 1000 / (q.half_life or self.half_life))
            raw_and_scaled = {
                "keyword": None if keyword is None else (keyword, keyword / best),
                "vector": None if similarity is None else (similarity, self._scale(similarity, g)),
                "recency": (recency, recency),
                "importance": (record.importance, record.importance),
            }
            signals = {}
            for (name, values), weight in zip(raw_and_scaled.items(), q.weights or self.weights, strict=True):
                if values is not None:
                    raw, scaled = values
                    signals[name] = Signal(raw, scaled, weight, weight * scaled, weight * scaled, 0, 0)
            linear = sum(s.low for s in signals.values())
            far = self.metric == "COSINE" and similarity is not None and similarity < g - CLOSE
            matched.append(
                Match(
                    record,
                    keyword,
                    similarity,
                    linear,
                    linear,
                    linear,
                    signals,
                    parts[record.id],
                    boosts[record.id],
                    far,
                    (),
                )
            )
        return matched

    def _score(self, match: Match, q: Query) -> None:
        """Set the score, from `low` to `high`, and what it is made of. Ranks are there."""
        if q.kind != "QUERY":
            name = "keyword" if q.kind == "SEARCH" else "vector"
            match.low = match.high = match.signals[name].raw
            match.alike = (_source(match, name),)
            return
        rrf = (q.fusion or self.fusion) == "RRF"
        match.alike = _alike(match, rrf)
        if rrf:
            for s in match.signals.values():
                s.low, s.high = s.weight / (q.rrf_k + s.rank_high), s.weight / (q.rrf_k + s.rank_low)
            match.low = sum(s.low for s in match.signals.values())
            match.high = sum(s.high for s in match.signals.values())


@dataclass
class Answer:
    memory: Memory
    query: Query
    hits: list[Match]
    doubtful: set[bytes]  # within CLOSE of MINSCORE or MINSIM: either is right
    matched: int
    filtered: int  # taken out by filters
    below_minscore: int

    def check(self, got: Sequence[tuple[bytes, float | None]]) -> None:
        """Raise AssertionError unless `got`, (id, score) of every hit in order, is this answer."""
        expected = {m.record.id: m for m in self.hits}
        ids = [record_id for record_id, _ in got]
        assert len(set(ids)) == len(ids), f"an id twice: {ids}"
        wrong = set(ids) ^ expected.keys()
        assert wrong <= self.doubtful, f"missing {expected.keys() - set(ids)}, too many {set(ids) - expected.keys()}"
        matches = [expected[record_id] for record_id in ids if record_id in expected]
        for record_id, score in got:
            match = expected.get(record_id)
            if match is not None and score is not None:
                slack = TOLERANCE * max(1.0, abs(match.low))
                assert match.low - slack <= score <= match.high + slack, f"score {score} of {match}"
        if self.query.diversity is not None:
            self._check_diversity(matches)
        else:
            _check_order(matches)

    def _check_diversity(self, got: list[Match]) -> None:
        """At each step the one chosen is a best one left, given those before it."""
        pool, tail = got[:500], got[500:]
        worst = min((m.high for m in pool), default=0.0)
        assert all(m.low <= worst + CLOSE for m in tail)
        _check_order(tail)
        keep = self.query.diversity
        assert keep is not None
        nearest: dict[bytes, float] = {}
        for i, chosen in enumerate(pool):
            left = pool[i:]
            value = {m.record.id: keep * m.low - (1 - keep) * nearest.get(m.record.id, 0.0) for m in left}
            spread = keep * max(m.high - m.low for m in left)
            best = max(value.values())
            assert value[chosen.record.id] >= best - CLOSE - spread, f"at {i} {chosen.record.id!r}: {value}"
            for other in left:
                near = 0.0
                if other.record.vector is not None and chosen.record.vector is not None:
                    near = self.memory.similarity(other.record.vector, chosen.record.vector)
                nearest[other.record.id] = max(nearest.get(other.record.id, -math.inf), near)


def _check_order(matches: list[Match]) -> None:
    for earlier, later in itertools.pairwise(matches):
        assert earlier.high >= later.low - CLOSE, f"{earlier.record.id!r} before {later.record.id!r}: {earlier} {later}"
    best_later = -math.inf
    for match in reversed(matches):
        assert match.high >= best_later - CLOSE, f"{match.record.id!r} stands too high"
        best_later = max(best_later, match.low)
    last_alike: dict[tuple[object, ...], Match] = {}
    for match in matches:
        before = last_alike.get(match.alike)
        if before is not None:
            assert before.record.newest_first < match.record.newest_first, (
                f"a tie in the wrong order: {before.record.id!r} before {match.record.id!r}"
            )
        last_alike[match.alike] = match


def _holds_words(asked: list[str], tag: bytes) -> bool:
    """Whether the words of `tag` stand in `asked` behind one another."""
    wanted = list(whole_words(tag))
    return bool(wanted) and any(asked[at : at + len(wanted)] == wanted for at in range(len(asked)))


def _rank(survivors: list[Match]) -> None:
    """Equal values share the best rank. What is certainly equal is what was made of the same; values that another order
    of summing could make equal, or not, may share it or not."""
    for name in ("keyword", "vector", "recency", "importance"):
        matches = [m for m in survivors if name in m.signals]
        values = sorted(m.signals[name].raw for m in matches)
        sources = [_source(m, name) for m in matches]
        same = Counter(sources)
        for match, source in zip(matches, sources, strict=True):
            signal = match.signals[name]
            scale = {"importance": 0.0, "recency": abs(signal.raw)}.get(name, max(1.0, abs(signal.raw)))
            slack = 1e-12 * scale
            signal.rank_low = 1 + len(values) - bisect_right(values, signal.raw + slack)
            signal.rank_high = 1 + len(values) - bisect_left(values, signal.raw - slack) - same[source]


def _source(match: Match, name: str) -> object:
    """What a signal's value is made of: the same for two records, the value is the same to the last bit."""
    if name == "keyword":
        return (*match.term_parts, match.boost)
    return match.record.vector if name == "vector" else match.signals[name].raw


def _alike(match: Match, rrf: bool) -> tuple[object, ...]:
    """What the score is made of, so that two records with the same have the same score to the last bit."""
    made_of: list[object] = []
    for name, signal in match.signals.items():
        if not signal.weight:
            continue
        nothing = name == "vector" and match.below_average and not rrf
        made_of.append((name, 0.0 if nothing else _source(match, name)))
    return tuple(made_of)


# Filters, SPEC section 5.


def survives(record: Record, filters: Sequence[Filter], tags: Sequence[TagTest] = ()) -> bool:
    return all(passes(record, *clause) for clause in filters) and all(
        (any if how == "ANY" else all)(tag in record.tags for tag in wanted) for how, wanted in tags
    )


_PLAIN = re.compile(rb"-?(0|[1-9][0-9]*)(\.[0-9]+)?")
_EXPONENT = re.compile(_PLAIN.pattern + rb"([eE][+-]?[0-9]+)?")


def passes(record: Record, name: bytes, op: str, value: bytes) -> bool:
    """Whether the record passes FILTER name op value."""
    times = name in (b"@created_at", b"@updated_at", b"@valid_at", b"@valid_until", b"@invalid_at")
    held = _held(record, name)
    if op == "EXISTS":
        return bool(held) == (value == b"1")
    wanted = _commas(value) if op in ("IN", "NIN") else [value]
    if times:
        wanted = [_time(word) for word in wanted]
    if op in ("NE", "NIN"):
        return not any(_equal(h, w) for h in held for w in wanted)
    return any(_holds(h, op, w) for h in held for w in wanted)


def _held(record: Record, name: bytes) -> Sequence[bytes]:
    """The values under a name: none, one, or the tags."""
    reserved: dict[bytes, Sequence[bytes]] = {
        b"@id": [record.id],
        b"@text": [record.text],
        b"@cid": [cid(record.text)],
        b"@importance": [shortest(record.importance)],
        b"@created_at": [b"%d" % record.created_at],
        b"@updated_at": [b"%d" % record.updated_at],
        b"@kind": [b"note"],
        b"@tags": record.tags,
    }
    if name.startswith(b"@"):
        return reserved.get(name, [])
    return [record.meta[name]] if name in record.meta else []


def _holds(held: bytes, op: str, wanted: bytes) -> bool:
    if op in ("EQ", "IN"):
        return _equal(held, wanted)
    if op == "CONTAINS":
        return wanted in held
    if op == "PREFIX":
        return held.startswith(wanted)
    a: Decimal | bytes = held
    b: Decimal | bytes = wanted
    if _EXPONENT.fullmatch(held) and _EXPONENT.fullmatch(wanted):
        a, b = Decimal(held.decode()), Decimal(wanted.decode())
    return {"GT": a > b, "GTE": a >= b, "LT": a < b, "LTE": a <= b}[op]  # type: ignore[operator]


def _equal(a: bytes, b: bytes) -> bool:
    if all(_PLAIN.fullmatch(x) and sum(c in b"0123456789" for c in x) <= 15 for x in (a, b)):
        return Decimal(a.decode()) == Decimal(b.decode())
    return a == b


def _commas(value: bytes) -> list[bytes]:
    return [part.replace(rb"\,", b",") for part in re.split(rb"(?<!\\),", value)]


def _time(word: bytes) -> bytes:
    """ISO 8601 as unix milliseconds."""
    if re.fullmatch(rb"-?[0-9]+", word):
        return word
    moment = datetime.fromisoformat(word.decode().replace("Z", "+00:00"))
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)  # noqa: UP017
    return b"%d" % round(moment.timestamp() * 1000)


def shortest(value: float) -> bytes:
    """A number's shortest decimal form."""
    return repr(float(value)).removesuffix(".0").encode()


def unique(tags: Iterable[bytes]) -> tuple[bytes, ...]:
    return tuple(dict.fromkeys(tags))
