"""A question with two answers and a way to leave it open. The answer that changes nothing more has the focus."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Button

from specdash.tui.cells import wrap
from specdash.tui.dialogs.base import Choice, Modal
from specdash.tui.paint import Lines
from specdash.tui.words import Line, one_line


class DecideDialog(Modal[str]):
    """Dismissed with the word of the chosen answer; Esc gives ""."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "later", id="decide.leave"),
        Binding("left,up", "step(-1)", "previous", show=False),
        Binding("right,down", "step(1)", "next", show=False),
    ]

    def __init__(self, title: str, sentences: list[str], answers: list[tuple[str, str]]) -> None:
        super().__init__()
        self.question, self.sentences, self.answers = title, sentences, answers

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Lines(id="decide-rows")
            with Horizontal(classes="buttons"):
                for word, label in self.answers:
                    yield Choice(label, id=f"answer-{word}")

    def on_mount(self) -> None:
        self.set_focus(self.query(Button).first())
        self.call_after_refresh(self._draw)

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        width = max(30, self.query_one(".dialog").size.width - 1)
        rows: list[Line] = [[(row, "title")] for row in wrap(one_line(self.question), width)]
        for sentence in self.sentences:
            rows += [[("", "")], *([(row, "")] for row in wrap(one_line(sentence), width))]
        self.query_one("#decide-rows", Lines).show_rows(rows)

    @on(Button.Pressed)
    def _chosen(self, message: Button.Pressed) -> None:
        self.dismiss((message.button.id or "").removeprefix("answer-"))

    def action_step(self, by: int) -> None:
        buttons = list(self.query(Button))
        at = buttons.index(self.focused) if isinstance(self.focused, Button) else 0
        self.set_focus(buttons[max(0, min(at + by, len(buttons) - 1))])

    def action_leave(self) -> None:
        self.dismiss("")
