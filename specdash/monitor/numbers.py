"""`Numbers` of a server at one time: one chosen source, windows stated, idle and stale told apart."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from specdash.monitor import rates
from specdash.monitor.memory import Memory
from specdash.monitor.state import EMPTY, NOTHING, Numbers, Reading, ServerState

WINDOW_S = 10.0
LONG_S = 60.0
FRESH_S = 15.0
"""A value of a source that is polled is stale when older than this."""
SILENT_S = 30.0
HISTORY = 900
LOG, METRICS, LOADS, INFO = "log decode lines", "metrics realtime_tokens_total", "/v1/loads", "/server_info"
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
        if newest.running is not None:
            if newest.running > 0 or newest.queued:
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
        METRICS: "realtime_tokens_total" in m.counters
        and m.metrics_at is not None
        and now - m.metrics_at <= FRESH_S,
        LOADS: bool(m.loads) and m.loads_at is not None and now - m.loads_at <= FRESH_S,
    }
    if m.source and has.get(m.source):
        return m.source
    return next((name for name in (LOG, METRICS, LOADS) if has[name]), m.source)


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


def make(server: ServerState, m: Memory, now: float) -> Numbers:
    idle = known_idle(m, now)
    source = m.source
    out = replace(
        _base(server, m, now, idle),
        source=_say(source),
        idle=idle,
        position_acceptance=server.numbers.position_acceptance,
    )
    if source == LOG:
        out = _from_log(out, m, now, idle)
    elif source == METRICS:
        out = _from_metrics(out, m, now, idle)
    elif source == LOADS:
        out = _from_loads(out, m, now, idle)
    old = server.numbers
    return replace(
        out,
        decode_history=_grow(old.decode_history, now, out.decode_tok_s.value),
        accept_history=_grow(old.accept_history, now, out.accept_length.value),
    )


def _say(source: str) -> str:
    return f"{source}, last {WINDOW_S:.0f} s" if source in (LOG, METRICS) else source


def _grow(
    history: tuple[tuple[float, float | None], ...], now: float, value: float | None
) -> tuple[tuple[float, float | None], ...]:
    if not history and value is None:
        return ()
    if history and now <= history[-1][0]:
        return history
    return (*history, (now, value))[-HISTORY:]


def _idle_reading(idle: bool | None, unit: str, source: str, now: float, note: str) -> Reading[Any]:
    """Nothing is decoded: 0 when that is known, else not available."""
    if idle:
        return Reading(0.0, unit, source, now, note="idle")
    return Reading(None, unit, source, None, note=note)


def _from_log(out: Numbers, m: Memory, now: float, idle: bool | None) -> Numbers:
    newest = m.lines[-1] if m.lines else None
    age = now - m.last_decode if m.last_decode is not None else None
    if newest is None or age is None or age > stale_after(m) or idle:
        note = f"no decode line for {age:.0f} s" if age is not None else "no decode line yet"
        return replace(
            out,
            decode_tok_s=_idle_reading(idle, "tok/s", LOG, now, note),
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

    running = _newest_sum([window.newest.running for window in told.values()])
    queued = _newest_sum([window.newest.queued for window in told.values()])
    return replace(
        out,
        source=f"{LOG}, last {span:.0f} s",
        decode_tok_s=reading(whole.tok_s, "tok/s", note),
        accept_length=reading(whole.accept_length, "tokens/step", bonus=True),
        accept_rate=reading(whole.accept_rate, "", rate_note(m)),
        running=_newer(out.running, Reading(running, "requests", LOG, at)),
        queued=_newer(out.queued, Reading(queued, "requests", LOG, at)),
        kv_used=_newer(out.kv_used, Reading(newest.token_usage, "", LOG, at)),
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


def _newest_sum(values: list[int | None]) -> int | None:
    told = [value for value in values if value is not None]
    return sum(told) if told else None


def _newer(a: Reading[Any], b: Reading[Any]) -> Reading[Any]:
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


def _from_metrics(out: Numbers, m: Memory, now: float, idle: bool | None) -> Numbers:
    points = tuple(
        rates.Point(p.at, {k: v for k, v in p.values.items() if dict(k).get("mode") == "decode"})
        for p in m.counters.get("realtime_tokens_total", ())
    )
    found = rates.rate(points, WINDOW_S)
    if idle:
        decode: Reading[Any] = Reading(0.0, "tok/s", METRICS, now, note="idle")
    elif found is None:
        decode = Reading(None, "tok/s", METRICS, None, note="one page so far")
    else:
        decode = Reading(found.per_s, "tok/s", METRICS, m.metrics_at, found.window_s, out.running.value)
    length = finished_accept(m, WINDOW_S)
    gauge = m.gauges.get("spec_accept_length", {})
    if length is None and not idle and found is not None and found.moved and len(gauge) == 1:
        value = next(iter(gauge.values()))
        length = Reading(
            value if value > 0 else None,
            "tokens/step",
            "metrics spec_accept_length",
            m.metrics_at,
            None,
            out.running.value,
            True,
            "gauge: last decode log interval",
        )
    return replace(out, decode_tok_s=decode, accept_length=length or out.accept_length)


def finished_accept(m: Memory, window_s: float) -> Reading[float] | None:
    """Accept length of the requests that finished in the window: Δgenerated / Δverify calls (0.5.13 on)."""
    above, below = (
        m.counters.get("generation_tokens_total", ()),
        m.counters.get("spec_verify_calls_total", ()),
    )
    found = rates.ratio(above, below, window_s)
    if found is None:
        return None
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


def _from_loads(out: Numbers, m: Memory, now: float, idle: bool | None) -> Numbers:
    told = [rank.tok_s for rank in m.loads if rank.tok_s is not None]
    if idle or not told:
        return replace(out, decode_tok_s=_idle_reading(idle, "tok/s", LOADS, now, "not told"))
    note = "last decode log interval"
    return replace(
        out, decode_tok_s=Reading(sum(told), "tok/s", LOADS, m.loads_at, None, out.running.value, None, note)
    )


def _base(server: ServerState, m: Memory, now: float, idle: bool | None) -> Numbers:
    """What does not depend on the live source: gauges, caps, since-start values, latencies."""
    out = Numbers()
    if m.loads and m.loads_at is not None:
        out = _gauges_of_loads(out, m, m.loads_at)
    if m.gauges and m.metrics_at is not None and now - m.metrics_at <= FRESH_S:
        out = _gauges_of_metrics(out, m, m.metrics_at)
    info = m.info
    if info is not None and m.info_at is not None:
        lengths = [rank.accept_length for rank in info.ranks]
        value = lengths[0] if len(lengths) == 1 else None
        note = "since start or flush" if len(lengths) <= 1 else "per DP rank only: weights are not told"
        since = Reading(value, "tokens/step", INFO, m.info_at, None, None, True, note)
        out = replace(out, accept_length_start=_newer(out.accept_length_start, since))
        if len(info.ranks) > 1 and not out.per_dp:
            out = replace(
                out,
                per_dp=tuple(
                    MappingProxyType(
                        {
                            "dp": r.dp_rank,
                            "accept_length_start": r.accept_length,
                            "running_cap": r.running_cap,
                        }
                    )
                    for r in info.ranks
                ),
            )
    out = replace(out, running_cap=_cap(server, m, out.running_cap))
    found = _latencies(m)
    return replace(out, ttft_s=found["ttft_s"], itl_s=found["itl_s"], e2e_s=found["e2e_s"])


def _gauges_of_loads(out: Numbers, m: Memory, at: float) -> Numbers:
    def total(name: str) -> int | None:
        return _newest_sum([getattr(rank, name) for rank in m.loads])

    first = m.loads[0]
    single = len(m.loads) == 1
    return replace(
        out,
        running=Reading(total("running"), "requests", LOADS, at),
        queued=Reading(total("queued"), "requests", LOADS, at),
        running_cap=Reading(total("running_cap"), "requests", LOADS, at),
        kv_used=Reading(
            max((r.token_usage for r in m.loads if r.token_usage is not None), default=None), "", LOADS, at
        ),
        cache_hit=Reading(first.cache_hit if single else None, "", LOADS, at),
        accept_length_start=Reading(
            first.accept_length if single else None,
            "tokens/step",
            LOADS,
            at,
            includes_bonus=True,
            note="since start",
        ),
        per_dp=()
        if single
        else tuple(
            MappingProxyType(
                {
                    "dp": r.dp_rank,
                    "running": r.running,
                    "queued": r.queued,
                    "tok_s": r.tok_s,
                    "accept_length_start": r.accept_length,
                    "running_cap": r.running_cap,
                }
            )
            for r in m.loads
        ),
    )


def _gauges_of_metrics(out: Numbers, m: Memory, at: float) -> Numbers:
    def total(name: str) -> float | None:
        values = m.gauges.get(name)
        return sum(values.values()) if values else None

    def single(name: str) -> float | None:
        values = m.gauges.get(name, {})
        return next(iter(values.values())) if len(values) == 1 else None

    running, queued = total("num_running_reqs"), total("num_queue_reqs")
    usage = max(m.gauges.get("token_usage", {}).values(), default=None)
    return replace(
        out,
        running=Reading(None if running is None else int(running), "requests", "metrics", at),
        queued=Reading(None if queued is None else int(queued), "requests", "metrics", at),
        kv_used=_newer(out.kv_used, Reading(usage, "", "metrics", at)),
        cache_hit=_newer(out.cache_hit, Reading(single("cache_hit_rate"), "", "metrics", at)),
    )


def _cap(server: ServerState, m: Memory, told: Reading[int]) -> Reading[int]:
    """The effective most running requests, and why it is that."""
    value = told.value
    source, at = told.source, told.at
    if m.info is not None and m.info.running_cap is not None:
        value, source, at = m.info.running_cap, INFO, m.info_at
    from_story = server.story.max_running_requests
    if value is None and from_story is not None:
        value, source, at = from_story, "log", server.log.last_growth
    if value is None:
        return NOTHING
    asked = any(word.partition("=")[0] == "--max-running-requests" for word in server.run.argv)
    speculates = bool(server.drafter.algorithm) or bool(m.info and m.info.algorithm) or m.speculates
    note = "set by --max-running-requests" if asked else ""
    if not asked and (server.story.capped_by_speculation == value or (speculates and value in (32, 48))):
        note = f"set by speculation: its default is {value} where --max-running-requests is not given"
    return Reading(value, "requests", source, at, note=note)


def _latencies(m: Memory) -> dict[str, Mapping[str, Reading[float]]]:
    """Percentiles over the last minute, from histogram differences. Empty where nothing finished."""
    wanted = {
        "ttft_s": ("time_to_first_token_seconds",),
        "itl_s": (
            "inter_token_latency_seconds",
            "request_time_per_output_token_seconds",
            "time_per_output_token_seconds",
        ),
        "e2e_s": ("e2e_request_latency_seconds",),
    }
    out: dict[str, Mapping[str, Reading[float]]] = {}
    for key, names in wanted.items():
        name = next((n for n in names if n in m.histograms), None)
        kept = m.histograms.get(name or "", ())
        if name is None or len(kept) < 2:
            out[key] = EMPTY
            continue
        end_at, end = kept[-1]
        start_at, start = next((item for item in kept if end_at - item[0] <= LONG_S), kept[-2])
        out[key] = MappingProxyType(
            {
                label: Reading(
                    rates.percentile(start, end, share), "s", f"metrics {name}", end_at, end_at - start_at
                )
                for label, share in PERCENTILES
            }
        )
    return out
