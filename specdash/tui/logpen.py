"""How one row of the log looks: gutter, time, rank, repeats, matches; wrapped, or shifted sideways and cut."""

from __future__ import annotations

import re
from collections.abc import Callable

from rich.cells import cell_len

from specdash.tui import logtext
from specdash.tui.cells import ELLIPSIS, sheared
from specdash.tui.logfind import Finder
from specdash.tui.logrows import Rows
from specdash.tui.words import Line, Span, clock

VIEW_BYTES = 16_384
"""Most bytes of one line that the panel draws; all of it is one key away."""
SLACK_BYTES = 4_096
"""Read beyond that, so that a secret is recognised whole before the line is cut."""
MOST_WRAPPED = 200
GUTTER = {"error": ("✗", "bad"), "warning": ("!", "warn")}


class Pen:
    """Draws rows of `table`. `redact` takes secrets out before anything is cut or decoded."""

    def __init__(self, table: Rows) -> None:
        self.redact: Callable[[bytes], bytes] = lambda line: line
        self.wrapping = False
        self.relative = False
        """Times count from the first line of the log, instead of the time of day."""
        self.shifted = 0
        self.take(table, Finder(table))

    def take(self, table: Rows, finder: Finder) -> None:
        """Another log: how it is drawn stays."""
        self.table, self.finder = table, finder
        self.shifted = 0
        self.ranks: list[str] = []
        """Ranks that were drawn so far, for the filter that goes through them."""
        self._origin: float | None = None

    def bytes_of(self, row: int, most: int | None = VIEW_BYTES) -> bytes:
        raw = self.table.source.line(self.table.line_number(row))
        if most is None:
            return logtext.clean(self.redact(raw))
        return logtext.clean(self.redact(raw[: most + SLACK_BYTES]))[:most]

    def text_of(self, row: int) -> str:
        """All of the row's line, safe to draw, secrets out."""
        return logtext.decode(self.bytes_of(row, None))

    def lines_of(self, row: int, width: int) -> list[Line]:
        """The row in `width` cells: one line of spans, or several where it wraps."""
        spans = self._whole(row)
        room = width - 1
        if self.wrapping:
            return _wrapped(spans, room)
        total = sum(cell_len(text) for text, _ in spans)
        if self.shifted:
            spans = [spans[0], *sheared(spans[1:], self.shifted, room - 1)]
        if total - self.shifted > room:
            spans = [*sheared(spans, 0, room - 1), (ELLIPSIS, "key")]
        return [spans]

    def _whole(self, row: int) -> Line:
        """All spans of the row, however long: gutter, time and rank, repeats, text with its matches."""
        line = self.bytes_of(row)
        found = logtext.head(line)
        gutter, role = GUTTER.get(logtext.level(line), (" ", ""))
        body = logtext.decode(line[found.length :])
        if found.rank and found.rank.split()[0] not in self.ranks:
            self.ranks = sorted({*self.ranks, *found.rank.split()}, key=_natural)
        spans: Line = [(gutter, role)]
        if found.length:
            spans.append((self._stamp(found) + " ", "dim"))
        repeats = self.table.repeats(row)
        if repeats > 1:
            spans.append((f"×{repeats} ", "strong"))
        return [*spans, *self._marked(body, role)]

    def reveal(self, row: int, width: int) -> bool:
        """Shift sideways so that the row's first match is in `width` cells, back to the left where it is there. True: moved."""
        if self.wrapping or self.finder.view_pattern is None:
            return False
        before, self.shifted = self.shifted, 0
        at = 0
        for text, role in self._whole(row):
            if role == "match":
                # One cell at the right is the ellipsis.
                end = at + min(cell_len(text), width // 2)
                self.shifted = max(0, end - width + width // 3) if end > width - 1 else 0
                break
            at += cell_len(text)
        else:
            self.shifted = before  # an error or a phase that was jumped to, no match
        return self.shifted != before

    def _stamp(self, found: logtext.Head) -> str:
        # The day is the same for most of a run: the time is what one compares.
        shown = found.stamp[11:]
        if self.relative:
            at = _seconds(found.stamp)
            if self._origin is None and self.table.source.line_count:
                self._origin = self._first_stamp()
            delta = None if at is None or self._origin is None else at - self._origin
            shown = "+" + clock(delta) if delta is not None and delta >= 0 else shown
        return f"{shown} {found.rank}" if found.rank else shown

    def _first_stamp(self) -> float | None:
        for index in range(min(200, self.table.source.line_count)):
            stamp = logtext.head(logtext.clean(self.table.source.line(index)[:256])).stamp
            if stamp:
                return _seconds(stamp)
        return None

    def _marked(self, body: str, role: str) -> list[Span]:
        """Matches of the search inside one line, drawn so that they are seen without colour too."""
        pattern = self.finder.view_pattern
        if pattern is None:
            return [(body, role)]
        spans: list[Span] = []
        at = 0
        for match in pattern.finditer(body):
            if match.end() == match.start():
                continue
            spans += [(body[at : match.start()], role), (body[match.start() : match.end()], "match")]
            at = match.end()
            if len(spans) > 200:
                break
        return [*spans, (body[at:], role)]


def _natural(rank: str) -> tuple[str, int]:
    match = re.match(r"(\D*)(\d*)", rank)
    return (match[1], int(match[2] or 0)) if match else (rank, 0)


def _seconds(stamp: str) -> float | None:
    """Seconds since an arbitrary start, from `2026-05-04 10:00:00.123`."""
    from datetime import datetime

    try:
        return datetime.fromisoformat(stamp.replace(",", ".")).timestamp()
    except ValueError:
        return None


def _wrapped(spans: Line, width: int) -> list[Line]:
    rows: list[Line] = []
    total = sum(cell_len(text) for text, _ in spans)
    at = 0
    while at < total or not rows:
        rows.append(sheared(spans, at, width))
        at += width
        if len(rows) >= MOST_WRAPPED:
            rows[-1] = [(ELLIPSIS, "key")]
            break
    return rows
