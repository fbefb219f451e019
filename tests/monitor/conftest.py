"""A local host with its own run root, and runs of the simulated engine on it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from specdash.config.hosts import Host
from specdash.control import launch
from specdash.monitor.hub import Hub
from specdash.sglang.commandline import LaunchSpec
from tests.support.hostkit import STUB, free_port, root
from tests.support.hostkit import end_marked as _end_marked

__all__ = ["_end_marked", "free_port", "root"]


@pytest.fixture
def host(root: Path) -> Host:
    return Host(name="local", run_root=str(root / "specdash"), python=sys.executable)


@pytest.fixture
async def hub(host: Host, root: Path) -> AsyncIterator[Hub]:
    async with Hub([host], cache=root / "cache") as one:
        assert await one.until(lambda s: s.hosts["local"].link.status == "up", 20), one.state
        yield one


@pytest.fixture
def start_run(root: Path, free_port: int) -> Callable[..., Awaitable[str]]:
    """Launches the simulated engine over a link; returns the run's id."""

    async def start(link: Any, *flags: str, wait: bool = True, **more: Any) -> str:
        pairs: list[tuple[str, Any]] = [
            ("--port", free_port),
            ("--host", "127.0.0.1"),
            ("--model-path", "m/x"),
        ]
        for word in flags:
            name, _, value = word.partition("=")
            pairs.append((name, value if value else True))
        spec = LaunchSpec(
            "stub",
            "local",
            sys.executable,
            ("-u", str(STUB)),
            tuple(pairs),
            env={"TEST_ROOT_MARK": str(root)},
            **more,
        )
        plan = await launch.plan(link, spec, precheck=False)
        async for event in launch.run(link, plan, wait=wait):
            last = event
        assert last.final == "done" or not wait, last
        return plan.id

    return start
