"""Numbers of a log's decode and prefill lines."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

from specdash.monitor import rates
from specdash.monitor.memory import Memory
from specdash.monitor.sourcing import (
    LOG,
    LONG_S,
    PREFILL,
    WINDOW_S,
    idle_reading,
    interval,
    newer,
    newest_sum,
    rate_note,
    stale_after,
)
from specdash.monitor.state import Numbers, Reading


def from_log(out: Numbers, m: Memory, now: float, idle: bool | None) -> Numbers:
    """Live numbers by the decode lines in `m`, over a window that ends `now`."""
    newest = m.lines[-1] if m.lines else None
    age = now - m.last_decode if m.last_decode is not None else None
    if newest is None or age is None or age > stale_after(m) or idle:
        note = f"no decode line for {age:.0f} s" if age is not None else "no decode line yet"
        return replace(
            out,
            decode_tok_s=idle_reading(idle, "tok/s", LOG, now, note),
            accept_length=Reading(None, "tokens/step", LOG, None, note="idle" if idle else note),
        )
    span = max(WINDOW_S, 3 * interval(m))
    ranks: dict[int, list[Any]] = {}
    for line in m.lines:
        ranks.setdefault(line.dp or 0, []).append(line)
    windows = {dp: rates.decode_window(lines, now, span) for dp, lines in sorted(ranks.items())}
    told = {dp: window for dp, window in windows.items() if window is not None}
    whole = rates.add_up(list(told.values()))
    if whole is None:
        return out
    at, load = newest.at, round(whole.running) if whole.running is not None else newest.running
    note = "" if whole.tok_s is not None else "first interval after idle holds waiting time"

    def reading(value: float | None, unit: str, note: str = "", bonus: bool | None = None) -> Reading[Any]:
        return Reading(value, unit, LOG, at, span, load, bonus, note)

    running = newest_sum([window.newest.running for window in told.values()])
    queued = newest_sum([window.newest.queued for window in told.values()])
    return replace(
        out,
        source=f"{LOG}, last {span:.0f} s",
        decode_tok_s=reading(whole.tok_s, "tok/s", note),
        accept_length=reading(whole.accept_length, "tokens/step", bonus=True),
        accept_rate=reading(whole.accept_rate, "", rate_note(m)),
        running=Reading(running, "requests", LOG, at) if running is not None else out.running,
        queued=newer(out.queued, Reading(queued, "requests", LOG, at)),
        kv_used=newer(out.kv_used, Reading(newest.token_usage, "", LOG, at)),
        per_dp=tuple(
            MappingProxyType(
                {
                    "dp": dp,
                    "tok_s": window.tok_s,
                    "accept_length": window.accept_length,
                    "accept_rate": window.accept_rate,
                    "running": window.newest.running,
                    "queued": window.newest.queued,
                }
            )
            for dp, window in told.items()
        )
        if len(told) > 1
        else out.per_dp,
    )


def prefill(out: Numbers, m: Memory, now: float, idle: bool | None) -> Numbers:
    """Prompt tokens computed per second over the window, and the prefix cache's share over the last minute.

    The `input throughput` that the log prints counts the time since the last prefill, idle or not: not used.
    """
    if idle is None and m.last_prefill is None:
        return out
    span = WINDOW_S
    recent = [batch for batch in m.prefills if batch.at > now - span]
    at = m.last_prefill if recent else now
    computed = sum(batch.computed for batch in recent) / span
    speed = Reading(computed, "tok/s", PREFILL, at, span, note="" if recent else "no prefill batch")
    minute = [batch for batch in m.prefills if batch.at > now - LONG_S]
    had = sum(batch.cached for batch in minute)
    asked = had + sum(batch.computed for batch in minute)
    out = replace(out, prefill_tok_s=speed)
    if not asked:
        return out
    return replace(out, cache_hit=Reading(had / asked, "", PREFILL, m.last_prefill, LONG_S))
