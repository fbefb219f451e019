"""What --check promises whoever runs it: an end in time, no harm, no more load than needed, nothing left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from specdash import cli
from specdash.check import Options, Target, check
from specdash.config.hosts import Host
from tests.check.test_states import trap
from tests.check.test_states_real import IDLE
from tests.support import sshd as sshds
from tests.support.http_fake import HttpFake

CHECKS = int(os.environ.get("SPECDASH_CHECKS", "8"))
"""How many checks in a row; by hand: 1000."""


def child(*words: str, before: str = "", **env: str) -> subprocess.Popen[str]:
    code = f"import sys\n{before}\nfrom specdash.cli import main\nsys.exit(main())"
    return subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
    )


@pytest.mark.slow
def test_a_name_server_that_hangs_cannot_hold_the_exit(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        '[hosts.far]\nssh = "gpu.example"\nuser = "ops"\nssh-config = "/dev/null"\n[hosts.box]\nssh = ""\n'
        f'python = "{sys.executable}"\nrun-root = "{tmp_path}"\n'
    )
    hang = "import socket, time\nsocket.getaddrinfo = lambda *a, **k: time.sleep(600)"
    many = [f"http://slow{n}.example:30000" for n in range(40)]
    began = time.monotonic()
    words = (
        "--config",
        str(tmp_path / "config.toml"),
        "--check",
        "far",
        *many,
        "box",
        "--timeout",
        "3",
        "--json",
    )
    with child(*words, before=hang, XDG_STATE_HOME=str(tmp_path)) as process:
        out, err = process.communicate(timeout=60)
    assert time.monotonic() - began < 3 + 6, err
    assert process.returncode == 2, err
    told = {target["target"]: target for target in json.loads(out)["targets"]}
    assert told["far"]["state"] == "CRITICAL" and "gpu.example" in told["far"]["sentence"]
    assert {told[f"slow{n}.example:30000"]["state"] for n in range(40)} == {"CRITICAL"}
    assert told["box"]["state"] == "OK", "others do not wait for the hanging ones"


@pytest.mark.slow
def test_control_c_is_130_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(4)
        silent.settimeout(30)
        target = f"127.0.0.1:{silent.getsockname()[1]}"
        with child("--check", target, "--timeout", "60", XDG_STATE_HOME=str(tmp_path)) as process:
            asked, _ = silent.accept()  # it waits for an answer now
            process.send_signal(signal.SIGINT)
            began = time.monotonic()
            out, err = process.communicate(timeout=20)
            asked.close()
    assert process.returncode == 130 and time.monotonic() - began < 2
    assert out == "" and "Traceback" not in err and err.count("\n") <= 1


@pytest.fixture
def door() -> Iterator[sshds.Sshd]:
    if why := sshds.missing():
        pytest.skip(why)
    with sshds.running("MaxStartups 100") as server:
        yield server


def config(folder: Path, server: sshds.Sshd, *names: str, more: str = "") -> list[str]:
    host = server.host()
    table = (
        f'ssh = "127.0.0.1"\nport = {server.port}\nuser = "{host.user}"\nssh-config = "/dev/null"\n'
        f'known-hosts = "{host.known_hosts}"\nidentity = "{host.identity}"\nrun-root = "{folder}/runs"\n'
        f'python = "{sys.executable}"\n'
    )
    path = folder / "config.toml"
    path.write_text("".join(f"[hosts.{name}]\n{table}" for name in names) + more)
    return ["--config", str(path), "--check"]


@pytest.mark.sshd
def test_many_checks_at_once_put_one_generation_on_a_server(door: sshds.Sshd, tmp_path: Path) -> None:
    words = config(tmp_path, door, "far")
    with HttpFake(IDLE, generate_s=1.0) as fake, ThreadPoolExecutor(5) as pool:

        def one(number: int) -> tuple[int, str]:
            straight = number == 4  # one of them without SSH: the same machine, so the same turn
            target = f"127.0.0.1:{fake.port}" if straight else f"far:{fake.port}"
            with child(
                *words, target, "--generate", "--timeout", "15", XDG_STATE_HOME=str(tmp_path)
            ) as process:
                out, err = process.communicate(timeout=60)
            return process.returncode, out + err

        told = list(pool.map(one, range(5)))
        assert [code for code, _ in told] == [0] * 5, told
        assert fake.most_at_once == 1, "never two at once"
        shared = sum("of another check" in text for _, text in told)
        assert fake.generations + shared == 5
        assert shared >= 1, "who waits takes the result of the one that ran"


@pytest.mark.sshd
def test_thirty_two_targets_take_the_time_of_the_slowest(
    door: sshds.Sshd, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    near = [f"near{n}" for n in range(8)]
    with trap("blackhole") as port:
        dark = f'ssh = "127.0.0.1"\nport = {port}\nuser = "ops"\nssh-config = "/dev/null"\n'
        more = "".join(f"[hosts.dark{n}]\n{dark}" for n in range(24))
        words = config(tmp_path, door, *near, more=more)
        began = time.monotonic()
        assert cli.main([*words, "--all", "--timeout", "10", "--json", "--no-memory"]) == 2
        took = time.monotonic() - began
    data = json.loads(capsys.readouterr().out)
    states = {target["target"]: target["state"] for target in data["targets"]}
    assert {states[name] for name in near} == {"OK"}, data["line"]
    assert {states[f"dark{n}"] for n in range(24)} == {"CRITICAL"}
    slowest = max(target["took_s"] for target in data["targets"])
    assert len(states) == 32 and took < slowest + 1.5 and took < 11.5
    assert not (tmp_path / "state").exists()


@pytest.mark.sshd
@pytest.mark.timeout(3600)
def test_checks_in_a_row_leave_nothing(
    door: sshds.Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By hand: SPECDASH_CHECKS=1000 pytest tests/check/test_promises.py -m sshd -n 0 -k in_a_row"""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    words = config(tmp_path, door, "far")
    with HttpFake(IDLE) as fake:
        words += [f"far:{fake.port}", "--generate"]
        before: dict[str, Any] = {}
        for number in range(CHECKS):
            assert cli.main(words) == 0, capsys.readouterr()
            if number == 1:
                ends = time.monotonic() + 10  # the agent of that check may be on its way out
                while time.monotonic() < ends:
                    before = left(door, tmp_path)
                    if not before["processes"] and not before["turns"]:
                        break
                    time.sleep(0.1)
        assert fake.generations == CHECKS and fake.most_at_once == 1
        capsys.readouterr()
        deadline = time.monotonic() + 10
        while (after := left(door, tmp_path)) != before and time.monotonic() < deadline:
            time.sleep(0.1)
        assert after == before, (before, after)
        assert after["processes"] == 0 and after["turns"] == [] and len(after["state"]) == 1


