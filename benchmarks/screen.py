"""Figures of the screen, all or by name: `python benchmarks/screen.py [paint] [demo] [attached] [idle] [keys] [memory]`.

All on a pseudo-terminal of 160x50.
- paint, idle, keys: synthetic states, eight GPUs at 1 Hz; keys: 2,000 log lines a second, plots on.
- demo: `specdash demo` from the command to GPUs on the screen.
- attached: specdash on a host behind a real sshd where a server runs (simulated): from the command to its state on the
  screen, then what it costs to look at it while nothing happens.
- memory: the app while LINES lines (SPECDASH_LINES, 10,000,000) go through its log panel and its log store.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import statistics
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
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


LINES = """
import asyncio, sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.support.fakehub import FakeHub, FakeOperator
from specdash.monitor.logstore import LogStore
from specdash.tui.start import DashboardApp

BLOCK = 5000
class Hub(FakeHub):
    async def start(self):
        asyncio.create_task(self.feed())
    async def close(self): pass
    async def feed(self):
        text = "".join(
            "[2026-11-29 13:00:01 TP%d] Decode batch, line %d\\n" % (i % 8, i) if i % 4 else
            'INFO:     127.0.0.1:4 - "GET /metrics HTTP/1.1" 200 OK\\n' for i in range(BLOCK)).encode()
        told = Path({told!r})
        for done in range(0, {lines}, BLOCK):
            self.logs.append(text)
            # As fast as the panel follows, so that what is measured has been looked at.
            while app.is_running and app.query_one("#log").table.behind > 20 * BLOCK:
                app.query_one("#log").idle()
                await asyncio.sleep(0)
            told.write_text(str(done + BLOCK))
            await asyncio.sleep(0)

