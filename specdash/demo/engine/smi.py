"""The demo host's `nvidia-smi`: `--query-gpu`, `--query-compute-apps`, `--format`, `-l`, `-lms`, `-i`; else a list."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from . import nvml

GPU: dict[str, Callable[[int], str]] = {
    "index": str,
    "uuid": nvml.nvmlDeviceGetUUID,
    "name": nvml.nvmlDeviceGetName,
    "pci.bus_id": lambda h: str(nvml.nvmlDeviceGetPciInfo(h).busId),
    "memory.used": lambda h: f"{nvml.nvmlDeviceGetMemoryInfo(h).used >> 20} MiB",
    "memory.total": lambda h: f"{nvml.nvmlDeviceGetMemoryInfo(h).total >> 20} MiB",
    "memory.free": lambda h: f"{nvml.nvmlDeviceGetMemoryInfo(h).free >> 20} MiB",
    "utilization.gpu": lambda h: f"{nvml.nvmlDeviceGetUtilizationRates(h).gpu} %",
    "power.draw": lambda h: f"{nvml.nvmlDeviceGetPowerUsage(h) / 1000:.2f} W",
    "power.limit": lambda h: f"{nvml.nvmlDeviceGetEnforcedPowerLimit(h) / 1000:.2f} W",
    "enforced.power.limit": lambda h: f"{nvml.nvmlDeviceGetEnforcedPowerLimit(h) / 1000:.2f} W",
    "temperature.gpu": lambda h: str(nvml.nvmlDeviceGetTemperature(h, 0)),
    "clocks.current.sm": lambda h: f"{nvml.nvmlDeviceGetClockInfo(h, 1)} MHz",
    "clocks.current.memory": lambda h: f"{nvml.nvmlDeviceGetClockInfo(h, 2)} MHz",
    "clocks_event_reasons.active": lambda h: f"0x{nvml.nvmlDeviceGetCurrentClocksEventReasons(h):016x}",
    "ecc.errors.uncorrected.volatile.total": lambda h: "0",
    "mig.mode.current": lambda h: "Disabled",
    "driver_version": lambda h: nvml.nvmlSystemGetDriverVersion(),
}


def main(argv: list[str]) -> int:
    """Exit code of nvidia-smi: 2 for what it does not know."""
    options = dict(a.split("=", 1) for a in argv if a.startswith("--") and "=" in a)
    query, apps = options.get("--query-gpu"), options.get("--query-compute-apps")
    every = next(
        (
            float(argv[i + 1]) * s
            for i, a in enumerate(argv)
            for f, s in (("-lms", 0.001), ("-l", 1))
            if a == f
        ),
        0,
    )
    chosen = set((argv[argv.index("-i") + 1] if "-i" in argv else "").split(",")) - {""}
    cards = [
        h
        for h in range(8)
        if not chosen or {str(h), nvml.nvmlDeviceGetUUID(h), GPU["pci.bus_id"](h)} & chosen
    ]
    header = "noheader" not in options.get("--format", "")
    units = "nounits" not in options.get("--format", "")
    while True:
        if apps is not None:
            _apps(apps.split(","), cards, header, units)
        elif query is not None:
            fields = [f.strip() for f in query.split(",")]
            for field in fields:
                if field not in GPU:
                    print(f'Field "{field}" is not a valid field to query.\n')  # noqa: T201
                    return 2
            _row(fields, header)
            for h in cards:
                _row([GPU[f](h) for f in fields], True, units)
        else:
            for h in cards:
                print(f"GPU {h}: {nvml.nvmlDeviceGetName(h)} (UUID: {nvml.nvmlDeviceGetUUID(h)})")  # noqa: T201
        sys.stdout.flush()
        if not every:
            return 0
        header = False
        time.sleep(every)


def _apps(fields: list[str], cards: list[int], header: bool, units: bool) -> None:
    _row(fields, header)
    for h in cards:
        for p in nvml.nvmlDeviceGetComputeRunningProcesses(h):
            cells = {
                "gpu_uuid": nvml.nvmlDeviceGetUUID(h),
                "pid": str(p.pid),
                "process_name": f"sglang::scheduler_TP{h}",
                "used_memory": f"{p.usedGpuMemory >> 20} MiB",
                "used_gpu_memory": f"{p.usedGpuMemory >> 20} MiB",
            }
            _row([cells.get(f, "[N/A]") for f in fields], True, units)


def _bare(cell: str) -> str:
    number, _, unit = cell.partition(" ")
    return number if unit in ("MiB", "MHz", "W", "%") else cell


def _row(cells: list[str], shown: bool, units: bool = True) -> None:
    if shown:
        print(", ".join(cells if units else [_bare(c) for c in cells]))  # noqa: T201
