"""What the simulated server answers on /metrics, /server_info, /v1/loads: the same facts in SGLang's shapes."""

from __future__ import annotations

import time
from typing import Any

from .batch import Batch, Histogram


def metrics(batch: Batch, model: str) -> str:
    """The Prometheus page, names and labels as in 0.5.15."""
    who = f'engine_type="unified",model_name="{model}"'
    rank = who + ',moe_ep_rank="0",pp_rank="0",tp_rank="0"'
    out: list[str] = []

    def put(name: str, kind: str, rows: list[tuple[str, float]], suffix: str = "") -> None:
        out.append(f"# HELP sglang:{name} Simulated.\n# TYPE sglang:{name} {kind}")
        out.extend(f"sglang:{name}{suffix}{{{labels}}} {float(value)}" for labels, value in rows)

    with batch.changed:
        total, used = batch.total, batch.used()
        gauges = {
            "max_total_num_tokens": batch.kv_tokens,
            "num_running_reqs": len(batch.running),
            "num_queue_reqs": len(batch.queue),
            "gen_throughput": batch.gauge["rate"],
            "token_usage": used / batch.kv_tokens,
            "num_used_tokens": used,
            "cache_hit_rate": batch.gauge["cache"],
            "spec_accept_length": batch.gauge["length"],
            "spec_accept_rate": batch.gauge["share"],
        }
        for name, value in gauges.items():
            put(name, "gauge", [(rank, value)])
        put("prompt_tokens_total", "counter", [(who, total["prompt"])])
        put("generation_tokens_total", "counter", [(who, total["generation"])])
        put("spec_verify_calls_total", "counter", [(who, total["verifies"])])
        put("num_requests_total", "counter", [(who, total["requests"])])
        put("cached_tokens_total", "counter", [(f'cache_source="device",{who}', total["cached"])])
        modes = (("prefill_compute", "prefill"), ("decode", "decode"), ("prefill_cache", "cached"))
        put("realtime_tokens_total", "counter", [(f'mode="{m}",{rank}', total[k]) for m, k in modes])
        for name, histogram in (
            ("time_to_first_token_seconds", batch.ttft),
            ("inter_token_latency_seconds", batch.itl),
            ("e2e_request_latency_seconds", batch.e2e),
        ):
            _histogram(out, name, histogram, who)
    return "\n".join(out) + "\n"


def _histogram(out: list[str], name: str, histogram: Histogram, who: str) -> None:
    out.append(f"# HELP sglang:{name} Simulated.\n# TYPE sglang:{name} histogram")
    seen = 0
    for bound, count in zip([*map(float, histogram.bounds), float("inf")], histogram.counts, strict=True):
        seen += count
        le = "+Inf" if bound == float("inf") else str(bound)
        out.append(f'sglang:{name}_bucket{{{who},le="{le}"}} {float(seen)}')
    out.append(f"sglang:{name}_sum{{{who}}} {histogram.sum}")
    out.append(f"sglang:{name}_count{{{who}}} {float(seen)}")


def server_info(batch: Batch, args: dict[str, Any], version: str) -> dict[str, Any]:
    state = dict(args, last_gen_throughput=batch.gauge["rate"])
    state["memory_usage"] = {"weight": 68.4, "kvcache": 50.0, "token_capacity": batch.kv_tokens, "graph": 0.9}
    state["effective_max_running_requests_per_dp"] = batch.cap
    if batch.average() is not None:
        state["avg_spec_accept_length"] = batch.average()
    top = dict(args, status="ready", max_total_num_tokens=batch.kv_tokens, version=version)
    return dict(top, internal_states=[state])


def loads(batch: Batch, version: str) -> dict[str, Any]:
    with batch.changed:
        row: dict[str, Any] = {
            "timestamp": time.time(),
            "dp_rank": 0,
            "num_running_reqs": len(batch.running),
            "num_waiting_reqs": len(batch.queue),
            "num_used_tokens": batch.used(),
            "max_total_num_tokens": batch.kv_tokens,
            "max_running_requests": batch.cap,
            "token_usage": round(batch.used() / batch.kv_tokens, 4),
            "gen_throughput": round(batch.gauge["rate"], 2),
            "cache_hit_rate": round(batch.gauge["cache"], 4),
        }
        if batch.drafting.algorithm:
            row["speculative"] = {"accept_length": batch.average(), "accept_rate": batch.gauge["share"]}
    return {"version": version, "accelerator": None, "num_accelerators": 8, "loads": [row]}
