"""Where each process of a run is stuck: its stacks, as taken on the host. A look: nothing is paused or ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message

from specdash.errors import SpecdashError
from specdash.tui.cells import wrap
from specdash.tui.dialogs.base import Page
from specdash.tui.ports import StacksView
from specdash.tui.words import Line, one_line, plural


class StacksScreen(Page[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "copy", "copy", id="stacks.copy"),
        Binding("K", "again", "take again", id="stacks.again"),
    ]

    class Taken(Message):
        def __init__(self, view: StacksView) -> None:
            super().__init__()
            self.view = view

    def __init__(self, host: str, run: str, name: str) -> None:
        super().__init__()
        self.host_name, self.run, self.title_words = host, run, f"Stacks of {name}"
        self.view: StacksView | None = None

    def on_mount(self) -> None:
        super().on_mount()
        self.action_again()

    def action_again(self) -> None:
        self.view = None
        self.update()
        self.run_worker(self._take(), exclusive=True)

    async def _take(self) -> None:
        try:
            view = await self.host_app.operator.stacks(self.host_name, self.run)
        except SpecdashError as problem:
            view = StacksView(problem=problem.sentence, step=problem.step)
        except TimeoutError:
            view = StacksView(problem="The host did not answer in time.", step="K takes them again.")
        self.post_message(self.Taken(view))

    def on_stacks_screen_taken(self, message: Taken) -> None:
        self.view = message.view
        self.update()

    def right(self) -> Line:
        return (
            [(plural(self.view.processes, "process").replace("processs", "processes"), "dim")]
            if self.view
            else []
        )

    def rows(self, width: int) -> Sequence[Line]:
        view = self.view
        if view is None:
            return [[(" looking at every process of the run; this may take a minute…", "dim")]]
        out: list[Line] = []
        if view.problem:
            out += [[(" " + row, "bad-strong")] for row in wrap("✗ " + one_line(view.problem), width, "  ")]
        if view.path:
            out += [[(" " + row, "dim")] for row in wrap(f"kept in {one_line(view.path)}", width - 1, "  ")]
        if view.step:
            out += [[(" " + row, "warn")] for row in wrap(one_line(view.step), width - 1)]
        for row in view.text.splitlines():
            # A process starts at the margin, its frames are indented.
            role = "strong" if row[:1].strip() else ""
            out.append([(" " + one_line(row), role)])
        return out

    def action_copy(self) -> None:
        if self.view is not None and self.view.text:
            self.host_app.doing.copy(self.view.text)
