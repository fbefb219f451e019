"""GPUs through one long-lived `nvidia-smi` in loop mode, where there is no pynvml. Python 3.8.

nvidia-smi can hang on a bad card, beyond the reach of SIGKILL: so there is at most one loop process, it is
ours to kill when it falls silent, and while one that we killed is still there no other is started. The process
list is asked apart by a short call, only while the loop is healthy.
"""

from __future__ import annotations

import os
import select
import subprocess
import time
from typing import Any, Dict, List, Optional

from . import gpu_faults, smi_text

PLACES = (
    "/usr/bin",
    "/usr/local/bin",
    "/usr/local/nvidia/bin",
    "/usr/lib/wsl/lib",
    "/opt/nvidia/bin",
    "/opt/bin",
    "/run/nvidia/driver/usr/bin",
    "/run/current-system/sw/bin",
)
"""Where nvidia-smi lives when a non-interactive shell's PATH lacks it (containers, WSL, operators, NixOS)."""

QUERY = [
    "index",
    "uuid",
    "name",
    "pci.bus_id",
    "memory.used",
    "memory.total",
    "utilization.gpu",
    "power.draw",
    "enforced.power.limit",
    "temperature.gpu",
    "clocks.current.sm",
    "clocks.current.memory",
    "clocks_event_reasons.active",
    "ecc.errors.uncorrected.volatile.total",
    "mig.mode.current",
    "driver_version",
]
OLDER = {
    "clocks_event_reasons.active": "clocks_throttle_reasons.active",
    "enforced.power.limit": "power.limit",
}
APPS = ["gpu_uuid", "pid", "process_name", "used_memory"]
APPS_EVERY_S = 5.0
MAX_BYTES = 1_000_000


class SmiError(Exception):
    """nvidia-smi does not answer. `stuck`: it hangs; else `text` is what it printed before it ended."""

    def __init__(self, text: str, stuck: bool = False) -> None:
        self.text = text
        self.stuck = stuck
        super().__init__(text)


def find(name: str = "nvidia-smi") -> Optional[str]:
    """Path of a tool in PATH or the usual places, or None."""
    for folder in (*os.environ.get("PATH", "").split(os.pathsep), *PLACES, "/opt/rocm/bin"):
        path = os.path.join(folder, name) if folder else ""
        if path and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


