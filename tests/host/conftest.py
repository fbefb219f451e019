"""Interpreters for the agent, local links, and real sshds with a home of their own."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import sshd as support

PY38 = ("SPECDASH_PY38", ("/root/.pyenv/versions/3.8.18/bin/python3.8", "python3.8"))
NEWEST = ("SPECDASH_PYNEW", ("/root/.pyenv/versions/3.13.0/bin/python3.13", "python3.14", "python3.13"))


def interpreter(wanted: tuple[str, tuple[str, ...]]) -> str:
    """A path; where there is none the test is skipped, in CI it fails: the promise would be untested."""
    variable, usual = wanted
    given = os.environ.get(variable)
    for name in (given,) if given else usual:
        path = shutil.which(name)
        if path:
            return path
    message = f"no interpreter for {variable} (looked for {given or ', '.join(usual)})"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture(params=[PY38, NEWEST], ids=["py38", "newest"])
def python(request: pytest.FixtureRequest) -> str:
    return interpreter(request.param)


@pytest.fixture
def sshd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """`sshd(*options)` starts a server; no agent and no ~/.ssh of whoever runs the tests is used."""
    why = support.missing()
    if why and os.environ.get("CI") == "true":
        pytest.fail(why)
    if why:
        pytest.skip(why)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    started = []

    def start(*options: str) -> support.Sshd:
        server = support.Sshd(*options)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.remove()


async def until(condition: Callable[[], Any], what: str, deadline_s: float = 15.0) -> None:
    """Waits for a condition that may be a plain or an async function."""
    end = time.monotonic() + deadline_s
    while True:
        found = condition()
        if isinstance(found, Awaitable):
            found = await found
        if found:
            return
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s} s: {what}")
        await asyncio.sleep(0.02)


@pytest.fixture(name="until")
def _until() -> Callable[..., Awaitable[None]]:
    return until
