"""Panels that draw one pure view each, at whatever size the layout gives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specdash.tui.paint import Lines
from specdash.tui.words import Line

Draw = Callable[[int, int, bool], Sequence[Line]]
"""(width, height, focused) → rows."""


class Panel(Lines, can_focus=True):
    """Redraws itself from `draw` on `update`, on resize and when the focus comes or goes."""

    ALLOW_SELECT = False

    def __init__(self, draw: Draw, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.draw = draw

    def update(self) -> None:
        if self.size.width > 3 and self.size.height > 0:
            self.show_rows(self.draw(self.size.width, self.size.height, self.has_focus))

    def on_resize(self) -> None:
        self.update()

    def on_focus(self) -> None:
        self.update()

    def on_blur(self) -> None:
        self.update()


class Row(Panel, can_focus=False):
    """A panel of one or few rows that never takes the focus."""
