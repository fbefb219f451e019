"""`Numbers` of a server at one time: one chosen source, windows stated, idle and stale told apart.

Where from is chosen in `sourcing`; each source has a module: `numbers_log`, `numbers_metrics`, `numbers_http`.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from specdash.monitor import numbers_http, numbers_metrics
from specdash.monitor.memory import Memory
from specdash.monitor.numbers_log import from_log, prefill
from specdash.monitor.sourcing import (
    FRESH_S,
    GAUGE,
    LOADS,
    LOG,
    METRICS,
    WINDOW_S,
    choose,
    idle_reading,
    known_idle,
    newer,
)
from specdash.monitor.state import Numbers, Reading, ServerState

__all__ = ["HISTORY", "LOG", "METRICS", "choose", "from_log", "make"]

HISTORY = 900


def make(server: ServerState, m: Memory, now: float) -> Numbers:
    """All numbers at the time `now`, histories grown by one point."""
    idle = known_idle(m, now)
    old = server.numbers
    out = replace(
        _whatever_the_source(server, m, now),
        source=_say(m.source),
        idle=idle,
        position_acceptance=old.position_acceptance,
    )
    if m.source == LOG:
        out = prefill(from_log(out, m, now, idle), m, now, idle)
    elif m.source == METRICS:
        out = numbers_metrics.live(out, m, now, idle)
    elif m.source in (LOADS, GAUGE):
        at = m.loads_at if m.source == LOADS else m.metrics_at
        out = numbers_http.live(out, m, m.source, at, now, idle)
        if m.source == GAUGE:
            out = numbers_metrics.of_gauges(out, m, now, idle)
    if out.prefill_tok_s.value is None and idle:
        out = replace(out, prefill_tok_s=idle_reading(True, "tok/s", m.source, now, ""))
    if idle:
        out = _without_leftovers(out)
    return replace(
        out,
        decode_history=_grow(old.decode_history, now, out.decode_tok_s.value),
        accept_history=_grow(old.accept_history, now, out.accept_length.value),
    )


def _without_leftovers(out: Numbers) -> Numbers:
    """Nothing runs: gauges that the engine leaves as they were say nothing of now. What has a window stays."""
    hit = out.cache_hit
    if hit.value is not None and hit.window_s is None:
        hit = Reading(None, hit.unit, hit.source, None, note="idle")
    rows = []
    for row in out.per_dp:
        calm = {"tok_s": 0.0, "accept_length": None, "accept_rate": None}
        rows.append(MappingProxyType({**row, **{key: v for key, v in calm.items() if key in row}}))
    return replace(out, cache_hit=hit, per_dp=tuple(rows))


def _say(source: str) -> str:
    return f"{source}, last {WINDOW_S:.0f} s" if source else ""


def _grow(
    history: tuple[tuple[float, float | None], ...], now: float, value: float | None
) -> tuple[tuple[float, float | None], ...]:
    if not history and value is None:
        return ()
    if history and now <= history[-1][0]:
        return history
    return (*history, (now, value))[-HISTORY:]


def _whatever_the_source(server: ServerState, m: Memory, now: float) -> Numbers:
    """What does not depend on the live source: gauges, caps, since-start values, latencies, finished requests."""
    out = Numbers()
    if m.loads and m.loads_at is not None:
        out = numbers_http.gauges(out, m, m.loads_at)
        if now - m.loads_at > FRESH_S:
            out = replace(out, per_dp=())  # its rows have no age of their own
    if m.gauges and m.metrics_at is not None and now - m.metrics_at <= FRESH_S:
        out = numbers_metrics.gauges(out, m, m.metrics_at)
    if m.info is not None and m.info_at is not None:
        out = numbers_http.since_start(out, m.info, m.info_at)
    out = replace(out, running_cap=numbers_http.cap(server, m, out.running_cap))
    found = numbers_metrics.latencies(m, now)
    finished = numbers_metrics.finished_accept(m, now)
    return replace(
        out,
        ttft_s=found["ttft_s"],
        itl_s=found["itl_s"],
        e2e_s=found["e2e_s"],
        accept_length_finished=newer(out.accept_length_finished, finished),
    )