hub = Hub("ready")
hub.logs = LogStore("h", "r", Path({folder!r}))
app = DashboardApp(hub, FakeOperator(), wall_clock=False)
sys.exit(app.run() or 0)
"""


class Screen:
    """The dashboard, or another program, on a pseudo-terminal."""

    def __init__(self, rate: int = 0, argv: Sequence[str] = (), **more: str) -> None:
        self.began = time.perf_counter()
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            env = {
                **os.environ,
                "TERM": "xterm-256color",
                "LANG": "C.UTF-8",
                "TEXTUAL_ANIMATIONS": "none",
                **more,
            }
            env.pop("SPECDASH_CONFIG", "") if "SPECDASH_CONFIG" not in more else None
            code = PROGRAM.format(root=str(ROOT), rate=rate)
            words = list(argv) or [sys.executable, "-c", code]
            os.execve(words[0], words, env)
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

    def leave(self) -> None:
        """By its own key, so that what it started ends too."""
        os.write(self.master, b"q")
        with contextlib.suppress(OSError):
            while os.read(self.master, 65536):
                pass
        os.waitpid(self.pid, 0)
        os.close(self.master)

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


def demo() -> None:
    took = []
    for _ in range(3):
        with tempfile.TemporaryDirectory(prefix="specdash-demo-bench-") as home:
            argv = [sys.executable, "-m", "specdash", "demo"]
            screen = Screen(argv=argv, HOME=home, PYTHONPATH=str(ROOT))
            seen, _ = screen.read(60, "8×H200".encode())
            assert "8×H200".encode() in seen, seen[-2000:]
            took.append(time.perf_counter() - screen.began)
            screen.leave()
    print(
        f"specdash demo, command to its GPUs on the screen: median {statistics.median(took):.2f} s of {len(took)}"
    )


@contextlib.contextmanager
def host_with_a_server(home: Path) -> Iterator[Path]:
    """A real sshd, a run of a simulated engine behind it, and a config that names the host."""
    import asyncio
    import json

    sys.path.insert(0, str(ROOT))
    from specdash.control import launch, stop
    from specdash.host.open import open_link
    from specdash.sglang.commandline import LaunchSpec
    from tests.support.sshd import free_port, running

    with running() as server:
        host = server.host(name="far", run_root=str(home / "runs"), python=sys.executable)
        flags = (("--port", free_port()), ("--host", "127.0.0.1"), ("--load", "0.1"))
        stub = ("-B", str(ROOT / "tests" / "support" / "engine_stub.py"))
        spec = LaunchSpec("attached-stub", "far", sys.executable, stub, flags)

        async def up() -> str:
            link = await open_link(host)
            plan = await launch.plan(link, spec, precheck=False)
            events = [event async for event in launch.run(link, plan)]
            await link.close()
            assert events[-1].final == "done", events[-1]
            return plan.id

        async def down(run: str) -> None:
            link = await open_link(host)
            async for _ in stop.run(link, await stop.plan(link, run, deadline_s=5)):
                pass
            await link.close()

        run = asyncio.run(up())
        told = host.model_dump(exclude_defaults=True, exclude={"name"})
        rows = [f"{key.replace('_', '-')} = {json.dumps(value)}" for key, value in told.items()]
        config = home / "config.toml"
        config.write_text("\n".join(["[hosts.far]", *rows]) + "\n")
        try:
            yield config
        finally:
            asyncio.run(down(run))


def attached() -> None:
    with tempfile.TemporaryDirectory(prefix="specdash-attached-") as folder:
        home = Path(folder)
        with host_with_a_server(home) as config:
            argv = [sys.executable, "-m", "specdash", "--config", str(config)]
            took = []
            for turn in range(4):
                screen = Screen(argv=argv, HOME=folder, PYTHONPATH=str(ROOT))
                seen, _ = screen.read(60, "● idle".encode())
                assert "● idle".encode() in seen, seen[-2000:]
                took.append(time.perf_counter() - screen.began)
                if turn < 3:
                    screen.leave()
            print(
                f"attached host over sshd, command to its server on the screen: median {statistics.median(took):.2f} s"
                f" of {len(took)}, worst {max(took):.2f} s"
            )
            screen.read(5)
            before = screen.cpu_s()
            sent, waited = screen.read(30)
            print(
                f"attached and idle: {100 * (screen.cpu_s() - before) / waited:.1f} % of a core,"
                f" {len(sent) / waited:.0f} bytes/s to the terminal, {screen.rss_mib():.0f} MiB"
            )
            screen.leave()


def memory() -> None:
    lines = int(os.environ.get("SPECDASH_LINES", "10000000"))
    with tempfile.TemporaryDirectory(prefix="specdash-lines-") as folder:
        told = Path(folder) / "told"
        code = LINES.format(root=str(ROOT), folder=folder, told=str(told), lines=lines)
        screen = Screen(argv=[sys.executable, "-c", code])
        marks: list[tuple[int, float]] = []
        began = time.perf_counter()
        while True:
            screen.read(1)
            done = int(told.read_text() or 0) if told.exists() else 0
            if done and (not marks or done >= marks[-1][0] + lines // 10 or done >= lines):
                marks.append((done, screen.rss_mib()))
            if done >= lines:
                break
        screen.read(5)
        size = sum(path.stat().st_size for path in Path(folder).glob("*.log")) / 2**20
        words = ", ".join(f"{count / 1e6:.1f} M: {rss:.0f}" for count, rss in marks)
        print(
            f"memory over {lines:,} log lines ({size:.0f} MiB on disk) in {time.perf_counter() - began:.0f} s: MiB at {words}"
        )
        took = []
        os.write(screen.master, b"\t\t\t\t")
        screen.read(1)
        for key, wait in (
            (b"k", b"paused"),
            (b"g", b""),
            (b"G", b"following"),
            (b"k", b"paused"),
            (b"G", b"following"),
        ):
            os.write(screen.master, key)
            waited = screen.read(3 if wait else 0.5, wait)[1]
            took += [waited] if wait else []
        print(
            f"keys with all of them in the panel: {', '.join(f'{1000 * one:.0f}' for one in took)} ms; end {screen.rss_mib():.0f} MiB"
        )
        screen.close()


WORK = {
    "paint": first_paint,
    "demo": demo,
    "attached": attached,
    "idle": idle,
    "keys": keys,
    "memory": memory,
}

if __name__ == "__main__":
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    for name in sys.argv[1:] or WORK:
        WORK[name]()
