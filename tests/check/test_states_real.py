"""The table of states with real parts (states_real.toml): a real sshd, real processes, real runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from specdash import cli
from specdash.control import stop
from specdash.host.remote import procs
from tests.check.test_states import HERE, matches, trap
from tests.support import sshd as sshds
from tests.support.http_fake import HttpFake

ROWS: list[dict[str, Any]] = tomllib.loads((HERE / "states_real.toml").read_text("utf-8"))["state"]
IDLE = {"/ready": 200, "/v1/loads": {"loads": [{"num_running_reqs": 0, "num_waiting_reqs": 0}]}}
STATES = {0: "OK", 1: "WARNING", 2: "CRITICAL", 3: "UNKNOWN"}


def rows(kind: str) -> Any:
    found = [row for row in ROWS if row["with"] == kind]
    return pytest.mark.parametrize("row", found, ids=[row["id"] for row in found])


@contextlib.contextmanager
def stopping_relay(port: int, after: int) -> Iterator[int]:
    """A relay that passes `after` bytes of the server's and then no more, and closes nothing."""
    import socket

    with socket.socket() as front:
        front.bind(("127.0.0.1", 0))
        front.listen(16)
        kept: list[socket.socket] = []

        def pump(source: socket.socket, sink: socket.socket, most: int) -> None:
            passed = 0
            with contextlib.suppress(OSError):
                while passed < most and (data := source.recv(min(4096, most - passed))):
                    sink.sendall(data)
                    passed += len(data)

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    here, _ = front.accept()
                    there = socket.create_connection(("127.0.0.1", port))
                    kept.extend((here, there))
                    for words in ((here, there, 1 << 40), (there, here, after)):
                        threading.Thread(target=pump, args=words, daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield int(front.getsockname()[1])
        finally:
            for one in kept:
                one.close()
            with contextlib.suppress(OSError):
                front.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def full_disk(folder: Path) -> Iterator[None]:
    """A file system of 1 MiB in a folder, full. Needs root."""
    folder.mkdir(parents=True)
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "full", folder], capture_output=True
    ).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        with contextlib.suppress(OSError):
            (folder / "fill").write_bytes(bytes(2 << 20))
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=False)


def checked(
    row: dict[str, Any], words: list[str], capsys: pytest.CaptureFixture[str], **names: object
) -> None:
    """The command's code and line are the row's; and it is over in its time."""
    capsys.readouterr()
    began = time.monotonic()
    code = cli.main([*words, *row.get("words", []), "--window", "0"])
    took = time.monotonic() - began
    told = capsys.readouterr()
    said = told.out.removeprefix("SPECDASH ").partition(" | ")[0].rstrip("\n")
    for name, value in names.items():
        said = said.replace(str(value), name)
    assert code == row["code"] and told.err == "", (said, told.err)
    assert matches(row["line"], said), said
    assert said.partition(":")[0] == STATES[code]
    if "--timeout" in row.get("words", []):
        assert took < float(row["words"][row["words"].index("--timeout") + 1]) + 2.5


