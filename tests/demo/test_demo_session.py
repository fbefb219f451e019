"""The demo host over a real SSH connection, and that nothing of it outlives what it was for."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import asyncssh
import pytest
from demokit import alive, until

from specdash.demo import check_demo
from specdash.demo.host import children
from specdash.demo.session import DemoSession, start
from specdash.host.open import open_link


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.fixture
def session() -> Iterator[DemoSession]:
    with start(50) as one:
        yield one


def family(pid: int) -> list[int]:
    found = [pid]
    for child in children(pid):
        found += family(child)
    return found


async def engine(session: DemoSession, wait: str = "fired up") -> None:
    """Starts an engine detached from its SSH session, as a supervisor would."""
    known = session.host.known_hosts
    async with asyncssh.connect(
        "127.0.0.1",
        session.host.port or 0,
        client_keys=[session.host.identity or ""],
        known_hosts=known,
        config=None,
    ) as ssh:
        flags = f"--model-path data/models/Kimi-K2.5-INT4 --tp-size 8 --port {session.engine_port}"
        await ssh.run(f"setsid python3 -m sglang.launch_server {flags} >log 2>&1 </dev/null &", check=True)
    log = session.folder / "home" / "log"
    await asyncio.to_thread(until, lambda: log.exists() and wait in log.read_text())


def test_the_demo_sees_and_touches_nothing_of_the_users_own(
    session: DemoSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `demo-base.toml` in `./profiles` does not shadow the demo's own, whose port is free on this machine."""
    from specdash.config import inherit, paths

    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "demo-base.toml").write_text("[server]\nport = 31900\n")
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    with session.inside():
        found = inherit.names()
        assert {path.parent for path in found.values()} == {session.profiles_dir}
        assert f"port = {session.engine_port}" in found["demo-base"].read_text()
        assert session.folder in paths.state_dir().parents and session.folder in paths.config_file().parents
    assert dict(os.environ) == before


async def test_it_is_a_host_like_any_other(session: DemoSession) -> None:
    assert session.host.label == "simulated" and not session.host.is_local
    assert session.settings().host("demo") == session.host
    link = await open_link(session.host)
    try:
        assert link.hello["home"] == str(session.folder / "home")
        board = await link.call("gpu.static", timeout=15)
        assert board["source"].startswith("nvml") and len(board["gpus"]) == 8
        assert all(g["processes"] == [] and g["memory_used_mib"] == 4 for g in board["gpus"])
        assert all("simulated" in g["name"] for g in board["gpus"])
        async for sample in link.sample("gpu", 0.2):
            assert len(sample["gpus"]) == 8 and sample["problem"] == ""
            break
    finally:
        await link.close()


async def test_nobody_else_gets_in_and_it_tunnels_to_itself_only(
    session: DemoSession, tmp_path: Path
) -> None:
    assert oct((session.folder).stat().st_mode)[-3:] == "700"
    assert oct((session.folder / "client_key").stat().st_mode)[-3:] == "600"
    port, known = session.host.port or 0, session.host.known_hosts
    stranger = asyncssh.generate_private_key("ssh-ed25519")
    with pytest.raises(asyncssh.PermissionDenied):
        await asyncssh.connect(
            "127.0.0.1", port, client_keys=[stranger], known_hosts=known, config=None, agent_path=None
        )
    key = [session.host.identity or ""]
    async with asyncssh.connect("127.0.0.1", port, client_keys=key, known_hosts=known, config=None) as ssh:
        with pytest.raises(asyncssh.ChannelOpenError):
            await ssh.open_connection("192.0.2.1", 80)
        done = await ssh.run("echo out; echo err >&2; exit 7")
        assert (done.stdout, done.stderr, done.exit_status) == ("out\n", "err\n", 7)
        killed = await ssh.run("kill -9 $$")
        assert killed.exit_signal is not None and killed.exit_signal[0] == "KILL"


