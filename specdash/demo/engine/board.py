# ruff: noqa: PTH100, PTH105, PTH108, PTH118, PTH123, PTH208
"""The eight simulated GPUs: what each engine process holds, in small files that the simulated NVML reads.

One file per engine, `<folder>/<pid>.json`; it counts only while that process lives (pid and start time), so
memory is free again when the engine is gone, as on a real host.
"""

from __future__ import annotations

import json
import os
from typing import Any

COUNT = 8
NAME = "NVIDIA H200 (simulated)"
TOTAL_MIB = 143771
IDLE_MIB = 4
IDLE_W = 76.0
LIMIT_W = 700.0
DRIVER = "580.0-simulated"


def sim_folder(module: str) -> str:
    """`<home>/.sim`, from `<home>/ml-env/lib/python3.x/site-packages/sglang/simulated/<module>.py`."""
    return os.path.join(os.path.abspath(module).rsplit(os.sep, 7)[0], ".sim")


def start_of(pid: int) -> int:
    """Start time in clock ticks after boot; 0: no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            fields = f.read().rsplit(b")", 1)[1].split()
    except (OSError, IndexError):
        return 0
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])


def write(folder: str, holders: dict[int, dict[str, Any]], busy: float) -> None:
    """`holders`: GPU index → {pid, mib}; `busy` 0..1 moves utilisation and power."""
    me = os.getpid()
    rows = {str(i): dict(h, start=start_of(h["pid"])) for i, h in holders.items()}
    path = os.path.join(folder, f"{me}.json")
    with open(path + ".new", "w") as f:
        json.dump({"busy": round(busy, 3), "gpus": rows}, f)
    os.replace(path + ".new", path)


def read(folder: str) -> list[dict[str, Any]]:
    """Per GPU: used_mib, busy, processes [{pid, mib}], over all living engines. Dead engines' files go."""
    gpus: list[dict[str, Any]] = [{"used_mib": IDLE_MIB, "busy": 0.0, "processes": []} for _ in range(COUNT)]
    try:
        names = sorted(n for n in os.listdir(folder) if n.endswith(".json"))
    except OSError:
        return gpus
    for name in names:
        try:
            with open(os.path.join(folder, name)) as f:
                told = json.load(f)
        except (OSError, ValueError):
            continue
        alive = False
        for index, holder in told["gpus"].items():
            if not holder["start"] or start_of(holder["pid"]) != holder["start"]:
                continue
            alive = True
            gpu = gpus[int(index)]
            gpu["used_mib"] += holder["mib"]
            gpu["busy"] = max(gpu["busy"], told["busy"])
            gpu["processes"].append({"pid": holder["pid"], "mib": holder["mib"]})
        if not alive:
            try:
                os.unlink(os.path.join(folder, name))
            except OSError:
                pass
    return gpus
