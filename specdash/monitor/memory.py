"""What the reducer remembers of a server between events: bounded, immutable, read by no other room."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from specdash.monitor.liveness import Answer, Count, Processes
from specdash.monitor.rates import Point
from specdash.monitor.state import EMPTY, ServerState
from specdash.sglang.causes import Cause
from specdash.sglang.decode import DecodeLine
from specdash.sglang.server_info import Info, RankLoad

KEEP_S = 120.0
"""Counters, decode lines and histograms older than this are forgotten."""
MOST_LINES = 512
MOST_PREFILLS = 1024
MOST_ANSWERS = 24
MOST_COUNTS = 150

Buckets = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class SpecPage:
    """Gauges of speculation on one metrics page, with the load that they were seen under."""

    at: float
    moved: bool
    """Whether decode tokens moved since the page before."""
    running: float | None
    values: Mapping[str, Mapping[str, float]]
    """spec_accept_length, spec_accept_rate → DP rank → value; 0 is "not told" and is left out."""
    weights: Mapping[str, float]
    """DP rank → running requests."""

    def mean(self, name: str) -> float | None:
        """Over DP ranks, weighted by what each runs; None when no rank tells."""
        told = self.values.get(name, {})
        if len(told) < 2:
            return next(iter(told.values()), None)
        weights = {dp: max(self.weights.get(dp, 0.0), 1e-9) for dp in told}
        return sum(told[dp] * weights[dp] for dp in told) / sum(weights.values())


class Prefill(NamedTuple):
    """One prefill batch: prompt tokens computed and found in the prefix cache."""

    at: float
    computed: int
    cached: int


@dataclass(frozen=True, slots=True)
class Memory:
    lines: tuple[DecodeLine, ...] = ()
    """Decode lines of the last `KEEP_S`, by local time, oldest first."""
    past: tuple[DecodeLine, ...] = ()
    """Decode lines that came late, for the histories (`backfill`); empty again when these are filled."""
    filled: float | None = None
    """Local time up to which the histories are filled from `past`."""
    log_base: int = 0
    """Bytes of the log before the first that the story was fed, gaps included."""
    last_prefill: float | None = None
    speculates: bool | None = None
    """Whether the newest decode line has an accept length."""
    last_decode: float | None = None
    log_clock: tuple[tuple[int, float], ...] = ()
    """(bytes of log, host boot time) from the supervisor's samples: when which byte was written."""
    counters: Mapping[str, tuple[Point[Any], ...]] = field(default_factory=lambda: EMPTY)
    realtime: Mapping[str, tuple[Point[str], ...]] = field(default_factory=lambda: EMPTY)
    """`realtime_tokens_total` by mode, each point by DP rank."""
    histograms: Mapping[str, tuple[tuple[float, Buckets], ...]] = field(default_factory=lambda: EMPTY)
    gauges: Mapping[str, Mapping[str, float]] = field(default_factory=lambda: EMPTY)
    """Of the last metrics page: name → DP rank → value."""
    spec_pages: tuple[SpecPage, ...] = ()
    """One per metrics page of the last `KEEP_S`."""
    prefills: tuple[Prefill, ...] = ()
    """Prefill batches of the log of the last `KEEP_S`."""
    metrics_at: float | None = None
    metrics_why: str = ""
    """Why there are no metrics; empty when there are."""
    metrics_hint: tuple[str, ...] = ()
    loads: tuple[RankLoad, ...] = ()
    loads_at: float | None = None
    speeds: tuple[tuple[float, Mapping[int, float]], ...] = ()
    """From /v1/loads, or the gauge where nothing better is: (time, DP rank → tok/s of its last decode log interval), only where that changed."""
    info: Info | None = None
    info_at: float | None = None
    answers: tuple[Answer, ...] = ()
    counts: tuple[Count, ...] = ()
    processes: Processes | None = None
    roles_seen: Mapping[str, int] = field(default_factory=lambda: EMPTY)
    """Role → the most processes of it that this run ever had."""
    tree: tuple[Mapping[str, Any], ...] = ()
    """The run's process tree as last sampled."""
    was_ready: bool = False
    source: str = ""
    switched: str = ""
    """Sentence about the last change of `source`; empty when it never changed."""
    causes: tuple[Cause, ...] = ()
    """What the log says is wrong: of an ended run its first cause, of a living one its conditions."""
    causes_for: Any = None
    """What `causes` was judged from: they are judged again only when that has changed."""


BLANK = Memory()


def of(server: ServerState) -> Memory:
    found = server.inner.get("memory")
    return found if isinstance(found, Memory) else BLANK


def keep(server: ServerState, memory: Memory) -> ServerState:
    return replace(server, inner=MappingProxyType({**server.inner, "memory": memory}))
