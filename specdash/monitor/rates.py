"""Rates over a stated window: from counters, from histogram differences, and from decode lines.

All pure and over immutable tuples. `at` is local monotonic seconds. A window that cannot be told (one
point, a reset inside, a label change) is None: a wrong rate is worse than a dash.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from specdash.sglang.decode import DecodeLine

K = TypeVar("K", bound=Hashable)


SHORTEST_S = 1e-6
"""Two readings nearer to each other say nothing of a rate."""


@dataclass(frozen=True, slots=True)
class Point(Generic[K]):
    """All series of one counter at one time."""

    at: float
    values: Mapping[K, float]
    lost: Mapping[K, float] = field(default_factory=dict)
    """What series counted that went back or vanished less than `keep_s` ago, and are not back yet."""
    lost_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Rate:
    per_s: float
    window_s: float
    delta: float
    moved: bool
    """Whether the newest interval had any increase."""


def push(points: tuple[Point[K], ...], point: Point[K], keep_s: float) -> tuple[Point[K], ...]:
    """Adds a point. A decrease or a series that vanished is a reset: history starts anew with this point.

    A series that only appears counts from zero: prometheus-client makes a labelled series at its first use. One that
    was there before and comes back as high as it was (a page that came incomplete, a NaN) did not count all that
    since: history starts anew once more. Time that does not advance replaces the last point.
    """
    if points:
        last = points[-1]
        if point.at < last.at:
            return points
        gone = {k: v for k, v in last.values.items() if k not in point.values or point.values[k] < v}
        lost = dict(last.lost) if point.at - last.lost_at <= keep_s else {}
        back = [key for key, value in lost.items() if point.values.get(key, -1.0) >= value]
        if gone or lost:
            kept = {key: value for key, value in lost.items() if key not in back}
            point = replace(point, lost={**kept, **gone}, lost_at=point.at if gone else last.lost_at)
        if gone or back:
            return (point,)
        if point.at == last.at:
            points = points[:-1]
    oldest = point.at - keep_s
    # One point at or before the window's start stays, so that the window is filled.
    start = 0
    while start + 1 < len(points) and points[start + 1].at <= oldest:
        start += 1
    return (*points[start:], point)


def _sum(point: Point[K], key: K | None) -> float:
    if key is not None:
        return point.values.get(key, 0.0)
    return sum(point.values.values())


def rate(
    points: Sequence[Point[K]], window_s: float, *, key: K | None = None, skip_idle: bool = True
) -> Rate | None:
    """Increase per second over at most `window_s`; None with fewer than two points.

    With `skip_idle` the interval in which counting began after idle is dropped, since it holds waiting time.
    """
    if len(points) < 2:
        return None
    newest = points[-1]
    first = len(points) - 2
    while first > 0 and newest.at - points[first].at < window_s:
        first -= 1
    if skip_idle and _sum(newest, key) > _sum(points[first], key):
        # Walk to the last interval with no increase; counting starts one interval after it.
        for index in range(len(points) - 1, first, -1):
            if _sum(points[index], key) == _sum(points[index - 1], key):
                if index < len(points) - 2:
                    first = index + 1
                break
    span = newest.at - points[first].at
    if span < SHORTEST_S:
        return None
    delta = _sum(newest, key) - _sum(points[first], key)
    moved = _sum(newest, key) > _sum(points[-2], key)
    return Rate(delta / span, span, delta, moved)


QUIET_S = 5.0
"""A counter that stands still for longer has stopped, unless its steps are that far apart anyway."""


def moving(points: Sequence[Point[K]], window_s: float, *, key: K | None = None) -> Rate | None:
    """Increase per second from step to step, over about `window_s` of uninterrupted counting; None when not known.

    A counter may move with every token or once per log interval. Between two of its steps it is exact, at any pace;
    the step that ends a pause holds waiting time, so counting starts after it. A counter that stopped decays.
    """
    steps = [i for i in range(1, len(points)) if _sum(points[i], key) > _sum(points[i - 1], key)]
    if not steps:
        return Rate(0.0, points[-1].at - points[0].at, 0.0, False) if len(points) > 1 else None
    newest, last = points[-1], steps[-1]
    first, gap = last, 0.0
    for index in reversed(steps[:-1]):
        this = points[first].at - points[index].at
        if first != last and (points[index].at < newest.at - window_s or this > max(QUIET_S, 2.5 * gap)):
            break
        if first == last and this > max(QUIET_S, window_s):
            break
        first, gap = index, max(gap, this)
    quiet = newest.at - points[last].at
    stopped = quiet > max(QUIET_S, 2.5 * gap)
    end = newest.at if stopped else points[last].at
    span = end - points[first].at
    if span < SHORTEST_S:
        return None
    delta = _sum(newest, key) - _sum(points[first], key)
    return Rate(delta / span, span, delta, not stopped)


def ratio(
    above: Sequence[Point[K]], below: Sequence[Point[K]], window_s: float
) -> tuple[float, float] | None:
    """(Δabove/Δbelow, window) where both counters were read at the same times; None when nothing moved."""
    up = rate(above, window_s, skip_idle=False)
    down = rate(below, window_s, skip_idle=False)
    if up is None or down is None or down.delta <= 0 or abs(up.window_s - down.window_s) > 0.5:
        return None
    return up.delta / down.delta, up.window_s


def percentile(
    old: Sequence[tuple[float, float]], new: Sequence[tuple[float, float]], share: float
) -> float | None:
    """Percentile of what was observed between two cumulative histograms, linear inside a bucket.

    None when nothing was observed, the buckets differ, or the counts went back. When it falls into the
    last (+Inf) bucket the answer is that bucket's lower bound.
    """
    before = dict(old)
    if old and {bound for bound, _ in old} != {bound for bound, _ in new}:
        return None
    deltas = [(bound, count - before.get(bound, 0.0)) for bound, count in new]
    if not deltas or any(delta < 0 for _, delta in deltas):
        return None
    total = deltas[-1][1]
    if total <= 0:
        return None
    want = share * total
    low_bound = low_count = 0.0
    for bound, count in deltas:
        if count >= want and count > low_count:
            if bound == float("inf"):
                return low_bound
            return low_bound + (bound - low_bound) * (want - low_count) / (count - low_count)
        low_bound, low_count = (bound if bound != float("inf") else low_bound), max(low_count, count)
    return None


FASTEST = 1e7
"""tok/s of one rank. Above it an interval of next to no time was logged, which would count as many tokens in no time."""


@dataclass(frozen=True, slots=True)
class DecodeWindow:
    """Decode lines of the last `window_s`, one DP rank or all added up."""

    tok_s: float | None
    accept_length: float | None
    accept_rate: float | None
    running: float | None
    """Mean running requests, weighted by time."""
    lines: int
    newest: DecodeLine
    window_s: float


def decode_window(lines: Sequence[DecodeLine], now: float, window_s: float) -> DecodeWindow | None:
    """One DP rank's lines → means over the window; None without a line in it.

    Each line covers the same number of steps, so its share of time is running x accept length / tok/s, and
    its share of verify steps is running: tok/s is the mean over time, accept length the mean over steps. An accept
    length of 0 is what the engine writes where nothing was speculated: not told.
    """
    inside = [line for line in lines if line.at is not None and line.at > now - window_s]
    if not inside:
        return None
    tokens = seconds = weighted = 0.0
    for line in inside:
        if line.tok_s is None or line.first_after_idle or not 0 < line.tok_s <= FASTEST:
            continue
        per_step = max(1, line.running or 1) * (line.accept_len or 1.0)
        tokens += per_step
        seconds += per_step / line.tok_s
        weighted += (line.running or 0) * per_step / line.tok_s
    spec = [line for line in inside if line.accept_len]
    steps = sum(max(1, line.running or 1) for line in spec)
    length = (
        sum((line.accept_len or 0) * max(1, line.running or 1) for line in spec) / steps if steps else None
    )
    rated = [line for line in spec if line.accept_rate is not None]
    rated_steps = sum(max(1, line.running or 1) for line in rated)
    accepted = (
        sum((line.accept_rate or 0) * max(1, line.running or 1) for line in rated) / rated_steps
        if rated_steps
        else None
    )
    return DecodeWindow(
        tok_s=tokens / seconds if seconds > 0 else None,
        accept_length=length,
        accept_rate=accepted,
        running=weighted / seconds if seconds > 0 else None,
        lines=len(inside),
        newest=inside[-1],
        window_s=window_s,
    )


def add_up(windows: Sequence[DecodeWindow]) -> DecodeWindow | None:
    """DP ranks together: tok/s and running are sums; accept length is weighted by running requests.

    A rank that has no accept length takes no part in its mean (it is not 0).
    """
    if not windows:
        return None
    if len(windows) == 1:
        return windows[0]
    told = [w for w in windows if w.accept_length is not None]
    weights = [max(w.running or 0.0, 1e-9) for w in told]
    rated = [w for w in windows if w.accept_rate is not None]
    return DecodeWindow(
        tok_s=_total([w.tok_s for w in windows]),
        accept_length=(
            sum((w.accept_length or 0) * weight for w, weight in zip(told, weights, strict=True))
            / sum(weights)
            if told
            else None
        ),
        accept_rate=sum(w.accept_rate or 0 for w in rated) / len(rated) if rated else None,
        running=_total([w.running for w in windows]),
        lines=sum(w.lines for w in windows),
        newest=max((w.newest for w in windows), key=lambda line: line.at or 0.0),
        window_s=max(w.window_s for w in windows),
    )


def _total(values: Sequence[float | None]) -> float | None:
    told = [value for value in values if value is not None]
    return sum(told) if told else None
