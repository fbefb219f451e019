"""What a log has told so far: frozen, bounded, and the parser's own state inside.

Every tuple here has a bound, so that a log of any size costs the same. Times are seconds in the host's own
time zone (the log does not tell which); `at` is the clock of whoever feeds. `None` is *not told*.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Dict, NamedTuple, Optional, Tuple

from specdash.sglang.decode import DecodeLine, PrefillLine
from specdash.sglang.lines import bar, clean
from specdash.sglang.phases import Phase, Progress, bar_meaning
from specdash.sglang.prefix import seconds

KEEP_DECODES = 512
KEEP_PREFILLS = 128
KEEP_HISTORY = 256
KEEP_EVIDENCE = 48
KEEP_NOTES = 64
KEEP_PHASES = 128
KEEP_RANKS = 1024


@dataclass(frozen=True)
class Evidence:
    """One thing that speaks of failure: a traceback kept whole (within bounds), or a line that a rule knows.

    Eight ranks that say the same are one, with `count`, `ranks`, and the first one's `rank` and `offset`.
    """

    kind: str
    """"exception" or "line"."""
    head: str
    """The message it came with; empty for a traceback that stands alone."""
    lines: Tuple[str, ...] = ()
    """What followed without a head of its own: frames, exception lines, hints. Bounded, middle left out."""
    errors: Tuple[str, ...] = ()
    """The exception lines (`ValueError: …`) with what continues them, in order: the first is the root."""
    category: str = ""
    """Category of a known line; exceptions are judged by `causes`."""
    numbers: Tuple[Tuple[str, Any], ...] = ()
    rank: str = ""
    time: Optional[float] = None
    at: Optional[float] = None
    offset: int = 0
    line: int = 0
    """0-based number of the line in what was fed."""
    phase: str = ""
    sub: str = ""
    serving: bool = False
    fatal: int = 0
    """2: the process says that it dies of it; 1: it stands alone, so probably; 0: reported and survived."""
    count: int = 1
    ranks: Tuple[str, ...] = ()
    dropped: int = 0


DIGITS = re.compile(r"0x[0-9a-f]+|\d+")


def same(a: Evidence, b: Evidence) -> bool:
    """Whether two ranks (or one, twice) say the same: texts without their digits are equal."""
    if a.kind != b.kind or a.category != b.category:
        return False
    if a.kind == "line" and DIGITS.sub("#", a.head[:300]) != DIGITS.sub("#", b.head[:300]):
        return False
    last = [DIGITS.sub("#", e.errors[-1][:300]) if e.errors else "" for e in (a, b)]
    return last[0] == last[1]


def folded(old: Evidence, new: Evidence) -> Evidence:
    """The first one, with the count and the ranks of both."""
    ranks = old.ranks if new.rank in old.ranks or len(old.ranks) >= 64 else old.ranks + (new.rank,)
    return replace(old, count=old.count + 1, ranks=ranks, fatal=max(old.fatal, new.fatal))


class Note(NamedTuple):
    """A warning or an error that is no cause by itself, repeats folded."""

    kind: str
    text: str
    seen: int
    rank: str
    ranks: Tuple[str, ...]
    offset: int
    line: int


class RankState(NamedTuple):
    """Where one rank is in its load."""

    rank: str
    phase: str
    loads: int
    """How many weight loads it began: the second is the drafter."""
    pools: int
    load_began: Optional[float]


class DpState(NamedTuple):
    """What must be remembered of one data-parallel rank to tell windows after idle."""

    dp: Optional[int]
    idle: bool
    time: Optional[float]
    gap: Optional[float]
    tok_s: Optional[float]
    batch: Optional[float] = None
    """Log time of the last batch of any kind."""


class HistoryPoint(NamedTuple):
    """Decode lines in a row, summed: the whole log in at most `KEEP_HISTORY` points."""

    time: Optional[float]
    at: Optional[float]
    lines: int
    tok_s_sum: float
    tok_s_lines: int
    tok_s_min: Optional[float]
    tok_s_max: Optional[float]
    accept_sum: float
    accept_lines: int
    running_max: Optional[int]

    @property
    def tok_s(self) -> Optional[float]:
        """Mean tok/s of the lines in it that hold no waiting time."""
        return self.tok_s_sum / self.tok_s_lines if self.tok_s_lines else None

    @property
    def accept_len(self) -> Optional[float]:
        return self.accept_sum / self.accept_lines if self.accept_lines else None


@dataclass(frozen=True)
class Story:
    """Immutable; grown by `specdash.sglang.story.feed(story, data)`."""

    # The cut: where the parser is.
    size: int = 0
    """Bytes fed."""
    rest: bytes = b""
    """The incomplete last line (its beginning, when it is longer than `lines.MAX_PIECE`)."""
    skipped: int = 0
    """Bytes of the incomplete last line that are not in `rest`."""
    after_cr: bool = False
    """The last byte was a CR: an LF may follow that belongs to it."""
    lines: int = 0
    """Complete lines."""
    records: int = 0
    """Records with a head (time, level), glued ones counted each."""
    errors: int = 0
    warnings: int = 0
    attempts: int = 1
    """Launches seen in this log: a restarted container appends."""
    attempt_offset: int = 0

    # Who and when.
    first_time: Optional[float] = None
    stamp: bytes = b""
    """The last time stamp as printed."""
    settled_stamp: bytes = b""
    settled_time: Optional[float] = None
    """The parser's own: the last time that was needed."""
    last_at: Optional[float] = None
    ranks: Tuple[str, ...] = ()
    rank_states: Tuple[RankState, ...] = ()
    version: str = ""
    """SGLang's version where the log tells it."""

    # The load.
    phase: str = "unknown"
    sub_phase: str = ""
    phases: Tuple[Phase, ...] = ()
    bar: Optional[Progress] = None
    """The last progress bar, whatever phase it was of."""
    arguments: Tuple[Tuple[str, Any], ...] = ()
    measured: Tuple[Tuple[str, float], ...] = ()
    ready_seen: bool = False
    """"fired up" by a server that did not fail to bind before."""
    ready_time: Optional[float] = None
    ready_at: Optional[float] = None
    bind_failed: bool = False
    false_ready: bool = False
    """"fired up" after a bind error: another server answered the warm-up."""
    worker_node: bool = False
    """Node rank 1 or more: only a dummy health server, never "fired up"."""

    # Serving.
    was_serving: bool = False
    max_running_requests: Optional[int] = None
    capped_by_speculation: Optional[int] = None
    """The value that SGLang set because of speculation."""
    decodes: Tuple[DecodeLine, ...] = ()
    decode_count: int = 0
    prefills: Tuple[PrefillLine, ...] = ()
    prefill_count: int = 0
    prompt_new: int = 0
    prompt_cached: int = 0
    """Prompt tokens computed and found in the prefix cache, over all prefill lines."""
    history: Tuple[HistoryPoint, ...] = ()
    history_width: int = 1
    dp_states: Tuple[DpState, ...] = ()
    retractions: int = 0
    retracted: int = 0
    """Requests put back into the queue because the KV pool was full."""
    retract_offset: Optional[int] = None
    retract_line: str = ""
    health_failures: int = 0

    # The end.
    stop_asked: str = ""
    """"SIGTERM" or "shutdown" (what INT and uvicorn's own end look like)."""
    draining: bool = False
    drain_remaining: Optional[int] = None
    finished_cleanly: bool = False
    exit_told: str = ""
    """"": not told; "weak": an exception that a process cannot survive; "strong": its end is told."""
    evidence: Tuple[Evidence, ...] = ()
    evidence_dropped: int = 0
    open: Optional[Evidence] = None
    """Evidence whose lines may still continue."""
    notes: Tuple[Note, ...] = ()

    @property
    def last_time(self) -> Optional[float]:
        """Log time of the last record."""
        time = seconds(self.stamp.decode("ascii", "replace")) if self.stamp else None
        return self.settled_time if time is None else time

    @property
    def progress(self) -> Optional[Progress]:
        """The bar of the current phase; None when the current phase has shown none."""
        bar = self.last_bar
        return None if bar is None or bar.phase not in ("", self.phase) else bar

    @property
    def last_bar(self) -> Optional[Progress]:
        """The last progress bar, also the one that no CR or LF has ended yet (tqdm ends none)."""
        found = bar(clean(self.rest)) if self.rest else None
        if found is None or self.phase in ("ready", "serving", "exited"):
            return self.bar
        label, done, total = found
        phase, unit = bar_meaning(label)
        return Progress(
            done, total, unit, label.decode("utf-8", "replace"), phase or self.phase, self.sub_phase
        )

    @property
    def numbers(self) -> Dict[str, float]:
        """What was measured: weights_gb, draft_weights_gb, load_weight_s, draft_load_weight_s, kv_tokens, kv_gb,
        target_capture_s, draft_capture_s, prefill_capture_s, avail_begin_gb, avail_gb, mem_fraction_static."""
        return dict(self.measured)

    @property
    def server_args(self) -> Dict[str, Any]:
        """The arguments as the log printed them, secrets replaced."""
        return dict(self.arguments)

    @property
    def all_evidence(self) -> Tuple[Evidence, ...]:
        """Evidence with the one that is still open, in order of the log."""
        last = self.open
        if last is None or (last.kind == "line" and not last.category and not last.errors):
            return self.evidence
        for i, old in enumerate(self.evidence):
            if same(old, last):
                return self.evidence[:i] + (folded(old, last),) + self.evidence[i + 1 :]
        return self.evidence + (last,)

    @property
    def cached_share(self) -> Optional[float]:
        """Share 0..1 of all prompt tokens that the prefix cache had; None before the first prefill."""
        total = self.prompt_new + self.prompt_cached
        return self.prompt_cached / total if total else None

    @property
    def last_decode(self) -> Optional[DecodeLine]:
        return self.decodes[-1] if self.decodes else None

    @property
    def per_dp(self) -> Dict[Optional[int], DecodeLine]:
        """The last decode line of each data-parallel rank (key None without DP)."""
        return {line.dp: line for line in self.decodes}
