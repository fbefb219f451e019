"""A big log followed over a real sshd on loopback, whole chain: is everything still live meanwhile?

    python benchmarks/log_gigabyte.py [--mb 1000] [--rate 45] [--kind "decode lines"] [--screen | --attach]

A run is launched through specdash on the sshd's host; its "engine" writes the log of a busy server (`log_lines`) at
`--rate` MB/s (0: as fast as the disk takes it). specdash follows it in a process of its own, with a simulated
nvidia-smi of 8 GPUs at 1 Hz: its hub alone, or with `--screen` the whole dashboard on a pseudo-terminal, which gets a
key again and again. Writer, sshd, agent and specdash share this machine's cores. Prints MB/s, the lag after the writer's
last byte, how late GPU samples were, how long the event loop was busy, CPU and peak memory; and whether targets are met.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
THIS = str(Path(__file__).resolve())
sys.path[:0] = [str(Path(__file__).parent), str(ROOT), str(ROOT / "tests" / "support")]

TARGETS = {"mb_s": 40.0, "lag_s": 2.0, "gpu_late_s": 1.0, "peak_mb": 150.0, "key_p99_ms": 100.0}
SMI = """#!{python}
import sys, time
ask = next((a.partition("=")[2].split(",") for a in sys.argv if a.startswith("--query-gpu=")), None)
VALUES = {{"uuid": "GPU-%d", "name": "NVIDIA H200", "pci.bus_id": "00000000:%02X:00.0", "memory.used": "121000 MiB",
    "memory.total": "143771 MiB", "utilization.gpu": "97 %%", "power.draw": "612.30 W", "temperature.gpu": "61",
    "enforced.power.limit": "700.00 W", "clocks.current.sm": "1830 MHz", "clocks.current.memory": "3201 MHz",
    "clocks_event_reasons.active": "0x0000000000000000", "ecc.errors.uncorrected.volatile.total": "0",
    "mig.mode.current": "Disabled", "driver_version": "580.95.05", "index": "%d"}}
while ask:
    for gpu in range(8):
        print(", ".join(VALUES[name] % gpu if "%d" in VALUES[name] or "%02X" in VALUES[name] else
            VALUES[name].replace("%%", "%") for name in ask), flush=gpu == 7)
    if not any(a in ("-l", "-lms") or a.startswith(("--loop", "-lms")) for a in sys.argv):
        break
    time.sleep(1)
