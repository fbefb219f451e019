"""A folder for a host's runs, a free port, and the end of every process that a test left: fixtures of several rooms."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from specdash.host.remote import procs

STUB = Path(__file__).parent / "engine_stub.py"


def end_marked(root: Path) -> None:
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
    end_marked(tmp_path)


@pytest.fixture
def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
