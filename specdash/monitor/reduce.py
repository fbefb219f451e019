"""The one pure reducer: state' = reduce(state, event).

No I/O, no clock, no randomness: replaying a recording gives an equal state. Each event only records what
it says; verdicts that depend on time move on `Tick` alone, so that stillness of a recording means stillness.
Whatever a host sends is untrusted: a wrong shape changes nothing and raises nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from specdash.monitor import alarms, reduce_gpu, reduce_http, reduce_link, reduce_log, reduce_run, verdicts
from specdash.monitor.events import (
    ActionChanged,
    BaseMeasured,
    BasesRead,
    Event,
    GpusSampled,
    HostSampled,
    HostSeen,
    HttpSeen,
    LinkChanged,
    LogLost,
    LogRead,
    ProcessesSeen,
    PulseSeen,
    RunRecorded,
    RunSampled,
    RunsListed,
    Tick,
)
from specdash.monitor.state import FleetState, HostState

HOST_RULES: Mapping[type, Callable[[HostState, Event, Any], HostState]] = {
    LinkChanged: reduce_link.link_changed,
    HostSeen: reduce_link.host_seen,
    HostSampled: reduce_link.host_sampled,
    ActionChanged: reduce_link.action_changed,
    BaseMeasured: reduce_link.base_measured,
    BasesRead: reduce_link.bases_read,
    GpusSampled: reduce_gpu.gpus_sampled,
    ProcessesSeen: reduce_gpu.processes_seen,
    RunsListed: reduce_run.runs_listed,
    RunRecorded: reduce_run.run_recorded,
    RunSampled: reduce_run.run_sampled,
    LogRead: reduce_log.log_read,
    LogLost: reduce_log.log_lost,
    HttpSeen: reduce_http.http_seen,
    PulseSeen: reduce_http.pulse_seen,
}

# Bodies after which verdicts are judged at once (by the last tick's clock), since they state facts.
FACTS = (RunsListed, RunRecorded, HttpSeen, ProcessesSeen, PulseSeen)


def start(hosts: Iterable[tuple[str, str]]) -> FleetState:
    """The state before anything was seen. `hosts`: (name, label)."""
    return FleetState(hosts=MappingProxyType({name: HostState(name, label) for name, label in hosts}))


def reduce(state: FleetState, event: Event) -> FleetState:
    """The state after `event`. A host that is not known yet is added."""
    now = max(state.now, event.at)
    if isinstance(event.body, Tick):
        hosts = {name: _ticked(host, now) for name, host in state.hosts.items()}
        return FleetState(now, now, MappingProxyType(hosts))
    rule = HOST_RULES.get(type(event.body))
    if rule is None or not event.host:
        return replace(state, now=now)
    before = state.hosts.get(event.host) or HostState(event.host)
    host = rule(before, event, event.body)
    if isinstance(event.body, FACTS):
        clock = state.ticked or event.at
        if event.run and event.run in host.servers:
            host = reduce_run.with_server(host, verdicts.judge(host, host.servers[event.run], clock))
        elif isinstance(event.body, (RunsListed, ProcessesSeen)):
            host = verdicts.judge_all(host, clock)
        host = alarms.update(before, host, clock)
    return FleetState(now, state.ticked, MappingProxyType({**state.hosts, event.host: host}))


def _ticked(host: HostState, now: float) -> HostState:
    after = verdicts.tick(host, now)
    return alarms.update(host, after, now)