"""


# The engine: writes a log ----------------------------------------------------------------------------------


def write(folder: Path, megabytes: int, rate: float, kind: str) -> None:
    """Waits for FOLDER/go after the ready line; says in FOLDER/done when the last byte was written, and how many."""
    import log_lines

    made = log_lines.busy if kind == "busy server" else log_lines.KINDS[kind]
    blocks = [log_lines.block(made, 1_000_000, seed) for seed in range(8)]
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    for line in ("Load weight begin. avail mem=138.20 GB", "The server is fired up and ready to roll!"):
        print(f"[{now} TP0] {line}", flush=True)
    (folder / "up").touch()
    while not (folder / "go").exists():
        time.sleep(0.02)
    began, written = time.monotonic(), 0
    while written < megabytes * 1_000_000:
        data = blocks[written // 1_000_000 % 8].replace(
            log_lines.STAMP, time.strftime("%Y-%m-%d %H:%M:%S").encode()
        )
        for at in range(0, len(data), 100_000):
            written += os.write(1, data[at : at + 100_000])
            if rate:
                time.sleep(max(0.0, began + written / rate / 1e6 - time.monotonic()))
    size = os.fstat(1).st_size
    (folder / "done.new").write_text(json.dumps({"at": time.monotonic(), "began": began, "size": size}))
    (folder / "done.new").rename(folder / "done")
    while not (folder / "stop").exists():
        time.sleep(0.1)


# specdash: follows it --------------------------------------------------------------------------------------


class Watch:
    """Looks at a hub from inside of its process; writes what it saw to FOLDER/seen."""

    def __init__(self, hub: Any, folder: Path) -> None:
        self.hub, self.folder = hub, folder
        self.late: list[float] = []
        self.pauses: list[float] = []
        emit = hub.emit

        def seen(event: Any) -> None:
            if type(event.body).__name__ == "GpusSampled" and event.host_at:
                sent = event.host_at + float(event.body.table.get("age_s") or 0.0)
                self.late.append(time.clock_gettime(time.CLOCK_BOOTTIME) - sent)
            emit(event)

        hub.emit = seen

    async def follow(self) -> None:
        loop_busy = asyncio.create_task(self.beat())
        attach = (self.folder / "done").exists()
        while len(self.late) < 2 or not any(s.story.ready_seen for s in self.servers()):
            await asyncio.sleep(0.05)
            if attach and any(s.log.read for s in self.servers()):
                break
        self.late.clear()
        self.pauses.clear()
        cpu, began = time.process_time(), time.monotonic()
        (self.folder / "go").touch()
        done: dict[str, float] = {}
        while not done or self.servers()[0].log.read < done["size"]:
            await asyncio.sleep(0.02)
            if not done and (self.folder / "done").exists():
                done = json.loads((self.folder / "done").read_text())
        if attach:
            done = {**done, "began": began, "at": time.monotonic()}
        now = time.monotonic()
        loop_busy.cancel()
        server = self.servers()[0]
        self.pauses.sort()
        told = {
            "mb_s": done["size"] / 1e6 / (now - done["began"]),
            "lag_s": now - done["at"],
            "gpu_late_s": max(self.late),
            "gpu_samples": len(self.late),
            "seconds": now - done["began"],
            "loop_p99_ms": 1000 * self.pauses[int(len(self.pauses) * 0.99) - 1],
            "loop_worst_ms": 1000 * self.pauses[-1],
            "cpu_ms_per_mb": 1000 * (time.process_time() - cpu) / (done["size"] / 1e6),
            "peak_mb": peak_mb(),
            "decode_lines": server.story.decode_count,
            "lines": server.story.lines,
            "faults": self.hub.faults,
        }
        (self.folder / "seen.new").write_text(json.dumps(told))
        (self.folder / "seen.new").rename(self.folder / "seen")

    def servers(self) -> list[Any]:
        return [server for host in self.hub.state.hosts.values() for server in host.servers.values()]

    async def beat(self) -> None:
        """How much later than asked the loop comes back: what a key would wait."""
        while True:
            due = time.monotonic() + 0.005
            await asyncio.sleep(0.005)
            self.pauses.append(time.monotonic() - due)


def peak_mb() -> float:
    row = next(r for r in Path("/proc/self/status").read_text().splitlines() if r.startswith("VmHWM"))
    return int(row.split()[1]) / 1024


async def watch(folder: Path, host: Any) -> None:
    from specdash.monitor.hub import Hub

    hub = Hub([host], cache=folder / "cache")
    watcher = Watch(hub, folder)
    async with hub:
        await watcher.follow()


def screen(folder: Path, host: Any) -> None:
    from specdash.config.settings import Settings
    from specdash.tui.start import make

    app = make(Settings(), [host])
    watcher = Watch(app.real_hub, folder)

    async def begin() -> None:
        app.follower = asyncio.create_task(watcher.follow())  # type: ignore[attr-defined]

    app.call_later(begin)
    app.run()


# The whole -------------------------------------------------------------------------------------------------


async def launch(host: Any, folder: Path, options: argparse.Namespace) -> None:
    """Launches the writer as a run, through specdash."""
    from specdash.control import launch as launching
    from specdash.host.open import open_link
    from specdash.sglang.commandline import LaunchSpec

    flags = {
        "--role": "write",
        "--folder": folder,
        "--mb": options.mb,
        "--rate": options.rate,
        "--kind": options.kind,
    }
    pairs = tuple((name, str(value)) for name, value in flags.items())
    spec = LaunchSpec("writer", "box", sys.executable, ("-u", THIS), (*pairs, ("--port", 1)))
    async with await open_link(host) as link:
        plan = await launching.plan(link, spec, precheck=False)
        async for event in launching.run(link, plan, wait=False):
            if event.final == "failed":
                raise SystemExit(event.sentence)
    until(folder / "up", 60)
    if options.attach:
        (folder / "go").touch()
        until(folder / "done", 600)


def until(path: Path, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > end:
            raise SystemExit(f"{path.name} did not come within {seconds:g} s")
        time.sleep(0.05)


def child(role: str, folder: Path) -> list[str]:
    return [sys.executable, THIS, "--role", role, "--folder", str(folder)]


def keys(folder: Path) -> list[float]:
    """The dashboard on a pseudo-terminal of 160x50: seconds from a key to its paint, while the log comes in."""
    pid, master = pty.fork()
    if pid == 0:
        env = {
            **os.environ,
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            "TEXTUAL_ANIMATIONS": "none",
            "HOME": str(folder),
        }
        os.execve(sys.executable, child("screen", folder), env)
    ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))

    def read(limit_s: float, words: bytes = b"") -> tuple[bytes, float]:
        start, seen = time.perf_counter(), b""
        while (left := start + limit_s - time.perf_counter()) > 0:
            if select.select([master], [], [], left)[0]:
                seen += os.read(master, 65536)
                if words and words in seen:
                    break
        return seen, time.perf_counter() - start

    took: list[float] = []
    try:
        while not (folder / "go").exists():
            read(0.1)
        os.write(master, b"\t\t\t\t")
        read(1.0)
        turn = 0
        while not (folder / "done").exists():
            read(0.05)
            key, words = ((b"k", b"paused"), (b"G", b"following"))[turn % 2]
            turn += 1
            os.write(master, key)
            seen, waited = read(3, words)
            if words in seen:
                took.append(waited)
        end = time.monotonic() + 120
        while not (folder / "seen").exists() and time.monotonic() < end:
            read(0.1)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return sorted(took)


def whole(options: argparse.Namespace) -> int:
    import sshd

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tools = folder / "bin"
        tools.mkdir()
        (tools / "nvidia-smi").write_text(SMI.format(python=sys.executable))
        (tools / "nvidia-smi").chmod(0o755)
        with sshd.running(f"SetEnv PATH={tools}:/usr/local/bin:/usr/bin:/bin") as server:
            host = server.host(run_root=str(folder / "runs"), python=sys.executable)
            (folder / "host.json").write_text(host.model_dump_json())
            asyncio.run(launch(host, folder, options))
            took: list[float] = []
            try:
                if options.screen:
                    took = keys(folder)
                else:
                    subprocess.run(child("watch", folder), check=True, timeout=60 + options.mb / 2)
                told = json.loads((folder / "seen").read_text())
            finally:
                (folder / "stop").touch()
                time.sleep(1.5)
        return say(told, took, options)


def say(told: dict[str, Any], took: list[float], options: argparse.Namespace) -> int:
    if took:
        told["key_p50_ms"] = 1000 * took[len(took) // 2]
        told["key_p99_ms"] = 1000 * took[max(0, int(len(took) * 0.99) - 1)]
        told["keys"] = len(took)
    print(
        f"{options.mb} MB, {options.kind}, written at {options.rate or 'any'} MB/s; {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}"
    )
    missed = 0
    for name, value in told.items():
        target = TARGETS.get(name)
        verdict = ""
        if target is not None:
            met = value >= target if name == "mb_s" else value <= target
            missed += not met
            verdict = f"   (target {target:g}) {'ok' if met else 'MISSED'}"
        print(f"  {name:16} {value if isinstance(value, (int, str, list)) else round(value, 3)}{verdict}")
    return 1 if missed or told["faults"] else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mb", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=45.0)
    parser.add_argument("--kind", default="busy server")
    parser.add_argument("--screen", action="store_true")
    parser.add_argument("--attach", action="store_true", help="the log is there before specdash comes")
    parser.add_argument("--role", default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "write":
        write(options.folder, options.mb, options.rate, options.kind)
        return 0
    if options.role:
        from specdash.config.hosts import Host

        gc.set_threshold(50_000, 20, 100)  # as the command line does (`cli._own_process`)
        host = Host.model_validate_json((options.folder / "host.json").read_text())
        if options.role == "watch":
            asyncio.run(watch(options.folder, host))
        else:
            screen(options.folder, host)
        return 0
    with suppress(KeyboardInterrupt):
        return whole(options)
    return 130


if __name__ == "__main__":
    sys.exit(main())
