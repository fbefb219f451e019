# ruff: noqa: PTH118
"""What the demo host's `import pynvml` finds: the calls of nvidia-ml-py that a GPU tool needs, over `board`."""

from __future__ import annotations

import math
import os
import time
from types import SimpleNamespace
from typing import Any

from . import board

FOLDER = os.path.join(board.sim_folder(__file__), "gpus")
NVML_TEMPERATURE_GPU, NVML_CLOCK_SM, NVML_CLOCK_MEM = 0, 1, 2
NVML_ERROR_NOT_SUPPORTED = 3
nvmlMemory_v2 = 0x2000028


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        self.value = value
        super().__init__(value)

    def __str__(self) -> str:
        return {3: "Not Supported", 2: "Invalid Argument"}.get(self.value, f"NVML error {self.value}")


def nvmlInit() -> None:
    return None


nvmlShutdown = nvmlInit


def nvmlSystemGetDriverVersion() -> str:
    return board.DRIVER


def nvmlDeviceGetCount() -> int:
    return board.COUNT


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    if not 0 <= index < board.COUNT:
        raise NVMLError(2)
    return index


def nvmlDeviceGetName(handle: int) -> str:
    return board.NAME


def nvmlDeviceGetUUID(handle: int) -> str:
    return f"GPU-51a11a7e-d000-0000-0000-{handle:012d}"


def nvmlDeviceGetPciInfo(handle: int) -> Any:
    return SimpleNamespace(busId=f"00000000:{0x18 + 16 * handle:02X}:00.0")


def nvmlDeviceGetMemoryInfo(handle: int, version: int = 1) -> Any:
    used = int(_gpu(handle)["used_mib"]) << 20
    total = board.TOTAL_MIB << 20
    return SimpleNamespace(total=total, used=used, free=total - used, reserved=0)


def nvmlDeviceGetUtilizationRates(handle: int) -> Any:
    busy = float(_gpu(handle)["busy"])
    return SimpleNamespace(
        gpu=round(min(100, 100 * busy * (1 + 0.03 * _wave(handle)))), memory=round(40 * busy)
    )


def nvmlDeviceGetPowerUsage(handle: int) -> int:
    gpu = _gpu(handle)
    idle = board.IDLE_W + (40 if gpu["processes"] else 0)
    return int(1000 * (idle + gpu["busy"] * (440 + 25 * _wave(handle)) + _wave(handle)))


def nvmlDeviceGetEnforcedPowerLimit(handle: int) -> int:
    return int(1000 * board.LIMIT_W)


def nvmlDeviceGetTemperature(handle: int, sensor: int) -> int:
    return round(31 + handle % 4 + 27 * float(_gpu(handle)["busy"]) + _wave(handle))


def nvmlDeviceGetClockInfo(handle: int, which: int) -> int:
    if which == NVML_CLOCK_MEM:
        return 3201
    return 1980 if _gpu(handle)["processes"] else 345


def nvmlDeviceGetCurrentClocksEventReasons(handle: int) -> int:
    return 0 if _gpu(handle)["busy"] else 1


def nvmlDeviceGetTotalEccErrors(handle: int, kind: int, counter: int) -> int:
    return 0


def nvmlDeviceGetMigMode(handle: int) -> list[int]:
    return [0, 0]


def nvmlDeviceGetPcieThroughput(handle: int, counter: int) -> int:
    return round(1024 * (3 + 160 * float(_gpu(handle)["busy"]) * (1 + 0.2 * _wave(handle + counter))))


def nvmlDeviceGetComputeRunningProcesses(handle: int) -> list[Any]:
    return [
        SimpleNamespace(pid=p["pid"], usedGpuMemory=int(p["mib"]) << 20) for p in _gpu(handle)["processes"]
    ]


def nvmlDeviceGetGraphicsRunningProcesses(handle: int) -> list[Any]:
    return []


_cache: list[Any] = [0.0, []]


def _gpu(handle: int) -> dict[str, Any]:
    now = time.monotonic()
    if now - _cache[0] > 0.2:
        _cache[:] = [now, board.read(FOLDER)]
    found: dict[str, Any] = _cache[1][handle]
    return found


def _wave(handle: int) -> float:
    t = time.monotonic()
    return math.sin(t / 3.1 + handle * 1.7) * 0.7 + math.sin(t / 0.9 + handle) * 0.3
