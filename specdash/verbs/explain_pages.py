"""`specdash explain` of what is no log: a metrics page, a server-info or loads JSON, an nvidia-smi CSV.

One page is one moment: counters are told as totals since the server started, gauges as what was last written, and
no rate is made up from a single look.
"""

from __future__ import annotations

from typing import Any

from specdash.host.remote import smi_text
from specdash.sglang import metrics, server_info

GAUGES = (
    ("num_running_reqs", "running requests"),
    ("num_queue_reqs", "queued requests"),
    ("token_usage", "KV in use (0..1)"),
    ("gen_throughput", "tok/s, last decode interval (stays when idle)"),
    ("spec_accept_length", "accept length, last decode interval (bonus token counts; stays when idle)"),
    ("spec_accept_rate", "accept rate, last decode interval (0.5.11 changed what it is a share of)"),
    ("cache_hit_rate", "cache hit rate"),
)
COUNTERS = (
    ("generation_tokens_total", "tokens of finished requests"),
    ("spec_verify_calls_total", "verify steps of finished requests"),
    ("prompt_tokens_total", "prompt tokens"),
    ("num_requests_total", "requests"),
)
LATENCIES = (
    ("time_to_first_token_seconds", "mean time to first token"),
    ("inter_token_latency_seconds", "mean inter-token latency"),
    ("e2e_request_latency_seconds", "mean request latency"),
)

Told = tuple[str, dict[str, Any]]


def metrics_page(data: bytes) -> Told:
    """A Prometheus page of SGLang: gauges per DP rank, counters since start, accept length since start."""
    page = metrics.read(data)
    body: dict[str, Any] = {"schema": "specdash.explain.metrics/1", "gauges": {}, "since_start": {}}
    lines = ["SGLang metrics page (one moment; rates need a second look)"]
    if not page.available or not page.series:
        why = page.why or "there is no sglang series on it"
        hint = f" Look at: {', '.join(page.hint)}." if page.hint else ""
        body["problem"] = why
        return f"No SGLang numbers here: {why}.{hint}", body
    for name, words in GAUGES:
        ranks: dict[str, float | None] = dict(metrics.by_dp(page, name))
        if name.startswith("spec_accept") and not any(metrics.by_dp(page, "spec_accept_length").values()):
            continue  # SGLang writes 0 where nothing speculates; an accept length is at least 1
        if not ranks:
            continue
        if name.startswith("spec_accept"):  # a rank that has not speculated yet writes 0 too
            ranks = {rank: value or None for rank, value in ranks.items()}
        ordered = sorted(ranks.items(), key=lambda item: (len(item[0] or ""), item[0] or ""))
        body["gauges"][name] = {rank or "all": value for rank, value in ordered}
        told = ", ".join(f"DP{rank} {_short(value)}" if rank else _short(value) for rank, value in ordered)
        lines.append(f"  {words}: {told}")
    lines.append("Since the server started")
    for name, words in COUNTERS:
        if (value := metrics.total(page, name)) is not None:
            body["since_start"][name] = value
            lines.append(f"  {words}: {value:,.0f}")
    tokens, verifies = (body["since_start"].get(name) for name, _ in COUNTERS[:2])
    if tokens and verifies:
        body["since_start"]["accept_length"] = tokens / verifies
        lines.append(f"  accept length: {tokens / verifies:.2f} tokens a verify step (finished requests)")
    for name, words in LATENCIES:
        found = metrics.histogram(page, name)
        if found is not None and found.count:
            body["since_start"][f"{name}_mean"] = found.total / found.count
            lines.append(f"  {words}: {found.total / found.count * 1000:.1f} ms over {found.count:,.0f}")
    return "\n".join(lines), body


def server_json(data: bytes) -> Told:
    """A `/server_info`, `/get_server_info` or `/v1/loads` body. Keys in it are redacted before anything is told."""
    found = server_info.load_json(data)
    if found is None:
        return "This looks like JSON of a server, and cannot be read as JSON: is it whole?", {
            "schema": "specdash.explain.server_info/1",
            "problem": "not readable as JSON",
        }
    info = server_info.read(found)
    ranks = info.ranks or server_info.read_loads(found)
    body: dict[str, Any] = {
        "schema": "specdash.explain.server_info/1",
        "version": info.version or None,
        "model": info.model or None,
        "algorithm": info.algorithm or None,
        "drafter": info.drafter or None,
        "tp": info.tp,
        "dp": info.dp,
        "running_cap": info.running_cap,
        "ranks": [
            {
                "dp_rank": rank.dp_rank,
                "running": rank.running,
                "queued": rank.queued,
                "tok_s": rank.tok_s,
                "accept_length": rank.accept_length,
                "running_cap": rank.running_cap,
            }
            for rank in ranks
        ],
    }
    lines = [f"SGLang {info.version or '(version not told)'}{f': {info.model}' if info.model else ''}"]
    if info.algorithm:
        lines.append(f"  speculation: {info.algorithm}{f' with {info.drafter}' if info.drafter else ''}")
    elif info.model:
        lines.append("  speculation: none")
    if info.running_cap is not None:
        lines.append(f"  at most {info.running_cap} running requests")
    for rank in ranks:
        lines.append(
            f"  DP{rank.dp_rank}: running {_dash(rank.running)}, queued {_dash(rank.queued)}, "
            f"tok/s {_dash(rank.tok_s)} (last interval; stays when idle), "
            f"accept length {_dash(rank.accept_length)} (since start, bonus token counts)"
        )
    return "\n".join(lines), body


def gpu_table(data: bytes) -> Told:
    """`nvidia-smi --query-gpu=… --format=csv` with its header line. A field that is not told stays a dash."""
    text = data.decode("utf-8", "replace")
    found = smi_text.board(text, [])
    gpus = found["gpus"] or []
    lines = [f"nvidia-smi: {len(gpus)} GPU(s)"]
    if not gpus:
        lines.append("  No rows could be read: save it with its header line (--format=csv).")
    if found["problem"]:
        lines.append(f"  {found['problem']}")
    for gpu in gpus:
        lines.append(
            f"  GPU {gpu['index']} {gpu['name'] or '-'}: memory {_dash(gpu['memory_used_mib'])} of "
            f"{_dash(gpu['memory_total_mib'])} MiB, {_dash(gpu['utilisation_pct'])} %, {_dash(gpu['power_w'])} W, "
            f"{_dash(gpu['temperature_c'])} °C, {smi_text.occupancy(gpu)}"
        )
    return "\n".join(lines), {"schema": "specdash.explain.gpus/1", **found}


READERS = {"metrics": metrics_page, "server_info": server_json, "nvidia_smi": gpu_table}


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _dash(value: float | int | None) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
