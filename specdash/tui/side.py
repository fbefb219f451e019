"""A list at the left: hosts with their servers, or profiles. Each has its own cursor, so choosing a profile to
switch to never changes which server is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from specdash.tui.cells import heading
from specdash.tui.paint import Painter
from specdash.tui.views.side import Item
from specdash.tui.words import Line


class Side(Widget, Painter, can_focus=True):
    ALLOW_SELECT = False
    DEFAULT_CSS = "Side { height: 1fr; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False, id="side.up"),
        Binding("down,j", "move(1)", "Down", show=False, id="side.down"),
        Binding("home,g", "edge(-1)", "First", show=False, id="side.first"),
        Binding("end,G", "edge(1)", "Last", show=False, id="side.last"),
        Binding("enter", "open", "Open: a profile to launch, a server to watch", show=False, id="side.open"),
        Binding("e", "edit", "Edit the profile under the cursor", show=False, id="side.edit"),
    ]

    class Moved(Message):
        """The cursor is on another item."""

        def __init__(self, item: Item) -> None:
            super().__init__()
            self.item = item

    class Opened(Moved):
        """Enter or a double click."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.items: Sequence[Item] = ()
        self.key: tuple[str, str, str] | None = None
        self.first = 0

    def show_items(self, items: Sequence[Item]) -> None:
        """New rows; the cursor stays on its item wherever that went."""
        if list(items) == list(self.items):
            return
        self.items = items
        if self.current() is None:
            chosen = next((item for item in items if item.selectable), None)
            self.key = chosen.key if chosen else None
            if chosen:
                self.post_message(self.Moved(chosen))
        self._scroll()
        self.refresh()

    def current(self) -> Item | None:
        return next((item for item in self.items if item.key == self.key and item.selectable), None)

    def choose(self, key: tuple[str, str, str]) -> None:
        item = next((item for item in self.items if item.key == key and item.selectable), None)
        if item is not None and key != self.key:
            self.key = key
            self._scroll()
            self.refresh()
            self.post_message(self.Moved(item))

    def _scroll(self) -> None:
        height = max(1, self.size.height)
        index = next((i for i, item in enumerate(self.items) if item.key == self.key), 0)
        if index < self.first + self._heads:
            self.first = index - self._heads
        elif index >= self.first + height:
            self.first = index - height + 1
        self.first = max(0, min(self.first, len(self.items) - height))

    @property
    def _heads(self) -> int:
        """Rows at the top that stay there: the heading."""
        return 1 if self.items and self.items[0].kind == "head" and self.size.height > 2 else 0

    def _more(self) -> int:
        """Hosts or profiles that are out of sight."""
        top, below = self.first + self._heads, self.first + self.size.height
        kinds = ("host", "profile")
        return sum(item.kind in kinds for item in [*self.items[self._heads : top], *self.items[below:]])

    def action_move(self, by: int) -> None:
        chosen = [item.key for item in self.items if item.selectable]
        if not chosen:
            return
        index = chosen.index(self.key) if self.key in chosen else 0
        self.choose(chosen[max(0, min(index + by, len(chosen) - 1))])

    def action_edge(self, side: int) -> None:
        chosen = [item.key for item in self.items if item.selectable]
        if chosen:
            self.choose(chosen[0 if side < 0 else -1])

    def action_open(self) -> None:
        item = self.current()
        if item is not None:
            self.post_message(self.Opened(item))

    async def action_edit(self) -> None:
        item = self.current()
        if item is not None and item.kind == "profile":
            await self.app.run_action("app.edit_profile")
        else:
            self.app.notify("e edits a profile: Tab to the profiles first.", markup=False, timeout=4)

    def on_click(self, event: events.Click) -> None:
        index = self.first + event.y if event.y >= self._heads else 0
        if index < len(self.items) and self.items[index].selectable:
            self.choose(self.items[index].key)
            if event.chain == 2:
                self.action_open()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.action_move(1)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.action_move(-1)

    def on_resize(self) -> None:
        self._scroll()

    def render_line(self, y: int) -> Strip:
        base = self.rich_style
        width = self.size.width
        index = self.first + y if y >= self._heads else 0
        if index >= len(self.items):
            return Strip.blank(width, base)
        item = self.items[index]
        if item.kind == "head":
            right: Line = [(f"{more} more", "dim")] if (more := self._more()) else []
            return self.strip_of(heading(item.line, right, width - 1, self.has_focus and y == 0), width, base)
        if item.key == self.key:
            mark = ("▸", "focus" if self.has_focus else "dim")
            extra = "pick+strong" if self.has_focus else "pick"
            line = [(text, f"{role}+{extra}" if role else extra) for text, role in item.line]
            used = sum(len(text) for text, _ in line)
            line.append((" " * max(0, width - 2 - used), extra))
            return self.strip_of([mark, *line], width, base)
        return self.strip_of([(" ", ""), *item.line], width, base)
