"""Time travel: both tables of a memory as one view of what counted at time t, as it was known at time k.

    held    KNOWN_TO is NEVER or beyond the horizon
    since   SINCE, or WRITTEN where that is not beyond the horizon: the version before it is not held any more
    plain   since <= m < KNOWN_TO, m = min(t, k)             rows without VALID_AT: from their writing to their end
    dated   since <= k < KNOWN_TO and VALID_AT <= t          facts, and records with VALIDAT
    ended   INVALID_AT <= t; or <= m where SINCE does not say since when that is known, and k is past
    shown   held and (dated where there is a VALID_AT, else plain) and t < VALID_UNTIL and not ended

A table without a side does not know when a text dated into the future was written: it counts from now, or from that
date once it has passed.

The rows of `table` come first, then those of `past`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .columns import UPDATED, Bools, Int64s
from .joined import JoinedView, Part
from .settings import Settings
from .side import INVALID_AT, KNOWN_TO, NEVER, SINCE, VALID_AT, VALID_UNTIL, WRITTEN
from .view import View


class Moment(NamedTuple):
    """What `joined` needs; made on the loop in some microseconds. `now` is the time of the command; `horizon` that of
    the history, `settings` those in force at `k`. With `invalidated` the test of INVALID_AT is left out."""

    main: View
    past: View | None
    t: int
    k: int
    now: int
    horizon: int
    settings: Settings
    invalidated: bool = False

    @property
    def rows(self) -> int:
        return self.main.n + (0 if self.past is None else self.past.n)

    @property
    def views(self) -> list[View]:
        return [self.main] if self.past is None else [self.main, self.past]


def joined(moment: Moment) -> JoinedView:
    """The view; milliseconds per hundred thousand rows, for a thread."""
    return JoinedView(moment.settings, moment.t, moment.k, parts(moment))


def parts(moment: Moment, vectors: bool = True, key: bytes | None = None) -> list[Part]:
    """The memory's tables with what shows of them."""
    shown, known = _shown(moment)
    found, start = [], 0
    for view in moment.views:
        rows = slice(start, start + view.n)
        found.append(Part(view, shown[rows], known[rows], vectors, key))
        start += view.n
    return found


def _shown(moment: Moment) -> tuple[Bools, Bools]:
    """Which rows of both tables show, and which were known."""
    views, t, k, horizon = moment.views, moment.t, moment.k, moment.horizon
    m = min(t, k)
    masks = [view.alive() for view in views]
    alive = np.concatenate(
        [np.full(view.n, True) if mask is None else mask for view, mask in zip(views, masks, strict=True)]
    )
    if moment.main.side is None:
        updated = np.concatenate([view._wide[UPDATED, : view.n] for view in views])
        since = np.minimum(updated, moment.now)
        return alive & (since <= m), alive & (since <= k)
    side = np.concatenate([view.side[:, : view.n] for view in views if view.side is not None], axis=1)
    known_to, valid_at = side[KNOWN_TO], side[VALID_AT]
    held = alive & ((known_to == NEVER) | (known_to > horizon))
    told = side[SINCE] > horizon
    since = np.where(told, side[SINCE], side[WRITTEN])
    known = held & (since <= k) & (k < known_to)
    dated = valid_at > -NEVER
    plain = (since <= m) & (m < known_to)
    shown: Bools = held & np.where(dated, known & (valid_at <= t), plain) & (t < side[VALID_UNTIL])
    if not moment.invalidated:
        shown &= side[INVALID_AT] > (t if k >= moment.now else np.where(told, t, m))
    _show_latest(views, side, shown, dated)
    return shown, known


def _show_latest(views: list[View], side: Int64s, shown: Bools, dated: Bools) -> None:
    """Of a plain version that ended after t, and a dated one of the same id that was written after it, which only
    ASOF alone shows both, the later one."""
    if not (shown & dated).any():
        return
    ended = np.flatnonzero(shown & ~dated & (side[KNOWN_TO] != NEVER)).tolist()
    if not ended:
        return
    first, since = views[0].n, side[SINCE]

    def id_of(slot: int) -> bytes:
        return views[0].ids[slot] if slot < first else views[1].ids[slot - first]

    plain = {id_of(slot): slot for slot in ended}
    for slot in np.flatnonzero(shown & dated).tolist():
        other = plain.get(id_of(slot))
        if other is not None:
            shown[other if since[slot] >= since[other] else slot] = False
