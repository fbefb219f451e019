"""The real program in a real pseudo-terminal: first paint, keys, hang-up, suspend and resume, no terminal left broken."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

PROGRAM = """
import sys
sys.path.insert(0, {root!r})
from tests.support.fakehub import FakeHub, FakeOperator
from specdash.tui.start import DashboardApp

class Hub(FakeHub):
    async def start(self): pass
    async def close(self): pass

app = DashboardApp(Hub("ready"), FakeOperator(), wall_clock=False)
sys.exit(app.run() or 0)
"""


class Terminal:
    """A program on a pseudo-terminal of 80x24, its output read as it comes."""

    def __init__(self, argv: Sequence[str] = (), **more: str) -> None:
        root = str(Path(__file__).parents[2])
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            env = {
                **os.environ,
                "TERM": "xterm-256color",
                "LANG": "C.UTF-8",
                "TEXTUAL_ANIMATIONS": "none",
                **more,
            }
            env.pop("COLORTERM", "")
            words = [sys.executable, *(argv or ("-c", PROGRAM.format(root=root)))]
            os.execve(words[0], words, env)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.seen = b""

    def read_until(self, words: bytes, timeout_s: float = 30.0) -> None:
        end = time.monotonic() + timeout_s
        while words not in self.seen:
            left = end - time.monotonic()
            assert left > 0, (words, self.seen[-2000:])
            if select.select([self.master], [], [], left)[0]:
                try:
                    self.seen += os.read(self.master, 65536)
                except OSError:
                    break
        assert words in self.seen

    def press(self, keys: bytes) -> None:
        self.seen = b""
        os.write(self.master, keys)

    def hang_up(self) -> None:
        """Close our end, once: the number may be another file's afterwards."""
        if self.master >= 0:
            os.close(self.master)
            self.master = -1

    def drain(self) -> None:
        if self.master < 0:
            time.sleep(0.05)
            return
        with contextlib.suppress(OSError):
            while select.select([self.master], [], [], 0.05)[0]:
                part = os.read(self.master, 65536)
                if not part:
                    return
                self.seen += part

    def ended(self, timeout_s: float) -> int:
        """Its wait status; fails when it still runs after `timeout_s`."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                return status
            with contextlib.suppress(OSError, ValueError):
                self.drain()
        raise AssertionError(f"still running after {timeout_s} s")

    def close(self) -> None:
        self.hang_up()
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.close()


def test_draws_and_quits_with_the_terminal_restored(terminal: Terminal) -> None:
    terminal.read_until(b"kimi-k2.5-eagle3")
    terminal.press(b"q")
    assert os.waitstatus_to_exitcode(terminal.ended(10)) == 0
    assert b"\x1b[?1049l" in terminal.seen
    assert b"\x1b[?25h" in terminal.seen


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_signal_ends_it_soon_and_restores_the_terminal(terminal: Terminal, number: int) -> None:
    terminal.read_until(b"kimi-k2.5-eagle3")
    terminal.seen = b""
    os.kill(terminal.pid, number)
    assert os.waitstatus_to_exitcode(terminal.ended(4)) == 128 + number
    assert b"\x1b[?1049l" in terminal.seen


def test_the_link_to_the_terminal_is_cut(terminal: Terminal) -> None:
    terminal.read_until(b"kimi-k2.5-eagle3")
    terminal.hang_up()
    terminal.ended(4)


def test_suspend_and_resume(terminal: Terminal) -> None:
    terminal.read_until(b"kimi-k2.5-eagle3")
    terminal.press(b"\x1a")
    terminal.read_until(b"\x1b[?1049l")
    end = time.monotonic() + 10
    while time.monotonic() < end:
        pid, status = os.waitpid(terminal.pid, os.WNOHANG | os.WUNTRACED)
        if pid and os.WIFSTOPPED(status):
            break
        terminal.drain()
    else:
        raise AssertionError("did not stop")
    terminal.seen = b""
    os.kill(terminal.pid, signal.SIGCONT)
    terminal.read_until(b"\x1b[?1049h")
    terminal.read_until(b"kimi-k2.5-eagle3")
    terminal.press(b"q")
    terminal.ended(10)


def drawn(terminal: Terminal) -> bytes:
    """All that it sent once it has its numbers on the screen, until it was quit."""
    terminal.read_until(b"kimi-k2.5-eagle3")
    terminal.read_until(b"running")
    terminal.drain()
    seen = terminal.seen
    terminal.press(b"q")
    terminal.ended(10)
    return seen


COLOUR = re.compile(rb"\x1b\[(?:[0-9;]*;)?(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;[0-9;]*)?m")


def test_no_colour_and_a_c_locale_inside_screen_draw_ascii_without_colour() -> None:
    """NO_COLOR is honoured, LC_ALL=C gets no byte beyond ASCII, and `screen` as terminal is fine with both."""
    terminal = Terminal(NO_COLOR="1", LC_ALL="C", TERM="screen")
    try:
        seen = drawn(terminal)
        assert b"GPUs" in seen and b"81.4" in seen
        assert max(seen) < 0x80
        told = {found.group() for found in COLOUR.finditer(seen)}
        # Textual turns colours into greys; no hue may be left.
        for code in told:
            numbers = [int(part) for part in code[2:-1].split(b";") if part]
            for at, number in enumerate(numbers):
                if number in (38, 48) and numbers[at + 1] == 2:
                    assert len(set(numbers[at + 2 : at + 5])) == 1, code
    finally:
        terminal.close()


@pytest.mark.slow
def test_sixteen_colours_are_enough() -> None:
    terminal = Terminal(TERM="xterm", SPECDASH_THEME="")
    try:
        seen = drawn(terminal)
        assert b"81.4" in seen
        assert not re.search(rb"\x1b\[[0-9;]*[34]8;2;", seen), "true colour where the terminal has sixteen"
    finally:
        terminal.close()
