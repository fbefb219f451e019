"""A switch's folder on the host: names of its files, its lock, and what its records say together."""

from __future__ import annotations

import hashlib
import os
from typing import Any, Dict

from specdash.host.remote import folder as folders
from specdash.host.remote import journal, procs

PLAN, STATE, ABORT, ANSWER = "plan.json", "state.jsonl", "abort", "answer"
FORWARD = {
    "warm": "Read the next server's files into the page cache",
    "measure": "Pulse of the present server",
    "stop": "Close the present server and stop it, with proof",
    "launch": "Launch the next server",
    "ready": "Wait for a real generation",
    "pulse": "Pulse on fixed prompts",
    "watch": "It has to live through its first minutes",
}
BACK = {
    "rollback": "Go back to what served before",
    "rollback_stop": "Stop the next server",
    "rollback_launch": "Launch the previous server again",
    "rollback_ready": "Wait for its real generation",
    "rollback_pulse": "Prove it by a pulse",
}
TITLES: Dict[str, str] = dict(FORWARD, **BACK)
"""Every step that a switcher can name (it refuses to name another one), in words."""


def lock_id(base: str) -> str:
    return hashlib.sha256(os.fsencode(os.path.abspath(base))).hexdigest()[:24]


def progress(folder: str) -> Dict[str, Any]:
    """state.jsonl folded: {"direction": forward | back, "done": [steps], "why", "before", "end", "asked_stop", …}."""
    out: Dict[str, Any] = {"direction": "forward", "done": [], "steps": [], "end": None, "question": None}
    for record in journal.parse(procs.read_bytes(folders.path(folder, STATE), 8 << 20) or b""):
        kind = record.get("event")
        if kind == "step" and record.get("step") and record.get("status"):
            out["steps"] = [one for one in out["steps"] if one["step"] != record["step"]] + [record]
            if record["status"] == "done":
                out["done"].append(record["step"])
        elif kind == "back":
            out.update(direction="back", why=record.get("why"))
        elif kind == "before":
            out["before"] = record.get("pulse")
        elif kind == "question":
            out["question"] = record
        elif kind == "answer":
            out["question"] = None
        elif kind == "end":
            out["end"] = record
        elif kind == "begun":
            out.setdefault("began", record)
    return out
