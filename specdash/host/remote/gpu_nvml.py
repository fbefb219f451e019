"""GPUs through NVML, where this interpreter has `pynvml` (nvidia-ml-py). Python 3.8.

Measured on an H200 (driver 580, at full load): one sample 0.5 ms of CPU, the import and NVML itself 21 MB; each
PCIe counter 21 ms, so PCIe is read apart (`pcie`). Each field fails by itself; a field that a card does not support is asked once only. While it is
open, NVML holds /dev/nvidia* (a module reload or card reset needs it closed: the sampler closes when unused).
"""

from __future__ import annotations

import ctypes
import gc
import re
import warnings
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from . import smi_text

NOT_SUPPORTED, NO_PERMISSION, LOST, RESET, MISMATCH = 3, 4, 15, 16, 18


class NvmlError(Exception):
    """NVML as a whole does not answer. `code` is NVML's own number."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        super().__init__(text)


class Nvml:
    """An open NVML. Raises ImportError (no pynvml here) or NvmlError when made."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the retired `pynvml` package warns that it is retired
            import pynvml  # type: ignore[import-untyped, unused-ignore]
        _trim()  # compiling it, where no .pyc can be kept, leaves 12 MB of garbage behind
        self.n: Any = pynvml
        self.dead_fields: Set[Tuple[int, str]] = set()
        self.fixed: Dict[int, Dict[str, Any]] = {}
        self.fault = 0
        self.denied = False
        self._whole(pynvml.nvmlInit)
        self.driver = _text(self._whole(pynvml.nvmlSystemGetDriverVersion))

    def close(self) -> None:
        try:
            self.n.nvmlShutdown()
        except self.n.NVMLError:
            pass

    def sample(self) -> List[smi_text.Gpu]:
        """One dict per GPU, process lists as NVML gives them (pid and memory only)."""
        count = int(self._whole(self.n.nvmlDeviceGetCount))
        return [self._gpu(index) for index in range(count)]

    def pcie(self) -> Dict[int, Tuple[Optional[float], Optional[float]]]:
        """Index → (received, sent) MiB/s of the last 20 ms. Costs 20 ms each: call it seldom."""
        return {i: (self._counter(i, 1), self._counter(i, 0)) for i in list(self.fixed)}

    def _counter(self, index: int, which: int) -> Optional[float]:
        # Runs in a thread of its own: touches no state of `sample`.
        try:
            return float(self.n.nvmlDeviceGetPcieThroughput(self.fixed[index]["handle"], which)) / 1024
        except (self.n.NVMLError, KeyError, AttributeError):
            return None

    def _gpu(self, index: int) -> smi_text.Gpu:
        n, gpu = self.n, smi_text.blank(index)
        self.fault, self.denied = 0, False
        fixed = self.fixed.get(index)
        if fixed is None:
            handle = self._ask(index, "handle", lambda: n.nvmlDeviceGetHandleByIndex(index))
            if handle is None and self.denied:
                gpu["problem"] = "GPU %d: this user may not open it (/dev/nvidia%d)." % (index, index)
                return gpu
            if handle is None:
                smi_text.lost(gpu)
                return gpu
            fixed = self.fixed[index] = {
                "handle": handle,
                "uuid": _text(self._ask(index, "uuid", lambda: n.nvmlDeviceGetUUID(handle))),
                "name": _text(self._ask(index, "name", lambda: n.nvmlDeviceGetName(handle))),
                "bus_id": _text(self._ask(index, "bus", lambda: n.nvmlDeviceGetPciInfo(handle).busId)),
            }
        handle = fixed["handle"]
        gpu.update({k: fixed[k] for k in ("uuid", "name", "bus_id")})

        def ask(name: str, call: Callable[[], Any]) -> Any:
            return self._ask(index, name, call)

        memory = ask("memory", lambda: self._memory(handle))
        if memory is not None:
            gpu["memory_used_mib"] = memory.used / 1048576
            gpu["memory_total_mib"] = memory.total / 1048576
        rates = ask("utilisation", lambda: n.nvmlDeviceGetUtilizationRates(handle))
        gpu["utilisation_pct"] = None if rates is None else float(rates.gpu)
        power = ask("power", lambda: n.nvmlDeviceGetPowerUsage(handle))
        gpu["power_w"] = None if power is None else power / 1000.0
        limit = ask("limit", lambda: n.nvmlDeviceGetEnforcedPowerLimit(handle))
        gpu["power_limit_w"] = None if limit is None else limit / 1000.0
        gpu["temperature_c"] = ask("temperature", lambda: n.nvmlDeviceGetTemperature(handle, 0))
        gpu["sm_clock_mhz"] = ask("sm", lambda: n.nvmlDeviceGetClockInfo(handle, 1))
        gpu["memory_clock_mhz"] = ask("mem", lambda: n.nvmlDeviceGetClockInfo(handle, 2))
        gpu["throttle"] = smi_text.throttle(ask("throttle", lambda: self._reasons(handle)))
        gpu["ecc_uncorrected"] = ask("ecc", lambda: n.nvmlDeviceGetTotalEccErrors(handle, 1, 0))
        mig = ask("mig", lambda: n.nvmlDeviceGetMigMode(handle)[0])
        gpu["mig"] = None if mig is None else bool(mig)
        unified = memory is None and (index, "memory") in self.dead_fields and not self.denied
        gpu["memory_kind"] = smi_text.memory_kind(gpu, "N/A" if unified else None)
        smi_text.attach(gpu, ask("processes", lambda: self._processes(handle)))
        if self.fault == LOST:
            smi_text.lost(gpu)
        elif self.fault == RESET:
            smi_text.lost(gpu, "needs a reset: the driver says so")
        return gpu

    def _memory(self, handle: Any) -> Any:
        # Version 2 leaves the driver's reserve out of `used`, as nvidia-smi does (600 MiB apart on an H200).
        try:
            return self.n.nvmlDeviceGetMemoryInfo(handle, version=self.n.nvmlMemory_v2)
        except (AttributeError, TypeError, getattr(self.n, "NVMLError_FunctionNotFound", AttributeError)):
            return self.n.nvmlDeviceGetMemoryInfo(handle)

    def _reasons(self, handle: Any) -> int:
        call = getattr(self.n, "nvmlDeviceGetCurrentClocksEventReasons", None)
        return int((call or self.n.nvmlDeviceGetCurrentClocksThrottleReasons)(handle))

    def _processes(self, handle: Any) -> List[Dict[str, Any]]:
        listed = {p.pid: p for p in self.n.nvmlDeviceGetComputeRunningProcesses(handle)}
        try:
            for p in self.n.nvmlDeviceGetGraphicsRunningProcesses(handle):
                listed.setdefault(p.pid, p)
        except self.n.NVMLError:
            pass
        return [
            {"pid": pid, "memory_mib": None if p.usedGpuMemory is None else p.usedGpuMemory / 1048576}
            for pid, p in sorted(listed.items())
        ]

    def _ask(self, index: int, name: str, call: Callable[[], Any]) -> Any:
        if (index, name) in self.dead_fields:
            return None
        try:
            return call()
        except self.n.NVMLError as e:
            code = getattr(e, "value", 0)
            if code in (LOST, RESET):
                self.fault = code
            elif code == NOT_SUPPORTED:
                self.dead_fields.add((index, name))
            elif code == NO_PERMISSION:
                self.denied = True
            elif code in (1, MISMATCH):
                raise NvmlError(code, str(e)) from e
        except (AttributeError, TypeError, ValueError):  # an older pynvml without this call
            self.dead_fields.add((index, name))
        return None

    def _whole(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except self.n.NVMLError as e:
            raise NvmlError(getattr(e, "value", 0), str(e)) from e


def _trim() -> None:
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        pass


def _text(value: Any) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")
    return re.sub(r"[^\x20-\x7e]", "?", text)
