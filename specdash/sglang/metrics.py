"""A Prometheus page of SGLang's, read fast and only where we look.

One regular expression runs over the whole page in C and stops only at the series that are wanted, so
HELP lines by the thousand and histograms of no interest cost next to nothing. Label sets repeat, so each
spelling is taken apart once. Names and labels by version: facts/sglang-surface.md section 4.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass, field
from typing import Dict, Iterable, List, Mapping, Optional, Tuple

Labels = Tuple[Tuple[str, str], ...]
Series = Tuple[Labels, float]

GAUGES = (
    "num_running_reqs",
    "num_queue_reqs",
    "gen_throughput",
    "cache_hit_rate",
    "token_usage",
    "full_token_usage",
    "num_used_tokens",
    "max_total_num_tokens",
    "spec_accept_length",
    "spec_accept_rate",
    "spec_num_steps",
    "spec_num_draft_tokens",
)
COUNTERS = (
    "realtime_tokens_total",
    "generation_tokens_total",
    "spec_verify_calls_total",
    "prompt_tokens_total",
    "cached_tokens_total",
    "num_requests_total",
    "num_aborted_requests_total",
    "num_aborted_requests",
)
HISTOGRAMS = (
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "time_per_output_token_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "queue_time_seconds",
)
WANTED = GAUGES + COUNTERS + HISTOGRAMS

# Labels that tell one rank of a server from another of the same numbers: the lowest is read, never the sum.
COPIES = ("tp_rank", "pp_rank", "moe_ep_rank", "attn_cp_rank", "moe_dp_rank", "pid")

_LABEL = re.compile(rb'([A-Za-z_][A-Za-z0-9_]*)="([^"\\\n]*(?:\\.[^"\\\n]*)*)"')
MOST = 1e18
"""No token, request or second of an engine counts higher: what does is a fault, and so is what is below zero."""
_ESCAPE = re.compile(r"\\(.)")
_PATTERNS: Dict[Tuple[str, ...], "re.Pattern[bytes]"] = {}


@dataclass(frozen=True)
class Page:
    """Series by name without prefix. `available` False: no SGLang numbers here, `why` and `hint` say so."""

    series: Mapping[str, Tuple[Series, ...]] = field(default_factory=dict)
    available: bool = True
    why: str = ""
    hint: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Histogram:
    """Cumulative `buckets`: (upper bound in seconds, count), ascending, +Inf last."""

    buckets: Tuple[Tuple[float, float], ...]
    total: float
    count: float


def _pattern(wanted: Iterable[str]) -> "re.Pattern[bytes]":
    key = tuple(wanted)
    if key not in _PATTERNS:
        names = "|".join(re.escape(name) for name in sorted(key, key=len, reverse=True))
        _PATTERNS[key] = re.compile(
            (
                r"^sglang[:_]((?:%s)(?:_bucket|_sum|_count)?)"
                r'(?:\{([^"}\n]*(?:"[^"\\\n]*(?:\\.[^"\\\n]*)*"[^"}\n]*)*)\})?'
                r"[ \t]+(\S+)(?=[^\n]*\n)" % names
            ).encode(),
            re.MULTILINE,
        )
    return _PATTERNS[key]


def read(body: bytes, status: Optional[int] = 200, wanted: Iterable[str] = WANTED) -> Page:
    """The wanted series of a page. What is no number from 0 to `MOST` is left out: NaN, infinity, garbage.

    A last line without its end is left out too: the page was cut off, and so may its number be.
    """
    if status == 404:
        return Page({}, False, "/metrics is not there (404)", ("--enable-metrics",))
    if status != 200:
        said = "no answer" if status is None else "status %d" % status
        return Page({}, False, "/metrics: %s" % said)
    found: Dict[str, List[Series]] = {}
    spelled: Dict[bytes, Labels] = {b"": ()}
    for match in _pattern(wanted).finditer(body):
        name, raw, number = match.group(1), match.group(2) or b"", match.group(3)
        try:
            value = float(number)
        except ValueError:
            continue
        if b"_" in number:  # Python's own spelling of numbers
            continue
        if not 0.0 <= value <= MOST:
            continue
        labels = spelled.get(raw)
        if labels is None:
            labels = spelled[raw] = _labels(raw)
        found.setdefault(name.decode("ascii"), []).append((labels, value))
    if not found:
        why = "/metrics is empty" if not body.strip() else "/metrics has no series of SGLang's"
        return Page(
            {}, False, why, ("--enable-metrics", "multi-process directory (PROMETHEUS_MULTIPROC_DIR)")
        )
    return Page({name: tuple(series) for name, series in found.items()})


def _labels(raw: bytes) -> Labels:
    pairs = []
    for key, value in _LABEL.findall(raw):
        text = value.decode("utf-8", "replace")
        if "\\" in text:
            text = _ESCAPE.sub(lambda m: {"n": "\n"}.get(m.group(1), m.group(1)), text)
        pairs.append((key.decode("ascii"), text))
    return tuple(sorted(pairs))


def _rank(text: str) -> Tuple[int, str]:
    return (int(text), "") if text.isdigit() else (1 << 30, text)


def chosen(page: Page, name: str, only: Optional[Mapping[str, str]] = None) -> Dict[Labels, float]:
    """One value per truly different series of `name`: copies by TP, PP or EP rank left out.

    Where a series with a `priority` label stands beside one without, the latter is the total and alone
    is kept. `only` filters by label values.
    """
    rows = page.series.get(name, ())
    if only:
        rows = tuple(row for row in rows if all(dict(row[0]).get(k) == want for k, want in only.items()))
    facts = [_identity(labels) for labels, _ in rows]
    total = any(not priority for _, _, priority in facts)
    best: Dict[Labels, Tuple[Tuple[Tuple[int, str], ...], float]] = {}
    for (key, order, priority), (_, value) in zip(facts, rows):
        if total and priority:
            continue
        if key not in best or order < best[key][0]:
            best[key] = (order, value)
    return {key: value for key, (_, value) in best.items()}


@functools.lru_cache(maxsize=32768)
def _identity(labels: Labels) -> Tuple[Labels, Tuple[Tuple[int, str], ...], bool]:
    """(labels without those of copies, rank among the copies, whether it is of one priority only)."""
    told = dict(labels)
    key = tuple(pair for pair in labels if pair[0] not in COPIES)
    return key, tuple(_rank(told.get(copy, "0")) for copy in COPIES), "priority" in told


def by_dp(page: Page, name: str) -> Dict[str, float]:
    """A gauge per DP rank ("" where the server has none); rows of one DP rank are added up."""
    out: Dict[str, float] = {}
    for labels, value in chosen(page, name).items():
        dp = dict(labels).get("dp_rank", "")
        out[dp] = out.get(dp, 0.0) + value
    return out


def total(page: Page, name: str) -> Optional[float]:
    """Sum over DP ranks and kinds; None when the series is missing."""
    values = chosen(page, name)
    return sum(values.values()) if values else None


def histogram(page: Page, name: str) -> Optional[Histogram]:
    """A histogram summed over its series; None when missing or without buckets."""
    bounds: Dict[float, float] = {}
    for labels, value in chosen(page, name + "_bucket").items():
        try:
            bound = float(dict(labels).get("le", "nan"))
        except ValueError:
            continue
        if not math.isnan(bound):
            bounds[bound] = bounds.get(bound, 0.0) + value
    if not bounds:
        return None
    count = total(page, name + "_count")
    return Histogram(
        tuple(sorted(bounds.items())),
        total(page, name + "_sum") or 0.0,
        count if count is not None else max(bounds.values()),
    )
