"""Slow and hung told apart on real processes: supervisor's samples → link → hub → reducer → verdict.

The programs below write a load's first lines and then do what a load does that is slow, stopped, blocked or
spinning. Only the floors (seconds of stillness allowed) are small, so that nobody waits for minutes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from specdash.config.hosts import Host
from specdash.control import hostruns, launch, stop
from specdash.host.remote.kin import Kin
from specdash.host.remote.sampler import GpuReader, Sampler
from specdash.monitor import reduce_gpu, stalls
from specdash.monitor.events import Event, HttpSeen, LinkChanged, LogRead, RunSampled, RunsListed, Tick
from specdash.monitor.hub import Hub
from specdash.monitor.reduce import reduce, start
from specdash.monitor.state import ServerState, Verdict
from specdash.sglang.commandline import LaunchSpec

FLOORS = dict.fromkeys(("unknown", "starting", "loading_weights", "starting_http_or_warmup"), 5.0)
MB = 1_000_000

LOADER = """
import os, socket, sys, time
how, weights = sys.argv[1:3]
os.nice(5)
print(time.strftime("[%Y-%m-%d %H:%M:%S] ") + "Load weight begin. avail mem=70.00 GB", flush=True)
if how == "throttled":
    file = os.open(weights, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    began, got = time.monotonic(), 0
    while True:
        got += len(os.read(file, 100_000))
        time.sleep(max(0.0, got / 1e6 - (time.monotonic() - began)))
elif how == "dead-socket":
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    near = socket.create_connection(listener.getsockname())
    near.recv(1)
elif how == "spinning":
    while True:
        pass
while True:
    time.sleep(0.1)
"""


@pytest.fixture
async def hub(root: Path) -> AsyncIterator[Hub]:
    host = Host(name="local", run_root=str(root / "specdash"), python=sys.executable)
    async with Hub([host], cache=root / "cache") as made:
        assert await made.until(lambda s: s.hosts["local"].link.status == "up", 30)
        yield made


async def launched(hub: Hub, spec: LaunchSpec, **more: Any) -> str:
    plan = await launch.plan(hub.link("local"), spec, precheck=False)
    async for event in launch.run(hub.link("local"), plan, **{"wait": False, **more}):
        assert event.status != "failed", event
    return plan.id


def verdict(hub: Hub, run: str, floors: dict[str, float] = FLOORS) -> Verdict:
    host = hub.state.hosts["local"]
    server = host.servers.get(run)
    if server is None:
        return Verdict("unknown")
    return stalls.judge(host, server, server.health, hub.state.now, floors)


async def until(what: str, seconds: float, check: Callable[[], Any]) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := check():
            return found
        await asyncio.sleep(0.2)
    raise AssertionError(f"not within {seconds} s: {what}")


@pytest.mark.slow
async def test_slow_is_not_stalled_and_stalled_says_what_does_not_move(hub: Hub, root: Path) -> None:
    program, weights = root / "loader.py", root / "weights.bin"
    program.write_text(LOADER)
    with weights.open("wb") as file:
        file.write(os.urandom(MB) * 200)
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    runs: dict[str, str] = {}
    early: list[tuple[str, Verdict]] = []
    for how in ("throttled", "stopped", "dead-socket", "spinning"):
        spec = LaunchSpec(
            how,
            "local",
            sys.executable,
            ("-B", str(program), how, str(weights)),
            (("--port", 9),),
            env={"TEST_ROOT_MARK": str(root)},
        )
        runs[how] = await launched(hub, spec)

    def watch() -> None:
        """With the product's own floors nobody who started seconds ago is stalled, but who was stopped."""
        for how, run in runs.items():
            found = verdict(hub, run, dict(stalls.stall.FLOORS))
            if found.kind == "stalled" and how != "stopped":
                early.append((run, found))

    hub.subscribe(lambda _: watch())
    for how, run in runs.items():
        await until(
            f"{how} loads",
            60,
            lambda run=run: phase(hub, run) == "loading_weights",
        )
    os.kill((await hostruns.record(hub.link("local"), runs["stopped"]))["pid"], signal.SIGSTOP)
    for how in ("dead-socket", "spinning", "stopped"):
        await until(f"{how} is stalled", 60, lambda how=how: verdict(hub, runs[how]).kind == "stalled")

    blocked = verdict(hub, runs["dead-socket"])
    assert "Nothing moved for" in blocked.sentence and "only uses CPU" not in blocked.sentence
    assert not any("now" in line for line in blocked.evidence), blocked.evidence
    await until("the spin is seen", 30, lambda: "it only uses CPU" in verdict(hub, runs["spinning"]).sentence)
    spins = verdict(hub, runs["spinning"])
    assert any(line.startswith("disk reads: moved") and "now" not in line for line in spins.evidence)
    assert any(line.startswith("CPU time: moved") for line in spins.evidence)

    await until("stopped is named", 60, lambda: "stopped" in verdict(hub, runs["stopped"]).sentence)
    assert any("are stopped (T)" in line for line in verdict(hub, runs["stopped"]).evidence)

    await until("the throttled one is slow", 30, lambda: verdict(hub, runs["throttled"]).kind == "slow")
    slow = verdict(hub, runs["throttled"])
    rate = stalls.stall.read_rate(
        tuple(stalls._samples(hub.state.hosts["local"], server_of(hub, runs["throttled"]), hub.state.now))
    )
    assert rate is not None and 0.5 * MB < rate < 3 * MB
    assert "Slow: the disk gives" in slow.sentence and "B/s" in slow.sentence
    assert not early, "by the product's own floors none of these is stalled yet"


def phase(hub: Hub, run: str) -> str:
    found = hub.state.hosts["local"].servers.get(run)
    return found.story.phase if found else ""


def server_of(hub: Hub, run: str) -> ServerState:
    return hub.state.hosts["local"].servers[run]


@pytest.mark.slow
async def test_quiet_for_less_than_its_history_is_not_stalled(hub: Hub, stub: Any) -> None:
    first = await launched(hub, stub("--load=5", profile="usual"), wait=True)
    plan = await stop.plan(hub.link("local"), first, deadline_s=10)
    async for _ in stop.run(hub.link("local"), plan):
        pass
    usual = await launched(hub, stub("--load=60", profile="usual"))
    new = await launched(hub, stub("--load=60", profile="never-loaded-before", port=1))
    floors = {**FLOORS, "loading_weights": 3.0}
    await until("the new one is stalled", 60, lambda: verdict(hub, new, floors).kind == "stalled")
    known = verdict(hub, usual, floors)
    quiet = stalls.quiet_s(server_of(hub, usual), hub.state.now)
    assert quiet is not None and quiet > 3.0, "it is as quiet as the other"
    assert known.kind == "progressing", known
    await until(
        "it is quiet for longer than three times", 90, lambda: verdict(hub, usual, floors).kind == "stalled"
    )


def folded(*bodies: Any, run: str = "r") -> ServerState:
    state = start([("h", "")])
    state = reduce(state, Event(1.0, "h", LinkChanged("up")))
    bodies = (*bodies, Tick())
    for at, body in enumerate(bodies):
        state = reduce(state, Event(10.0 + at, "h", body, "" if isinstance(body, RunsListed) else run))
    return state.hosts["h"].servers[run]


RECORD = {"id": "r", "profile": "p", "phase": "created", "alive": None, "http": {"port": 9}}


def test_a_run_that_was_just_made_is_starting_though_the_port_is_closed() -> None:
    """During a switch the port was the old server's a second ago."""
    refused = HttpSeen("model_info", None, b"", "refused")
    found = folded(RunsListed((RECORD,)), HttpSeen("model_info", 200, b"{}"), refused)
    assert found.verdict.kind == "starting", found.verdict
    begun = {**RECORD, "phase": "starting", "alive": True, "started_boot_s": 5.0, "pid": 7}
    assert folded(RunsListed((begun,)), refused).verdict.kind == "starting"


def test_a_fork_with_its_parents_title_is_no_rank_that_went_away() -> None:
    title = "sglang::scheduler_TP0"
    rows = [
        {"pid": 1, "ppid": 0, "title": "python -m sglang.launch_server", "state": "S"},
        {"pid": 2, "ppid": 1, "title": title, "state": "S"},
        {"pid": 3, "ppid": 2, "title": title, "state": "R"},
        {"pid": 4, "ppid": 1, "title": "sglang::scheduler_TP1", "state": "S"},
    ]
    found = reduce_gpu.tree(tuple(MappingProxyType(row) for row in rows), 1.0)
    assert found is not None and found.roles["scheduler"] == 2


def test_history_of_another_model_is_none() -> None:
    """Runs that name no target are not alike for that."""
    old = folded(RunsListed(({**RECORD, "ready_boot_s": 9.0, "phase": "exited"},)))
    host = start([("h", "")]).hosts["h"]
    new = replace(old, run=replace(old.run, id="n", profile="q"))
    host = replace(host, servers=MappingProxyType({"r": old, "n": new}))
    assert stalls.loads_of(host, new) == []


READY = {**RECORD, "phase": "ready", "alive": True, "started_boot_s": 1.0, "ready_boot_s": 5.0, "pid": 7}
TREE = [
    {"pid": 7, "ppid": 1, "title": "python -m sglang.launch_server", "state": "S"},
    {"pid": 8, "ppid": 7, "title": "sglang::scheduler", "state": "S"},
    {"pid": 9, "ppid": 7, "title": "sglang::detokenizer", "state": "S"},
]


def test_a_serving_engine_without_its_detokenizer_is_not_ready() -> None:
    """Its HTTP still answers; the first thing that shows is a process that is no more there."""
    whole, less = (
        RunSampled(({"boot_s": 6.0, "tree": TREE},)),
        RunSampled(({"boot_s": 8.0, "tree": TREE[:2]},)),
    )
    answers = HttpSeen("server_info", 200, b"{}")
    assert folded(RunsListed((READY,)), whole, answers).verdict.kind == "ready"
    found = folded(RunsListed((READY,)), whole, answers, less)
    assert found.verdict.kind == "stalled" and "detokenizer" in found.verdict.sentence
    assert found.health.category == "detokenizer_dead"


def test_a_living_server_that_could_not_bind_says_so() -> None:
    text = (
        b"[2026-11-29 14:33:59] INFO:     Application startup complete.\n"
        b"[2026-11-29 14:33:59] ERROR:    [Errno 98] error while attempting to bind on address "
        b"('127.0.0.1', 9): address already in use\n"
        b"[2026-11-29 14:34:00] The server is fired up and ready to roll!\n"
    )
    alive = {**RECORD, "phase": "starting", "alive": True, "started_boot_s": 1.0, "pid": 7}
    found = folded(RunsListed((alive,)), LogRead(0, text, len(text)))
    assert found.verdict.kind == "stalled" and "port 9 is taken" in found.verdict.sentence


def test_of_an_ended_run_no_cause_is_told_before_its_log_is_read() -> None:
    ended = {**RECORD, "phase": "exited", "alive": False, "exit_signal": 2, "ended_boot_s": 9.0}
    found = folded(RunsListed((ended,)))
    assert found.verdict.kind == "dead" and "names no" not in found.verdict.sentence
    text = b"[2026-11-29 14:33:58] Load weight begin. avail mem=79.00 GB\n"
    found = folded(RunsListed((ended,)), LogRead(0, text, len(text)))
    assert "names no earlier cause" in found.verdict.sentence


def test_hundreds_of_workers_do_not_push_a_rank_out_of_the_sample(tmp_path: Path) -> None:
    """Pids wrap round: a worker that is younger may have a smaller number."""
    table = Sampler(Kin("r", 900, 1), str(tmp_path / "none"), GpuReader())
    table._title = lambda row: str(row["comm"])  # type: ignore[method-assign]
    row = {"ppid": 1, "pgid": 1, "sid": 1, "state": "S", "threads": 1, "rss_kb": 1, "cpu_ticks": 1}
    rank = {**row, "pid": 9_000_000, "start": 5, "comm": "sglang::detokenizer"}
    workers = [{**row, "pid": 5_000_000 + n, "start": 100 + n, "comm": "worker"} for n in range(400)]
    for count in (10, 400):
        listed = table.take([*workers[:count], rank])["tree"]
        assert len(listed) <= 128 and listed[0]["title"] == "sglang::detokenizer"
