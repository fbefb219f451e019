"""`specdash adopt` on a (simulated) server that somebody started with nohup and left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from specdash.cli import main
from specdash.host.remote import procs
from tests.support.sshd import free_port

STUB = Path(__file__).parents[1] / "support" / "engine_stub.py"


class Foreign:
    def __init__(self, root: Path) -> None:
        self.root, self.port = root, free_port()
        script = root / "launch_server.py"
        shutil.copy(STUB, script)
        self.log = root / "their.log"
        words = f"{sys.executable} -B {script} --port {self.port} --model-path /m/x --api-key top-secret --load 0.1"
        done = subprocess.run(
            ["/bin/sh", "-c", f"nohup {words} >{self.log} 2>&1 </dev/null & echo $!"],
            capture_output=True,
            text=True,
            check=True,
            start_new_session=True,
            cwd=root,
            env={**os.environ, "TEST_ROOT_MARK": str(root)},
        )
        self.pid = int(done.stdout)
        self.config = root / "config.toml"
        self.config.write_text(
            f'[hosts.box]\nssh = ""\nrun-root = "{root}/specdash"\npython = "{sys.executable}"\n'
        )

    def specdash(self, *words: str) -> int:
        return main(["--config", str(self.config), *words])


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[Foreign]:
    one = Foreign(tmp_path)
    end = time.monotonic() + 30
    while "fired up" not in (one.log.read_text() if one.log.exists() else ""):
        assert time.monotonic() < end
        time.sleep(0.05)
    yield one
    mark = f"TEST_ROOT_MARK={tmp_path}".encode()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            continue


@pytest.mark.slow
def test_it_is_listed_taken_over_by_name_and_stopped(
    foreign: Foreign, capsys: pytest.CaptureFixture[str]
) -> None:
    assert foreign.specdash("adopt", "--json") == 0
    told = capsys.readouterr().out
    mine = [one for one in json.loads(told)["servers"] if one["pid"] == foreign.pid]
    assert len(mine) == 1 and mine[0]["listening"] == [foreign.port] and "top-secret" not in told
    assert foreign.specdash("adopt") == 0
    shown = capsys.readouterr().out
    assert str(foreign.log) in shown and f"specdash adopt {foreign.pid} --host box" in shown

    pid = str(foreign.pid)
    assert foreign.specdash("adopt", pid, "--yes") != 0, "its pid has to be named"
    asked = capsys.readouterr().err
    assert f"--confirm {pid}" in asked and "top-secret" not in asked
    assert foreign.specdash("--read-only", "adopt", pid, "--confirm", pid) != 0
    assert foreign.specdash("adopt", pid, "--confirm", pid, "--json") == 0
    run = json.loads(capsys.readouterr().out)["run"]
    assert foreign.specdash("logs", run, "--host", "box", "--raw") == 0
    assert "fired up and ready to roll" in capsys.readouterr().out, "its log is followed where it writes it"

    assert foreign.specdash("stop", run, "--host", "box", "--confirm", run, "--json", "--deadline", "5") == 0
    assert json.loads(capsys.readouterr().out)["outcome"] == "done"
    left = procs.stat(foreign.pid)
    assert left is None or left["state"] == "Z", "init of a container may not collect its dead"


def test_a_pid_that_is_no_server_is_refused(foreign: Foreign, capsys: pytest.CaptureFixture[str]) -> None:
    assert foreign.specdash("adopt", str(os.getpid())) == 3
    assert str(foreign.pid) in capsys.readouterr().err, "who could be adopted is named"
