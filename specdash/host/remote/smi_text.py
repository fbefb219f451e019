"""What `nvidia-smi` prints, as plain data. Pure: text in, dicts out, no I/O, no clock.

A GPU is a dict with the keys of `monitor.state.Gpu` (see `blank`). A field that the tool could not tell is
None by itself and never blanks the others. Used by the sampler on the host, by `explain` and by tests.
Run under Python 3.8, standard library only.
"""

from __future__ import annotations

import csv
import math
import re
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence

from .gpu_faults import diagnose

Gpu = Dict[str, Any]

HIDDEN_ABOVE_MIB = 256.0
"""More than this in use with an empty process list: someone is there whom we cannot see. An idle data-center
GPU holds 0 to 30 MiB, one CUDA context alone takes 300 and more."""

FIELDS = {
    "index": "index",
    "gpu_index": "index",
    "uuid": "uuid",
    "gpu_uuid": "uuid",
    "name": "name",
    "gpu_name": "name",
    "pci.bus_id": "bus_id",
    "gpu_bus_id": "bus_id",
    "memory.used": "memory_used_mib",
    "memory.total": "memory_total_mib",
    "utilization.gpu": "utilisation_pct",
    "power.draw": "power_w",
    "power.draw.instant": "power_w",
    "power.draw.average": "power_w",
    "enforced.power.limit": "power_limit_w",
    "power.limit": "power_limit_w",
    "temperature.gpu": "temperature_c",
    "clocks.current.sm": "sm_clock_mhz",
    "clocks.sm": "sm_clock_mhz",
    "clocks.current.memory": "memory_clock_mhz",
    "clocks.mem": "memory_clock_mhz",
    "clocks_event_reasons.active": "throttle",
    "clocks_throttle_reasons.active": "throttle",
    "ecc.errors.uncorrected.volatile.total": "ecc_uncorrected",
    "mig.mode.current": "mig",
    "driver_version": "driver",
}
"""nvidia-smi's query field → our key. The unit is in the key; nvidia-smi's memory unit is MiB."""

APP_FIELDS = {
    "pid": "pid",
    "process_name": "name",
    "name": "name",
    "used_memory": "memory_mib",
    "used_gpu_memory": "memory_mib",
    "gpu_uuid": "uuid",
    "gpu_index": "index",
    "index": "index",
    "gpu_bus_id": "bus_id",
}

REASONS = (
    (0x2, "application clocks"),
    (0x4, "power cap"),
    (0x8, "hardware slowdown"),
    (0x10, "sync boost"),
    (0x20, "hot (software limit)"),
    (0x40, "hot (hardware limit)"),
    (0x80, "power brake"),
    (0x100, "display clocks"),
)
"""Bits of NVML's clock event reasons that lower clocks; 0x1 (idle) does not slow anything down."""

_SCALE = {"kib": 1 / 1024, "mib": 1.0, "gib": 1024.0, "kb": 1 / 1024, "mb": 1.0, "gb": 1024.0}
_NUMBER = re.compile(r"^([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*([A-Za-z%°]*)\s*$")


def blank(index: int) -> Gpu:
    """A GPU of which nothing is known yet but its index."""
    gpu: Gpu = {"index": index, "uuid": "", "name": "", "bus_id": "", "memory_kind": "", "problem": ""}
    for key in [
        "memory_used_mib",
        "memory_total_mib",
        "utilisation_pct",
        "power_w",
        "power_limit_w",
        "temperature_c",
        "sm_clock_mhz",
        "memory_clock_mhz",
        "throttle",
        "pcie_rx_mib_s",
        "pcie_tx_mib_s",
        "ecc_uncorrected",
        "mig",
        "processes",
    ]:
        gpu[key] = None
    return gpu


def number(text: Optional[str], memory: bool = False) -> Optional[float]:
    """`98 %`, `101044 MiB`, `121.16 W` → the number; `[N/A]`, `Unknown`, `[Not Supported]`, `` → None."""
    found = _NUMBER.match((text or "").strip())
    if found is None:
        return None
    value = float(found.group(1))
    if not math.isfinite(value):  # 1e999: no such number was measured
        return None
    return value * _SCALE.get(found.group(2).lower(), 1.0) if memory else value


