"""A process that has just come is nobody's yet: unknown until the living runs have listed theirs, then whose it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specdash.monitor import memory
from specdash.monitor.events import Event, GpusSampled
from specdash.monitor.liveness import Processes
from specdash.monitor.reduce_gpu import LISTED_S, UNTOLD_S, gpus_sampled
from specdash.monitor.state import HostState, RunFacts, RunStatus, ServerState


def host(listed_at: float | None = None, pids: tuple[int, ...] = (), **status: object) -> HostState:
    server = ServerState(run=RunFacts(id="r1"), status=RunStatus(**{"pid": 10, "alive": True, **status}))  # type: ignore[arg-type]
    if listed_at is not None:
        known = Processes({}, False, listed_at)
        tree = tuple({"pid": pid} for pid in pids)
        server = memory.keep(server, replace(memory.of(server), processes=known, tree=tree))
    return HostState("h", servers={"r1": server})


def seen(state: HostState, at: float, pid: int = 77) -> HostState:
    gpu = {"index": 0, "memory_used_mib": 900.0, "processes": [{"pid": pid, "start": 5, "memory_mib": 900.0}]}
    body = GpusSampled({"gpus": [gpu], "source": "nvml", "age_s": 0.0})
    return gpus_sampled(state, Event(at, "h", body), body)


def holder(state: HostState) -> str:
    assert state.gpus is not None
    return state.gpus.gpus[0].holder


def test_unknown_while_a_starting_run_has_not_listed_its_processes() -> None:
    first = seen(host(), 100.0)
    assert holder(first) == "unknown"
    told = replace(first, servers=host(101.0, (77,)).servers)
    assert holder(seen(told, 102.0)) == "ours"
    not_its = replace(first, servers=host(101.0, (78,)).servers)
    assert holder(seen(not_its, 102.0)) == "unknown", (
        "the list may have been made before the process was there"
    )
    not_its = replace(first, servers=host(101.0 + LISTED_S, (78,)).servers)
    assert holder(seen(not_its, 106.0)) == "others"


def test_a_run_that_never_lists_does_not_hide_others_for_ever() -> None:
    first = seen(host(), 100.0)
    assert holder(seen(first, 100.0 + UNTOLD_S - 1)) == "unknown"
    assert holder(seen(first, 100.0 + UNTOLD_S)) == "others"


@pytest.mark.parametrize("state", [HostState("h"), host(alive=False), host(exit_code=1)])
def test_without_a_living_run_of_ours_it_is_anothers(state: HostState) -> None:
    assert holder(seen(state, 100.0)) == "others"
