"""Stacks of a run's processes, of real ones: by py-spy where it is, by /proc always, kept in the run's folder."""

# ruff: noqa: ASYNC240  (small local files)
from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import stat
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specdash.control import hostruns, launch, stacks
from specdash.errors import RemoteError
from specdash.sglang.commandline import LaunchSpec

STUCK = """
import socket, subprocess, sys, threading
def waits_for_a_peer_that_never_speaks():
    listener = socket.socket(); listener.bind(("127.0.0.1", 0)); listener.listen(1)
    near = socket.create_connection(listener.getsockname())
    print("blocked", flush=True)
    near.recv(1)
threading.Thread(target=threading.Event().wait, name="a_second_thread", daemon=True).start()
child = subprocess.Popen(["sleep", "600"])
waits_for_a_peer_that_never_speaks()
"""


@pytest.fixture
async def stuck(link: Any, root: Path) -> str:
    """A run whose Python process waits in recv() of a socket, with a child that is no Python."""
    program = root / "stuck.py"
    program.write_text(STUCK)
    spec = LaunchSpec(
        "stuck",
        "local",
        sys.executable,
        ("-B", str(program)),
        (("--port", 1), ("--api-key-file", "x")),
        env={"TEST_ROOT_MARK": str(root)},
    )
    spec = replace(spec, flags=(*spec.flags, ("--admin-api-key", "top-secret")))
    plan = await launch.plan(link, spec, precheck=False)
    async for _ in launch.run(link, plan, wait=False):
        pass
    log = Path(hostruns.run_folder(link, plan.id)) / "server.log"
    end = time.monotonic() + 30
    while b"blocked" not in log.read_bytes():
        assert time.monotonic() < end, log.read_bytes()
        await asyncio.sleep(0.05)
    return plan.id


async def test_the_kernels_view_names_each_process_and_what_its_threads_wait_for(
    link: Any, stuck: str
) -> None:
    found = await stacks.take(link, stuck, py_spy="none")
    record = await hostruns.record(link, stuck)
    assert found.processes[0].pid == record["pid"], "the launcher comes first"
    assert [p.how for p in found.processes] == ["kernel", "kernel"]
    assert f"== pid {record['pid']} {sys.executable}" in found.text
    assert "sleep 600" in found.text
    assert found.text.count("thread ") == 3
    assert "is not installed" in found.processes[0].problem and "pip install py-spy" in found.step
    if os.geteuid() == 0:
        assert "recv" in found.text, "the kernel's own stack says that it waits for a socket"
    kept = Path(found.path)
    assert kept.parent == Path(hostruns.run_folder(link, stuck))
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert kept.read_text() == found.text and "top-secret" not in found.text


@pytest.mark.skipif(
    not (shutil.which("py-spy") or (Path(sys.executable).parent / "py-spy").exists()),
    reason="py-spy is not installed",
)
async def test_py_spy_names_the_python_function_and_pauses_nothing(link: Any, stuck: str) -> None:
    found = await stacks.take(link, stuck)
    first, child = found.processes
    if "ermission" in first.problem:
        pytest.skip("this user may not read another process")
    assert first.how == "py-spy" and "waits_for_a_peer_that_never_speaks" in found.text
    assert "a_second_thread" in found.text
    assert child.how == "kernel" and child.problem == "no Python program"
    assert "top-secret" not in found.text
    record = await hostruns.record(link, stuck)
    assert record["alive"] and Path(f"/proc/{record['pid']}/stat").read_text().split(") ")[1][0] == "S"


async def test_a_py_spy_that_hangs_or_fails_leaves_the_kernels_view(
    link: Any, stuck: str, root: Path
) -> None:
    fake = root / "py-spy"
    fake.write_text("#!/bin/sh\necho 'Error: Permission Denied' >&2\nexit 1\n")
    fake.chmod(0o755)
    found = await stacks.take(link, stuck, py_spy=str(fake))
    assert found.processes[0].how == "kernel" and found.processes[0].problem == "Error: Permission Denied"
    assert "ptrace_scope" in found.step and "thread " in found.text


async def test_stopped_processes_are_seen_as_stopped(link: Any, stuck: str) -> None:
    record = await hostruns.record(link, stuck)
    os.kill(record["pid"], signal.SIGSTOP)
    try:
        end = time.monotonic() + 5
        while Path(f"/proc/{record['pid']}/stat").read_text().split(") ")[1][0] != "T":
            assert time.monotonic() < end
            await asyncio.sleep(0.02)
        found = await stacks.take(link, stuck, keep=False)
    finally:
        os.kill(record["pid"], signal.SIGCONT)
    assert found.processes[0].state == "T" and "is stopped (T)" in found.text
    assert found.path == "" and not list(Path(hostruns.run_folder(link, stuck)).glob("stacks-*"))


async def test_an_ended_run_has_no_stacks(link: Any, stuck: str) -> None:
    record = await hostruns.record(link, stuck)
    os.killpg(record["pid"], signal.SIGKILL)
    end = time.monotonic() + 10
    while not (await hostruns.record(link, stuck)).get("ended"):
        assert time.monotonic() < end
        await asyncio.sleep(0.1)
    with pytest.raises(RemoteError, match="No process of the run"):
        await stacks.take(link, stuck)


def test_the_verb(link: Any, stuck: str, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from specdash.cli import main

    config = root / "config.toml"
    config.write_text(f'[hosts.box]\nssh = ""\nrun-root = "{root}/specdash"\npython = "{sys.executable}"\n')
    assert main(["--config", str(config), "stacks", stuck, "--host", "box", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["run"] == stuck and told["path"].endswith(".txt") and len(told["processes"]) == 2
    assert main(["--config", str(config), "--read-only", "stacks", stuck, "--host", "box"]) == 0
    shown = capsys.readouterr()
    assert "== pid" in shown.out and "Kept in" not in shown.err
