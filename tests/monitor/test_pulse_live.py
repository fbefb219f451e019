"""A pulse, and the processes of the host, over a real local link with real processes and files."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from specdash.config.hosts import Host
from specdash.control import pulse
from specdash.errors import ActionFailed
from specdash.monitor import follow_run, foreign, memory, sources
from specdash.monitor.hub import Hub
from specdash.monitor.state import FleetState, ServerState


def server(state: FleetState, run: str) -> ServerState | None:
    return state.hosts["local"].servers.get(run)


async def test_a_pulse_is_told_kept_and_found_by_another_specdash(
    hub: Hub, host: Host, start_run: Any, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_run, "PULSE_EVERY_S", 0.2)
    run = await start_run(hub.link("local"), "--load=0.1", "--accept=2.5", "--tok-s=5000")
    assert await hub.until(lambda s: bool(x := server(s, run)) and x.verdict.kind == "ready", 20)
    result = await pulse.tell(hub, "local", run)
    assert result["ok"] and result["running_before"] == 0 and result["measured_boot_s"]
    assert result["accept_length"] == pytest.approx(2.5, rel=0.05)
    seen = server(hub.state, run)
    assert seen is not None and seen.inner["pulse"]["run"] == run
    kept = Path(seen.run.folder) / "pulse.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    kept.write_text(
        kept.read_text().replace('"position_acceptance": null', '"position_acceptance": [0.75, 0.5]')
    )
    async with Hub([host], cache=root / "cache2") as other:
        wanted = (0.75, 0.5)
        assert await other.until(
            lambda s: bool(x := server(s, run)) and x.numbers.position_acceptance == wanted, 20
        )


async def test_a_run_that_does_not_run_has_no_pulse(hub: Hub, start_run: Any) -> None:
    run = await start_run(hub.link("local"), "--load=0.1", "--die=3", wait=False)
    assert await hub.until(lambda s: bool(x := server(s, run)) and x.status.exit_code == 3, 20)
    with pytest.raises(ActionFailed):
        await pulse.measure(hub.link("local"), run)


async def test_a_server_that_others_started_is_seen_and_its_key_is_not(
    hub: Hub, host: Host, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = root / "sglang"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "launch_server.py").write_text("import time\ntime.sleep(60)\n")
    words = [sys.executable, "-m", "sglang.launch_server", "--port", "31999", "--api-key", "sk-plain-secret"]
    env = {**os.environ, "PYTHONPATH": str(root), "TEST_ROOT_MARK": str(root)}
    monkeypatch.setattr(sources, "PROCS_EVERY_S", 0.5)
    child = await asyncio.create_subprocess_exec(*words, env=env)
    try:
        async with Hub([host], cache=root / "cache3") as other:

            def found(state: FleetState) -> bool:
                return child.pid in {one.pid for one in foreign.found(state.hosts["local"], state.now)}

            assert await other.until(found, 20)
            local = other.state.hosts["local"]
            (one,) = [f for f in foreign.found(local, other.state.now) if f.pid == child.pid]
            assert one.port == 31999
            assert "sk-plain-secret" not in repr(local.processes)
            assert not [s for s in local.servers.values() if memory.of(s).tree]
    finally:
        child.kill()
        await child.wait()
