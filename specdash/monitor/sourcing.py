"""Where live numbers come from: one source, chosen by what answers; and when nothing runs or nothing is told."""

from __future__ import annotations

import itertools
from typing import Any

from specdash.monitor.memory import Memory
from specdash.monitor.state import Reading, ServerState

WINDOW_S = 10.0
LONG_S = 60.0
FRESH_S = 15.0
"""A value of a source that is polled is stale when older than this."""
SILENT_S = 30.0
SURE_S = 5.0
"""Where no tokens are counted, nothing may have run for so long before it is idleness: requests can be short."""
LOG, METRICS, LOADS, INFO = "log decode lines", "metrics realtime_tokens_total", "/v1/loads", "/server_info"
GAUGE = "metrics gen_throughput"
"""Before 0.5.8 there is no counter that moves while requests run."""
PREFILL = "log prefill lines"
PERCENTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
RATE_NOTE_OLD = "accepted incl. bonus / draft tokens (before 0.5.11)"
RATE_NOTE_NEW = "correct drafts / proposed drafts (0.5.11 on)"


def interval(m: Memory) -> float:
    """How far apart decode lines came lately, in seconds: a gap of several of these means no decoding."""
    times = [line.at for line in m.lines if line.at is not None][-9:]
    gaps = sorted(b - a for a, b in itertools.pairwise(times) if b > a)
    return gaps[len(gaps) // 2] if gaps else 0.0


def stale_after(m: Memory) -> float:
    return max(5.0, min(60.0, 3 * interval(m)))


def known_idle(m: Memory, now: float) -> bool | None:
    """True only when a fresh source says that nothing runs; None when nobody tells."""
    if m.counts and now - m.counts[-1].at <= FRESH_S:
        newest = m.counts[-1]
        before = m.counts[-2] if len(m.counts) > 1 else None
        if newest.running is not None:
            if newest.running > 0 or newest.queued:
                return False
            if before is not None and before.at > newest.at - FRESH_S:
                # One look between two requests is no idleness, and a gauge of 0 while tokens move is an old one.
                moved = (
                    newest.tokens is not None and before.tokens is not None and newest.tokens > before.tokens
                )
                if before.running or moved:
                    return False
                # Where no tokens are counted (`/v1/loads`), short requests can hide from two looks a second apart.
                blind = newest.tokens is None and m.loads_at is not None and newest.at - m.loads_at < FRESH_S
                if blind and any(c.running for c in m.counts if c.at > newest.at - SURE_S):
                    return False
            # Gauges are written with batches only: a newer decode line beats them.
            return m.last_decode is None or m.last_decode <= newest.at
    if m.last_decode is not None and now - m.last_decode <= stale_after(m):
        return False
    return None


def choose(server: ServerState, m: Memory, now: float) -> str:
    """The source of live numbers: the log where it is followed, since every server writes it; else what answers.

    Kept while it works. A log that says nothing while requests run (another log level) does not.
    """
    followed = server.log.read > 0 and not server.log.missing
    has = {
        LOG: followed and not _silent(m, now),
        METRICS: bool(m.realtime) and m.metrics_at is not None and now - m.metrics_at <= FRESH_S,
        GAUGE: not m.realtime
        and "gen_throughput" in m.gauges
        and m.metrics_at is not None
        and now - m.metrics_at <= FRESH_S,
        LOADS: bool(m.loads) and m.loads_at is not None and now - m.loads_at <= FRESH_S,
    }
    if m.source and has.get(m.source):
        return m.source
    return next((name for name in (LOG, METRICS, GAUGE, LOADS) if has[name]), m.source)


def _silent(m: Memory, now: float) -> bool:
    """Requests have been running for a while and the log has no decode line of it."""
    if m.last_decode is not None and now - m.last_decode < SILENT_S:
        return False
    since = None
    for count in reversed(m.counts):
        if not count.running:
            break
        since = count.at
    return since is not None and m.counts[-1].at - since >= SILENT_S


def idle_reading(idle: bool | None, unit: str, source: str, now: float, note: str) -> Reading[Any]:
    """Nothing is decoded: 0 when that is known, else not available."""
    if idle:
        return Reading(0.0, unit, source, now, note="idle")
    return Reading(None, unit, source, None, note=note)


def newest_sum(values: list[int | None]) -> int | None:
    told = [value for value in values if value is not None]
    return sum(told) if told else None


def newer(a: Reading[Any], b: Reading[Any]) -> Reading[Any]:
    """The one seen last; a missing value never hides a told one."""
    if b.value is None:
        return a
    return b if a.value is None or (a.at or 0.0) <= (b.at or 0.0) else a


def rate_note(m: Memory) -> str:
    """Which of the two definitions the accept rate has; empty when the version is not known."""
    parts = (m.info.version if m.info else "").split(".")
    try:
        version = tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in parts[:3])
    except ValueError:
        return ""
    if len(version) < 3:
        return ""
    return RATE_NOTE_NEW if version >= (0, 5, 11) else RATE_NOTE_OLD