def throttle(bits: Optional[int]) -> Optional[List[str]]:
    """Active reasons that slow the GPU down, in words. [] is none; None is not told."""
    return None if bits is None else [word for bit, word in REASONS if bits & bit]


def rows(text: str, query: Sequence[str]) -> List[Dict[str, str]]:
    """CSV as field → cell. A header line is found by its words and then rules over `query`.

    Blank lines, and lines with another number of cells (error sentences between the rows), are left out.
    """
    fields = [_field(name) for name in query]
    found: List[Dict[str, str]] = []
    for cells in csv.reader((line for line in text.splitlines() if line.strip()), skipinitialspace=True):
        cells = [cell.strip() for cell in cells]
        names = [_field(cell) for cell in cells]
        if any(n in FIELDS or n in APP_FIELDS for n in names) and number(cells[0]) is None:
            fields = names
        elif fields and len(cells) == len(fields):
            found.append(dict(zip(fields, cells)))
    return found


def query_fields(query: str) -> List[str]:
    """`--query-gpu=index,name --format=csv` or `index,name` → ["index", "name"]."""
    text = re.sub(r"^.*--query-(?:gpu|compute-apps)=", "", query.strip())
    return [f for f in re.split(r"[,\s]+", text.split(" --")[0].split("--format")[0].strip()) if f]


def gpus(text: str, query: Sequence[str]) -> List[Gpu]:
    """One dict per GPU from `nvidia-smi --query-gpu`, with or without header and units."""
    return [_gpu(row, position) for position, row in enumerate(rows(text, query))]


def apps(text: str, query: Sequence[str]) -> List[Dict[str, Any]]:
    """One dict per process from `--query-compute-apps`: pid, memory_mib|None, name, and uuid, index or bus_id."""
    found = []
    for row in rows(text, query):
        app: Dict[str, Any] = {APP_FIELDS[k]: v for k, v in row.items() if k in APP_FIELDS}
        pid = number(app.get("pid"))
        if pid is None:
            continue
        app["pid"] = int(pid)
        app["memory_mib"] = number(app.get("memory_mib"), memory=True)
        app["name"] = "" if app.get("name", "").startswith("[") else app.get("name", "")
        if "index" in app:
            app["index"] = number(app["index"])
        found.append(app)
    return found


def attach(gpu: Gpu, listed: Optional[Iterable[Mapping[str, Any]]]) -> None:
    """Put a GPU's process list on it: None where it is hidden (not told, or empty while memory is in use)."""
    if listed is None:
        gpu["processes"] = None
        return
    keys = ("pid", "memory_mib", "name", "user", "command", "start")
    processes = [{k: app.get(k, 0 if k == "start" else "") for k in keys} for app in listed]
    used = gpu["memory_used_mib"]
    hidden = not processes and used is not None and used > HIDDEN_ABOVE_MIB
    gpu["processes"] = None if hidden else processes


def attach_all(found: Iterable[Gpu], listed: Optional[Sequence[Mapping[str, Any]]]) -> None:
    """`attach` for a list of apps over several GPUs, matched by uuid, bus id or index."""
    for gpu in found:
        mine = None if listed is None else [a for a in listed if _same(gpu, a)]
        attach(gpu, mine)


def occupancy(gpu: Mapping[str, Any]) -> str:
    """`free`, `in use`, `in use, processes hidden` or `unknown`: an empty list alone is not free."""
    if gpu["processes"]:
        return "in use"
    used = gpu["memory_used_mib"]
    if used is None:
        return "unknown"
    return "in use, processes hidden" if used > HIDDEN_ABOVE_MIB else "free"


