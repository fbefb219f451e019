"""The shape of every screen over the main one: a title, rows that scroll, keys made from its bindings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.scrollbar import ScrollBarRender
from textual.widgets import Button

from specdash.tui.actions import key_word
from specdash.tui.cells import heading, width_of
from specdash.tui.paint import Lines
from specdash.tui.panels import Row
from specdash.tui.words import Line

R = TypeVar("R")


class Body(VerticalScroll):
    """Rows that scroll by arrows, vim keys and pages."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_down", "Down", show=False),
        Binding("k", "scroll_up", "Up", show=False),
        Binding("g", "scroll_home", "First", show=False),
        Binding("G", "scroll_end", "Last", show=False),
    ]

    def on_mount(self) -> None:
        if getattr(self.app, "ascii_only", False):
            self.vertical_scrollbar.renderer = PlainBar  # type: ignore[misc]


class PlainBar(ScrollBarRender):
    """A scroll bar of colour alone: no eighths of blocks where the terminal has only ASCII."""

    VERTICAL_BARS: ClassVar[list[str]] = [" "] * 8


class Modal(ModalScreen[R]):
    """A screen that keeps its keys to itself: what it has no use for ends here and never acts on the main one."""

    async def on_key(self, event: events.Key) -> None:
        event.stop()
        # Looked up here, not where Textual does it: by then another screen may be on top, with other keys.
        if self.app.screen is self:
            await self.app._check_bindings(event.key)


class Choice(Button):
    """An answer of a dialog. The one that Enter would take is marked, so that it is not told by colour alone."""

    def __init__(self, words: str, *, id: str, disabled: bool = False) -> None:
        super().__init__(f"  {words}", id=id, compact=True, disabled=disabled)
        self.words = words

        self.marked = False

    def say(self, words: str) -> None:
        self.words = words
        mark = ">" if getattr(self.app, "ascii_only", False) else "▸"
        self.label = f"{mark if self.marked else ' '} {words}"

    def on_focus(self) -> None:
        self.marked = True
        self.say(self.words)

    def on_blur(self) -> None:
        self.marked = False
        self.say(self.words)


class Page(Modal[R]):
    """A full-screen page. A subclass gives `title_words` and `rows(width)`; `update` draws again."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "close", "back", id="page.close")]
    title_words = ""
    live = False
    """Whether it draws again as the state changes."""

    def compose(self) -> ComposeResult:
        yield Row(self._title, id="page-title")
        with Body(id="page-body"):
            yield Lines(id="page-rows")
        yield Row(self._keys, id="page-keys")

    DEFAULT_CSS = """
    Page { background: $background; align: left top; layout: vertical; }
    Page #page-title { height: 1; }
    Page #page-keys { height: 1; background: $panel; }
    Page #page-body { height: 1fr; }
    """

    def on_mount(self) -> None:
        if self.live:
            self.set_interval(0.5, self.update)
        self.update()

    def rows(self, width: int) -> Sequence[Line]:
        raise NotImplementedError

    def right(self) -> Line:
        """What stands at the right of the title."""
        return []

    def _title(self, width: int, height: int, focused: bool) -> list[Line]:
        return [heading([(self.title_words, "title")], self.right(), width)]

    def _keys(self, width: int, height: int, focused: bool) -> list[Line]:
        pieces: list[Line] = [
            [(f" {self._key_of(binding)}", "key"), (f" {binding.description} ", "")]
            for binding in self.keys()
        ]
        row: Line = []
        # The last one is the way back: it is shown whatever else does not fit.
        for piece in pieces[:-1]:
            if width_of(row) + width_of(piece) + width_of(pieces[-1]) <= width:
                row += piece
        return [row + pieces[-1] if pieces else row]

    def _key_of(self, binding: Binding) -> str:
        remapped: dict[str, str] = getattr(self.app, "_keys", {})
        return key_word(remapped.get(binding.id or "", binding.key), first_only=True)

    def keys(self) -> list[Binding]:
        """Bindings of this page that are to be shown, its own first."""
        found: list[Binding] = []
        for kind in type(self).__mro__:
            for binding in kind.__dict__.get("BINDINGS", ()):
                if isinstance(binding, Binding) and binding.show and kind.__module__.startswith("specdash"):
                    found.append(binding)
        return found

    def update(self) -> None:
        if not self.is_mounted or not self.size.width:
            return
        body = self.query_one("#page-rows", Lines)
        width = max(20, self.query_one("#page-body").size.width - 2)
        body.show_rows(self.rows(width))
        for row in self.query(Row):
            row.update()

    def on_resize(self) -> None:
        self.call_after_refresh(self.update)

    def action_close(self) -> None:
        self.dismiss(None)

    @property
    def host_app(self) -> Any:
        """The specdash app, typed loosely to keep imports one way."""
        return self.app


class ListPage(Page[R]):
    """A page whose rows can be chosen: `choices` gives (key, line), `chosen` is the current key."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "pick(-1)", "Up", show=False, priority=True),
        Binding("down,j", "pick(1)", "Down", show=False, priority=True),
        Binding("home,g", "edge(0)", "First", show=False, priority=True),
        Binding("end,G", "edge(-1)", "Last", show=False, priority=True),
        Binding("enter", "accept", "choose", id="page.accept"),
    ]
    chosen: str = ""

    def choices(self, width: int) -> list[tuple[str, Line]]:
        """(key, row); a row with an empty key cannot be chosen."""
        raise NotImplementedError

    def below(self, width: int) -> list[Line]:
        """Rows under the list, about the chosen one."""
        return []

    def rows(self, width: int) -> Sequence[Line]:
        out: list[Line] = []
        listed = self.choices(width - 2)
        keys = [key for key, _ in listed if key]
        if self.chosen not in keys:
            self.chosen = keys[0] if keys else ""
        for key, line in listed:
            if key and key == self.chosen:
                out.append(
                    [("▸ ", "focus"), *((text, f"{role}+pick" if role else "pick") for text, role in line)]
                )
            else:
                out.append([("  ", ""), *line])
        return [*out, *self.below(width)]

    def _keys_of(self) -> list[str]:
        return [key for key, _ in self.choices(200) if key]

    def action_pick(self, by: int) -> None:
        keys = self._keys_of()
        if keys:
            at = keys.index(self.chosen) if self.chosen in keys else 0
            self.chosen = keys[max(0, min(at + by, len(keys) - 1))]
            self._reveal()

    def action_edge(self, at: int) -> None:
        keys = self._keys_of()
        if keys:
            self.chosen = keys[at]
            self._reveal()

    def _reveal(self) -> None:
        self.update()
        at = next((i for i, (key, _) in enumerate(self.choices(200)) if key == self.chosen), 0)
        body = self.query_one("#page-body", Body)
        if not body.scroll_y <= at < body.scroll_y + body.size.height - 1:
            body.scroll_to(y=max(0, at - body.size.height // 2), animate=False)

    def action_accept(self) -> None:
        self.dismiss(self.chosen or None)  # type: ignore[arg-type]