@pytest.mark.sshd
@rows("sshd")
def test_over_a_real_sshd(
    row: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if why := sshds.missing():
        pytest.skip(why)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SSH_AUTH_SOCK", "")
    door, run_root = row.get("door", ""), tmp_path / "runs"
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(sshds.running(*row.get("sshd", [])))
        host = server.host()
        known, identity, port = Path(str(host.known_hosts)), str(host.identity), server.port
        if door == "wrong-key":
            other = tmp_path / "other"
            other.write_bytes(asyncssh.generate_private_key("ssh-ed25519").export_private_key())
            other.chmod(0o600)
            identity = str(other)
        elif door == "unknown-host":
            known.write_text("")
        elif door == "changed-host":
            server.stop()
            server.new_host_key(known=False)
            server.start()
        elif door.startswith("stop:"):
            port = stack.enter_context(stopping_relay(server.port, int(door.partition(":")[2])))
            known.write_text(known.read_text().replace(f":{server.port} ", f":{port} "))
        if row.get("disk") == "full":
            stack.enter_context(full_disk(run_root))
        fake = stack.enter_context(HttpFake(IDLE)) if row.get("engine") else None
        engine_port = fake.port if fake else stack.enter_context(trap("closed"))
        config = tmp_path / "config.toml"
        config.write_text(
            f'[hosts.far]\nssh = "127.0.0.1"\nport = {port}\nuser = "{host.user}"\nssh-config = "/dev/null"\n'
            f'known-hosts = "{known}"\nidentity = "{identity}"\nrun-root = "{run_root}"\n'
            f'python = "{row.get("python", sys.executable)}"\n'
        )
        target = f"far:{engine_port}" if row["target"] == "far-port" else "far"
        before = known.read_text()
        checked(row, ["--config", str(config), "--check", target], capsys, PORT=engine_port, SSHPORT=port)
        assert known.read_text() == before, "a check remembers no host"
        if fake and "generations" in row:
            assert fake.generations == row["generations"]


@pytest.fixture
async def orphans() -> AsyncIterator[list[int]]:
    made: list[int] = []
    yield made
    for pid in made:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def left_alone(line: str) -> int:
    """The pid of what a shell left behind."""
    return int(subprocess.run(["bash", "-c", line], capture_output=True, check=True).stdout)


async def until(found: Any, seconds: float = 20.0) -> Any:
    end = time.monotonic() + seconds
    while not (value := await found()):
        assert time.monotonic() < end, "it did not come to it"
        await asyncio.sleep(0.1)
    return value


@pytest.mark.slow
@rows("process")
async def test_real_processes(
    row: dict[str, Any],
    tmp_path: Path,
    link: Any,
    start_run: Any,
    free_port: int,
    config: Path,
    orphans: list[int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    if row["target"] == "demo":
        await asyncio.to_thread(checked, row, ["--check", "demo"], capsys)
        return
    (config.parent / "profiles").mkdir()
    (config.parent / "profiles/stub.toml").write_text(
        f'host = "box"\n[server]\nmodel-path = "m/x"\nport = {free_port}\n'
    )
    then, frozen = row.get("then", ""), []

    async def record() -> dict[str, Any]:
        return dict((await link.call("runs.list", {"base": link.hello["base"]}))["runs"][0])

    async def ended() -> bool:
        return bool((await record()).get("ended"))

    if then == "orphan":
        line = "exec -a sglang::scheduler_TP0 sleep 300 >/dev/null 2>&1 </dev/null & echo $!"
        orphans.append(await asyncio.to_thread(left_alone, line))
        row_of = procs.stat(orphans[0])
        if row_of is None or row_of["ppid"] != 1:
            pytest.skip("an orphan does not go to init here")
    else:
        dies = any(flag.startswith(("--die", "--load")) for flag in row.get("flags", []))
        await start_run(link, *row.get("flags", []), wait=not dies)
        if any(flag.startswith("--die") for flag in row.get("flags", [])):
            await until(ended)
    if then == "kill":
        os.kill((await record())["pid"], signal.SIGKILL)
        await until(ended)
    elif then == "stop":
        plan = await stop.plan(link, (await record())["id"])
        async for _ in stop.run(link, plan):
            pass
        await until(ended)
    elif then == "freeze":
        frozen = (
            [row["pid"] for row in procs.tree_rows((await record())["pid"])]
            if hasattr(procs, "tree_rows")
            else []
        )
        frozen = frozen or [(await record())["pid"]]
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
    try:
        words = ["--config", str(config), "--check", row["target"]]
        await asyncio.to_thread(checked, row, words, capsys, PORT=free_port)
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)


def test_the_tables_are_long_enough() -> None:
    fakes = tomllib.loads((HERE / "states.toml").read_text("utf-8"))["state"]
    names = [row["id"] for row in [*fakes, *ROWS]]
    assert len(names) == len(set(names)) and len(names) >= 100
    assert shutil.which("bash")
