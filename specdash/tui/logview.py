"""The log panel: virtual rows over a log store, so that a million lines cost as much as the forty on screen.

Here: which log, what of it is shown (filters that stay from one start to the next), finding, and taking text away.
Where one is in it is `logscroll`, how a row looks is `logpen`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip

from specdash.tui import logtext
from specdash.tui.cells import heading
from specdash.tui.logfind import Finder
from specdash.tui.logrows import Filter, Rows, Source, compile_search
from specdash.tui.logscroll import Empty, LogScroll
from specdash.tui.paint import Painter
from specdash.tui.words import Line, Span, plural, size

SLICE = 2_000
"""Lines looked at in one go while filtering or counting; several goes make up a `BUDGET_S`."""
BUDGET_S = 0.02
"""Seconds of such work between two looks at the keys: a fifth of what a key may take."""
MANY = 200_000
"""Logs with more lines open unfiltered: their last lines are there at once, whatever a filter would cost."""


class LogView(LogScroll, Painter):
    ALLOW_SELECT = False
    DEFAULT_CSS = "LogView { height: 1fr; min-height: 3; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        *LogScroll.BINDINGS,
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
        Binding("o", "origin", "Filter by source: engine, HTTP, the rest", show=False, id="log.source"),
        Binding("ampersand", "ask_filter", "Filter by text", show=False, id="log.filter"),
        Binding("0", "all", "No filter: all lines", show=False, id="log.all"),
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
        self.table.set_filter(Filter(quiet=True))
        self.missing = ""
        self.stale_note = ""
        self.bytes_behind = 0
        self.finder = Finder(self.table)

    @property
    def redact(self) -> Callable[[bytes], bytes]:
        return self.pen.redact

    @redact.setter
    def redact(self, how: Callable[[bytes], bytes]) -> None:
        self.pen.redact = how

    def settings(self) -> dict[str, Any]:
        """What the operator chose to see, JSON-able: kept for the next start."""
        return {**asdict(self.table.filter), "wrap": self.pen.wrapping, "relative": self.pen.relative}

    def restore(self, kept: dict[str, Any]) -> None:
        """As `settings` gave it; what is not of its kind is left out."""
        known = {key: value for key, value in kept.items() if key in asdict(Filter())}
        fit = {key: value for key, value in known.items() if type(value) is type(getattr(Filter(), key))}
        self.table.set_filter(replace(Filter(quiet=True), **fit))
        self.pen.wrapping = kept.get("wrap") is True
        self.pen.relative = kept.get("relative") is True

    # What is shown ------------------------------------------------------------------------------------

    def set_source(self, source: Source | None) -> None:
        """Another log: filters stay, position and search do not."""
        wanted = self.table.filter
        self.table = Rows(source or Empty())
        if self.table.source.line_count > MANY:
            wanted = Filter()
        self.table.set_filter(wanted)
        self.finder = Finder(self.table, self.finder.pattern, self.finder.text)
        self.pen.take(self.table, self.finder)
        self.following, self.mark = True, None
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

    def title_row(self, width: int) -> Line:
        count = self.table.source.line_count
        title: Line = [("LOG ", "title")]
        if self.following:
            title.append(("following", "ok"))
        else:
            new = max(0, count - self._count_at_pause)
            title.append((f"paused, {new:,} new" if new else "paused", "warn"))
        wanted = self.table.filter
        if wanted.narrow:
            # The count first: it must not be what is cut off.
            title.append((f"  {self.table.count:,} of {count:,}", "strong"))
        else:
            title.append((f"  {plural(count, 'line')}", "dim"))
        if wanted.active:
            title.append((f"  {wanted.words()}", "strong" if wanted.narrow else "dim"))
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
                words = self.missing or self._why_empty()
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

    def _why_empty(self) -> str:
        if not self.table.source.line_count:
            return "No log yet."
        if self.table.behind:
            return "Looking through the log…"
        return "No line passes this filter. 0 shows all."

    def _thumb(self, y: int) -> Span:
        height = max(1, self.size.height - 1)
        count = self.table.count
        if count <= height:
            return (" ", "")
        length = max(1, height * height // count)
        start = round((height - length) * min(1.0, self.top_row / max(1, count - height)))
        return ("█", "rule") if start <= y < start + length else ("│", "rule")

    # The mouse ----------------------------------------------------------------------------------------

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

    # Finding and filtering ----------------------------------------------------------------------------

    def search(self, text: str) -> None:
        """Start a search from the cursor downwards, wrapping at the end; an empty text ends it."""
        self.finder = self.pen.finder = Finder(self.table, compile_search(text) if text else None, text)
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
        if self.pen.reveal(message.row, self.size.width - 1):
            self.redraw()

    def set_filter(self, wanted: Filter) -> None:
        line = self.table.line_number(self.cursor) if self.table.count else 0
        self.table.set_filter(wanted)
        self.finder = self.pen.finder = Finder(self.table, self.finder.pattern, self.finder.text)
        self.mark = None
        self._work(self.table.scan)
        if not self.following:
            self.cursor = self.table.row_of(line)
        self.grown()
        self.post_message(self.Asked("kept"))

    def action_level(self) -> None:
        order = {"": "warning", "warning": "error", "error": ""}
        self.set_filter(replace(self.table.filter, level=order[self.table.filter.level]))

    def action_rank(self) -> None:
        order = ["", *self.pen.ranks]
        now = self.table.filter.rank
        index = order.index(now) if now in order else 0
        self.set_filter(replace(self.table.filter, rank=order[(index + 1) % len(order)]))

    def action_origin(self) -> None:
        order = ["", *logtext.ORIGINS]
        now = self.table.filter.origin
        index = order.index(now) if now in order else 0
        self.set_filter(replace(self.table.filter, origin=order[(index + 1) % len(order)]))

    def action_all(self) -> None:
        self.set_filter(Filter())

    def action_quiet(self) -> None:
        self.set_filter(replace(self.table.filter, quiet=not self.table.filter.quiet))

    def action_fold(self) -> None:
        self.set_filter(replace(self.table.filter, fold=not self.table.filter.fold))

    def action_ask_filter(self) -> None:
        self.post_message(self.Asked("filter", self.table.filter.text))

    def action_wrap(self) -> None:
        self.pen.wrapping, self.pen.shifted = not self.pen.wrapping, 0
        self.redraw()
        self.post_message(self.Asked("kept"))

    def action_stamps(self) -> None:
        self.pen.relative = not self.pen.relative
        self.redraw()
        self.post_message(self.Asked("kept"))

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
        return "\n".join(self.pen.text_of(row) for row in range(first, min(last + 1, self.table.count)))

    def action_copy(self) -> None:
        self.post_message(self.Asked("copy", self.chosen_text()))

    def action_save(self) -> None:
        self.post_message(self.Asked("save"))

    def action_full(self) -> None:
        if self.table.count:
            self.post_message(self.Asked("full", self.pen.text_of(self.cursor)))


def _plus(role: str, extra: str) -> str:
    return f"{role}+{extra}" if role else extra
