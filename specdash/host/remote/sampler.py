"""Evidence of a run every 2 s: does the log grow, does it read from disk, does it compute, who is left?

One sample, all keys: boot_s, unix (s); log_size, log_inode (bytes; None: no log); read_bytes (from disk) and
rchar (by read calls), cpu_s: sums over the process tree since the start, departed processes included;
rss_kb; procs (count, zombies left out); states ({"S": 3, "D": 1, …}); gpu_mib (run's MiB per GPU index; None:
not told), gpu_level_mib (MiB in use per GPU, whoever holds it; None: no reader), gpu_util (per GPU). `tree`
([{pid, ppid, start, title, state, cpu_s, read_bytes, rss_kb}], at most 128, the eldest) comes when the set of processes or
their states changed, and once a minute. `gone`: titles that left since the sample before.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

from specdash.host.remote import gpuhold, procs
from specdash.host.remote.kin import Kin

MAX_TREE = 128
TREE_EVERY_S = 60.0


class GpuReader:
    """Reads the GPU table in its own thread: a driver that hangs must not hang the supervision."""

    def __init__(self, every_s: float = 5.0) -> None:
        self.every_s = every_s
        self.board: Optional[Dict[str, Any]] = None
        self.read_at: Optional[float] = None
        self.busy = False
        self.last_try = -1e9

    def poke(self) -> None:
        """Start a reading when the last one is old and none is under way."""
        if not self.busy and time.monotonic() - self.last_try >= self.every_s:
            self.busy, self.last_try = True, time.monotonic()
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            self.board = gpuhold.table()
            self.read_at = time.monotonic()
        finally:
            self.busy = False

    def fresh(self) -> Optional[Dict[str, Any]]:
        """The last table when it is not older than four readings; else None (a hung driver's is no news)."""
        if self.read_at is None or time.monotonic() - self.read_at > 4 * self.every_s + 2:
            return None
        return self.board


class Sampler:
    def __init__(self, kin: Kin, log: str, gpu: GpuReader) -> None:
        self.kin = kin
        self.log = log
        self.gpu = gpu
        self.last: Dict[Tuple[int, int], Dict[str, Any]] = {}
        self.departed = {"read_bytes": 0, "rchar": 0, "cpu_ticks": 0}
        self.shape: Any = None
        self.tree_at = -1e9
        self.gpu_seen = False
        """A pid of the run was in the GPU table: the driver tells the numbers that we know."""

    def take(self, rows: List[Dict[str, Any]]) -> Dict[str, Any]:
        """One sample of the run's member `rows` (without the times, which the journal adds)."""
        self.gpu.poke()
        now: Dict[Tuple[int, int], Dict[str, Any]] = {}
        for row in rows:
            key = (row["pid"], row["start"])
            before = self.last.get(key, {})
            io = procs.io_bytes(row["pid"]) or {}
            # A process that ends shows no more io: what was last seen of it stays in the sum.
            kept = {name: max(io.get(name, 0), before.get(name, 0)) for name in ("read_bytes", "rchar")}
            title = before.get("title") if row["state"] == "Z" else self._title(row)
            now[key] = dict(row, title=title or row["comm"], **kept)
        gone = [old for key, old in self.last.items() if key not in now]
        for old in gone:
            for name in self.departed:
                self.departed[name] += old[name]
        self.last = now
        sample: Dict[str, Any] = {
            "log_size": None,
            "log_inode": None,
            "read_bytes": self.departed["read_bytes"] + sum(row["read_bytes"] for row in now.values()),
            "rchar": self.departed["rchar"] + sum(row["rchar"] for row in now.values()),
            "cpu_s": round(
                (self.departed["cpu_ticks"] + sum(r["cpu_ticks"] for r in now.values())) / procs.TICKS, 2
            ),
            "rss_kb": sum(row["rss_kb"] for row in now.values()),
            "procs": sum(1 for row in now.values() if row["state"] not in "ZX"),
            "states": {},
        }
        for row in now.values():
            sample["states"][row["state"]] = sample["states"].get(row["state"], 0) + 1
        try:
            facts = os.stat(self.log)
            sample.update(log_size=facts.st_size, log_inode=facts.st_ino)
        except OSError:
            pass
        board = self.gpu.fresh()
        holds = gpuhold.held(board, {pid for pid, _ in now})
        self.gpu_seen = self.gpu_seen or bool(holds["pids"])
        sample["gpu_mib"] = holds["mib"] if holds["known"] else None
        sample["gpu_level_mib"] = gpuhold.levels(board)
        if board and isinstance(board.get("gpus"), list):
            sample["gpu_util"] = [gpu.get("utilisation_pct") for gpu in board["gpus"]]
        if gone:
            sample["gone"] = [old["title"] for old in gone][:MAX_TREE]
        shape = sorted((key, row["state"] in "DZTt") for key, row in now.items())
        if shape != self.shape or time.monotonic() - self.tree_at > TREE_EVERY_S:
            self.shape, self.tree_at = shape, time.monotonic()
            # The eldest: ranks come before the hundreds of compile workers that they start, and who is listed once
            # stays listed until it ends.
            eldest = sorted(now.values(), key=lambda row: (row["start"], row["pid"]))[:MAX_TREE]
            sample["tree"] = [self._leaf(row) for row in eldest]
        return sample

    def _title(self, row: Dict[str, Any]) -> str:
        return " ".join(procs.argv(row["pid"]) or [row["comm"]])[:120]

    @staticmethod
    def _leaf(row: Dict[str, Any]) -> Dict[str, Any]:
        leaf = {key: row[key] for key in ("pid", "ppid", "start", "title", "state", "read_bytes", "rss_kb")}
        return dict(leaf, cpu_s=round(row["cpu_ticks"] / procs.TICKS, 2))
