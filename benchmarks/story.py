"""The whole story in a real terminal, by keys alone: `python benchmarks/story.py [80x24 …]`.

Drives `specdash demo` inside tmux: connect, launch, watch, switch, fail and roll back, search the log, stop, quit. Every
step waits for what the screen must show, with a deadline, and leaves a capture in artefacts/story/SIZE/ (not in git).
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
SIZES = ((80, 24), (160, 50))
SPEED = 10
POLL_S = 0.2
SERVES = r"● (busy|idle|ready)"


class Missing(AssertionError):
    """The screen did not show in time what it must; the message is the screen."""


class Terminal:
    """A program in its own tmux server: keys in, screen text out."""

    def __init__(self, command: str, size: tuple[int, int], cwd: Path, artefacts: Path) -> None:
        self.name = f"specdash-{os.getpid()}-{size[0]}"
        self.artefacts, self.count = artefacts, 0
        artefacts.mkdir(parents=True, exist_ok=True)
        for old in (*artefacts.glob("*.txt"), *artefacts.glob("*.ansi")):
            old.unlink()
        self._tmux("new-session", "-d", "-x", str(size[0]), "-y", str(size[1]), "-c", str(cwd), "cat")
        self._tmux("set", "-g", "remain-on-exit", "on")
        self._tmux("set", "-g", "status", "off")
        # By the shell: tmux 3.3a sometimes has no exit code of a pane that is dead.
        self.exit_file = artefacts / "exit"
        self.exit_file.unlink(missing_ok=True)
        told = f"{command}; echo $? > {shlex.quote(str(self.exit_file))}"
        self._tmux("respawn-pane", "-k", "-c", str(cwd), told)

    def _tmux(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-L", self.name, "-f", "/dev/null", *words], capture_output=True, text=True, check=False
        )
        return done.stdout

    def screen(self) -> str:
        return self._tmux("capture-pane", "-p")

    def press(self, *keys: str) -> None:
        """tmux's names of keys: Enter, Tab, Right, Escape, or a character."""
        self._tmux("send-keys", *keys)

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-l", text)

    def until(self, wanted: str | Callable[[str], bool], limit_s: float, what: str = "") -> str:
        """The screen once it shows `wanted` (a regular expression, or a judge of the whole text)."""
        end = time.monotonic() + limit_s
        while True:
            text = self.screen()
            if wanted(text) if callable(wanted) else re.search(wanted, text):
                return text
            if time.monotonic() > end:
                self.keep("missing")
                raise Missing(f"not shown within {limit_s:.0f} s: {what or wanted}\n{text}")
            time.sleep(POLL_S)

    def keep(self, name: str) -> str:
        """The screen as an artefact: plain, and with its colours."""
        self.count += 1
        text = self.screen()
        stem = self.artefacts / f"{self.count:02}-{name}"
        stem.with_suffix(".txt").write_text(text, encoding="utf-8")
        stem.with_suffix(".ansi").write_text(self._tmux("capture-pane", "-p", "-e"), encoding="utf-8")
        return text

    def ended(self, limit_s: float) -> int:
        """Exit code of the program, once it has ended."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            with contextlib.suppress(OSError, ValueError):
                return int(self.exit_file.read_text())
            time.sleep(POLL_S)
        raise Missing(f"still running after {limit_s:.0f} s\n{self.screen()}")

    def close(self) -> None:
        self._tmux("kill-server")


def focused(text: str) -> str:
    """The panel whose rule is heavy."""
    found = re.search(r"━ ([A-Z][A-Za-z]+)", text)
    return found[1] if found else ""


def focus(terminal: Terminal, panel: str) -> None:
    """Tab until the panel of that heading has the focus."""
    for _ in range(8):
        now = focused(terminal.screen())
        if now == panel:
            return
        terminal.press("Tab")
        terminal.until(lambda text, was=now: focused(text) not in ("", was), 20, f"the focus to leave {now}")
    raise Missing(f"Tab does not reach {panel}\n{terminal.screen()}")


def choose(terminal: Terminal, profile: str) -> None:
    """The cursor of the profile list onto `profile`."""
    focus(terminal, "PROFILES")
    terminal.press("g")
    chosen = rf"▸[● ]+{re.escape(profile)}\b"
    for _ in range(20):
        if re.search(chosen, terminal.screen()):
            return
        terminal.press("j")
        time.sleep(POLL_S)
    raise Missing(f"{profile} cannot be chosen\n{terminal.screen()}")


def confirm(terminal: Terminal, title: str, name: str) -> None:
    """Wait for the plan, keep it, and confirm it: by button, or by the name that it wants typed."""
    terminal.until(lambda t: title in t and "Cancel" in t and "blocks this" not in t, 90, title)
    terminal.until(r"Cancel\s+(Launch|Switch|Stop)", 60, "the confirming button")
    asked = None
    for _ in range(8):
        # The field for a name comes with the plan, but may be a frame later.
        asked = asked or re.search(r"type (\S+) to confirm", terminal.screen())
        time.sleep(0 if asked else POLL_S)
    terminal.keep(name)
    if asked:
        terminal.type(asked[1])
        terminal.press("Enter", "Enter")
    else:
        terminal.press("Right", "Enter")
    terminal.until(lambda t: "Cancel" not in t, 20, "the plan to close")


def told(terminal: Terminal, words: str, limit_s: float) -> None:
    """A message that comes, in the toast or, later, on the page of messages."""
    end = time.monotonic() + limit_s
    squeezed = re.sub(r"\s+", "", words)
    while time.monotonic() < end:
        terminal.press("!")
        text = terminal.until("Messages", 20)
        flat = re.sub(r"[\s│]+", "", text)
        if squeezed in flat:
            terminal.keep("messages")
            terminal.press("Escape")
            terminal.until("HOSTS", 20)
            return
        terminal.press("Escape")
        terminal.until("HOSTS", 20)
        time.sleep(1.0)
    raise Missing(f"never told: {words}\n{terminal.screen()}")


def story(terminal: Terminal) -> None:
    # Connect.
    text = terminal.until(r"● up", 60)
    terminal.until(r"8×H200|7 ·", 30, "eight GPUs")
    assert "simulated" in text
    terminal.keep("connected")
    # Launch, watch.
    choose(terminal, "demo-base")
    terminal.press("l")
    confirm(terminal, "Launch demo-base on demo", "plan-launch")
    terminal.until(r"A demo-base", 60)
    terminal.keep("loading")
    text = terminal.until(rf"demo-base\s*(?:{SERVES}|●)", 180, "demo-base to serve")
    terminal.until(r"tok/s|idle", 60)
    text = terminal.keep("serves")
    assert not re.search(r"^.*\d o ─", text, re.M), "a GPU of our own run is shown as another's"
    # Switch.
    choose(terminal, "demo-eagle3")
    terminal.press("w")
    confirm(terminal, "Switch demo-base → demo-eagle3", "plan-switch")
    terminal.until(r"Switch demo-base → demo-eagle3", 30)
    terminal.keep("switching")
    terminal.until(r"▸?\s*[A-Z] demo-eagle3", 240, "demo-eagle3 to be launched")
    terminal.keep("switch-launches")
    told(terminal, "demo-eagle3 on demo: done.", 420)
    terminal.until(r"accept length|accept", 60)
    terminal.keep("switched")
    # Fail, roll back.
    choose(terminal, "demo-broken")
    terminal.press("w")
    confirm(terminal, "Switch demo-eagle3 → demo-broken", "plan-bad-switch")
    told(terminal, "rolled back.", 420)
    text = terminal.until("rolled back", 30)
    terminal.keep("rolled-back")
    assert "FAILED" not in text, "the old server serves, and the headline says FAILED"
    terminal.press("Escape")
    terminal.until(lambda t: "Esc: put away" not in t, 20, "the failed switch to be put away")
    terminal.until(rf"demo-eagle3\s*(?:{SERVES}|●)", 120, "demo-eagle3 to serve again")
    # Search the log.
    focus(terminal, "LOG")
    terminal.press("/")
    terminal.until(r"search the log", 20)
    terminal.type("Decode batch")
    terminal.press("Enter")
    terminal.until(r"/Decode batch/ [\d,]+ of \d", 30, "the count of matches")
    terminal.press("N")
    terminal.until(r"paused.*/Decode batch/ [\d,]+ of \d", 30, "the match before it")
    terminal.keep("searched")
    terminal.press("Escape")
    # Waited for also because a key right after Esc is Alt with that key, to any terminal.
    terminal.until(lambda t: "/Decode batch/" not in t, 20, "the search to end")
    # Stop.
    terminal.press("s")
    confirm(terminal, "Stop demo-eagle3", "plan-stop")
    terminal.until("No server of ours|stopped", 180, "the stop")
    terminal.keep("stopped")
    # Quit.
    terminal.press("q")
    assert terminal.ended(60) == 0, "specdash did not end with 0"


@contextmanager
def demo(size: tuple[int, int], artefacts: Path) -> Iterator[Terminal]:
    """`specdash demo` in a terminal of that size, with a home of its own."""
    with tempfile.TemporaryDirectory(prefix="specdash-story-") as folder:
        home = Path(folder)
        env = {"HOME": folder, "LANG": "C.UTF-8", "TERM": "tmux-256color", "PYTHONPATH": str(ROOT)}
        words = [f"{key}={value}" for key, value in env.items()]
        unset = ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "SPECDASH_CONFIG", "SSH_CONNECTION")
        drop = [word for name in unset for word in ("-u", name)]
        program = [sys.executable, "-m", "specdash", "demo", "--speed", str(SPEED)]
        command = shlex.join(["env", *drop, *words, *program])
        terminal = Terminal(command, size, home, artefacts)
        try:
            yield terminal
        finally:
            terminal.close()


def run(size: tuple[int, int]) -> float:
    """Seconds that the story took. Raises Missing with the screen."""
    began = time.monotonic()
    with demo(size, ROOT / "artefacts" / "story" / f"{size[0]}x{size[1]}") as terminal:
        story(terminal)
    return time.monotonic() - began


if __name__ == "__main__":
    asked = [tuple(int(part) for part in word.split("x")) for word in sys.argv[1:]] or SIZES
    for wide, high in asked:
        print(f"{wide}x{high}: {run((wide, high)):.0f} s")
