"""Which lines of a log are shown: filters and folding over millions of lines, a slice at a time. Pure."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from specdash.tui import logtext


class Source(Protocol):
    """What the log view reads: `monitor.logstore.LogStore` or a list in tests."""

    @property
    def line_count(self) -> int: ...

    def line(self, index: int, /) -> bytes: ...


@dataclass(frozen=True)
class Filter:
    """All that is set must hold. Empty values do not filter."""

    level: str = ""
    """"error": errors only; "warning": warnings and errors."""
    rank: str = ""
    """A rank as SGLang prints it, e.g. "TP0"; lines without any rank are kept out."""
    origin: str = ""
    """Who wrote the line: one of `logtext.ORIGINS`."""
    text: str = ""
    """A regular expression, or plain words where it does not compile."""
    fold: bool = False
    quiet: bool = False
    """Answered polls of the engine's port are left out."""

    @property
    def active(self) -> bool:
        return self.narrow or self.quiet

    @property
    def narrow(self) -> bool:
        """Something is looked for, beyond keeping polls out of sight."""
        return bool(self.level or self.rank or self.origin or self.text or self.fold)

    def words(self) -> str:
        parts = []
        if self.level:
            parts.append("errors" if self.level == "error" else "warnings and errors")
        if self.rank:
            parts.append(self.rank)
        if self.origin:
            parts.append(logtext.ORIGINS.get(self.origin, self.origin))
        if self.text:
            parts.append(f"/{self.text}/")
        if self.fold:
            parts.append("folded")
        if self.quiet:
            parts.append("polls hidden")
        return ", ".join(parts)


def compile_search(text: str) -> re.Pattern[bytes]:
    """A regex over bytes; smart case; plain words where the regex is broken."""
    raw = text.encode("utf-8", "surrogateescape")
    flags = re.IGNORECASE if text == text.lower() else 0
    try:
        return re.compile(raw, flags)
    except (re.error, OverflowError):
        return re.compile(re.escape(raw), flags)


def lines_of(source: Source, first: int, stop: int) -> Iterable[bytes]:
    """Lines [first, stop), by one read where the source can."""
    many = getattr(source, "lines", None)
    if callable(many):
        return list(many(first, stop - first))
    return [source.line(index) for index in range(first, stop)]


class Rows:
    """Row number → line number. Without a filter both are equal and nothing is kept."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.filter = Filter()
        self.scanned = 0
        self._lines: array[int] = array("Q")
        self._repeats: array[int] = array("I")
        self._last_key: bytes | None = None
        self._key_before: bytes | None = None
        self._took = ""
        """What the last line judged became: "row", "repeat" or nothing."""
        self._pattern: re.Pattern[bytes] | None = None

    def set_filter(self, new: Filter) -> None:
        self.filter = new
        self.scanned = 0
        self._lines = array("Q")
        self._repeats = array("I")
        self._last_key = None
        self._took = ""
        self._pattern = compile_search(new.text) if new.text else None

    @property
    def count(self) -> int:
        return len(self._lines) if self.filter.active else self.source.line_count

    @property
    def behind(self) -> int:
        """Lines that the filter has not seen yet."""
        return max(0, self.source.line_count - self.scanned) if self.filter.active else 0

    def line_number(self, row: int) -> int:
        return self._lines[row] if self.filter.active else row

    def repeats(self, row: int) -> int:
        """How many equal lines this row stands for."""
        return self._repeats[row] if self.filter.active and row < len(self._repeats) else 1

    def row_of(self, line: int) -> int:
        """The row that shows `line`, or the nearest row before it."""
        if not self.filter.active:
            return max(0, min(line, self.count - 1))
        low, high = 0, len(self._lines)
        while low < high:
            middle = (low + high) // 2
            if self._lines[middle] <= line:
                low = middle + 1
            else:
                high = middle
        return max(0, low - 1)

    def scan(self, budget: int) -> bool:
        """Look at up to `budget` more lines. True when there is more to do."""
        if not self.filter.active:
            self.scanned = self.source.line_count
            return False
        if self.scanned:
            # The newest line may have been unfinished when it was judged: judge it again.
            self.scanned -= 1
            if self._took == "row":
                self._lines.pop()
                self._repeats.pop()
                self._last_key = self._key_before
            elif self._took == "repeat":
                self._repeats[-1] -= 1
            self._took = ""
        stop = min(self.source.line_count, self.scanned + budget)
        for index, line in enumerate(lines_of(self.source, self.scanned, stop), self.scanned):
            self._take(index, line)
        self.scanned = max(self.scanned, stop)
        return self.scanned < self.source.line_count

    def _take(self, index: int, line: bytes) -> None:
        self._took = ""
        if not self.keeps(line):
            return
        if self.filter.fold:
            key = logtext.fold_key(logtext.clean(line))
            if key == self._last_key and self._lines:
                self._repeats[-1] += 1
                self._took = "repeat"
                return
            self._key_before, self._last_key = self._last_key, key
        self._took = "row"
        self._lines.append(index)
        self._repeats.append(1)

    def keeps(self, line: bytes) -> bool:
        wanted = self.filter
        if wanted.quiet and logtext.is_poll(line):
            return False
        if self._pattern is not None and not self._pattern.search(line):
            return False
        if wanted.origin and logtext.origin(line) != wanted.origin:
            return False
        if wanted.rank and wanted.rank not in logtext.head(logtext.clean(line)).rank.split():
            return False
        if wanted.level:
            found = logtext.level(line)
            if found == "info" or (wanted.level == "error" and found != "error"):
                return False
        return True
