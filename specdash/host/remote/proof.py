"""What is left of a run that was stopped: processes, GPU memory, its port. The proof is looked at, not assumed."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, Optional

from specdash.host.remote import gpuhold, sockets
from specdash.host.remote.kin import Kin, living, name

SETTLE_S = 15.0
"""How long the proof waits for the driver to give memory back and for the port to close."""


def prove(
    kin: Kin, port: Optional[int], gpu_before: Optional[List[Optional[float]]], gpu_seen: bool = False
) -> Dict[str, Any]:
    """{"proven", "sentence", "processes", "zombies", "port", "gpu", "took_s"}: waits SETTLE_S at most.

    `gpu_before`: MiB in use per GPU before the run, None where not known; `gpu_seen`: a pid of
    the run was seen to hold some (`gpuhold.verdict`).
    """
    began = time.monotonic()
    while True:
        proof = look(kin, port, gpu_before, gpu_seen)
        if proof["proven"] or time.monotonic() - began > SETTLE_S:
            return dict(proof, took_s=round(time.monotonic() - began, 1))
        time.sleep(0.5)


def look(
    kin: Kin, port_number: Optional[int], gpu_before: Optional[List[Optional[float]]], gpu_seen: bool = False
) -> Dict[str, Any]:
    """What is left of a run at this moment; see `prove` for its shape."""
    members = kin.members(deep=True)
    left = [name(row) for row in living(members)]
    zombies = [name(row) for row in members if row["state"] == "Z" and row["ppid"] != os.getpid()]
    ever = {pid for pid, _ in kin.ever}
    gpu = gpuhold.verdict(gpuhold.table(), ever, gpu_before, gpu_seen)
    port: Dict[str, Any] = {"port": port_number, "free": True, "holders": []}
    if port_number:
        who = sockets.holder(port_number)
        port["free"] = not who["listening"]
        port["holders"] = [{k: row[k] for k in ("pid", "start", "user", "comm")} for row in who["processes"]]
        port["ours"] = any(row["pid"] in {one["pid"] for one in left} for row in who["processes"])
    said = []
    if left:
        said.append(
            "still there: "
            + ", ".join("pid %(pid)d %(title)s (%(user)s, state %(state)s)" % p for p in left[:8])
        )
    if not port["free"]:
        names = ["pid %(pid)d (%(user)s)" % one for one in port["holders"]] or [
            "a process that is hidden from us"
        ]
        said.append("port %s is held by %s" % (port_number, ", ".join(names)))
    if gpu["state"] in ("held", "unproven", "free"):
        said.append(gpu["sentence"].rstrip("."))
    for one in zombies:
        said.append(
            "zombie pid %d waits for its parent %d (%s) and holds nothing"
            % (one["pid"], one["parent"]["pid"], one["parent"]["comm"])
        )
    # Another program on the port is not a process of the run that is left: it is named, and the stop is proven.
    proven = not left and gpu["state"] in ("free", "none") and (port["free"] or not port.get("ours", False))
    head = "Nothing of the run is left" if proven else "The stop is not proven"
    return {
        "proven": proven,
        "sentence": head + (": " + "; ".join(said) if said else "") + ".",
        "processes": left,
        "zombies": zombies,
        "port": port,
        "gpu": gpu,
    }
