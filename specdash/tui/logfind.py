"""Search over a log that may have millions of lines, in slices that leave the keys free. Pure but for `sleep(0)`."""

from __future__ import annotations

import asyncio
import re
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable

from specdash.tui import logtext
from specdash.tui.logrows import READ_BYTES, Reader, Rows

TURN_S = 0.01
"""Seconds of looking for the next match between two turns of the loop: a tenth of what a key may take."""
KEPT = 100_000
"""Most match positions kept; beyond, only the count goes on."""


class Finder:
    """One search: counts its matches in the background and finds the next one from any row."""

    def __init__(self, rows: Rows, pattern: re.Pattern[bytes] | None = None, text: str = "") -> None:
        self.rows = rows
        self.pattern = pattern
        self.text = text
        self.total = 0
        self.scanned = 0
        self.reader = Reader()
        self._found: array[int] = array("Q")
        self.view_pattern = _as_text(pattern, text)

    def matches(self, line: bytes) -> bool:
        return self.pattern is not None and self.pattern.search(logtext.clean(line)) is not None

    def scan(self, budget: int) -> bool:
        """Count on, over fewer lines where they are long; True when there is more to look at."""
        if self.pattern is None:
            return False
        stop = min(self.rows.count, self.scanned + budget)
        length = 0
        while self.scanned < stop and length < READ_BYTES:
            last = self.scanned + self.reader.piece(stop - self.scanned)
            found = self.rows.lines(self.scanned, last)
            for row, line in enumerate(found, self.scanned):
                if self.matches(line):
                    self.total += 1
                    if len(self._found) < KEPT:
                        self._found.append(row)
            read = sum(map(len, found))
            self.reader.took(last - self.scanned, read)
            length += read
            self.scanned = last
        return self.scanned < self.rows.count

    def words(self, cursor: int) -> str:
        """`3 of 12`, `12 matches`, with a plus while the count goes on."""
        more = "+" if self.scanned < self.rows.count else ""
        shown = self.text if len(self.text) <= 24 else self.text[:23] + "…"
        place = bisect_right(self._found, cursor)
        if place and self._found[place - 1] == cursor:
            return f"/{shown}/ {place:,} of {self.total:,}{more}"
        return f"/{shown}/ {self.total:,}{more} " + ("match" if self.total == 1 and not more else "matches")

    async def seek(self, test: Callable[[bytes], bool], start: int, direction: int, wrap: bool) -> int | None:
        """The next row from `start` that passes; once around the end when `wrap`."""
        count = self.rows.count
        order = [range(start, count), range(min(start, count))]
        if direction < 0:
            order = [range(min(start, count - 1), -1, -1), range(count - 1, max(-1, start), -1)]
        turn = time.perf_counter() + TURN_S
        for part in order if wrap else order[:1]:
            at = 0
            while at < len(part):
                piece = part[at : at + self.reader.piece(len(part) - at)]
                low, high = min(piece), max(piece) + 1
                if low < 0 or high > self.rows.count:
                    # The log began anew meanwhile: what is left of the piece.
                    piece = range(0)
                    low = high = 0
                found = self.rows.lines(low, high)
                self.reader.took(len(piece), sum(map(len, found)))
                for row in piece:
                    if row - low < len(found) and test(found[row - low]):
                        return row
                    if time.perf_counter() > turn:
                        await asyncio.sleep(0)
                        turn = time.perf_counter() + TURN_S
                at += max(1, len(piece))
                if not piece:
                    break
        return None


def _as_text(pattern: re.Pattern[bytes] | None, text: str) -> re.Pattern[str] | None:
    """The same search over decoded text, for highlighting."""
    if pattern is None:
        return None
    flags = re.IGNORECASE if pattern.flags & re.IGNORECASE else 0
    try:
        return re.compile(text, flags)
    except (re.error, OverflowError):
        return re.compile(re.escape(text), flags)
