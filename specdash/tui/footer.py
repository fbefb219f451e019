"""Keys of the moment, made from the bindings that would answer now; those that cannot are dimmed."""

from __future__ import annotations

from collections.abc import Callable

from textual import events
from textual.binding import Binding
from textual.strip import Strip
from textual.widget import Widget

from specdash.tui.actions import ACTIONS, Action, key_word
from specdash.tui.cells import width_of
from specdash.tui.paint import Painter
from specdash.tui.words import Line

LOG_KEYS = (
    ("log.next_error", "error"),
    ("log.next_phase", "phase"),
    ("log.level", "level"),
    ("log.fold", "fold"),
    ("log.quiet", "polls"),
    ("log.wrap", "wrap"),
    ("log.follow", "follow"),
    ("log.copy", "copy"),
)


class Keys(Widget, Painter):
    ALLOW_SELECT = False
    DEFAULT_CSS = "Keys { height: 1; dock: bottom; background: $panel; }"

    def __init__(self, why_not: Callable[[Action], str], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.why_not = why_not
        self.log_focused = False
        self.log_narrowed = False
        """A filter keeps lines out of the log: the key that shows all comes first."""
        self.keymap: dict[str, str] = {}
        self._row: Line = []
        self._spans: list[tuple[int, int, Action]] = []

    def line(self, width: int) -> Line:
        """The row in `width` cells: the log's own keys first while it has the focus; help and quit always."""
        self._spans = []
        last = [action for action in ACTIONS if action.show and action.id in ("help", "quit")]
        others = [action for action in ACTIONS if action.show and action not in last]
        tail: Line = []
        for action in last:
            tail += self._piece(action)
        row: Line = []
        for action in others if not self.log_focused else [a for a in others if a.id == "search"]:
            piece = self._piece(action)
            if width_of(row) + width_of(piece) + width_of(tail) > width:
                break
            self._spans.append((width_of(row), width_of(row) + width_of(piece), action))
            row += piece
        if self.log_focused:
            from specdash.tui.logview import LogView

            keys = {b.id: b.key for b in LogView.BINDINGS if isinstance(b, Binding)}
            first = (("log.all", "all lines"),) if self.log_narrowed else ()
            for name, word in (*first, *LOG_KEYS):
                shown = key_word(
                    self.keymap.get(name, keys[name]).split(",")[-1 if name == "log.follow" else 0]
                )
                piece = [(f" {shown}", "key"), (f" {word} ", "dim")]
                if width_of(row) + width_of(piece) + width_of(tail) > width:
                    break
                row += piece
        for action in last:
            piece = self._piece(action)
            self._spans.append((width_of(row), width_of(row) + width_of(piece), action))
            row += piece
        return row

    def _piece(self, action: Action) -> Line:
        off = bool(self.why_not(action))
        key = key_word(self.keymap.get(action.id, action.key), first_only=True)
        return [(f" {key}", "dim" if off else "key"), (f" {action.title} ", "dim" if off else "")]

    def update(self) -> None:
        """Repaint only when a key or a reason changed: this row is otherwise the same all night."""
        if self.size.width and (row := self.line(self.size.width)) != self._row:
            self._row = row
            self.refresh()

    def on_resize(self) -> None:
        self.update()

    def render_line(self, y: int) -> Strip:
        return self.strip_of(self._row, self.size.width, self.rich_style)

    async def on_click(self, event: events.Click) -> None:
        for start, end, action in self._spans:
            if start <= event.x < end:
                await self.app.run_action(action.call)