class Smi:
    """One loop process. Not thread-safe: the sampler's one thread owns it."""

    def __init__(self, path: str, patience_s: float = 5.0, interval_ms: int = 1000) -> None:
        self.path = path
        self.patience_s = patience_s
        self.interval_ms = interval_ms
        self.query = list(QUERY)
        self.only = ""  # bus ids to ask for, when one card makes nvidia-smi fail for all
        self.driver = ""
        self.loop: Optional[subprocess.Popen[bytes]] = None
        self.undead: List[subprocess.Popen[bytes]] = []
        self.apps: Optional[List[Dict[str, Any]]] = None
        self.apps_at: Optional[float] = None

    def close(self) -> None:
        if self.loop is not None:
            self._kill(self.loop)
            self.loop = None

    def sample(self) -> List[smi_text.Gpu]:
        """The newest whole set of GPUs. Raises SmiError."""
        for _ in range(8):
            try:
                found = smi_text.gpus(self._newest(), self.query)
            except SmiError as e:
                if not self._adapt(e.text):
                    raise
                continue
            for gpu in found:
                self.driver = gpu.pop("driver", "") or self.driver
            self._read_apps()
            smi_text.attach_all(found, self.apps)
            return found
        raise SmiError("nvidia-smi refuses every query that was tried")

    def _adapt(self, text: str) -> bool:
        """Drop what this nvidia-smi does not know, or the card it cannot reach; True: try again."""
        unknown = [f for f in gpu_faults.invalid_fields(text) if f in self.query]
        for field in unknown:
            older = OLDER.get(field)
            at = self.query.index(field)
            self.query[at : at + 1] = [older] if older else []
        if unknown:
            return True
        lost = gpu_faults.diagnose(text).get("bus_ids")
        others = [] if self.only or not lost else [b for b in bus_ids() if not same_bus(b, lost)]
        self.only = ",".join(others) or self.only
        return bool(others)

    def _newest(self) -> str:
        """Text of the newest set of rows that the loop printed; waits up to `patience_s` for one."""
        self.undead = [p for p in self.undead if p.poll() is None]
        if self.undead:
            raise SmiError("an earlier nvidia-smi (pid %d) still hangs" % self.undead[0].pid, stuck=True)
        if self.loop is None:
            only = ["-i", self.only] if self.only else []
            argv = [self.path, "--query-gpu=" + ",".join(self.query), "--format=csv,noheader", *only]
            self.loop = _start([*argv, "-lms", str(self.interval_ms)])
        assert self.loop.stdout is not None
        out, data, end = self.loop.stdout.fileno(), b"", time.monotonic() + self.patience_s
        pause = min(0.1, self.interval_ms / 4000.0)
        while True:
            # Rows of one set come together: a pause after a whole line ends a set.
            quiet = b"\n" in data and data.endswith(b"\n")
            wait = pause if quiet else max(0.0, end - time.monotonic())
            if select.select([out], [], [], wait)[0]:
                piece = os.read(out, 65536)
                data = (data + piece)[-MAX_BYTES:]
                if piece:
                    continue
                rc = self.loop.wait()
                self.loop = None
                text = data.decode("utf-8", "replace")
                raise SmiError(text.strip() or "nvidia-smi ended with code %d and said nothing" % rc)
            if quiet:
                return _last_set(data.decode("utf-8", "replace"))
            if time.monotonic() >= end:
                self.close()
                raise SmiError(
                    "nvidia-smi printed nothing for %.0f s and was ended" % self.patience_s, stuck=True
                )

    def _read_apps(self) -> None:
        now = time.monotonic()
        if self.apps_at is not None and now - self.apps_at < APPS_EVERY_S:
            return
        self.apps_at, self.apps = now, None
        only = ["-i", self.only] if self.only else []
        p = _start([self.path, "--query-compute-apps=" + ",".join(APPS), "--format=csv,noheader", *only])
        try:
            out = p.communicate(timeout=self.patience_s)[0].decode("utf-8", "replace")
        except subprocess.TimeoutExpired:
            self._kill(p)
            return
        if p.returncode == 0 and not gpu_faults.diagnose(out):
            self.apps = smi_text.apps(out, APPS)

    def _kill(self, p: subprocess.Popen[bytes]) -> None:
        p.kill()
        try:
            p.wait(0.5)
        except subprocess.TimeoutExpired:
            self.undead.append(p)
        if p.stdout is not None:
            p.stdout.close()


def bus_ids() -> List[str]:
    """Bus ids of all cards that the kernel module knows, lost ones included; [] without the module."""
    try:
        return sorted(os.listdir("/proc/driver/nvidia/gpus"))
    except OSError:
        return []


def same_bus(bus: str, others: List[str]) -> bool:
    """nvidia-smi writes an 8-digit PCI domain, the kernel a 4-digit one."""
    return any(bus.lower()[-12:] == other.lower()[-12:] for other in others)


def _start(argv: List[str]) -> subprocess.Popen[bytes]:
    env = dict(os.environ, LC_ALL="C")
    try:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env
        )
    except OSError as e:
        raise SmiError("%s does not start: %s" % (argv[0], e.strerror)) from e


def _last_set(text: str) -> str:
    """The last run of rows with rising index (each turn of the loop starts again at the lowest)."""
    lines = [line for line in text.splitlines() if line.strip()]
    start, before = 0, -1.0
    for at, line in enumerate(lines):
        index = smi_text.number(line.split(",")[0])
        if index is not None and index <= before:
            start = at
        before = before if index is None else index
    return "\n".join(lines[start:])
