"""What a switch's plan says in sentences: what differs, what it costs, how long nobody is served. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

NOTHING_DIFFERS = "Nothing differs: the same command, environment and place."


def warm_cost(weight: Mapping[str, Any], mb_s: float) -> str:
    """What a warm-up costs, in a sentence."""
    size, free = weight["bytes"], weight["available_bytes"]
    said = f"Warm-up: {size / 1e9:.1f} GB in {weight['files']} files, {size / 1e6 / mb_s:.0f} s of disk or network reading while it serves"
    return said + (
        "."
        if free is None
        else f"; {free / 1e9:.1f} GB of memory are available (left out if it does not fit)."
    )


def slower(old: str, rule: str, hold_s: float) -> str:
    """What happens to a next server that is slower than the present one, in a sentence."""
    then = {
        "keep": "it is kept",
        "roll_back": "it is rolled back",
        "ask": f"you are asked; without an answer within {hold_s:.0f} s it is kept",
    }
    return f"When it generates slower than {old}, {then[rule]}."


def difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """What differs between two runs' records: algorithm, drafter, flags, environment names, where. Sentences."""
    said = []
    for key, word in (
        ("algorithm", "algorithm"),
        ("drafter", "drafter"),
        ("target", "target"),
        ("cwd", "working directory"),
        ("python", "interpreter"),
    ):
        old, new = a.get(key) or "none", b.get(key) or "none"
        if old != new:
            said.append(f"{word}: {old} → {new}")
    old_flags, new_flags = _flags(a), _flags(b)
    for name in [*old_flags, *(name for name in new_flags if name not in old_flags)]:
        old, new = old_flags.get(name), new_flags.get(name)
        if old != new:
            said.append(
                f"{name}: {'not given' if old is None else old} → {'not given' if new is None else new}"
            )
    before, after = _env(a), _env(b)
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            said.append(f"environment {name}: {before.get(name, 'not set')} → {after.get(name, 'not set')}")
    return said or [NOTHING_DIFFERS]


def _flags(run: Mapping[str, Any]) -> dict[str, str]:
    """option → its words; of repeated options the last, as argparse has it. Words before the first option: ""."""
    found: dict[str, str] = {}
    name = ""
    for word in run.get("argv") or ():
        if word.startswith("--"):
            name, joined, value = word.partition("=")
            found[name] = value if joined else ""
        else:
            found[name] = f"{found.get(name, '')} {word}".strip()
    if str(found.get("--config", "")).endswith("/secrets.yaml"):
        found["--config"] = "(secret flags)"
    return found


def _env(run: Mapping[str, Any]) -> dict[str, str]:
    spec = run.get("spec") or {}
    return {
        **(spec.get("env") or {}),
        **{name: f"({ref})" for name, ref in (spec.get("secret_env") or {}).items()},
    }


def load_seconds(runs: Sequence[Mapping[str, Any]], profile: str) -> list[float]:
    """Seconds from start to ready of this profile's finished loads on this host, newest first."""
    return [
        float(run["ready_boot_s"]) - float(run["started_boot_s"])
        for run in runs
        if run.get("profile") == profile and run.get("ready_boot_s") and run.get("started_boot_s")
    ]


def downtime(runs: Sequence[Mapping[str, Any]], old: str, new: str) -> str:
    """Expected downtime, and what a way back adds, from this host's own history."""
    forward, back = load_seconds(runs, new)[:5], load_seconds(runs, old)[:5]
    if not forward and not back:
        return "Expected downtime: not known, no finished load of either profile on this host."
    if not forward:
        return f"Expected downtime: not known for {new} ({old} loads in {statistics.median(back):.0f} s on this host)."
    said = f"Expected downtime: {statistics.median(forward):.0f} s to load {new} (median of {len(forward)}), plus the stop"
    return f"{said}; a way back adds {statistics.median(back):.0f} s." if back else f"{said}."
