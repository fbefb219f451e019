"""Pages to read: one text in full, the sources of every number, and all messages so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType

from specdash.tui.cells import wrap
from specdash.tui.dialogs.base import Page
from specdash.tui.views.link import run_name
from specdash.tui.views.sources import source_rows
from specdash.tui.words import Line, age, one_line


class TextScreen(Page[None]):
    """All of a text, wrapped, with copy."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("y", "copy", "copy", id="text.copy")]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self.title_words = title
        self.text = text

    def right(self) -> Line:
        return [(f"{len(self.text):,} characters", "dim")]

    def rows(self, width: int) -> Sequence[Line]:
        out: list[Line] = []
        for row in self.text.splitlines() or [""]:
            out += [[(" " + piece, "")] for piece in (wrap(row, width) or [""])]
        return out

    def action_copy(self) -> None:
        self.host_app.doing.copy(self.text)


class SourcesScreen(Page[None]):
    """Source, window, load and age of every number of the chosen server."""

    title_words = "Where the numbers come from"
    live = True

    def rows(self, width: int) -> Sequence[Line]:
        app = self.host_app
        if app.server is None:
            return [[(" no server is chosen", "dim")]]
        return [
            [(f" {run_name(app.server)}", "strong")],
            [("", "")],
            *source_rows(app.server, app.fleet.now, width),
        ]


class NoticesScreen(Page[None]):
    """Newest first; opening it marks all as read, and those that were new are still marked here."""

    title_words = "Messages"

    def on_mount(self) -> None:
        app = self.host_app
        self.notices = list(reversed(app.notices.all))
        app.notices.mark_read()
        # They are all on this page now.
        app.clear_notifications()
        super().on_mount()

    def rows(self, width: int) -> Sequence[Line]:
        if not self.notices:
            return [[(" nothing was reported so far", "dim")]]
        out: list[Line] = []
        now = self.host_app.fleet.now
        for notice in self.notices:
            glyph, role = {"critical": ("✗", "bad-strong"), "warning": ("⚠", "warn")}.get(
                notice.severity, ("·", "dim")
            )
            where = f"{notice.where}: " if notice.where else ""
            times = f" (×{notice.times})" if notice.times > 1 else ""
            text = wrap(one_line(f"{where}{notice.sentence}{times} {notice.step}".strip()), width - 19)
            fresh = "new " if not notice.read else "    "
            out.append(
                [
                    (f" {glyph} ", role),
                    (fresh, "strong"),
                    (f"{age(now - notice.at):>10} ", "dim"),
                    (text[0] if text else "", role if not notice.read else ""),
                ]
            )
            out += [[(" " * 18 + row, "")] for row in text[1:]]
        return out
