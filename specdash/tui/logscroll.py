"""Where in the log one is: following or paused, a cursor, and a window of rows laid out around it.

The unit of scrolling is a row (one log line, or one folded group), not a screen line: wrapping needs no measuring
of what is not shown. While it follows, the panel is laid out from the last line upwards; as soon as the operator
moves, it keeps still and counts what arrived meanwhile.
"""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.widget import Widget

from specdash.tui.logpen import Pen
from specdash.tui.logrows import Rows, Source
from specdash.tui.words import Line


class Empty:
    """No log yet."""

    line_count = 0

    def line(self, index: int) -> bytes:
        return b""


class LogScroll(Widget, can_focus=True):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False, id="log.up"),
        Binding("down,j", "move(1)", "Down", show=False, id="log.down"),
        Binding("pageup,ctrl+b", "page(-1)", "Page up", show=False, id="log.page_up"),
        Binding("pagedown,ctrl+f", "page(1)", "Page down", show=False, id="log.page_down"),
        Binding("home,g", "top", "First line", show=False, id="log.top"),
        Binding("end,G", "follow", "Follow", show=False, id="log.follow"),
        Binding("left", "shift(-8)", "Left", show=False, id="log.left"),
        Binding("right", "shift(8)", "Right", show=False, id="log.right"),
    ]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        source: Source = Empty()
        self.table = Rows(source)
        self.pen = Pen(self.table)
        self.following = True
        self.top_row = 0
        self.cursor = 0
        self.mark: int | None = None
        """The other end of a selection."""
        self._count_at_pause = 0
        self._drawn: list[tuple[int, Line]] = []

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
                drawn[:0] = [(row, line) for line in self.pen.lines_of(row, width)]
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
                used += len(self.pen.lines_of(row, width)) if self.pen.wrapping else 1
                if used > height:
                    break
                row -= 1
            self.top_row = min(row + 1, self.cursor)
            self._fill(width, height)

    def _fill(self, width: int, height: int) -> None:
        self._drawn = []
        row = self.top_row
        while row < self.table.count and len(self._drawn) < height:
            self._drawn += [(row, line) for line in self.pen.lines_of(row, width)]
            row += 1
        self._drawn = self._drawn[:height]

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
        self.pen.shifted = max(0, self.pen.shifted + by)
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

    def on_resize(self) -> None:
        self.redraw()

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()
