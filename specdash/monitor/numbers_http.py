"""Numbers of `/v1/loads` and `/server_info`: instant values, caps, and accept length since start."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from specdash.monitor.memory import Memory
from specdash.monitor.sourcing import FRESH_S, INFO, LOADS, WINDOW_S, idle_reading, newer, newest_sum
from specdash.monitor.state import NOTHING, Numbers, Reading, ServerState
from specdash.sglang.server_info import Info

LAST = "of whole decode log intervals"
SAME_S = 60.0
"""A throughput that has not changed for so long is none: a hung engine's last one is told for ever (0.5.23)."""


def live(
    out: Numbers, m: Memory, source: str, polled: float | None, now: float, idle: bool | None
) -> Numbers:
    """Mean of the decode log intervals that were seen in the window, DP ranks summed.

    The value never decays, so it counts only when not idle. Each interval has the same number of steps: the mean
    over time is the harmonic one.
    """
    if idle or polled is None or now - polled > FRESH_S or not m.speeds:
        return replace(out, decode_tok_s=idle_reading(idle, "tok/s", source, now, "not told"))
    if (same_s := polled - m.speeds[-1][0]) > SAME_S:
        note = f"the same for {same_s:.0f} s: nothing is decoded, or nobody writes it any more"
        rows = tuple(MappingProxyType({**row, "tok_s": None}) for row in out.per_dp)
        return replace(out, decode_tok_s=Reading(None, "tok/s", source, None, note=note), per_dp=rows)
    seen = [told for at, told in m.speeds if at > polled - WINDOW_S] or [m.speeds[-1][1]]
    total = sum(_harmonic([told[dp] for told in seen if dp in told]) for dp in seen[-1])
    reading = Reading(total, "tok/s", source, polled, WINDOW_S, out.running.value, None, LAST)
    return replace(out, decode_tok_s=reading)


def _harmonic(values: list[float]) -> float:
    return len(values) / sum(1.0 / value for value in values)


def gauges(out: Numbers, m: Memory, at: float) -> Numbers:
    """Running, queued, KV use, caps: DP ranks summed, and one by one where there are several."""

    def total(name: str) -> int | None:
        return newest_sum([getattr(rank, name) for rank in m.loads])

    first, single = m.loads[0], len(m.loads) == 1
    usage = max((r.token_usage for r in m.loads if r.token_usage is not None), default=None)
    length = first.accept_length if single else None
    return replace(
        out,
        running=Reading(total("running"), "requests", LOADS, at),
        queued=Reading(total("queued"), "requests", LOADS, at),
        running_cap=Reading(total("running_cap"), "requests", LOADS, at),
        kv_used=Reading(usage, "", LOADS, at),
        cache_hit=Reading(first.cache_hit if single else None, "", LOADS, at),
        accept_length_start=Reading(
            length, "tokens/step", LOADS, at, includes_bonus=True, note="since start or flush"
        ),
        per_dp=()
        if single
        else tuple(
            MappingProxyType(
                {
                    "dp": rank.dp_rank,
                    "running": rank.running,
                    "queued": rank.queued,
                    "tok_s": rank.tok_s,
                    "accept_length_start": rank.accept_length,
                    "running_cap": rank.running_cap,
                }
            )
            for rank in m.loads
        ),
    )


def since_start(out: Numbers, info: Info, at: float) -> Numbers:
    """Accept length since start or flush. Of several DP ranks only one by one: their weights are not told."""
    lengths = [rank.accept_length for rank in info.ranks]
    value = lengths[0] if len(lengths) == 1 else None
    note = "since start or flush" if len(lengths) <= 1 else "per DP rank only: weights are not told"
    since = Reading(value, "tokens/step", INFO, at, None, None, True, note)
    out = replace(out, accept_length_start=newer(out.accept_length_start, since))
    if len(info.ranks) < 2 or out.per_dp:
        return out
    rows = (
        {"dp": r.dp_rank, "accept_length_start": r.accept_length, "running_cap": r.running_cap}
        for r in info.ranks
    )
    return replace(out, per_dp=tuple(MappingProxyType(row) for row in rows))


def cap(server: ServerState, m: Memory, told: Reading[int]) -> Reading[int]:
    """The effective most running requests, and why it is that."""
    value, source, at = told.value, told.source, told.at
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
