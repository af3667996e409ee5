"""The recall block: the contract's example byte for byte, hostile text, and the budget against brute force."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st
from recalld.index.block import Episode, Line, clean, render
from recalld.index.side import NEVER

_AUGUST_16 = 1786838400000  # 2026-08-16T00:00:00Z

_EXAMPLE = b"""Known facts about user, most relevant first.

# FACTS  (format: fact (valid: from - to))
- user is interested in toyota corolla hybrid  (valid: 2026-08-16 - present)

# ENTITIES
- toyota corolla hybrid (PRODUCT)"""

_words = st.one_of(st.text(max_size=30).map(lambda text: text.encode("utf-8", "surrogatepass")), st.binary(max_size=30))
_times = st.integers(-(10**14), 10**14)
_types = st.sampled_from([b"", b"", b"ORG", b"PRODUCT"])
_lines = st.lists(
    st.builds(Line, _words, _words, _words, st.sampled_from([b"a", b"b\n", b"c"]), _types, _times, _times), max_size=8
)
_episodes = st.lists(st.builds(Episode, _words, _words, _times), max_size=4)


def _car(until: int = NEVER) -> Line:
    name = b"toyota corolla hybrid"
    return Line(b"1", b"user is interested in " + name, b"user", name, b"PRODUCT", _AUGUST_16, until)


def test_the_contracts_example() -> None:
    assert render([_car()]) == (_EXAMPLE, [b"1"], [])


def test_days_are_utc_and_the_end_is_shown() -> None:
    line = _car(_AUGUST_16 + 86_400_000)._replace(valid_at=_AUGUST_16 - 1)
    assert b"(valid: 2026-08-15 - 2026-08-17)" in render([line]).text


def test_nothing_is_the_empty_string() -> None:
    assert render([]) == (b"", [], [])


def test_groups_stand_in_the_order_of_their_best_fact_and_entities_with_them() -> None:
    lines = [
        Line(b"1", b"x1", b"ann", b"x", b"ORG", 0, NEVER),
        Line(b"2", b"y1", b"bob", b"y", b"", 0, NEVER),
        Line(b"3", b"x2", b"cid", b"x", b"ORG", 0, NEVER),
    ]
    assert render(lines, [Episode(b"4", b"a\r\nb", 0)]).text.decode().split("\n") == [
        "Known facts about ann, cid, bob, most relevant first.",
        "",
        "# FACTS  (format: fact (valid: from - to))",
        "- x1  (valid: 1970-01-01 - present)",
        "- x2  (valid: 1970-01-01 - present)",
        "- y1  (valid: 1970-01-01 - present)",
        "",
        "# ENTITIES",
        "- x (ORG)",
        "",
        "# EPISODES",
        "- a b  (1970-01-01)",
    ]


def test_every_blank_of_unicode_collapses() -> None:
    for number in [*range(0xD800), *range(0xE000, 0x110000)]:
        blank = unicodedata.category(chr(number)) in ("Cc", "Zl", "Zp", "Zs")
        assert clean(f"a{chr(number) * 2}b".encode()) == ("a b" if blank else f"a{chr(number) * 2}b")


@given(_lines, _episodes)
def test_one_line_each_whatever_the_text_holds(lines: list[Line], episodes: list[Episode]) -> None:
    text = render(lines, episodes).text.decode()
    entities = {(line.anchor, line.anchor_type) for line in lines if line.anchor_type}
    counts = [1, 1 + len(lines)] if lines else []
    counts += [1 + len(entities)] if entities else []
    counts += [1 + len(episodes)] if episodes else []
    assert [len(part.splitlines()) for part in text.split("\n\n") if part] == counts


@given(_lines, _episodes, st.integers(1, 200))
def test_the_budget_keeps_the_longest_prefix_that_fits(lines: list[Line], episodes: list[Episode], budget: int) -> None:
    everything = [*lines, *episodes]
    best = b""
    kept = 0
    for count in range(len(everything) + 1):
        text = render(lines[:count], episodes[: max(0, count - len(lines))]).text
        if (len(text.decode()) + 3) // 4 <= budget:
            best, kept = text, count
    ids = [each.id for each in everything]
    assert render(lines, episodes, budget) == (best, ids[:kept], ids[kept:])
