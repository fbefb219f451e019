"""Phases of a load, as a table of rules by meaning, and what a record of each says.

The words of the log change with the version (`Init torch distributed` became `Init parallel`, `Capture cuda
graph` became `Capture target verify CUDA graph`); the meanings stay. See the surface notes, section 5.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, NamedTuple, Optional, Pattern, Tuple

ORDER = (
    "unknown",
    "starting",
    "init_distributed",
    "loading_weights",
    "kv_alloc",
    "jit_compile",
    "graph_capture",
    "starting_http_or_warmup",
    "ready",
    "serving",
    "exited",
)
TITLES = {
    "unknown": "unknown",
    "starting": "imports and arguments",
    "init_distributed": "distributed init",
    "loading_weights": "loading weights",
    "kv_alloc": "KV pool",
    "jit_compile": "JIT compilation",
    "graph_capture": "graph capture",
    "starting_http_or_warmup": "HTTP start and warm-up",
    "ready": "ready",
    "serving": "serving",
    "exited": "exited",
}
LOADING = ("starting", "init_distributed", "loading_weights", "kv_alloc", "jit_compile", "graph_capture")
_RANKING = {name: index for index, name in enumerate(ORDER)}


def position(phase: str) -> int:
    """Place in a load: later phases are greater."""
    return _RANKING.get(phase, 0)


@dataclass(frozen=True)
class Phase:
    """One stretch of a load. Log times are seconds in the host's own time zone; `at` is the feeder's clock."""

    name: str
    sub: str = ""
    """"target", "draft", "prefill" (graphs of the target's prefill), "worker", or empty."""
    began: Optional[float] = None
    began_at: Optional[float] = None
    ended: Optional[float] = None
    ended_at: Optional[float] = None
    offset: int = 0
    inferred: bool = False
    """Not told by its own line; follows from the end of the phase before."""

    @property
    def seconds(self) -> Optional[float]:
        """How long it took; by the log's own times where both are told, else by arrival. None while it runs."""
        if self.began is not None and self.ended is not None:
            return max(0.0, self.ended - self.began)
        if self.began_at is not None and self.ended_at is not None:
            return max(0.0, self.ended_at - self.began_at)
        return None


class Progress(NamedTuple):
    """A progress bar. tqdm's own remaining time is not kept: shards come in bursts, it is no promise."""

    done: int
    total: int
    unit: str
    """"shards", "graphs", "kernels", or "steps" where the bar does not say."""
    label: str
    phase: str
    sub: str


class Rule(NamedTuple):
    """`pattern` is matched against the message; `meaning` is what it tells, `phase` where the load is then."""

    pattern: Pattern[bytes]
    meaning: str
    phase: str


_GRAPH = rb"(?:cuda|CUDA|cpu|CPU|npu|NPU|xpu|XPU|musa|MUSA|hip|HIP) [Gg]raphs?"

RULES: Tuple[Rule, ...] = (
    Rule(re.compile(rb"Init (?:torch distributed|parallel) begin"), "dist_begin", "init_distributed"),
    Rule(re.compile(rb"Init (?:torch distributed|parallel) ends?\b"), "dist_end", "init_distributed"),
    Rule(
        re.compile(rb"Load weight begin\b(?:.*?avail mem=(?P<avail>[\d.]+) ?GB)?"),
        "load_begin",
        "loading_weights",
    ),
    Rule(
        re.compile(
            rb"Load weight end\b(?:.*?elapsed=(?P<secs>[\d.]+) ?s)?(?:.*?type=(?P<type>\w+))?"
            rb"(?:.*?avail mem=(?P<avail>[\d.]+) ?GB)?(?:.*?mem usage=(?P<usage>-?[\d.]+) ?GB)?"
        ),
        "load_end",
        "kv_alloc",
    ),
    Rule(
        re.compile(
            rb"[\w ]*Cache (?:is allocated|VA upper bound)\b.*?#tokens: (?P<tokens>\d+)"
            rb"(?:, K size: (?P<k>[\d.]+) GB, V size: (?P<v>[\d.]+) GB|, KV size: (?P<kv>[\d.]+) GB)?"
        ),
        "kv",
        "kv_alloc",
    ),
    Rule(re.compile(rb"KV Cache skipped"), "kv_none", "kv_alloc"),
    Rule(re.compile(rb"Memory pool end\b(?:.*?avail mem=(?P<avail>[\d.]+) ?GB)?"), "pool_end", "kv_alloc"),
    Rule(
        re.compile(
            rb"Capture (?P<what>.*?)\s*(?:"
            + _GRAPH
            + rb"s?\s+)?begin\b(?:.*?avail mem=(?P<avail>[\d.]+) GB)?"
        ),
        "capture_begin",
        "graph_capture",
    ),
    Rule(
        re.compile(
            rb"Capture (?P<what>.*?)\s*(?:" + _GRAPH + rb"s?\s+)?end\b"
            rb"(?:.*?(?:Time elapsed: |elapsed=)(?P<secs>[\d.]+) ?s)?(?:.*?mem usage=(?P<usage>-?[\d.]+) GB)?"
        ),
        "capture_end",
        "graph_capture",
    ),
    Rule(
        re.compile(
            rb"(?:Entering |Try )?(?:DeepGEMM|deep_gemm).*?(?:JIT|[Cc]ompil|[Ww]arm)"
            rb"|.*?\b(?:JIT|jit) (?:[Pp]re-?[Cc]ompil|[Cc]ompil)"
            rb"|.*?\b(?:Running|Start(?:ing)?)\b.{0,40}?\b[Aa]uto-?tun(?:e|ing)"
        ),
        "jit",
        "jit_compile",
    ),
    Rule(
        re.compile(
            rb"max_total_num_tokens=(?P<tokens>-?\d+)(?:.*?max_running_requests=(?P<running>\d+))?"
            rb"(?:.*?context_len=(?P<ctx>\d+))?(?:.*?available_\w+_mem=(?P<avail>-?[\d.]+) GB)?"
        ),
        "summary",
        "starting_http_or_warmup",
    ),
    Rule(re.compile(rb"Started server process \[(?P<pid>\d+)\]"), "http_start", "starting_http_or_warmup"),
    Rule(
        re.compile(rb"(?:Application startup complete|Uvicorn running on|Waiting for application startup)"),
        "http_up",
        "starting_http_or_warmup",
    ),
    Rule(
        re.compile(rb"Start of (?:pd-|co-locate )?warmup|Warmup begins|Warming up"),
        "warmup",
        "starting_http_or_warmup",
    ),
    Rule(re.compile(rb"The server is fired up and ready to roll"), "fired_up", "ready"),
    Rule(re.compile(rb"Dummy health check server (?:started|scheduled)"), "worker_up", "ready"),
    Rule(re.compile(rb"(?:\w+=)?ServerArgs\(|server_args="), "args", "starting"),
)


def _first_words() -> Dict[bytes, Tuple[Rule, ...]]:
    """Rules by the first bytes of a message, so that most messages meet no regex at all."""
    table: Dict[bytes, Tuple[Rule, ...]] = {}
    for key, meanings in (
        (b"Init t", ("dist_begin", "dist_end")),
        (b"Init p", ("dist_begin", "dist_end")),
        (b"Load w", ("load_begin", "load_end")),
        (b"KV Cac", ("kv", "kv_none")),
        (b"Memory", ("pool_end",)),
        (b"Captur", ("capture_begin", "capture_end")),
        (b"max_to", ("summary",)),
        (b"The se", ("fired_up",)),
        (b"Dummy ", ("worker_up",)),
        (b"server", ("args",)),
        (b"Starte", ("http_start", "jit")),
        (b"Applic", ("http_up",)),
        (b"Uvicor", ("http_up",)),
        (b"Waitin", ("http_up",)),
        (b"Enteri", ("jit",)),
        (b"Try De", ("jit",)),
        (b"DeepGE", ("jit",)),
        (b"Runnin", ("jit",)),
        (b"Start ", ("warmup", "jit")),
        (b"Warmup", ("warmup",)),
        (b"Warmin", ("warmup",)),
    ):
        table[key] = tuple(rule for rule in RULES if rule.meaning in meanings)
    return table


BY_FIRST_WORDS = _first_words()
ANYWHERE: Tuple[Tuple[bytes, str], ...] = (
    (b" Cache is allocated", "kv"),
    (b" Cache VA upper bound", "kv"),
    (b"JIT ", "jit"),
    (b"jit ", "jit"),
    (b"uto-tun", "jit"),
    (b"utotun", "jit"),
)
"""Words that stand in the middle of a message, for kinds whose beginning changes."""
BY_MEANING = {rule.meaning: rule for rule in RULES}
ANCHORS: Tuple[bytes, ...] = (
    b"Load weight begin",
    b"Load weight end",
    b"Init torch distributed",
    b"Init parallel",
    b"KV Cache is allocated",
    b"Memory pool end",
    b"Capture ",
    b"max_total_num_tokens=",
    b"The server is fired up",
    b"server_args=",
    b"Decode batch",
    b"Prefill batch",
)
"""What a message of an unknown logging format is searched for."""


def capture_sub(what: bytes) -> str:
    """Whose graphs: "draft", "prefill" (the target's), "target"."""
    words = what.lower()
    if b"draft" in words or b"mtp" in words or b"eagle" in words:
        return "draft"
    if b"prefill" in words or b"piecewise" in words or b"extend" in words:
        return "prefill"
    return "target"


def bar_meaning(label: bytes) -> Tuple[str, str]:
    """(phase, unit) of a progress bar by its label; ("", "steps") when the label says nothing."""
    words = label.lower()
    if b"shard" in words or words.startswith(b"loading") or b"streamer" in words or b"instanttensor" in words:
        return "loading_weights", "shards"
    if b"captur" in words:
        return "graph_capture", "graphs"
    if b"gemm" in words or b"jit" in words or b"compil" in words or b"autotun" in words:
        return "jit_compile", "kernels"
    return "", "steps"
