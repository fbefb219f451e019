"""Choose from what there is, or give a name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input

from specdash.tui.cells import fit
from specdash.tui.dialogs.base import ListPage, Modal
from specdash.tui.paint import Lines
from specdash.tui.ports import ProfileRow
from specdash.tui.words import Line, one_line


class ChooseProfile(ListPage[str]):
    def __init__(self, title: str, profiles: Sequence[ProfileRow]) -> None:
        super().__init__()
        self.title_words = title
        self.profiles = profiles

    def choices(self, width: int) -> list[tuple[str, Line]]:
        out: list[tuple[str, Line]] = []
        for row in self.profiles:
            name = fit(one_line(row.name), min(32, width // 2))
            out.append(
                (
                    row.name,
                    [
                        (name, ""),
                        (f" {one_line(row.algorithm) or 'base':<12}", "dim"),
                        (one_line(row.drafter), "dim"),
                    ],
                )
            )
        return out or [("", [("no other profile", "dim")])]


class ChooseServer(ListPage[str]):
    """Servers that others started; the chosen one's name (its pid)."""

    title_words = "Adopt which server? Nothing changes in it; its name is asked before."

    def __init__(self, found: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self.found = found

    def choices(self, width: int) -> list[tuple[str, Line]]:
        return [(name, [(one_line(words), "")]) for name, words in self.found]


class AskName(Modal[str]):
    """A name, with a proposal to change; Esc gives none."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "cancel", id="ask.leave")]

    def __init__(self, title: str, proposal: str) -> None:
        super().__init__()
        self.question, self.proposal = title, proposal

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Lines(id="ask-rows")
            yield Input(self.proposal, id="ask-name", select_on_focus=False)

    def on_mount(self) -> None:
        self.set_focus(self.query_one("#ask-name"))
        rows: list[Line] = [[(one_line(self.question), "title"), ("   Enter writes it, Esc cancels", "dim")]]
        self.call_after_refresh(self.query_one("#ask-rows", Lines).show_rows, rows)

    @on(Input.Submitted)
    def _given(self, message: Input.Submitted) -> None:
        self.dismiss(message.value.strip())

    def action_leave(self) -> None:
        self.dismiss("")
