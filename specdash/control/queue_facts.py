"""What a switch's own records say of the drafter it tried. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """`serves`: the run that serves after it; empty: none does. Numbers that were not told are None."""

    outcome: str
    why: str = ""
    serves: str = ""
    tok_s: float | None = None
    accept_length: float | None = None
    load_s: float | None = None
    pulse: dict[str, Any] | None = None
    """The pulse of the new server."""
    back: dict[str, Any] | None = None
    """The pulse of the old one after it was brought back."""


def outcome_of(records: Sequence[Mapping[str, Any]], b: str, restore: str, a: str) -> Outcome:
    """`records`: state.jsonl of a switch (host/remote/switcher.py). `b`, `restore`, `a`: its three run ids."""
    end: Mapping[str, Any] | None = None
    pulse: dict[str, Any] | None = None
    back: dict[str, Any] | None = None
    load_s = None
    why = told = ""
    for one in records:
        kind = one.get("event")
        if kind == "end":
            end = one
        elif kind == "back":
            why = str(one.get("why") or "")
        elif kind == "pulse" and one.get("run") == b:
            found = (one.get("verdict") or {}).get("pulse")
            pulse = dict(found) if isinstance(found, dict) else None
            told = str((one.get("verdict") or {}).get("sentence") or "")
        elif kind == "pulse" and one.get("run") == restore and one.get("passes"):
            back = dict(one["passes"][-1])
        elif kind == "step" and one.get("step") == "ready" and one.get("status") == "done":
            load_s = one.get("took_s")
    numbers = pulse or {}
    final = str((end or {}).get("final") or "")
    sentence = str((end or {}).get("sentence") or "")
    words = {"done": "served", "rolled_back": "rolled_back", "aborted": "aborted"}
    serves = {"done": b, "rolled_back": restore, "aborted": a}.get(
        final, str((end or {}).get("serves") or "")
    )
    return Outcome(
        outcome=words.get(final, "failed"),
        why=told if final == "done" else (why if final == "rolled_back" and why else sentence),
        serves=serves if end is not None else "",
        tok_s=numbers.get("tok_s"),
        accept_length=numbers.get("accept_length"),
        load_s=load_s,
        pulse=pulse,
        back=back,
    )
