"""GPU memory of a run's processes, through the agent's own GPU table where this machine has one.

Unknown stays unknown: no table, or a table that hides its processes, is never "free".
"""

from __future__ import annotations

import importlib
import os
from typing import Any, Callable, Dict, List, Optional, Set

from specdash.host.remote import gpu_who

OTHER_NUMBERS = (
    "In this container the driver may tell the host's own process numbers, and never told one of the run's"
)


def table() -> Optional[Dict[str, Any]]:
    """The `gpu` sample of host/remote/gpu.py, or None where there is no reader."""
    try:
        module = importlib.import_module("specdash.host.remote.gpu")
        sample: Callable[[Dict[str, Any]], Dict[str, Any]] = module.SAMPLES["gpu"]
        return sample({})
    except Exception:  # a broken driver must not end the supervision of a server
        return None


def levels(board: Optional[Dict[str, Any]]) -> Optional[List[Optional[float]]]:
    """MiB used per GPU, in the table's order; None: no table."""
    gpus = (board or {}).get("gpus")
    if not isinstance(gpus, list):
        return None
    return [_number(gpu.get("memory_used_mib")) for gpu in gpus if isinstance(gpu, dict)]


def held(board: Optional[Dict[str, Any]], pids: Set[int]) -> Dict[str, Any]:
    """What `pids` hold: {"known": bool, "mib": {gpu index: MiB}, "pids": {pid: MiB}}.

    `known` False: no table, or at least one GPU in use hides its processes.
    """
    out: Dict[str, Any] = {"known": bool(board), "mib": {}, "pids": {}}
    gpus = (board or {}).get("gpus")
    if not isinstance(gpus, list):
        return {"known": False, "mib": {}, "pids": {}}
    for gpu in gpus:
        if not isinstance(gpu, dict):
            continue
        processes = gpu.get("processes")
        if not isinstance(processes, (list, tuple)):
            out["known"] = False
            continue
        for process in processes:
            if process.get("pid") in pids:
                mib = _number(process.get("memory_mib")) or 0.0
                index = str(gpu.get("index"))
                out["mib"][index] = out["mib"].get(index, 0.0) + mib
                out["pids"][str(process["pid"])] = out["pids"].get(str(process["pid"]), 0.0) + mib
    return out


def _compared(now: List[Optional[float]], before: Optional[List[Optional[float]]]) -> str:
    """The sum over the GPUs, before and now: others may have come or gone meanwhile, so it is told, not judged."""

    def total(row: Optional[List[Optional[float]]]) -> str:
        known = [mib for mib in row or [] if mib is not None]
        return "%.0f MiB" % sum(known) if known and len(known) == len(row or []) else "?"

    return " (in use by anybody: %s, before the run %s)" % (total(now), total(before))


def _number(value: Any) -> Optional[float]:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def verdict(
    board: Optional[Dict[str, Any]],
    pids: Set[int],
    before: Optional[List[Optional[float]]],
    seen: bool = False,
) -> Dict[str, Any]:
    """Is the run's GPU memory back? {"state": free | held | unproven | none, "sentence", "pids", "mib"}, and
    "level_mib", "before_mib": MiB in use per GPU now and before the run, whoever holds them (None: not told).

    `none`: this machine shows no GPU at all. `before`: level per GPU before the run started (MiB).
    Where processes are hidden, the level must be back within 512 MiB of `before`.

    `seen`: a pid of the run was in this table while it ran. In a container the driver may tell the host's pids, which
    are not ours: there, that ours are not in the table says nothing unless they were in it before.
    """
    ours = seen or gpu_who.first_namespace()
    return dict(_verdict(board, pids, before, ours), level_mib=levels(board), before_mib=before)


def _verdict(
    board: Optional[Dict[str, Any]], pids: Set[int], before: Optional[List[Optional[float]]], ours: bool
) -> Dict[str, Any]:
    board = board or {}
    now = levels(board)
    if now is None:
        problem = str(board.get("problem") or "")
        if os.path.exists("/proc/driver/nvidia") or os.path.exists("/dev/nvidiactl"):
            text = problem or "The GPUs of this machine cannot be read."
            return {"state": "unproven", "sentence": text, "pids": {}, "mib": {}}
    if not now:
        return {"state": "none", "sentence": "No GPU is shown on this machine.", "pids": {}, "mib": {}}
    if board.get("category") == "stale":
        return {"state": "unproven", "sentence": str(board.get("problem")), "pids": {}, "mib": {}}
    holds = held(board, pids)
    if holds["pids"]:
        who = ", ".join("pid %s holds %.0f MiB" % pair for pair in sorted(holds["pids"].items()))
        return {"state": "held", "sentence": who + ".", "pids": holds["pids"], "mib": holds["mib"]}
    hidden = "GPU processes are hidden here" if ours or not holds["known"] else OTHER_NUMBERS
    if holds["known"] and ours:
        text = "No process of the run holds GPU memory" + _compared(now, before) + "."
        return {"state": "free", "sentence": text, "pids": {}, "mib": {}}
    if before is not None and len(before) == len(now) and now:
        off = [
            (index, old, new)
            for index, (old, new) in enumerate(zip(before, now))
            if old is None or new is None or new - old > 512
        ]
        if not off:
            text = hidden + "; the memory in use is back at the level before the run."
            return {"state": "free", "sentence": text, "pids": {}, "mib": {}}
        index, old, new = off[0]
        text = "%s, and GPU %d has %s MiB in use against %s before the run." % (
            hidden,
            index,
            "?" if new is None else "%.0f" % new,
            "?" if old is None else "%.0f" % old,
        )
        return {"state": "unproven", "sentence": text, "pids": {}, "mib": {}}
    text = "%s: %s." % (hidden, board.get("problem") or "that the memory is free is not proven")
    return {"state": "unproven", "sentence": text, "pids": {}, "mib": {}}
