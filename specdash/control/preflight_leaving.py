"""The host as it will be when a run has gone: a switch checks the next profile against that, not against now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from specdash.control.preflight_facts import Facts


def without(facts: Facts, run_id: str) -> Facts:
    """`facts` less the run's processes: what they hold of GPUs, and the ports they listen on. Pure.

    Memory is given back only as far as it is told per process; hidden memory stays held, and is warned of.
    """
    run = next((r for r in facts.runs if str(r.get("id")) == run_id), None)
    if run is None or not run.get("pid"):
        return facts
    pids = below(int(run["pid"]), facts.processes)
    freed = {
        port: held
        for port, held in facts.listeners.items()
        if (rows := held.get("processes") or ()) and all(int(row["pid"]) in pids for row in rows)
    }
    return replace(
        facts,
        runs=tuple(r for r in facts.runs if r is not run),
        gpu={**facts.gpu, "gpus": [_gpu(gpu, pids) for gpu in facts.gpu["gpus"]]}
        if facts.gpu.get("gpus")
        else facts.gpu,
        listeners={
            port: {"listening": False, "processes": []} if port in freed else held
            for port, held in facts.listeners.items()
        },
        probe=_probe(facts, set(freed)),
    )


def below(root: int, processes: tuple[Mapping[str, Any], ...]) -> set[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for row in processes:
        children.setdefault(int(row.get("ppid") or 0), []).append(int(row["pid"]))
    found, todo = {root}, [root]
    while todo:
        for child in children.get(todo.pop(), ()):
            if child not in found:
                found.add(child)
                todo.append(child)
    return found


def _gpu(gpu: Mapping[str, Any], pids: set[int]) -> Mapping[str, Any]:
    found, used = gpu.get("processes"), gpu.get("memory_used_mib")
    if not found:
        return gpu
    going = [p for p in found if int(p["pid"]) in pids]
    told = sum(float(p.get("memory_mib") or 0.0) for p in going)
    return {
        **gpu,
        "processes": [p for p in found if p not in going],
        "memory_used_mib": max(0.0, used - told) if used is not None else None,
    }


def _probe(facts: Facts, freed: set[int]) -> Any:
    """The probe less its try to bind a port that will be free: it failed on who listens there now."""
    if facts.probe is None or not freed:
        return facts.probe
    tried = facts.probe.facts.get("ports") or {}
    kept = {name: one for name, one in tried.items() if int(name.rpartition(":")[2]) not in freed}
    return replace(facts.probe, facts={**facts.probe.facts, "ports": kept})
