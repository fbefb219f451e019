"""Numbers of a metrics page: counter differences, gauges with their load, percentiles of histogram differences.

`realtime_tokens_total` moves at every step; `generation_tokens_total`, `spec_verify_calls_total` and the latency
histograms move when a request ends; the gauges `spec_accept_*` hold the last decode log interval for ever, so they
count only on pages between which tokens moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from specdash.monitor import breakeven, rates
from specdash.monitor.memory import Memory
from specdash.monitor.rates import Point, Rate
from specdash.monitor.sourcing import FRESH_S, LONG_S, METRICS, PERCENTILES, WINDOW_S, newer, rate_note
from specdash.monitor.state import EMPTY, NOTHING, Numbers, Reading

RUNNING_S = 3.0
STEADY_SHARE = 0.6
"""Share of the pages of a window that must show the same load."""
LENGTH, RATE = "spec_accept_length", "spec_accept_rate"
LATENCIES = {
    "ttft_s": ("time_to_first_token_seconds",),
    "itl_s": (
        "inter_token_latency_seconds",
        "request_time_per_output_token_seconds",
        "time_per_output_token_seconds",
    ),
    "e2e_s": ("e2e_request_latency_seconds",),
}


def realtime(m: Memory, mode: str, dp: str | None = None) -> tuple[Point[str], ...]:
    """`realtime_tokens_total` of one mode (decode, prefill_compute, prefill_cache), of one DP rank or all."""
    points = m.realtime.get(mode, ())
    if dp is None:
        return points
    return tuple(Point(point.at, {dp: point.values[dp]}) for point in points if dp in point.values)


def live(out: Numbers, m: Memory, now: float, idle: bool | None) -> Numbers:
    """tok/s, accept length and rate of the last `WINDOW_S`."""
    found = rates.moving(realtime(m, "decode"), WINDOW_S)
    if m.metrics_at is None or now - m.metrics_at > FRESH_S:
        note = "metrics do not answer"
        missing: Reading[Any] = Reading(None, "tok/s", METRICS, None, note=note)
        return replace(out, decode_tok_s=missing, prefill_tok_s=missing)
    load = out.running.value

    def per_second(rate: Rate | None) -> Reading[float]:
        if idle:
            return Reading(0.0, "tok/s", METRICS, now, note="idle")
        if rate is None:
            return Reading(None, "tok/s", METRICS, None, note="not moved for long enough yet")
        return Reading(rate.per_s, "tok/s", METRICS, m.metrics_at, rate.window_s, load)

    computed = rates.rate(realtime(m, "prefill_compute"), WINDOW_S, skip_idle=False)
    out = replace(
        out,
        decode_tok_s=per_second(found),
        prefill_tok_s=per_second(computed),
        cache_hit=newer(out.cache_hit, _cache_hit(m)),
        per_dp=_per_dp(out, m),
    )
    return of_gauges(out, m, now, idle)


def of_gauges(out: Numbers, m: Memory, now: float, idle: bool | None) -> Numbers:
    """Accept length and rate by the gauges of the last decode log interval, as means over the window."""
    if m.metrics_at is None or now - m.metrics_at > FRESH_S:
        missing: Reading[Any] = Reading(None, "", METRICS, None, note="metrics do not answer")
        return replace(out, accept_length=missing, accept_rate=missing)
    load = out.running.value
    return replace(
        out,
        accept_length=_gauge(m, LENGTH, idle, load, "tokens/step", "", True),
        accept_rate=_gauge(m, RATE, idle, load, "", rate_note(m), None),
    )


def _cache_hit(m: Memory) -> Reading[float]:
    """Share of the prompt tokens of the last minute that the prefix cache had."""
    had = rates.rate(realtime(m, "prefill_cache"), LONG_S, skip_idle=False)
    computed = rates.rate(realtime(m, "prefill_compute"), LONG_S, skip_idle=False)
    if had is None or computed is None or had.delta + computed.delta <= 0:
        return NOTHING
    share = had.delta / (had.delta + computed.delta)
    return Reading(share, "", METRICS, m.metrics_at, computed.window_s)


def _gauge(
    m: Memory, name: str, idle: bool | None, load: int | None, unit: str, note: str, bonus: bool | None
) -> Reading[float]:
    """Mean of a gauge over the pages of the window at which tokens had moved, DP ranks weighted by their load."""
    source = f"metrics {name}"
    if idle:
        return Reading(None, unit, source, None, note="idle")
    end = m.metrics_at or 0.0
    pages = [page for page in m.spec_pages if page.at > end - WINDOW_S and page.moved]
    told = [value for page in pages if (value := page.mean(name)) is not None]
    if not told:
        return Reading(None, unit, source, None, note="no token moved" if not pages else "not told")
    said = f"mean of {len(told)} pages of the last decode log interval"
    return Reading(
        sum(told) / len(told),
        unit,
        source,
        end,
        WINDOW_S,
        load,
        bonus,
        f"{said}; {note}" if note else said,
    )


def _per_dp(out: Numbers, m: Memory) -> tuple[Mapping[str, Any], ...]:
    """One row per DP rank, where the page names several; what other sources told of a rank stays."""
    named = {dp for point in realtime(m, "decode")[-1:] for dp in point.values}
    named |= set(m.gauges.get("num_running_reqs", {}))
    ranks = sorted((dp for dp in named if dp.isdigit()), key=int)
    if len(ranks) < 2:
        return out.per_dp
    known = {row.get("dp"): dict(row) for row in out.per_dp}
    rows = []
    for dp in ranks:
        rate = rates.moving(realtime(m, "decode", dp), WINDOW_S)
        page = m.spec_pages[-1] if m.spec_pages else None
        moving = rate is not None and rate.moved
        row = known.get(int(dp), {"dp": int(dp)})
        row.update(
            tok_s=None if rate is None else rate.per_s,
            accept_length=page.values.get(LENGTH, {}).get(dp) if page and moving else None,
            accept_rate=page.values.get(RATE, {}).get(dp) if page and moving else None,
            running=_whole(m.gauges.get("num_running_reqs", {}).get(dp)),
            queued=_whole(m.gauges.get("num_queue_reqs", {}).get(dp)),
        )
        rows.append(MappingProxyType(row))
    return tuple(rows)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def gauges(out: Numbers, m: Memory, at: float) -> Numbers:
    """Running and queued (DP ranks summed), KV use of the fullest rank, prefix cache."""

    def total(name: str) -> int | None:
        values = m.gauges.get(name)
        return int(sum(values.values())) if values else None

    hits = m.gauges.get("cache_hit_rate", {})
    hit = next(iter(hits.values())) if len(hits) == 1 else None
    if hit is not None and (hit > 1.0 or (hit == 0.0 and not m.realtime)):
        hit = None  # no share; and before 0.5.8 each decode log line writes 0 over it: not told
    usage = max(m.gauges.get("token_usage", {}).values(), default=None)
    return replace(
        out,
        running=newer(out.running, _running(m, at)),
        queued=newer(out.queued, Reading(total("num_queue_reqs"), "requests", "metrics", at)),
        kv_used=newer(out.kv_used, Reading(usage, "", "metrics", at)),
        cache_hit=newer(out.cache_hit, Reading(hit, "", "metrics", at, note="last prefill batch")),
    )


def _running(m: Memory, at: float) -> Reading[int]:
    """A prefill writes what ran before it, and that stays until the next decode log line: the highest of 3 s."""
    recent = [page.running for page in m.spec_pages if page.at > at - RUNNING_S and page.running is not None]
    note = f"highest of the last {RUNNING_S:.0f} s: a prefill leaves a low value in this gauge"
    return Reading(int(max(recent)) if recent else None, "requests", "metrics", at, note=note)


def finished_accept(m: Memory, now: float) -> Reading[float]:
    """Accept length of the requests that finished in the last minute: Δgenerated / Δverify calls (0.5.13 on)."""
    above = m.counters.get("generation_tokens_total", ())
    below = m.counters.get("spec_verify_calls_total", ())
    if m.metrics_at is None or now - m.metrics_at > FRESH_S:
        return NOTHING
    found = rates.ratio(above, below, LONG_S)
    if found is None:
        return NOTHING
    return Reading(
        found[0],
        "tokens/step",
        "metrics Δgeneration_tokens/Δspec_verify_calls",
        m.metrics_at,
        found[1],
        None,
        True,
        "finished requests only",
    )


def latencies(m: Memory, now: float) -> dict[str, Mapping[str, Reading[float]]]:
    """Percentiles over the last minute, from histogram differences. Empty where nothing is told."""
    out: dict[str, Mapping[str, Reading[float]]] = {}
    for key, names in LATENCIES.items():
        name = next((n for n in names if n in m.histograms), None)
        kept = m.histograms.get(name or "", ())
        if name is None or len(kept) < 2 or now - kept[-1][0] > FRESH_S:
            out[key] = EMPTY
            continue
        end_at, end = kept[-1]
        start_at, start = next((item for item in kept if end_at - item[0] <= LONG_S), kept[-2])
        span, source = end_at - start_at, f"metrics {name}"
        out[key] = MappingProxyType(
            {
                label: Reading(rates.percentile(start, end, share), "s", source, end_at, span)
                for label, share in PERCENTILES
            }
        )
    return out


@dataclass(frozen=True, slots=True)
class Steady:
    """Decoding under one load, by the metrics alone."""

    running: float
    tok_s: float
    accept_length: float | None
    window_s: float


def steady(m: Memory, now: float, window_s: float = 30.0) -> Steady | None:
    """The last `window_s` when its load was one, as far as the pages tell, and tokens moved; else None."""
    if m.metrics_at is None or now - m.metrics_at > FRESH_S:
        return None
    pages = [page for page in m.spec_pages if page.at >= m.metrics_at - window_s]
    # A prefill leaves a low value in the gauge until the next decode log line: the load is what most pages say.
    loads = [page.running for page in pages if page.running]
    load = max(set(loads), key=loads.count, default=None)
    if len(pages) < 3 or not load or loads.count(load) < STEADY_SHARE * len(pages):
        return None
    if breakeven.bucket(max(loads)) != breakeven.bucket(load):
        return None
    rate = rates.moving(realtime(m, "decode"), window_s)
    if rate is None or not rate.moved or rate.window_s < window_s / 2 or rate.per_s <= 0:
        return None
    lengths = [value for page in pages[1:] if page.moved and (value := page.mean(LENGTH)) is not None]
    length = sum(lengths) / len(lengths) if lengths else None
    return Steady(load, rate.per_s, length, rate.window_s)
