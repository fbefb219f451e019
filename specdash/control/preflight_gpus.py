"""Preflight's look at the GPUs: which the launch would use, who holds them, whether the weights fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from specdash.control.plans import Check
from specdash.control.preflight_facts import Facts, draft_path, made, target_path
from specdash.sglang import envcheck

HELD_MIB = 300.0
"""A GPU with less in use than this counts as free: driver and display take some."""
DEFAULT_FRACTION = 0.88
"""SGLang chooses the static fraction itself when it is not set, usually 0.8 to 0.9; used only to warn."""
GB = 1e9
MIB = 1024 * 1024


def on_cpu(facts: Facts) -> bool:
    return bool(facts.spec.flag("--device") == "cpu")


def wanted_gpus(facts: Facts) -> list[Mapping[str, Any]] | None:
    """The GPUs that the launch would use, in its own order; None: the host does not tell."""
    known = facts.gpu.get("gpus")
    if known is None:
        return None
    devices = envcheck.visible(facts.spec.env)
    chosen = list(known)
    if devices is not None:
        chosen = []
        for name in devices:
            for gpu in known:
                if name == str(gpu.get("index")) or (
                    len(name) > 4 and str(gpu.get("uuid", "")).startswith(name)
                ):
                    chosen.append(gpu)
                    break
            else:
                break  # CUDA stops at the first device that is not there
    first = envcheck.whole(facts.spec.flags, ("--base-gpu-id",), 0) or 0
    step = envcheck.whole(facts.spec.flags, ("--gpu-id-step",), 1) or 1
    return chosen[first::step]


def gpus(facts: Facts) -> list[Check]:
    if on_cpu(facts):
        return [Check("gpus", "ok", "The launch uses no GPU (--device cpu).")]
    chosen = wanted_gpus(facts)
    needed = envcheck.gpus_needed(facts.spec.flags)
    if chosen is None:
        why = str(facts.gpu.get("problem") or facts.problems.get("gpu") or "nothing told about GPUs")
        status = "block" if facts.gpu.get("category") in ("driver_mismatch", "gpu_lost") else "not_checked"
        return [made("gpus", status, why, category=str(facts.gpu.get("category") or ""))]
    if needed is None:
        return [Check("gpus", "not_checked", "How many GPUs the launch takes cannot be told from its flags.")]
    if len(chosen) < needed:
        sentence = f"The launch takes {needed} GPUs; {len(chosen)} are visible to it."
        names = tuple(f"GPU {g['index']}: {g.get('name') or 'unknown'}" for g in chosen)
        remedy = "Lower --tp-size, or show it more GPUs."
        return [Check("gpus", "block", sentence, names, remedy, "gpu_missing")]
    used = chosen[:needed]
    out = [
        Check(
            "gpus", "ok", f"{needed} of {len(chosen)} visible GPUs are used.", tuple(_name(g) for g in used)
        )
    ]
    lost = [g for g in used if g.get("problem")]
    if lost:
        sentence = f"{len(lost)} of the GPUs do not answer: {lost[0]['problem']}"
        out.append(Check("gpus", "block", sentence, tuple(_name(g) for g in lost), "", "gpu_lost"))
    out.extend(_holders(facts, used))
    out.extend(_memory(facts, used))
    return out


def _name(gpu: Mapping[str, Any]) -> str:
    used, total = gpu.get("memory_used_mib"), gpu.get("memory_total_mib")
    level = f", {used / 1024:.1f} of {total / 1024:.1f} GiB in use" if used is not None and total else ""
    return f"GPU {gpu.get('index')}: {gpu.get('name') or 'unknown'}{level}"


def _holders(facts: Facts, used: Iterable[Mapping[str, Any]]) -> list[Check]:
    """Who has memory on these GPUs now, and which run they belong to."""
    parents = {int(row["pid"]): int(row.get("ppid") or 0) for row in facts.processes}
    commands = {int(row["pid"]): row for row in facts.processes}
    lines: list[str] = []
    for gpu in used:
        level = gpu.get("memory_used_mib")
        if level is None or level < HELD_MIB:
            continue
        found = gpu.get("processes")
        if not found:
            lines.append(
                f"GPU {gpu['index']}: {level / 1024:.1f} GiB held by processes that are hidden from this user"
            )
        for process in found or ():
            run = _run_of(int(process["pid"]), parents, facts.runs)
            row = commands.get(int(process["pid"]), {})
            user = process.get("user") or row.get("user") or "unknown user"
            command = str(process.get("command") or process.get("name") or "")[:80]
            memory = process.get("memory_mib")
            amount = f"{memory / 1024:.1f} GiB" if memory is not None else "an unknown amount"
            belongs = f", run {run}" if run else ""
            lines.append(f"GPU {gpu['index']}: pid {process['pid']} ({user}) {amount}: {command}{belongs}")
    if not lines:
        return [Check("gpu holders", "ok", "Nobody holds memory on these GPUs.")]
    sentence = f"These GPUs are in use: {lines[0]}" + (
        f", and {len(lines) - 1} more." if len(lines) > 1 else "."
    )
    remedy = "Stop what holds them, or choose other GPUs."
    return [Check("gpu holders", "warn", sentence, tuple(lines), remedy, "gpu_in_use_by_others")]


def _run_of(pid: int, parents: Mapping[int, int], runs: Iterable[Mapping[str, Any]]) -> str:
    """The run whose engine is this process or one of its ancestors; empty: none of ours."""
    owners = {
        int(run["pid"]): str(run.get("id") or "")
        for run in runs
        if run.get("pid") and run.get("phase") != "exited"
    }
    for _ in range(20):
        if pid in owners:
            return owners[pid]
        pid = parents.get(pid, 0)
        if pid <= 1:
            return ""
    return ""


def weights_bytes(facts: Facts) -> int | None:
    """Bytes of weights that are loaded, target and drafter; None when a folder does not tell."""
    total = 0
    paths = [target_path(facts.spec)]
    draft = draft_path(facts.spec)
    if draft and facts.spec.algorithm and facts.spec.algorithm.upper() != "NGRAM":
        paths.append(draft)
    for path in paths:
        size = (facts.model(path) or {}).get("size_bytes")
        if not size:
            return None
        total += int(size)
    return total


def fraction(facts: Facts) -> float | None:
    value = facts.spec.flag("--mem-fraction-static")
    try:
        number = float(str(value)) if value is not None else None
    except ValueError:
        return None
    return number if number is not None and 0 < number < 1 else None


def _memory(facts: Facts, used: list[Mapping[str, Any]]) -> list[Check]:
    """Weights per GPU against what is free, and against what the static fraction leaves."""
    weights = weights_bytes(facts)
    tp = envcheck.whole(facts.spec.flags, envcheck.TP, 1) or 1
    pp = envcheck.whole(facts.spec.flags, envcheck.PP, 1) or 1
    levels = [(g, g.get("memory_total_mib"), g.get("memory_used_mib")) for g in used]
    if weights is None or any(total is None or taken is None for _, total, taken in levels):
        return [
            Check(
                "gpu memory", "not_checked", "GPU memory: the size of the weights, or of a GPU, is not known."
            )
        ]
    per_gpu = weights / (tp * pp)
    changes = facts.spec.flag("--quantization", "--cpu-offload-gb", "--load-format") is not None
    chosen = fraction(facts)
    share = chosen if chosen is not None else DEFAULT_FRACTION
    for gpu, total, taken in levels:
        free = (float(total or 0) - float(taken or 0)) * MIB
        room = free - float(total or 0) * MIB * (1 - share)
        evidence = (
            f"weights {weights / GB:.1f} GB / tp {tp} / pp {pp} = {per_gpu / GB:.1f} GB a GPU",
            f"{_name(gpu)}; static fraction {share}{'' if chosen is not None else ' (assumed)'}",
        )
        if per_gpu > free:
            sentence = f"GPU {gpu['index']} has {free / GB:.1f} GB free; the weights alone take {per_gpu / GB:.1f} GB."
            status = "warn" if changes else "block"
            remedy = "Free the GPU, use more GPUs, or quantize."
            return [made("gpu memory", status, sentence, evidence, remedy, "oom_load")]
        if per_gpu > room:
            sentence = (
                f"GPU {gpu['index']}: after the weights ({per_gpu / GB:.1f} GB) the static fraction {share} leaves no "
                "room for the KV cache."
            )
            status = "block" if chosen is not None and not changes else "warn"
            remedy = "Raise --mem-fraction-static, or use more GPUs."
            return [made("gpu memory", status, sentence, evidence, remedy, "oom_kv_pool")]
    return [Check("gpu memory", "ok", f"The weights take {per_gpu / GB:.1f} GB a GPU; that fits.", evidence)]
