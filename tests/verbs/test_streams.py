"""A command line in bad company: no output, no room, no stdin, and ^C at a question."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specdash.errors import SpecdashError

RUN = [sys.executable, "-m", "specdash"]
DEADLINE_S = 30.0


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "HOME": str(tmp_path), "SPECDASH_CONFIG": str(tmp_path / "config.toml")}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("words", [["--version"], ["profile", "list"]])
def test_no_room_for_the_output_is_a_sentence_and_no_success(words: list[str], env: dict[str, str]) -> None:
    Path(env["SPECDASH_CONFIG"]).touch()
    with open("/dev/full", "w") as full:
        done = subprocess.run([*RUN, *words], stdout=full, stderr=subprocess.PIPE, env=env, text=True)
    assert done.returncode == 3
    assert "cannot be written: No space left" in done.stderr and "Make room" in done.stderr
    assert "Traceback" not in done.stderr and "unexpected" not in done.stderr


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_closed_stream_is_no_fault(closed: int, env: dict[str, str]) -> None:
    Path(env["SPECDASH_CONFIG"]).touch()
    line = f'exec "$0" "$@" {closed}{"<" if closed == 0 else ">"}&-'
    done = subprocess.run(["sh", "-c", line, *RUN, "hosts"], capture_output=True, env=env, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_interrupt_at_a_question_ends_it_at_once() -> None:
    """A thread that reads a terminal cannot be ended: the command hung until somebody typed an Enter."""
    program = (
        "import asyncio, sys\n"
        "from specdash import cli\n"
        "from specdash.verbs.context import Context\n"
        "async def ask(*_): await Context()._ask('Go on? ')\n"
        "cli._main = lambda words: asyncio.run(ask())\n"
        "sys.exit(cli.main([]))\n"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", program])
    said = b""
    while b"Go on?" not in said:
        said += os.read(terminal, 4096)
    os.write(terminal, b"\x03")
    end = time.monotonic() + DEADLINE_S
    while (found := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < end:
        time.sleep(0.02)
    if found[0] == 0:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    os.close(terminal)
    assert found[0] == pid, "it hangs"
    assert os.waitstatus_to_exitcode(found[1]) == 130


def test_an_answer_typed_on_a_terminal_is_read() -> None:
    program = (
        "import asyncio\n"
        "from specdash.verbs.context import Context\n"
        "print('=' + asyncio.run(Context()._ask('Go on? ')) + '=')\n"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", program])
    said = b""
    while b"Go on?" not in said:
        said += os.read(terminal, 4096)
    os.write(terminal, b"yes\n")
    while b"=yes=" not in said:
        said += os.read(terminal, 4096)  # OSError at the end without an answer: fails
    os.waitpid(pid, 0)
    os.close(terminal)


def test_a_sentence_without_its_full_stop_gets_one_before_the_step() -> None:
    assert SpecdashError("there is no x", "Do y.").words == "there is no x. Do y."
    assert SpecdashError("There is no x.", "Do y.").words == "There is no x. Do y."
    assert SpecdashError("there is no x").words == "there is no x"
