"""Kinds about GPU tables: what nvidia-smi and rocm-smi printed, and polls that hang."""

from __future__ import annotations

from specdash.host.remote import gpu, gpu_faults, rocm_text, smi_text
from tests.cases.adapter import Answer, Case, answers

NAMES = {"mem_used": "memory_used_mib", "mem_total": "memory_total_mib", "util": "utilisation_pct", "power": "power_w",
         "temp": "temperature_c", "index": "index", "name": "name"}  # fmt: skip


@answers("nvidia_smi_csv", "rocm_smi")
def table(case: Case) -> Answer:
    texts = [case.data(i).decode("utf-8", "replace") for i in range(len(case.inputs))]
    queries = str(case.context.get("query", "")).split(" / ")
    memory = case.context.get("meminfo") or {}
    meminfo = "".join(f"{k.replace('_kB', '')}: {v} kB\n" for k, v in memory.items())
    apps = texts[1] if len(texts) > 1 else None
    board = smi_text.board(texts[0], smi_text.query_fields(queries[0]), apps, meminfo)
    found = rocm_text.rocm(texts[0]) if case.kind == "rocm_smi" else board["gpus"] or []
    return {
        "gpus": [{name: g[key] for name, key in NAMES.items()} for g in found] or None,
        "memory_kind": found[0]["memory_kind"] if found else "",
        "host_mem_total_kb": round(board.get("host_memory_total_mib", 0) * 1024) or None,
        **{f"gpu{g['index']}": smi_text.occupancy(g) for g in found},
        **{key: board.get(key) for key in ("category", "versions")},
    }


@answers("json")
def polls(case: Case) -> Answer | None:
    asked = case.json().get("polls")
    if not asked:
        return None
    good = [p for p in asked if p.get("ok")]
    held = {"t_boot": good[-1]["t"], "gpus": []} if good else {}
    sample = gpu.stale(held, asked[-1]["t"], "nvidia-smi hangs")
    return (
        {"shown": f"{good[-1]['gpu0_used']:.0f} MiB, {gpu.age_words(sample['age_s'])}"}
        if good
        else {"shown": None}
    )


@answers("exec_result")
def tool(case: Case) -> Answer | None:
    result = case.json()
    text = "\n".join(str(result.get(key) or "") for key in ("stdout", "stderr", "output"))
    told = gpu_faults.diagnose(text, str(result.get("proc_driver_nvidia_version") or ""))
    if not told:
        return None
    buses = told.get("bus_ids") or [None]
    return {"category": told["category"], "versions": told.get("versions"), "bus_id": buses[0], "gpus": None,
            "alarm": told["category"] == "gpu_lost"}  # fmt: skip
