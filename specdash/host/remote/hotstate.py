"""A hot switch's folder (RUN/hot/ID): names of its files, its steps, and what its records say together."""

from __future__ import annotations

from typing import Any, Dict

from specdash.host.remote import folder as folders
from specdash.host.remote import journal, procs

PLAN, STATE, ABORT, BUNDLE = "plan.json", "state.jsonl", "abort", "proof.zip"
HISTORY = "hot.jsonl"
"""In the run folder: one record for each time that weights were sent."""
TITLES = {
    "prove": "Prove the payload",
    "before": "Pulse with the present weights",
    "send": "Send the new weights",
    "close": "Close what may be left open",
    "pulse": "Pulse with the new weights",
    "back": "The old weights go in again",
}
"""Every step that a keeper can name, in words."""


def progress(folder: str) -> Dict[str, Any]:
    """state.jsonl folded: {began, open, sent, back, steps, before, checksum, end}. `open`: an update may be open."""
    out: Dict[str, Any] = {"began": None, "open": False, "sent": None, "back": None, "steps": [], "end": None}
    out.update(before=None, checksum=None, opened=False)
    for record in journal.parse(procs.read_bytes(folders.path(folder, STATE), 8 << 20) or b""):
        kind = record.get("event")
        if kind in ("begun", "sent", "back", "end"):
            out["began" if kind == "begun" else kind] = record
        elif kind == "opening":
            out.update(open=True, opened=True)
        elif kind == "closed":
            out["open"] = False
        elif kind == "step":
            out["steps"] = [one for one in out["steps"] if one["step"] != record["step"]] + [record]
        elif kind == "before":
            out["before"] = record.get("pulse")
        elif kind == "checksum" and out["checksum"] is None:
            out["checksum"] = record.get("checksum")
    return out