def left(server: sshds.Sshd, folder: Path) -> dict[str, Any]:
    """What checks may have left: processes and files on the host, sockets, state, our own descriptors."""
    sessions = [pid for pid in server.children() if not is_ssh(pid)]
    names = Path("/proc/net/unix").read_text().split("\n")
    return {
        "processes": len(sessions),
        "files": sorted(str(path) for path in (folder / "runs").rglob("*")),
        "turns": [line for line in names if "@specdash/turn/" in line],
        "state": sorted(path.name for path in (folder / "state").rglob("*") if path.is_file()),
        "descriptors": len(os.listdir("/proc/self/fd")) // 8,
        "tmp": sorted(path.name for path in Path("/tmp").glob("specdash-ssh-*")),
    }


def is_ssh(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().startswith("sshd")
    except OSError:
        return True


def test_the_time_before_the_first_look_is_part_of_the_timeout() -> None:
    """64 hosts with ten dead took 11.2 s at `--timeout 10`: who waits counts from the start of the command."""

    async def hang(*_: object, **__: object) -> None:
        await asyncio.sleep(60)

    target = Target("h", "host", Host(name="h", ssh="127.0.0.1"))
    began = time.monotonic()
    options = Options(timeout_s=1.0, lead_s=0.4, memory=None)
    (result,) = asyncio.run(check([target], options, open_link=hang))  # type: ignore[arg-type]
    assert 0.4 < time.monotonic() - began < 0.9
    assert result.findings[0].name == "timeout" and "within 1 s" in result.findings[0].sentence
