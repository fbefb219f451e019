"""tok/s and accept length of one run over all the time that it served, from the decode lines of its whole log.

The state keeps the last minutes of a living run; two runs are compared over their lives, hours after they ended. Read
in slices, kept in at most `MOST` buckets, so that a log of any length costs the same. Pure but for the log's bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from specdash.monitor.story_view import counts
from specdash.sglang import decode, prefix
from specdash.tui.logrows import Source, lines_of

MOST = 480
"""Buckets; when there would be more, each becomes twice as wide."""
WAITED = 3.0
"""A line that came this many times later than usual (and 5 s at least) holds waiting time: no throughput from it."""


@dataclass
class Bucket:
    """Sums over the decode lines of one stretch of time. A line stands for a fixed number of steps."""

    lines: int = 0
    accept: float = 0.0
    accepts: int = 0
    running: float = 0.0
    runnings: int = 0
    tokens: float = 0.0
    """Of the lines that tell a rate: running x accept length, in units of a line's steps."""
    took: float = 0.0
    """The time that those tokens took, in the same units: tokens / rate."""

    def add(self, other: Bucket) -> None:
        for name in vars(other):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def tok_s(self) -> float | None:
        return self.tokens / self.took if self.took > 0 else None

    @property
    def accept_length(self) -> float | None:
        return self.accept / self.accepts if self.accepts else None

    @property
    def mean_running(self) -> float | None:
        return self.running / self.runnings if self.runnings else None


@dataclass
class History:
    """Feed by `scan`. Times are seconds since the first decode line, by the log's own clock."""

    source: Source
    scanned: int = 0
    width_s: float = 1.0
    began: float | None = None
    ended: float = 0.0
    ranks: dict[int, dict[int, Bucket]] = field(default_factory=dict)
    """DP rank → number of the bucket → sums."""
    _last: dict[int, tuple[float, float]] = field(default_factory=dict)
    """DP rank → (time of its last line, usual seconds between its lines)."""

    def scan(self, budget: int) -> bool:
        """Up to `budget` more lines; True when there is more. The last line waits until it is whole."""
        whole = getattr(self.source, "whole_lines", self.source.line_count)
        stop = min(int(whole), self.scanned + budget)
        for line in lines_of(self.source, self.scanned, stop):
            if b"Decode batch" in line:
                self._take(line)
        self.scanned = max(self.scanned, stop)
        return self.scanned < whole

    def _take(self, line: bytes) -> None:
        head = prefix.read(line)
        at = prefix.seconds(head.time) if head is not None else None
        if head is None or at is None or not counts(head.rank):
            return
        dp = prefix.rank_number(head.rank, "DP") or 0
        told = decode.decode_line(head.body, at, None, head.rank, dp, 0, False)
        if self.began is None:
            self.began = at
        at = max(0.0, at - self.began)
        last, usual = self._last.get(dp, (None, 0.0))
        gap = 0.0 if last is None else at - last
        waited = last is None or (gap > 5.0 and gap > WAITED * usual)
        if not waited:
            usual = gap if not usual else usual + (gap - usual) / 8
        self._last[dp] = (at, usual)
        self.ended = max(self.ended, at)
        one = Bucket(lines=1)
        if told.accept_len is not None:
            one.accept, one.accepts = told.accept_len, 1
        if told.running:
            one.running, one.runnings = float(told.running), 1
            if told.tok_s and not waited:
                one.tokens = told.running * (told.accept_len or 1.0)
                one.took = one.tokens / told.tok_s
        while at >= MOST * self.width_s:
            self._widen()
        self.ranks.setdefault(dp, {}).setdefault(int(at / self.width_s), Bucket()).add(one)

    def _widen(self) -> None:
        self.width_s *= 2
        for dp, buckets in self.ranks.items():
            wide: dict[int, Bucket] = {}
            for number, bucket in buckets.items():
                wide.setdefault(number // 2, Bucket()).add(bucket)
            self.ranks[dp] = wide

    def total(self) -> Bucket:
        """All of one rank's buckets together, of the first rank: what does not add up over ranks."""
        whole = Bucket()
        for buckets in self.ranks.values():
            for bucket in buckets.values():
                whole.add(bucket)
        return whole

    @property
    def tok_s(self) -> float | None:
        """While it decoded; DP ranks add up."""
        return _sum([_together(buckets).tok_s for buckets in self.ranks.values()])

    @property
    def running(self) -> float | None:
        """Mean requests while it decoded; DP ranks add up."""
        return _sum([_together(buckets).mean_running for buckets in self.ranks.values()])

    @property
    def accept_length(self) -> float | None:
        return self.total().accept_length

    @property
    def lines(self) -> int:
        return self.total().lines

    def points(self, accept: bool) -> list[tuple[float, float | None]]:
        """(seconds, value) of each bucket that has one, oldest first."""
        numbers = sorted({number for buckets in self.ranks.values() for number in buckets})
        out: list[tuple[float, float | None]] = []
        for number in numbers:
            found = [buckets[number] for buckets in self.ranks.values() if number in buckets]
            whole = Bucket()
            for one in found:
                whole.add(one)
            value = whole.accept_length if accept else _sum([one.tok_s for one in found])
            if value is not None:
                out.append(((number + 0.5) * self.width_s, value))
        return out


def _together(buckets: dict[int, Bucket]) -> Bucket:
    whole = Bucket()
    for bucket in buckets.values():
        whole.add(bucket)
    return whole


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
