"""`/server_info`, `/get_server_info`, `/v1/loads` and `/get_load`, read across versions, secrets out.

SGLang returns its own API keys in clear text here (facts/sglang-surface.md section 3.2), so `read` hands
on nothing that was not redacted first, by key and by shape.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple

from specdash.sglang import redact
from specdash.sglang.metrics import MOST


@dataclass(frozen=True)
class RankLoad:
    """What one DP rank says of itself. All may be None; None is never 0."""

    dp_rank: int
    running: Optional[int] = None
    queued: Optional[int] = None
    tok_s: Optional[float] = None
    """Last decode log interval's; never decays on idle, so only with its age."""
    accept_length: Optional[float] = None
    """Since start or flush, bonus token included."""
    accept_rate: Optional[float] = None
    """Last decode log interval's."""
    token_usage: Optional[float] = None
    cache_hit: Optional[float] = None
    running_cap: Optional[int] = None


@dataclass(frozen=True)
class Info:
    version: str = ""
    ranks: Tuple[RankLoad, ...] = ()
    running_cap: Optional[int] = None
    """Sum over DP ranks of the effective limit."""
    algorithm: str = ""
    drafter: str = ""
    model: str = ""
    tp: Optional[int] = None
    dp: Optional[int] = None
    decode_log_interval: Optional[int] = None
    enable_metrics: Optional[bool] = None
    weight_version: str = ""
    status: str = ""


def load_json(body: bytes) -> Optional[Dict[str, Any]]:
    """A redacted object, a list under key "list", or None when it is no JSON."""
    try:
        data = json.loads(body.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    data = redact.json_value(data)
    if isinstance(data, dict):
        return data
    return {"list": data} if isinstance(data, list) else None


def _int(value: Any) -> Optional[int]:
    number = _float(value)
    return None if number is None else int(value)


def _float(value: Any) -> Optional[float]:
    """NaN, infinity and what no engine counts up to (an integer of 400 digits is valid JSON) are not told."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -MOST <= value <= MOST:
        return None
    return float(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _internal(data: Mapping[str, Any]) -> List[Mapping[str, Any]]:
    """One entry per DP rank. 0.4.3 merges rank 0 into the top; a PD router nests under "decode"."""
    nested = data.get("decode")
    if isinstance(nested, list) and nested and isinstance(nested[0], dict):
        return _internal(nested[0])
    states = data.get("internal_states")
    if isinstance(states, list):
        return [state for state in states if isinstance(state, dict)]
    if isinstance(states, dict):
        return [states]
    return [data] if "last_gen_throughput" in data or "avg_spec_accept_length" in data else []


def read(data: Mapping[str, Any]) -> Info:
    """What a server_info object (already decoded by `load_json`) tells, in any version."""
    nested = data.get("decode")
    if isinstance(nested, list) and nested and isinstance(nested[0], dict) and "model_path" not in data:
        return read(nested[0])  # a PD router nests the info of its servers
    ranks: List[RankLoad] = []
    for index, state in enumerate(_internal(data)):
        cap = _int(state.get("effective_max_running_requests_per_dp"))
        ranks.append(
            RankLoad(
                dp_rank=_int(state.get("dp_rank")) if _int(state.get("dp_rank")) is not None else index,  # type: ignore[arg-type]
                running=_int(state.get("load")),
                tok_s=_float(state.get("last_gen_throughput")),
                accept_length=_positive(state.get("avg_spec_accept_length")),
                running_cap=cap,
            )
        )
    caps = [rank.running_cap for rank in ranks]
    cap_total: Optional[int]
    if caps and all(cap is not None for cap in caps):
        cap_total = sum(cap for cap in caps if cap is not None)
    else:
        cap_total = _int(data.get("max_running_requests"))
    metrics_on = data.get("enable_metrics")
    return Info(
        version=_text(data.get("version")),
        ranks=tuple(ranks),
        running_cap=cap_total,
        algorithm=_text(data.get("speculative_algorithm")),
        drafter=_text(data.get("speculative_draft_model_path") or data.get("speculative_draft")),
        model=_text(data.get("model_path")),
        tp=_int(data.get("tp_size")),
        dp=_int(data.get("dp_size")),
        decode_log_interval=_int(data.get("decode_log_interval")),
        enable_metrics=metrics_on if isinstance(metrics_on, bool) else None,
        weight_version=_text(data.get("weight_version")),
        status=_text(data.get("status")),
    )


def _positive(value: Any) -> Optional[float]:
    """An accept length is at least 1; 0 is "not told" in some versions."""
    number = _float(value)
    return number if number is not None and number > 0 else None


def read_loads(data: Mapping[str, Any]) -> Tuple[RankLoad, ...]:
    """`/v1/loads` (0.5.8+: key "loads") or `/get_load` (a list): one entry per DP rank."""
    rows = data.get("loads", data.get("list"))
    if not isinstance(rows, list):
        return ()
    out = []
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            continue
        told = row.get("speculative")
        spec: Dict[str, Any] = told if isinstance(told, dict) else {}
        rank = _int(row.get("dp_rank"))
        running = _int(row.get("num_running_reqs"))
        queued = _int(row.get("num_waiting_reqs"))
        if running is None and _int(row.get("num_reqs")) is not None and queued is not None:
            running = max(0, (_int(row.get("num_reqs")) or 0) - queued)  # /get_load counts both in num_reqs
        out.append(
            RankLoad(
                dp_rank=index if rank is None else rank,
                running=running,
                queued=queued,
                tok_s=_float(row.get("gen_throughput")),
                accept_length=_positive(spec.get("accept_length")),
                accept_rate=_float(spec.get("accept_rate")),
                token_usage=_float(row.get("token_usage")),
                cache_hit=_float(row.get("cache_hit_rate")),
                running_cap=_int(row.get("max_running_requests")),
            )
        )
    return tuple(out)
