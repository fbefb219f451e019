"""What an error text of nvidia-smi or NVML means. Pure. Python 3.8."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional

_BUS = re.compile(r"\b([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])")
_VERSION = r"(\d+(?:\.\d+)+)"


def diagnose(text: str, kernel: str = "") -> Dict[str, Any]:
    """What an error text of nvidia-smi or NVML means; {} when it names no fault known here.

    `kernel` is `/proc/driver/nvidia/version`. Keys: category, sentence, step, and versions or bus_ids;
    `launch` ("block" or "warn"): what it means for a new launch. Servers that run are not touched by it.
    """
    both = text + "\n" + kernel
    if re.search(r"Driver/library version mismatch", text, re.I):
        library = _first(r"(?:NVML library|client)[^\n]{0,40}?\b" + _VERSION, both)
        module = _first(r"(?i)kernel module[^\n]{0,40}?\b" + _VERSION, both)
        told = "NVML library is %s, the loaded kernel module is %s" % (library or "?", module or "?")
        return {
            "category": "driver_mismatch",
            "launch": "block",
            "sentence": "The NVIDIA driver was updated under the running module: %s." % told,
            "step": "Servers that run go on; a new one cannot start. Reboot, or unload and reload the module.",
            "versions": {"library": library, "kernel_module": module},
        }
    if re.search(r"GPU is lost|fallen off the bus|Unable to determine the device handle", text, re.I):
        buses = _buses(text)
        return {
            "category": "gpu_lost",
            "launch": "warn",
            "sentence": "GPU at %s is lost: the driver cannot reach it."
            % (", ".join(buses) or "unknown bus id"),
            "step": "A launch over this GPU fails. Look for Xid in the kernel log; a reboot or reset is needed.",
            "bus_ids": buses,
        }
    if re.search(
        r"couldn't communicate with the NVIDIA driver|No devices were found|Driver Not Loaded", text
    ):
        return {
            "category": "no_driver",
            "sentence": "nvidia-smi is there, but no NVIDIA driver answers or it has no device.",
            "step": "Look at `lsmod | grep nvidia` and, in a container, at how GPUs are handed to it.",
        }
    # One cell of a table is one field that this user may not see; a sentence of its own is the whole driver.
    if re.search(r"(?m)^[^,\[\]]*Insufficient Permissions[^,\[\]]*$", text):
        return {
            "category": "denied",
            "sentence": "This user may not ask the NVIDIA driver.",
            "step": "Check the permissions of /dev/nvidiactl and /dev/nvidia*.",
        }
    return {}


def invalid_fields(text: str) -> List[str]:
    """Query fields that this nvidia-smi does not know, from its own error sentence."""
    return re.findall(r'Field "([^"]+)" is not a valid field', text)


def _first(pattern: str, text: str) -> Optional[str]:
    found = re.search(pattern, text)
    return found.group(1) if found else None


def _buses(text: str) -> List[str]:
    glued = re.sub(r"GPU\s*(?=[0-9a-fA-F]{4,8}:)", "GPU ", text)
    return list(dict.fromkeys(_BUS.findall(glued)))
