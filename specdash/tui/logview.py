"""The log panel: virtual rows over a log store, so that a million lines cost as much as the forty on screen.

The unit of scrolling is a row (one log line, or one folded group), not a screen line: wrapping needs no
measuring of what is not shown. While it follows, the panel is laid out from the last line upwards; as soon
as the operator moves, it keeps still and counts what arrived meanwhile.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from rich.cells import cell_len
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from specdash.tui import logtext
from specdash.tui.cells import ELLIPSIS, heading, sheared
from specdash.tui.logfind import Finder
from specdash.tui.logrows import Filter, Rows, Source, compile_search
from specdash.tui.paint import Painter
from specdash.tui.words import Line, Span, clock, plural, size

VIEW_BYTES = 16_384
"""Most bytes of one line that the panel draws; all of it is one key away."""
SLACK_BYTES = 4_096
"""Read beyond that, so that a secret is recognised whole before the line is cut."""
SLICE = 2_000
"""Lines looked at in one go while filtering or counting; several goes make up a `BUDGET_S`."""
BUDGET_S = 0.02
"""Seconds of such work between two looks at the keys: a fifth of what a key may take."""
MANY = 200_000
"""Logs with more lines open unfiltered: their last lines are there at once, whatever a filter would cost."""


class Empty:
    """No log yet."""

    line_count = 0

    def line(self, index: int) -> bytes:
        return b""


class LogView(Widget, Painter, can_focus=True):
    ALLOW_SELECT = False
    DEFAULT_CSS = "LogView { height: 1fr; min-height: 3; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False, id="log.up"),
        Binding("down,j", "move(1)", "Down", show=False, id="log.down"),
        Binding("pageup,ctrl+b", "page(-1)", "Page up", show=False, id="log.page_up"),
        Binding("pagedown,ctrl+f", "page(1)", "Page down", show=False, id="log.page_down"),
        Binding("home,g", "top", "First line", show=False, id="log.top"),
        Binding("end,G", "follow", "Follow", show=False, id="log.follow"),
        Binding("left", "shift(-8)", "Left", show=False, id="log.left"),
        Binding("right", "shift(8)", "Right", show=False, id="log.right"),
        Binding("n", "find(1)", "Next match", show=False, id="log.next"),
        Binding("N", "find(-1)", "Previous match", show=False, id="log.previous"),
        Binding("e", "jump('error', 1)", "Next error", show=False, id="log.next_error"),
        Binding("E", "jump('error', -1)", "Previous error", show=False, id="log.previous_error"),
        Binding("right_square_bracket", "jump('phase', 1)", "Next phase", show=False, id="log.next_phase"),
        Binding(
            "left_square_bracket", "jump('phase', -1)", "Previous phase", show=False, id="log.previous_phase"
        ),
        Binding("f", "level", "Filter by level", show=False, id="log.level"),
        Binding("R", "rank", "Filter by rank", show=False, id="log.rank"),
        Binding("ampersand", "ask_filter", "Filter by text", show=False, id="log.filter"),
        Binding("d", "fold", "Fold repeats", show=False, id="log.fold"),
        Binding("a", "quiet", "Hide or show answered polls (GET /metrics …)", show=False, id="log.quiet"),
        Binding("W", "wrap", "Wrap long lines", show=False, id="log.wrap"),
        Binding("t", "stamps", "Times absolute/relative", show=False, id="log.stamps"),
        Binding("V", "select", "Select lines", show=False, id="log.select"),
        Binding("y", "copy", "Copy line or selection", show=False, id="log.copy"),
        Binding("S", "save", "Save selection or view", show=False, id="log.save"),
        Binding("enter", "full", "Full text of the line", show=False, id="log.full"),
    ]

    class Asked(Message):
        """The panel wants the app to do something: prompt, show full text, copy or save."""

        def __init__(self, what: str, text: str = "") -> None:
            super().__init__()
            self.what = what
            self.text = text

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.table = Rows(Empty())
        self.table.set_filter(Filter(quiet=True))
        self.redact: Callable[[bytes], bytes] = lambda line: line
        self.missing = ""
        self.stale_note = ""
        self.bytes_behind = 0
        self.following = True
        self.top_row = 0
        self.cursor = 0
        self.mark: int | None = None
        self.wrapping = False
        self.relative = False
        self.shifted = 0
        self.ranks: list[str] = []
        self.finder = Finder(self.table)
        self._count_at_pause = 0
        self._origin: float | None = None
        self._drawn: list[tuple[int, Line]] = []
        self._shown: tuple[int, str] | None = None

    # What is shown ------------------------------------------------------------------------------------

    def set_source(self, source: Source | None) -> None:
        """Another log: filters stay, position and search do not."""
        wanted = self.table.filter
        self.table = Rows(source or Empty())
        if self.table.source.line_count > MANY:
            wanted = Filter()
        self.table.set_filter(wanted)
        self.finder = Finder(self.table, self.finder.pattern, self.finder.text)
        self.following, self.mark, self.shifted, self._origin = True, None, 0, None
        self.ranks = []
        self.grown()

    def grown(self) -> None:
        """The source may have more lines; called at most four times a second, whatever arrives."""
        self._work(self.table.scan)
        if self.following:
            self.cursor = max(0, self.table.count - 1)
        self.redraw()

    def _work(self, scan: Callable[[int], bool]) -> bool:
        """Scan for `BUDGET_S`; True when there is more to do."""
        end = time.perf_counter() + BUDGET_S
        while more := scan(SLICE):
            if time.perf_counter() > end:
                break
        return more

    def idle(self) -> bool:
        """One slice of background work. True when there is more."""
        more = self._work(self.table.scan)
        more = self._work(self.finder.scan) or more
        if self.following:
            self.cursor = max(0, self.table.count - 1)
        self.redraw()
        return more

    def redraw(self) -> None:
        self._lay_out()
        self.refresh()

    def _lay_out(self) -> None:
        width, height = self.size.width, self.size.height - 1
        self._drawn = []
        if width < 4 or height < 1:
            return
        count = self.table.count
        self.top_row = max(0, min(self.top_row, count - 1))
        self.cursor = max(0, min(self.cursor, count - 1))
        if self.following:
            row = count - 1
            drawn: list[tuple[int, Line]] = []
            while row >= 0 and len(drawn) < height:
                drawn[:0] = [(row, line) for line in self._lines_of(row, width)]
                row -= 1
            self._drawn = drawn[-height:]
            self.top_row = self._drawn[0][0] if self._drawn else 0
            return
        if self.cursor < self.top_row:
            self.top_row = self.cursor
        self._fill(width, height)
        if self.cursor > self._drawn[-1][0] if self._drawn else False:
            # Move the view down until the cursor's row is whole on screen, from below.
            used, row = 0, self.cursor
            while row >= 0:
                used += len(self._lines_of(row, width)) if self.wrapping else 1
                if used > height:
                    break
                row -= 1
            self.top_row = min(row + 1, self.cursor)
            self._fill(width, height)

    def _fill(self, width: int, height: int) -> None:
        self._drawn = []
        row = self.top_row
        while row < self.table.count and len(self._drawn) < height:
            self._drawn += [(row, line) for line in self._lines_of(row, width)]
            row += 1
        self._drawn = self._drawn[:height]

    def _bytes_of(self, row: int, most: int | None = VIEW_BYTES) -> bytes:
        raw = self.table.source.line(self.table.line_number(row))
        if most is None:
            return logtext.clean(self.redact(raw))
        return logtext.clean(self.redact(raw[: most + SLACK_BYTES]))[:most]

    def text_of(self, row: int) -> str:
        """All of the row's line, safe to draw, secrets out."""
        return logtext.decode(self._bytes_of(row, None))

    def _lines_of(self, row: int, width: int) -> list[Line]:
        line = self._bytes_of(row)
        found = logtext.head(line)
        level = logtext.level(line)
        role = {"error": "bad", "warning": "warn"}.get(level, "")
        gutter = {"error": "✗", "warning": "!"}.get(level, " ")
        body = logtext.decode(line[found.length :])
        if found.rank and found.rank.split()[0] not in self.ranks:
            self.ranks = sorted({*self.ranks, *found.rank.split()}, key=_natural)
        spans: Line = [(gutter, role)]
        if found.length:
            spans.append((self._stamp(found) + " ", "dim"))
        repeats = self.table.repeats(row)
        if repeats > 1:
            spans.append((f"×{repeats} ", "strong"))
        spans += self._marked(body, role)
        room = width - 1
        if self.wrapping:
            return _wrapped(spans, room)
        total = sum(cell_len(text) for text, _ in spans)
        if self.shifted:
            spans = [spans[0], *sheared(spans[1:], self.shifted, room - 1)]
        if total - self.shifted > room:
            spans = [*sheared(spans, 0, room - 1), (ELLIPSIS, "key")]
        return [spans]

    def _stamp(self, found: logtext.Head) -> str:
        if not self.relative:
            # The day is the same for most of a run: the time is what one compares.
            shown = found.stamp[11:]
        else:
            at = _seconds(found.stamp)
            if self._origin is None and self.table.source.line_count:
                self._origin = self._first_stamp()
            delta = None if at is None or self._origin is None else at - self._origin
            shown = "+" + clock(delta) if delta is not None and delta >= 0 else found.stamp[11:]
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

    def title_row(self, width: int) -> Line:
        count = self.table.source.line_count
        title: Line = [("LOG ", "title")]
        if self.following:
            title.append(("following", "ok"))
        else:
            new = max(0, count - self._count_at_pause)
            title.append((f"paused, {new:,} new" if new else "paused", "warn"))
        title.append((f"  {plural(count, 'line')}", "dim"))
        wanted = self.table.filter
        if wanted.narrow:
            title.append((f"  {wanted.words()}: {self.table.count:,}", "strong"))
        elif wanted.active:
            title.append((f"  {wanted.words()}", "dim"))
        if wanted.active and self.table.behind > SLICE:
            title.append((f" ({100 * self.table.scanned // max(1, count)} % read)", "dim"))
        right: Line = [(self.stale_note + " ", "stale")] if self.stale_note else []
        if self.mark is not None:
            right.append((f"{plural(abs(self.cursor - self.mark) + 1, 'line')} selected ", "strong"))
        if self.finder.pattern is not None:
            right.append((self.finder.words(self.cursor), "match" if self.finder.total else "warn"))
        if self.bytes_behind > 65_536:
            right.append((f" {size(self.bytes_behind)} behind", "warn"))
        return heading(title, right, width, self.has_focus)

    def render_line(self, y: int) -> Strip:
        base = self.rich_style
        width = self.size.width
        if y == 0:
            return self.strip_of(self.title_row(width), width, base)
        if y - 1 >= len(self._drawn):
            if not self._drawn and y == 1:
                words = self.missing or "No log yet."
                return self.strip_of([(f" {words}", "bad" if self.missing else "dim")], width, base)
            return Strip.blank(width, base)
        row, line = self._drawn[y - 1]
        chosen = self.mark is not None and min(self.mark, self.cursor) <= row <= max(self.mark, self.cursor)
        if chosen or (self.has_focus and not self.following and row == self.cursor):
            line = [
                (
                    "▸" if text == " " and index == 0 else text,
                    _plus(role, "focus+pick" if index == 0 else "pick"),
                )
                for index, (text, role) in enumerate(line)
            ]
        strip = self.strip_of(line, width - 1, base)
        return Strip.join([strip, self.strip_of([self._thumb(y - 1)], 1, base)])

    def _thumb(self, y: int) -> Span:
        height = max(1, self.size.height - 1)
        count = self.table.count
        if count <= height:
            return (" ", "")
        length = max(1, height * height // count)
        start = round((height - length) * min(1.0, self.top_row / max(1, count - height)))
        return ("█", "rule") if start <= y < start + length else ("│", "rule")

    # Moving -------------------------------------------------------------------------------------------

    def pause(self) -> None:
        if self.following:
            self.following = False
            self._count_at_pause = self.table.source.line_count

    def go(self, row: int) -> None:
        self.pause()
        self.cursor = max(0, min(row, self.table.count - 1))
        self.redraw()

    def action_move(self, by: int) -> None:
        if by > 0 and (self.following or self.cursor >= self.table.count - 1):
            self.action_follow()
            return
        self.go(self.cursor + by)

    def action_page(self, by: int) -> None:
        step = max(1, self.size.height - 2)
        if by > 0 and (self.following or self.top_row + step >= self.table.count - 1):
            self.action_follow()
            return
        self.pause()
        self.top_row = max(0, self.top_row + by * step)
        self.cursor = max(0, min(self.cursor + by * step, self.table.count - 1))
        if by < 0:
            self.cursor = min(self.cursor, self.top_row)
        self.redraw()

    def action_top(self) -> None:
        self.go(0)

    def action_follow(self) -> None:
        self.following, self.mark = True, None
        self.cursor = max(0, self.table.count - 1)
        self.redraw()

    def action_shift(self, by: int) -> None:
        self.shifted = max(0, self.shifted + by)
        self.redraw()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.pause()
        self.top_row = max(0, self.top_row - 3)
        self.cursor = min(self.cursor, self.top_row + max(1, self.size.height - 2))
        self._keep_cursor_in_view()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        if self.following:
            return
        height = max(1, self.size.height - 1)
        if self.top_row + 3 >= self.table.count - height:
            self.action_follow()
            return
        self.top_row += 3
        self._keep_cursor_in_view()

    def _keep_cursor_in_view(self) -> None:
        last = self.top_row + max(1, self.size.height - 1) - 1
        self.cursor = max(self.top_row, min(self.cursor, last))
        self.redraw()

    def on_click(self, event: events.Click) -> None:
        if event.x == self.size.width - 1 and event.y > 0:
            height = max(1, self.size.height - 1)
            self.top_row = int((event.y - 1) / height * self.table.count)
            self.go(self.top_row)
        elif 0 < event.y <= len(self._drawn):
            if event.shift and self.mark is None:
                self.mark = self.cursor
            self.go(self._drawn[event.y - 1][0])
            if event.chain == 2:
                self.action_full()

    def on_resize(self) -> None:
        self.redraw()

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()

    # Finding and filtering ----------------------------------------------------------------------------

    def search(self, text: str) -> None:
        """Start a search from the cursor downwards, wrapping at the end; an empty text ends it."""
        self.finder = Finder(self.table, compile_search(text) if text else None, text)
        self.redraw()
        if text:
            self.action_find(1)

    def action_find(self, direction: int) -> None:
        if self.finder.pattern is None:
            self.post_message(self.Asked("search"))
            return
        self._seek(self.finder.matches, direction, wrap=True)

    def action_jump(self, kind: str, direction: int) -> None:
        if kind == "error":
            self._seek(lambda line: logtext.level(line) == "error", direction, wrap=False)
        else:
            self._seek(logtext.is_phase, direction, wrap=False)

    def _seek(self, test: Callable[[bytes], bool], direction: int, wrap: bool) -> None:
        start = self.cursor + direction if not self.following or direction < 0 else 0
        if self.following and direction < 0:
            start = self.cursor
        self.run_worker(self._seek_slowly(test, start, direction, wrap), group="log.seek", exclusive=True)

    async def _seek_slowly(
        self, test: Callable[[bytes], bool], start: int, direction: int, wrap: bool
    ) -> None:
        row = await self.finder.seek(test, start, direction, wrap)
        if row is None:
            self.post_message(
                self.Asked("tell", "Nothing more in that direction." if not wrap else "No match.")
            )
        else:
            self.post_message(self.Found(row))

    class Found(Message):
        """A search ended at a row; the handler moves there (a worker touches no widget)."""

        def __init__(self, row: int) -> None:
            super().__init__()
            self.row = row

    def on_log_view_found(self, message: Found) -> None:
        self.go(message.row)

    def set_filter(self, wanted: Filter) -> None:
        line = self.table.line_number(self.cursor) if self.table.count else 0
        self.table.set_filter(wanted)
        self.finder = Finder(self.table, self.finder.pattern, self.finder.text)
        self.mark = None
        self._work(self.table.scan)
        if not self.following:
            self.cursor = self.table.row_of(line)
        self.grown()
        self.post_message(self.Asked("work"))

    def action_level(self) -> None:
        order = {"": "warning", "warning": "error", "error": ""}
        self.set_filter(replace(self.table.filter, level=order[self.table.filter.level]))

    def action_rank(self) -> None:
        order = ["", *self.ranks]
        now = self.table.filter.rank
        index = order.index(now) if now in order else 0
        self.set_filter(replace(self.table.filter, rank=order[(index + 1) % len(order)]))

    def action_quiet(self) -> None:
        self.set_filter(replace(self.table.filter, quiet=not self.table.filter.quiet))

    def action_fold(self) -> None:
        self.set_filter(replace(self.table.filter, fold=not self.table.filter.fold))

    def action_ask_filter(self) -> None:
        self.post_message(self.Asked("filter", self.table.filter.text))

    def action_wrap(self) -> None:
        self.wrapping, self.shifted = not self.wrapping, 0
        self.redraw()

    def action_stamps(self) -> None:
        self.relative = not self.relative
        self.redraw()

    # Taking text away ---------------------------------------------------------------------------------

    def action_select(self) -> None:
        self.pause()
        self.mark = None if self.mark is not None else self.cursor
        self.redraw()

    def chosen_text(self) -> str:
        """The selection, or the cursor's line: safe text, secrets out, whole lines."""
        first = last = self.cursor
        if self.mark is not None:
            first, last = sorted((self.mark, self.cursor))
        if not self.table.count:
            return ""
        return "\n".join(self.text_of(row) for row in range(first, min(last + 1, self.table.count)))

    def action_copy(self) -> None:
        self.post_message(self.Asked("copy", self.chosen_text()))

    def action_save(self) -> None:
        self.post_message(self.Asked("save"))

    def action_full(self) -> None:
        if self.table.count:
            self.post_message(self.Asked("full", self.text_of(self.cursor)))


def _plus(role: str, extra: str) -> str:
    return f"{role}+{extra}" if role else extra


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
        if len(rows) >= 200:
            rows[-1] = [(ELLIPSIS, "key")]
            break
    return rows
