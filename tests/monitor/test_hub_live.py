"""The hub over a real local link, with real files and processes."""

from __future__ import annotations

import hashlib
import os
import signal
from pathlib import Path

import pytest

from specdash.config.hosts import Host
from specdash.monitor.hub import Hub
from specdash.monitor.recording import replay
from specdash.monitor.reduce import reduce, start
from specdash.monitor.state import FleetState, ServerState


def server(state: FleetState, run: str) -> ServerState | None:
    return state.hosts["local"].servers.get(run)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


async def test_a_run_is_seen_from_start_to_ready_with_its_log_exact(hub: Hub, start_run, root: Path) -> None:
    run = await start_run(hub.link("local"), "--load=0.3")
    assert await hub.until(lambda s: bool(x := server(s, run)) and x.verdict.kind == "ready", 20), server(
        hub.state, run
    )
    seen = server(hub.state, run)
    assert seen is not None
    log = Path(seen.run.log_path)
    store = hub.log("local", run)
    assert await hub.until(lambda s: bool(x := server(s, run)) and x.log.read == log.stat().st_size, 10)
    assert store.sha256() == digest(log)
    assert store.line_count == store.read(0, store.size).count(b"\n")
    assert seen.run.profile == "stub"
    assert seen.status.pid
    # Idle comes from /v1/loads, chosen by what the engine offers.
    assert await hub.until(lambda s: bool(x := server(s, run)) and x.health.state == "idle", 15), server(
        hub.state, run
    )
    assert hub.faults == []


@pytest.mark.slow
async def test_a_kill_is_seen_with_its_signal_and_is_an_alarm(hub: Hub, start_run) -> None:
    run = await start_run(hub.link("local"), "--load=0.1")
    assert await hub.until(lambda s: bool(x := server(s, run)) and bool(x.status.pid), 10)
    seen = server(hub.state, run)
    assert seen is not None and seen.status.pid
    os.kill(seen.status.pid, signal.SIGKILL)
    assert await hub.until(lambda s: bool(x := server(s, run)) and x.status.exit_signal == 9, 20), server(
        hub.state, run
    )
    dead = server(hub.state, run)
    assert dead is not None
    assert dead.verdict.kind == "dead"
    assert [a.key for a in dead.alarms] == ["dead"]
    assert dead.numbers.decode_tok_s.value is None


async def test_reattaching_gives_the_same_log_and_state(hub: Hub, host: Host, start_run, root: Path) -> None:
    run = await start_run(hub.link("local"), "--load=0.1")
    assert await hub.until(lambda s: bool(x := server(s, run)) and x.verdict.kind == "ready", 20)
    async with Hub([host], cache=root / "cache2") as again:
        assert await again.until(lambda s: bool(x := server(s, run)) and x.verdict.kind == "ready", 20)
        assert await again.until(
            lambda s: bool(x := server(s, run)) and x.log.read > 0 and not x.log.behind, 10
        )
        assert again.log("local", run).sha256() == hub.log("local", run).sha256()
        a, b = server(again.state, run), server(hub.state, run)
        assert a is not None and b is not None
        assert (a.status, a.run, a.story.phase) == (b.status, b.run, b.story.phase)


async def test_a_recording_replays_to_the_same_state(host: Host, start_run, root: Path) -> None:
    path = root / "events.jsonl"
    hub = Hub([host], cache=root / "cache")
    hub.record(path)
    async with hub:
        assert await hub.until(lambda s: s.hosts["local"].link.status == "up", 20)
        run = await start_run(hub.link("local"), "--load=0.1")
        assert await hub.until(lambda s: bool(x := server(s, run)) and x.health.state == "idle", 20)
        hub.stop_recording()
        live = hub.state
    state = start([("local", "")])
    for event in replay(path):
        state = reduce(state, event)
    assert state == live
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
async def test_a_lost_link_keeps_the_last_data_and_comes_back(hub: Hub, start_run) -> None:
    run = await start_run(hub.link("local"), "--load=0.1")
    assert await hub.until(lambda s: bool(x := server(s, run)) and x.verdict.kind == "ready", 20)
    first = hub.link("local")
    pid = first.hello["agent_pid"]
    os.kill(pid, signal.SIGKILL)
    assert await hub.until(lambda s: s.hosts["local"].link.status in ("lost", "connecting"), 15)
    kept = server(hub.state, run)
    assert kept is not None and kept.verdict.kind == "ready"
    assert await hub.until(lambda s: s.hosts["local"].link.status == "up", 20)
    assert hub.link("local") is not first
    seen = server(hub.state, run)
    assert seen is not None
    path = Path(seen.run.log_path)
    # It grows while we look (each question is a line): equal at one moment is enough.
    assert await hub.until(lambda s: hub.log("local", run).sha256() == digest(path), 10)
