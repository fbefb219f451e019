"""May these measured runs be compared, and which is best? Runs under other settings never are. Pure.

A run is a mapping: its results (`RESULTS`), what was varied on purpose (`VARIED`), and everything else, which are
the settings that must be alike. Rank is by tok/s alone: a long accept length or a high rate can come with fewer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

RESULTS = ("tok_s", "accept_len", "accept_length", "accept_rate", "ttft_ms", "itl_ms", "requests", "window_s")
VARIED = ("drafter", "algorithm", "draft_tokens", "num_steps", "topk", "label")
WARM = 0.05
"""Runs whose share of prompt tokens found in the prefix cache differs by more measured other work."""


@dataclass(frozen=True, slots=True)
class Comparison:
    comparable: bool
    differences: tuple[str, ...] = ()
    """Names of the settings that differ, in the order in which they appear."""
    reason: str = ""
    winner: Any = None
    """What was varied, of the run with most tok/s; None when nothing may be said."""


def compare(runs: Sequence[Mapping[str, Any]]) -> Comparison:
    names = dict.fromkeys(name for run in runs for name in run)
    settings = [
        name for name in names if name not in RESULTS and name not in VARIED and name != "cached_share"
    ]
    differ = tuple(name for name in settings if any(run.get(name) != runs[0].get(name) for run in runs))
    reasons = [_why(name, runs) for name in differ]
    shares = [run.get("cached_share") or 0.0 for run in runs]
    warm = [i for i, share in enumerate(shares, 1) if share - min(shares) > WARM]
    if warm:
        reasons.append("warm prefix cache in run " + ", ".join(map(str, warm)))
    if reasons:
        return Comparison(False, differ, "; ".join(reasons))
    told = [run for run in runs if isinstance(run.get("tok_s"), (int, float))]
    best = max(told, key=lambda run: float(run["tok_s"]), default={})
    return Comparison(True, winner=next((best[name] for name in VARIED if name in best), None))


def _why(name: str, runs: Sequence[Mapping[str, Any]]) -> str:
    if name in ("prompts", "dataset"):
        ids = any("random" in str(run.get(name)).lower() for run in runs)
        return "prompt kinds differ" + ("; random ids understate acceptance" if ids else "")
    return f"{name} differs ({', '.join(dict.fromkeys(str(run.get(name)) for run in runs))})"
