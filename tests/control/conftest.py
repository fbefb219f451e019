"""A local link with its own run root, free ports, launches of the simulated engine, and a clean end of all of it."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from specdash.config.hosts import Host
from specdash.host.open import open_link
from specdash.host.remote import procs
from specdash.sglang.commandline import LaunchSpec

STUB = Path(__file__).parents[1] / "support" / "engine_stub.py"


def _end_marked(root: Path) -> None:
    """End what a test left: only processes whose environment or command names this test's own folder."""
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
def root(tmp_path: Path):
    yield tmp_path
    _end_marked(tmp_path)


@pytest.fixture
def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture
async def link(root: Path) -> AsyncIterator[Any]:
    host = Host(name="local", run_root=str(root / "specdash"), python=sys.executable)
    one = await open_link(host)
    yield one
    await one.close()


@pytest.fixture
def stub(root: Path, free_port: int) -> Callable[..., LaunchSpec]:
    def make(
        *flags: str, profile: str = "stub", algorithm: str = "", port: int = 0, **more: Any
    ) -> LaunchSpec:
        pairs: list[tuple[str, Any]] = [("--port", port or free_port), ("--host", "127.0.0.1")]
        it = iter(flags)
        for word in it:
            name, _, value = word.partition("=")
            pairs.append((name, value if value else True))
        env = {"TEST_ROOT_MARK": str(root), **more.pop("env", {})}
        return LaunchSpec(
            profile,
            "local",
            sys.executable,
            ("-B", str(STUB)),
            tuple(pairs),
            env=env,
            algorithm=algorithm,
            **more,
        )

    return make
