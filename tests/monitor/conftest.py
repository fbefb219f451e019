"""A local host with its own run root, and runs of the simulated engine on it."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specdash.config.hosts import Host
from specdash.control import launch
from specdash.host.remote import procs
from specdash.monitor.hub import Hub
from specdash.sglang.commandline import LaunchSpec

STUB = Path(__file__).parents[1] / "support" / "engine_stub.py"


def _end_marked(root: Path) -> None:
    """End what a test left: only processes whose command or environment names this test's own folder."""
    word = str(root).encode()
    for pid in procs.pids():
        if pid == os.getpid():
            continue
        line = procs.read_bytes(f"/proc/{pid}/cmdline", 65536) or b""
        env = procs.environ(pid) or {}
        if word in line or env.get(b"TEST_ROOT_MARK") == word:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    _end_marked(tmp_path)


@pytest.fixture
def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


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