def board(
    text: str, query: Sequence[str], apps_text: Optional[str] = None, meminfo_text: str = ""
) -> Dict[str, Any]:
    """A sample like the agent's from texts alone: gpus (None: cannot be told), problem, category, and more.

    `apps_text`: rows of `gpu_uuid,pid,process_name,used_memory`, as one file; None: not asked.
    """
    found = gpus(text, query)
    told = diagnose(text)
    if apps_text is not None:
        attach_all(found, apps(apps_text, ["gpu_uuid", "pid", "process_name", "used_memory"]))
    sample: Dict[str, Any] = dict(told, gpus=found or None)
    sample["problem"] = told.get("sentence", "") or " ".join(g["problem"] for g in found if g["problem"])
    sample["category"] = told.get("category", "") or ("gpu_lost" if sample["problem"] else "")
    if any(g["memory_kind"] == "unified" for g in found):
        sample.update(meminfo(meminfo_text))
    return sample


def meminfo(text: str) -> Dict[str, Any]:
    """/proc/meminfo → host_memory_total_mib, host_memory_available_mib and `host_memory` in words.

    What a GPU with unified memory shares with the host: shown in place of its own, labelled.
    """
    found: Dict[str, Any] = {}
    for name, kb in re.findall(r"(?m)^(MemTotal|MemAvailable):\s+(\d+)", text):
        found["host_memory_%s_mib" % name[3:].lower()] = int(kb) / 1024
    total = found.get("host_memory_total_mib")
    if total is not None:
        found["host_memory"] = "host memory %.1f GiB total" % (total / 1024)
    return found


def _gpu(row: Mapping[str, str], position: int) -> Gpu:
    index = next((number(row[k]) for k in ("index", "gpu_index") if k in row), None)
    gpu = blank(position if index is None else int(index))
    for field, cell in row.items():
        key = FIELDS.get(field)
        if key in (None, "index"):
            continue
        if key in ("uuid", "name", "bus_id", "driver"):
            gpu[key] = "" if cell.startswith("[") else cell
        elif key == "throttle":
            bits = cell if re.match(r"^0x[0-9a-fA-F]+$", cell) else None
            gpu[key] = throttle(None if bits is None else int(bits, 16))
        elif key == "mig":
            gpu[key] = {"enabled": True, "disabled": False}.get(cell.lower())
        elif key == "ecc_uncorrected":
            errors = number(cell)
            gpu[key] = None if errors is None else int(errors)
        elif gpu[key] is None:
            gpu[key] = number(cell, memory=key.startswith("memory_"))
    gpu["memory_kind"] = memory_kind(gpu, row.get("memory.total"))
    if any("GPU is lost" in cell or "requires reset" in cell.lower() for cell in row.values()):
        lost(gpu)
    return gpu


def lost(gpu: Gpu, why: str = "is lost: the driver cannot reach it") -> None:
    """Mark a GPU as an alarm, with its bus id when that is known."""
    where = " at %s" % gpu["bus_id"] if gpu.get("bus_id") else ""
    gpu["problem"] = "GPU %d%s %s. A launch over it fails; reset it or reboot." % (gpu["index"], where, why)


def memory_kind(gpu: Mapping[str, Any], total_cell: Optional[str]) -> str:
    """`unified`: the chip says it has no memory of its own (GB10, Jetson). Not allowed to ask is not that."""
    if gpu["memory_total_mib"] is not None:
        return "own" if gpu["memory_total_mib"] > 0 else "unified"
    plain = (total_cell or "").strip("[] ").lower()
    return "unified" if plain in ("n/a", "not supported") and gpu["mig"] is not True else ""


def _same(gpu: Mapping[str, Any], app: Mapping[str, Any]) -> bool:
    if app.get("uuid") and gpu["uuid"]:
        return bool(app["uuid"] == gpu["uuid"])
    if app.get("bus_id") and gpu["bus_id"]:
        return bool(app["bus_id"].lower() == gpu["bus_id"].lower())
    return app.get("index") is not None and app["index"] == gpu["index"]


def _field(text: str) -> str:
    return re.sub(r"\s*\[[^\]]*\]\s*$", "", text.strip()).lower()