async def test_closing_leaves_no_process_and_no_folder() -> None:
    session = await asyncio.to_thread(start, 50)
    await engine(session)
    pids = family(session.pid)
    assert len(pids) >= 11, "host, engine, eight schedulers, detokenizer"
    await asyncio.to_thread(session.close)
    assert not any(alive(pid) for pid in pids)
    assert not session.folder.exists()
    session.close()


DASHBOARD = """
import asyncio, json, sys, time
sys.path.insert(0, sys.argv[1])
from specdash.demo.session import start
from test_demo_session import engine
session = start(50)
asyncio.run(engine(session, wait="server_args="))
print(json.dumps({"pid": session.pid, "folder": str(session.folder)}), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("victim", ["dashboard", "demo host"])
def test_kill_9_of_either_takes_every_engine_along(victim: str) -> None:
    argv = [sys.executable, "-c", DASHBOARD, os.path.dirname(__file__)]
    dashboard = subprocess.Popen(argv, stdout=subprocess.PIPE)
    try:
        assert dashboard.stdout is not None
        told = json.loads(dashboard.stdout.readline())
        until(lambda: len(family(told["pid"])) >= 11)
        pids = family(told["pid"])
        if victim == "dashboard":
            dashboard.kill()
        else:
            os.kill(told["pid"], signal.SIGKILL)
        until(lambda: not any(alive(pid) for pid in pids), 15)
        if victim == "dashboard":
            until(lambda: not os.path.exists(told["folder"]), 15)
    finally:
        dashboard.kill()
        dashboard.wait()
        if dashboard.stdout is not None:
            dashboard.stdout.close()
        subprocess.run(["rm", "-rf", told["folder"]], check=True)


@pytest.mark.slow
async def test_kept_it_goes_on_and_is_found_again() -> None:
    first = await asyncio.to_thread(start, 50, True)
    try:
        await engine(first)
        pids = family(first.pid)
        first.close()
        again = await asyncio.to_thread(start, 50)
        assert again.found and again.host == first.host and again.profiles_dir == first.profiles_dir
        assert all(alive(pid) for pid in pids)
        link = await open_link(again.host)
        await link.close()
        with await asyncio.to_thread(start, 50, join=False) as other:
            assert other.folder != first.folder and not other.found
        assert all(alive(pid) for pid in pids), "a new one for itself leaves the kept one alone"
    finally:
        again = await asyncio.to_thread(start, 50)
        await asyncio.to_thread(again.close)
    until(lambda: not any(alive(pid) for pid in pids), 10)
    assert not first.folder.exists()


async def test_a_profile_is_launched_as_on_any_host_and_is_ready() -> None:
    async with check_demo("demo-eagle3", 50) as target:
        board = await target.link.call("gpu.static", timeout=15)
        assert all(g["memory_used_mib"] > 100_000 and len(g["processes"]) == 1 for g in board["gpus"])
        folder, pids = target.session.folder, family(target.session.pid)
    assert not folder.exists() and not any(alive(pid) for pid in pids)


async def test_no_profile_is_blocked_before_launch_not_even_the_broken_one(session: DemoSession) -> None:
    from specdash.control import preflight, profiles

    link = await open_link(session.host)
    try:
        for name in ("demo-base", "demo-eagle3", "demo-weak", "demo-broken", "demo-ngram"):
            spec = profiles.resolve(session.profile(name), session.settings())
            checks = await preflight.preflight(link, spec)
            assert not [c for c in checks if c.status == "block"], name
            assert any(c.status == "ok" for c in checks)
    finally:
        await link.close()


async def test_the_broken_profile_breaks() -> None:
    from specdash.errors import ActionFailed

    with pytest.raises(ActionFailed, match="signal 9"):
        async with check_demo("demo-broken", 50):
            pass


@pytest.mark.slow
async def test_a_check_of_the_demo_leaves_nothing_in_the_users_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specdash.demo import check_demo

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    async with check_demo() as ready:
        assert ready.session.folder.exists()
    assert not (tmp_path / "state").exists()
