"""The ranks of one server as one story: the slowest leads, the first failure is named, its echoes are folded. Pure.

When one rank dies, the others lose their connections and tell of that, often louder and sometimes earlier than the
log of the one that died. So what only says that somebody else went away is never the first failure while another
rank ended by itself, or while a host is out of reach.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specdash.sglang.causes import Cause
from specdash.sglang.phases import TITLES, position

ECHOES = frozenset(
    {
        "peer_rank_gone",
        "dist_timeout",
        "nccl_timeout",
        "nccl_connect_failed",
        "nccl_error",
        "peer_timeout_during_jit",
        "child_died",
        "child_exited",
        "unknown",
    }
)
"""Causes that may be only the echo of another rank's end."""
PLAIN_ECHOES = frozenset({"peer_rank_gone", "dist_timeout", "nccl_timeout", "nccl_connect_failed"})


@dataclass(frozen=True, slots=True)
class RankView:
    """One rank as it is seen now."""

    rank: int
    host: str
    run: str
    phase: str = "unknown"
    """As `sglang.phases.ORDER` names it; "loaded": it waits for rank 0."""
    detail: str = ""
    """Of a progress bar, e.g. "12/62"."""
    ready: bool = False
    ended: bool = False
    ended_unix: float | None = None
    """By this machine's clock."""
    how: str = ""
    """How it ended, in words: "exited with code 1"."""
    cause: Cause | None = None
    stop_asked: bool = False
    away: str = ""
    """Why its host cannot be asked; empty: it can."""
    problem: str = ""
    """It lives, but cannot become ready: e.g. its port is held."""
    role: str = ""
    """Of a prefill/decode pair; empty: one of equal ranks."""

    @property
    def name(self) -> str:
        return f"{self.role or f'rank {self.rank}'} on {self.host}"


@dataclass(frozen=True, slots=True)
class Together:
    """All ranks as one. `first`: the first failure. `folded`: what the others' ends were, one sentence each."""

    phase: str
    sentence: str
    slowest: RankView | None
    first: RankView | None = None
    folded: tuple[str, ...] = ()
    rest: tuple[RankView, ...] = ()
    """Ranks that live, as far as is known, when one has failed."""
    data: Mapping[str, Any] = field(default_factory=dict)


def place(view: RankView) -> float:
    """How far a rank is: a later phase is more. One that is out of reach counts by what was seen last."""
    if view.ready:
        return position("ready")
    return position("starting_http_or_warmup") + 0.5 if view.phase == "loaded" else position(view.phase)


def merge(views: Sequence[RankView]) -> Together:
    """One story of all ranks."""
    first = first_failure(views)
    data = {"ranks": [as_json(view) for view in views]}
    if first is not None:
        folded = tuple(_echo(view, first) for view in views if view.ended and view is not first)
        rest = tuple(view for view in views if not view.ended and view is not first)
        return Together("failed", told(first), first, first, folded, rest, data)
    if views and views[0].ready:
        return Together("ready", f"{views[0].name} generates.", None, data=data)
    slowest = min(views, key=place, default=None)
    if slowest is None:
        return Together("unknown", "", None, data=data)
    title = title_of(slowest)
    others = [f"{view.name}: {title_of(view)}" for view in views if title_of(view) != title]
    all_same = (
        f"{title} on all {len(views)} hosts" if not others else f"{title}: {slowest.name} is the slowest"
    )
    told_others = f" ({'; '.join(others)})" if others else ""
    away = [f"{view.host} is out of reach ({view.away})" for view in views if view.away]
    return Together(
        slowest.phase,
        f"{all_same}{told_others}.{''.join(f' {one}.' for one in away)}",
        slowest,
        data=data,
    )


def title_of(view: RankView) -> str:
    if view.ready:
        return "ready"
    if view.phase == "loaded":
        return f"loaded, waits for {'the router' if view.role else 'rank 0'}" if view.rank else "loaded"
    title = TITLES.get(view.phase, view.phase)
    return f"{title} {view.detail}" if view.detail else title


def first_failure(views: Sequence[RankView]) -> RankView | None:
    """The rank that failed first: by its own cause before by an echo, then by time. None: none has failed."""
    failed = [view for view in views if (view.ended or view.problem) and not view.stop_asked]
    if not failed:
        return None
    order = sorted(failed, key=lambda view: (weight(view), view.ended_unix or float("inf"), view.rank))
    lost = [view for view in views if view.away and not view.ended]
    if lost and weight(order[0]) > 0:
        return lost[0]
    return order[0]


def weight(view: RankView) -> int:
    """0: it has a cause of its own; 1: perhaps an echo; 2: surely one."""
    if view.problem:
        return 0
    category = view.cause.category if view.cause is not None else ""
    if category in PLAIN_ECHOES:
        return 2
    return 1 if category in ECHOES or not category else 0


def told(first: RankView) -> str:
    """The first failure in words, host and rank named."""
    if first.problem:
        return f"{_named(first)}: {first.problem}"
    if first.away and not first.ended:
        return f"{first.host} is out of reach, and the other ranks lost {first.name}: {first.away}"
    if first.cause is not None:
        advice = f" {first.cause.advice[0]}" if first.cause.advice else ""
        how = f" It {first.how}." if first.how else ""
        return f"{_named(first)} failed first: {first.cause.sentence}{how}{advice}"
    return f"{_named(first)} ended first: it {first.how or 'is gone'}."


def _named(view: RankView) -> str:
    return view.name[0].upper() + view.name[1:]


def _echo(view: RankView, first: RankView) -> str:
    """What became of another rank, after the first: how it ended, and its own cause where it has one to tell."""
    after = "after it"
    if view.ended_unix is not None and first.ended_unix is not None and view.ended_unix > first.ended_unix:
        after = f"{view.ended_unix - first.ended_unix:.0f} s after it"
    if view.cause is not None and weight(view):
        return f"{_named(view)} ended {after}: it lost its peer."
    if view.cause is not None and view.cause.signal is None:
        return f"{_named(view)} ended {after}: {view.cause.sentence}"
    # An engine whose peer went kills its own processes: that signal is no killer's from outside.
    return f"{_named(view)} ended {after}: it {view.how or 'is gone'}."


def as_json(view: RankView) -> dict[str, Any]:
    return {
        "rank": view.rank,
        "host": view.host,
        "run": view.run,
        **({"role": view.role} if view.role else {}),
        "phase": "ready" if view.ready else view.phase,
        "ended": view.ended,
        "how": view.how,
        "cause": view.cause.category if view.cause is not None else None,
        "out_of_reach": view.away or None,
    }
