"""Figures of the screen: `python benchmarks/screen.py`. First paint, key to paint under load, idle cost, bytes when idle.

A pseudo-terminal of 160x50, eight GPUs at 1 Hz, 2,000 log lines a second, plots on; the states are synthetic.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import statistics
import struct
import sys
import termios
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAM = """
import asyncio, sys, time
from dataclasses import replace
sys.path.insert(0, {root!r})
from tests.support.fakehub import FakeHub, FakeOperator, LogList, NOW, fleet, numbers, ready_server, host, gpus
from specdash.monitor.state import FleetState
from specdash.tui.start import DashboardApp

class Hub(FakeHub):
    async def start(self):
        if {rate}:
            asyncio.create_task(self.lines())
        asyncio.create_task(self.ticks())
    async def close(self): pass
    async def lines(self):
        i = 0
        while True:
            await asyncio.sleep(0.1)
            for _ in range({rate} // 10):
                i += 1
                self.logs.lines.append(b"[2026-11-29 13:00:01 TP%d] Decode batch, #running-req: 1, line %d" % (i % 8, i))
    async def ticks(self):
        t = NOW
        while True:
            await asyncio.sleep(1)
            t += 1
            board = replace(gpus(121000 + t % 7), at=t)
            told = numbers(2.3 + t % 3 / 10, 80 + t % 9, end=t) if {rate} else numbers(end=t, idle=True)
            self.play(FleetState(now=t, hosts={{"h200-a": host(servers={{"r1": ready_server(numbers=told)}}, gpus=board,
                link=replace(fleet("ready").hosts["h200-a"].link, last_up=t))}}))

app = DashboardApp(Hub("ready", LogList([b"first"])), FakeOperator(), wall_clock=False)
sys.exit(app.run() or 0)
"""


class Screen:
    """The dashboard on a pseudo-terminal."""

    def __init__(self, rate: int) -> None:
        self.began = time.perf_counter()
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            env = {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8", "TEXTUAL_ANIMATIONS": "none"}
            code = PROGRAM.format(root=str(ROOT), rate=rate)
            os.execve(sys.executable, [sys.executable, "-c", code], env)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))

    def read(self, limit_s: float, words: bytes = b"") -> tuple[bytes, float]:
        """What came within `limit_s`, or until `words` came; and how long that took."""
        start, seen = time.perf_counter(), b""
        while (left := start + limit_s - time.perf_counter()) > 0:
            if select.select([self.master], [], [], left)[0]:
                seen += os.read(self.master, 65536)
                if words and words in seen:
                    break
        return seen, time.perf_counter() - start

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mib(self) -> float:
        line = next(
            row for row in Path(f"/proc/{self.pid}/status").read_text().splitlines() if "VmRSS" in row
        )
        return int(line.split()[1]) / 1024

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.master)


def first_paint() -> None:
    took = []
    for _ in range(5):
        screen = Screen(0)
        screen.read(20, b"h200-a")
        took.append(time.perf_counter() - screen.began)
        screen.close()
    print(
        f"first paint with data: median {statistics.median(took):.2f} s of {len(took)}, worst {max(took):.2f} s"
    )


def idle() -> None:
    screen = Screen(0)
    screen.read(5)
    before = screen.cpu_s()
    seen, took = screen.read(20)
    print(
        f"idle: {100 * (screen.cpu_s() - before) / took:.1f} % of a core, {len(seen) / took:.0f} bytes/s to the terminal"
    )
    screen.close()


def keys() -> None:
    screen = Screen(2000)
    screen.read(5)
    os.write(screen.master, b"\t\t\t\t")
    screen.read(1)
    took = []
    for turn in range(100):
        key, words = ((b"k", b"paused"), (b"G", b"following"))[turn % 2]
        screen.read(0.05)
        os.write(screen.master, key)
        seen, waited = screen.read(3, words)
        if words in seen:
            took.append(waited)
    took.sort()
    before, rss = screen.cpu_s(), screen.rss_mib()
    sent, _ = screen.read(10)
    cost = 100 * (screen.cpu_s() - before) / 10
    print(
        f"key to paint at 2,000 lines/s: p50 {1000 * took[len(took) // 2]:.0f} ms, p99 {1000 * took[int(len(took) * 0.99) - 1]:.0f} ms"
        f" of {len(took)}; {cost:.0f} % of a core; {rss:.0f} MiB; {len(sent) / 10:.0f} bytes/s"
    )
    screen.close()


if __name__ == "__main__":
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    first_paint()
    idle()
    keys()
