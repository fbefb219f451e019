"""Where GPU numbers come from on this host: the source is chosen once, said, and kept. Python 3.8."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

from . import gpu_faults, gpu_nvml, gpu_smi, gpu_who, smi_text

PCIE_EVERY_S = 10.0
RETRY_S = 10.0
"""After a failure of the whole source the next try waits so long."""
Taken = Tuple[Optional[List[smi_text.Gpu]], Dict[str, Any]]
"""(GPUs, or None when it cannot be told; the rest of the sample)."""


def blank_sample(
    problem: str, category: str, now_boot: float, source: str = "", driver: str = ""
) -> Dict[str, Any]:
    return {
        "source": source,
        "driver": driver,
        "problem": problem,
        "category": category,
        "gpus": None,
        "t_boot": now_boot,
        "age_s": 0.0,
    }


class Board:
    """The real question. Chooses the source, keeps it, and puts names on processes."""

    def __init__(self) -> None:
        self.nvml: Optional[gpu_nvml.Nvml] = None
        self.smi: Optional[gpu_smi.Smi] = None
        self.failed: Optional[Tuple[float, Dict[str, Any]]] = None
        self.people: Dict[Tuple[int, int], Dict[str, Any]] = {}
        self.rates: Dict[int, Tuple[Optional[float], Optional[float]]] = {}
        self.pcie_at: Optional[float] = None
        self.pcie_thread: Optional[threading.Thread] = None

    def close(self) -> None:
        if self.nvml is not None and (self.pcie_thread is None or not self.pcie_thread.is_alive()):
            self.nvml.close()
            self.nvml = None
        if self.smi is not None:
            self.smi.close()

    def take(self) -> Taken:
        if self.failed is not None and time.monotonic() - self.failed[0] < RETRY_S:
            return None, dict(self.failed[1])
        self.failed = None
        try:
            return self._take()
        except gpu_smi.SmiError as e:
            source = self.smi.path if self.smi else "nvidia-smi"
            if e.stuck:
                return None, dict(blank_sample(str(e), "stuck", boot_s(), source), stuck=True)
            return self._fail(e.text, source)

    def _take(self) -> Taken:
        if self.nvml is None and self.smi is None:
            trouble = self._open()
            if trouble is not None:
                return trouble
        if self.nvml is not None:
            try:
                gpus = self.nvml.sample()
            except gpu_nvml.NvmlError as e:
                self.close()
                return self._fail(str(e), "nvml", e.code)
            self._pcie(gpus)
            about = {"source": "nvml (pynvml in %s)" % sys.executable, "driver": self.nvml.driver}
        else:
            assert self.smi is not None
            gpus = self.smi.sample()
            gpus = gpus + self._unlisted(gpus)
            about = {"source": "nvidia-smi loop (%s)" % self.smi.path, "driver": self.smi.driver}
        self._name_lost(gpus)
        self._people(gpus)
        lost = [g["problem"] for g in gpus if g["problem"]]
        about["problem"] = " ".join(lost)
        about["category"] = "gpu_lost" if lost else ""
        if any(g["memory_kind"] == "unified" for g in gpus):
            about.update(host_memory())
        return gpus, about

    def _open(self) -> Optional[Taken]:
        why = "pynvml is not in %s" % sys.executable
        try:
            self.nvml = gpu_nvml.Nvml()
            return None
        except ImportError:
            pass
        except gpu_nvml.NvmlError as e:
            if e.code == gpu_nvml.MISMATCH:
                return self._fail(str(e), "nvml", e.code)
            why = "NVML says: %s" % e
        path = gpu_smi.find()
        if path is not None:
            self.smi = gpu_smi.Smi(path)
            return None
        amd = gpu_smi.find("rocm-smi") or gpu_smi.find("amd-smi")
        if amd is not None:
            text = "AMD GPUs are not supported yet: %s is here and no NVIDIA tool is." % amd
            return self._remember(text, "amd", amd)
        where = "nvidia-smi is neither in PATH nor in %s" % ", ".join(gpu_smi.PLACES[:4])
        module = "" if os.path.exists("/proc/driver/nvidia") else " No NVIDIA kernel module is loaded."
        return self._remember("GPUs cannot be read: %s, %s.%s" % (why, where, module), "no_tool", "")

    def _fail(self, text: str, source: str, code: int = 0) -> Taken:
        kernel = gpu_who.read("/proc/driver/nvidia/version")
        if code == gpu_nvml.MISMATCH:
            text += "\nDriver/library version mismatch\nNVML library version: %s" % _library_version()
        told = gpu_faults.diagnose(text, kernel)
        if not told:
            line = next((line.strip() for line in text.splitlines() if line.strip()), "no answer")
            return self._remember("GPUs cannot be read: %s" % line[:300], "failed", source)
        taken = self._remember("%s %s" % (told["sentence"], told["step"]), told["category"], source)
        for key in ("versions", "bus_ids"):
            if key in told:
                taken[1][key] = told[key]
        return taken

    def _remember(self, problem: str, category: str, source: str) -> Taken:
        if category != "stuck":
            self.smi = None if self.smi is None or not self.smi.undead else self.smi
        about = blank_sample(problem, category, boot_s(), source)
        self.failed = (time.monotonic(), about)
        return None, about

    def _pcie(self, gpus: List[smi_text.Gpu]) -> None:
        """Newest counters onto the sample; a new reading starts in its own thread every 10 s."""
        now = time.monotonic()
        busy = self.pcie_thread is not None and self.pcie_thread.is_alive()
        if not busy and (self.pcie_at is None or now - self.pcie_at >= PCIE_EVERY_S):
            self.pcie_at = now
            nvml = self.nvml

            def read() -> None:
                try:
                    self.rates = nvml.pcie() if nvml is not None else {}
                except Exception:
                    self.rates = {}  # closed under us, or the card is gone: not available

            self.pcie_thread = threading.Thread(target=read, name="gpu-pcie", daemon=True)
            self.pcie_thread.start()
        for gpu in gpus:
            gpu["pcie_rx_mib_s"], gpu["pcie_tx_mib_s"] = self.rates.get(gpu["index"], (None, None))

    def _unlisted(self, gpus: List[smi_text.Gpu]) -> List[smi_text.Gpu]:
        """Cards that nvidia-smi was told to leave out because they made it fail: shown as lost."""
        if self.smi is None or not self.smi.only:
            return []
        missing = [b for b in gpu_smi.bus_ids() if not gpu_smi.same_bus(b, [g["bus_id"] for g in gpus])]
        taken = {g["index"] for g in gpus}
        free = (i for i in range(len(gpus) + len(missing)) if i not in taken)
        found = []
        for bus in missing:
            gpu = smi_text.blank(next(free))
            gpu["bus_id"] = bus
            smi_text.lost(gpu)
            found.append(gpu)
        return found

    def _name_lost(self, gpus: List[smi_text.Gpu]) -> None:
        """A card that never answered has no bus id of its own: name it when only one can be meant."""
        nameless = [g for g in gpus if g["problem"] and not g["bus_id"]]
        known = [g["bus_id"] for g in gpus if g["bus_id"]]
        left = [b for b in gpu_smi.bus_ids() if not gpu_smi.same_bus(b, known)]
        if len(nameless) == 1 and len(left) == 1:
            nameless[0]["bus_id"] = left[0]
            smi_text.lost(nameless[0])

    def _people(self, gpus: List[smi_text.Gpu]) -> None:
        """Who a pid is: from /proc, where the pid is one of this pid namespace."""
        seen = {}
        for gpu in gpus:
            for process in gpu["processes"] or []:
                start = gpu_who.start_ticks(process["pid"])
                key = (process["pid"], start)
                who = self.people.get(key) or (gpu_who.who(process["pid"]) if start else {})
                seen[key] = who
                process.update({k: v for k, v in who.items() if v})
                process["start"] = start if who else 0
        self.people = seen


def host_memory() -> Dict[str, Any]:
    """What a GPU with unified memory shares; see `smi_text.meminfo`."""
    return smi_text.meminfo(gpu_who.read("/proc/meminfo"))


def _library_version() -> str:
    """Version of the user-space library, from the file that libnvidia-ml.so.1 points at."""
    for folder in (
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib64",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib",
        "/lib64",
    ):
        real = os.path.realpath(folder + "/libnvidia-ml.so.1")
        if os.path.exists(real) and ".so." in real:
            return real.rsplit(".so.", 1)[1]
    return "?"


def boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
