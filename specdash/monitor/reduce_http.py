"""Answers of the engine's HTTP port: metrics pages, server info, loads, readiness. Raw in, numbers kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from specdash.monitor import memory, numbers_metrics, rates
from specdash.monitor.events import Event, HttpSeen, PulseSeen
from specdash.monitor.liveness import Answer, Count
from specdash.monitor.memory import KEEP_S, MOST_ANSWERS, MOST_COUNTS, Memory
from specdash.monitor.reduce_link import frozen, seen
from specdash.monitor.reduce_run import server_of, with_server
from specdash.monitor.state import HostState, ServerState
from specdash.monitor.untrusted import number
from specdash.sglang import metrics, server_info


def http_seen(host: HostState, event: Event, body: HttpSeen) -> HostState:
    server = server_of(host, event.run)
    was = memory.of(server)
    answer = Answer(event.at, body.endpoint, body.status, body.problem, body.took_s)
    now = replace(was, answers=(*was.answers, answer)[-MOST_ANSWERS:])
    if body.endpoint == "metrics":
        now = _metrics(now, event.at, body)
    elif body.endpoint == "loads" and body.status == 200:
        now = _loads(now, event.at, body.body)
    elif body.endpoint == "server_info" and body.status == 200:
        data = server_info.load_json(body.body)
        if data is not None:
            server = replace(server, server_info=MappingProxyType(data))
            now = replace(now, info=server_info.read(data), info_at=event.at)
            server = _reported(server, now.info)
    if body.status == 200 and body.endpoint in ("ready", "health", "generate"):
        now = replace(now, was_ready=True)
    host = with_server(host, memory.keep(server, now))
    # A question that nobody answered is no sign of life: on a host that stood still the header said *live*.
    return host if body.status is None else seen(host, event)


def _reported(server: ServerState, info: server_info.Info | None) -> ServerState:
    """A drafter that the server itself names and that nobody told us of."""
    if info is None or server.drafter.how or not info.algorithm:
        return server
    drafter = replace(server.drafter, algorithm=info.algorithm, path=info.drafter, how="reported by server")
    return replace(server, drafter=drafter)


def _metrics(was: Memory, at: float, body: HttpSeen) -> Memory:
    page = metrics.read(body.body, body.status)
    if not page.available:
        if body.status is None:
            return was
        return replace(was, metrics_why=page.why, metrics_hint=page.hint)
    counters = dict(was.counters)
    for name in metrics.COUNTERS:
        values = metrics.chosen(page, name)
        if values:
            counters[name] = rates.push(counters.get(name, ()), rates.Point(at, values), KEEP_S)
        else:
            counters.pop(name, None)
    realtime = _realtime(was, at, page)
    histograms = dict(was.histograms)
    for name in metrics.HISTOGRAMS:
        found = metrics.histogram(page, name)
        if found is None:
            histograms.pop(name, None)
            counters.pop(name, None)
            continue
        # Counted by series: one that restarts, or that one page lacks, is no observation when it comes back.
        ended = metrics.chosen(page, name + "_count")
        counted = rates.push(counters.get(name, ()), rates.Point(at, ended), KEEP_S)
        counters[name] = counted
        kept = histograms.get(name, ())
        if len(counted) < 2 or (kept and found.count < kept[-1][1][-1][1]):
            kept = ()
        kept = tuple(item for item in kept if item[0] > at - KEEP_S)[-MOST_COUNTS:]
        histograms[name] = (*kept, (at, found.buckets))
    gauges: dict[str, Mapping[str, float]] = {}
    for name in metrics.GAUGES:
        values_dp = metrics.by_dp(page, name)
        if values_dp:
            gauges[name] = MappingProxyType(values_dp)
    speeds = was.speeds if realtime else _faster(was, at, gauges)
    spec_page = _spec_page(was, at, realtime.get("decode", ()), gauges)
    tokens = metrics.total(page, "realtime_tokens_total")
    if tokens is None:
        tokens = metrics.total(page, "generation_tokens_total")
    count = Count(at, _sum(gauges, "num_running_reqs"), _sum(gauges, "num_queue_reqs"), tokens)
    return replace(
        was,
        counters=MappingProxyType(counters),
        realtime=MappingProxyType(realtime),
        speeds=speeds,
        histograms=MappingProxyType(histograms),
        gauges=MappingProxyType(gauges),
        spec_pages=(*(p for p in was.spec_pages if p.at > at - KEEP_S), spec_page)[-MOST_COUNTS:],
        metrics_at=at,
        metrics_why="",
        metrics_hint=(),
        counts=(*was.counts, count)[-MOST_COUNTS:],
    )


def _realtime(was: Memory, at: float, page: metrics.Page) -> dict[str, tuple[rates.Point[str], ...]]:
    modes: dict[str, dict[str, float]] = {}
    for key, value in metrics.chosen(page, "realtime_tokens_total").items():
        labels = dict(key)
        of_mode = modes.setdefault(labels.get("mode", ""), {})
        dp = labels.get("dp_rank", "")
        of_mode[dp] = of_mode.get(dp, 0.0) + value
    return {
        mode: rates.push(was.realtime.get(mode, ()), rates.Point(at, values), KEEP_S)
        for mode, values in modes.items()
    }


def _spec_page(
    was: Memory,
    at: float,
    points: tuple[rates.Point[str], ...],
    gauges: Mapping[str, Mapping[str, float]],
) -> memory.SpecPage:
    """A gauge of 0 is what the engine writes where nothing was speculated: not told, never an accept length."""
    moved = len(points) > 1 and sum(points[-1].values.values()) > sum(points[-2].values.values())
    if not points:  # before 0.5.8: a gauge that changed was written again
        moved = gauges.get("gen_throughput") != was.gauges.get("gen_throughput")
    length = {dp: value for dp, value in gauges.get(numbers_metrics.LENGTH, {}).items() if value > 0}
    rate = {dp: v for dp, v in gauges.get(numbers_metrics.RATE, {}).items() if dp in length}
    values = {numbers_metrics.LENGTH: length, numbers_metrics.RATE: rate}
    weights = gauges.get("num_running_reqs", {})
    return memory.SpecPage(at, moved, _sum(gauges, "num_running_reqs"), values, weights)


def _sum(gauges: Mapping[str, Mapping[str, float]], name: str) -> float | None:
    values = gauges.get(name)
    return sum(values.values()) if values else None


def _loads(was: Memory, at: float, body: bytes) -> Memory:
    data = server_info.load_json(body)
    ranks = server_info.read_loads(data) if data is not None else ()
    if not ranks:
        return was
    running, queued = [r.running for r in ranks], [r.queued for r in ranks]
    count = Count(
        at,
        float(sum(n for n in running if n is not None)) if any(n is not None for n in running) else None,
        float(sum(n for n in queued if n is not None)) if any(n is not None for n in queued) else None,
    )
    told = {rank.dp_rank: rank.tok_s for rank in ranks if rank.tok_s is not None and rank.tok_s > 0}
    speeds = _speeds(was, at, told)
    return replace(was, loads=ranks, loads_at=at, speeds=speeds, counts=(*was.counts, count)[-MOST_COUNTS:])


def _faster(
    was: Memory, at: float, gauges: Mapping[str, Mapping[str, float]]
) -> tuple[tuple[float, Mapping[int, float]], ...]:
    told = gauges.get("gen_throughput", {})
    return _speeds(was, at, {int(dp) if dp.isdigit() else 0: v for dp, v in told.items() if v > 0})


def _speeds(
    was: Memory, at: float, told: Mapping[int, float]
) -> tuple[tuple[float, Mapping[int, float]], ...]:
    """With one more, where it changed: the same again is the same interval again, or a stale one."""
    kept = tuple(item for item in was.speeds if item[0] > at - KEEP_S)
    if not told or (was.speeds and was.speeds[-1][1] == told):
        return kept or was.speeds[-1:]
    return (*kept, (at, MappingProxyType(dict(told))))


def pulse_seen(host: HostState, event: Event, body: PulseSeen) -> HostState:
    """A pulse's per-position acceptance goes to the numbers; the rest of it is for the ledger.

    One that was taken before the present drafter was switched in says nothing of it.
    """
    server = server_of(host, event.run)
    taken, since = number(body.result.get("measured_boot_s")), server.drafter.since_boot_s
    if taken is not None and since is not None and server.drafter.how == "hot switch" and taken < since:
        return host
    listed = body.result.get("position_acceptance")
    if isinstance(listed, (list, tuple)):
        told = [number(item) for item in listed[:256]]
        shares = tuple(share for share in told if share is not None and 0 <= share <= 1)
        if len(shares) == len(told):
            server = replace(server, numbers=replace(server.numbers, position_acceptance=shares))
    server = replace(server, inner=MappingProxyType({**server.inner, "pulse": frozen(body.result)}))
    return with_server(host, server)
