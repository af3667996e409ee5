"""Log entries: written and read back they are the same, to the bit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recalld.index.settings import FUSIONS, METRICS, MODES, Settings
from recalld.index.side import Extra, Fact
from recalld.server import entries

blobs = st.binary(max_size=20)
times = st.integers(-(1 << 50), 1 << 50)
reals = st.floats(0, 1e300)
names = st.sampled_from(["english", "none", "german"])
pairs = st.lists(st.tuples(blobs, blobs), max_size=3).map(lambda found: tuple(word for pair in found for word in pair))

settings = st.builds(
    Settings,
    mode=st.sampled_from(MODES),
    dim=st.integers(0, 4096),
    metric=st.sampled_from(METRICS),
    weights=st.tuples(reals, reals, reals, reals),
    half_life=st.integers(1, 1 << 60),
    fusion=st.sampled_from(FUSIONS),
    lang=names,
    k1=reals,
    b=st.floats(0, 1),
    history=st.integers(-1, 1 << 60),
)

facts = st.builds(Fact, *[blobs] * 8)
extras = st.builds(Extra, *[times] * 6, st.integers(0, 6), st.floats(0, 1), st.none() | facts)

every_entry = st.one_of(
    st.builds(entries.Create, blobs, settings, times),
    st.builds(entries.Configure, blobs, settings, times),
    st.builds(
        entries.Put,
        key=blobs,
        id=blobs,
        text=blobs,
        vector=blobs,
        meta=pairs,
        tags=st.lists(blobs, max_size=3).map(tuple),
        importance=st.floats(0, 1),
        created_at=times,
        updated_at=times,
        deadline=times,
        next_id=st.integers(1, 1 << 60),
        max_words=st.integers(1, 1 << 31),
        at=times,
        extra=st.none() | extras,
    ),
    st.builds(
        entries.Forget, blobs, st.lists(blobs, max_size=3).map(tuple), st.lists(times, max_size=3).map(tuple), times
    ),
    st.builds(entries.Invalidate, blobs, blobs, times, blobs, times),
    st.builds(entries.Retell, blobs, blobs, facts, times, times),
    st.builds(
        entries.PutEntity,
        key=blobs,
        name=blobs,
        type=blobs,
        aliases=st.lists(blobs, max_size=3).map(tuple),
        created_at=times,
        vector=blobs,
        at=times,
    ),
    st.builds(entries.DropEntity, blobs, blobs, blobs, times),
    st.builds(entries.Remove, blobs, st.lists(blobs, max_size=3).map(tuple), times),
    st.builds(entries.SetMeta, blobs, blobs, pairs, times),
    st.builds(entries.SetDeadline, blobs, blobs, times, times),
    st.builds(entries.Drop, st.lists(blobs, max_size=3).map(tuple)),
    st.builds(entries.ExpireKey, blobs, times),
    st.builds(entries.Rename, blobs, blobs),
    st.builds(entries.Copy, blobs, blobs),
    st.builds(entries.Flush),
    st.builds(
        entries.SetVectors, blobs, st.lists(st.tuples(blobs, st.integers(0, 9), blobs)).map(tuple), times, st.booleans()
    ),
)


@given(every_entry)
def test_decode_is_the_inverse_of_encode(entry):
    """decode(encode(entry)) == entry, and all words are bytes."""
    words = entry.encode()
    assert all(type(word) is bytes for word in words)
    assert entries.decode(words) == entry


@pytest.mark.parametrize("words", [[b"NONSENSE"], [b"PUT", b"k"], [b"EXPIREKEY", b"k", b"soon"], [b"CREATE", b"k"]])
def test_what_is_no_entry_is_refused(words):
    """Unknown verbs and broken fields raise ValueError, which the log reports with its offset."""
    with pytest.raises(ValueError, match="not a log entry"):
        entries.decode(words)
