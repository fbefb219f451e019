"""What the installed SGLang can do: version, file, algorithms with our notes, and the theory table."""

from __future__ import annotations

from collections.abc import Sequence

from textual.message import Message

from specdash.errors import SpecdashError
from specdash.tui.cells import width_of, wrap
from specdash.tui.dialogs.base import Page
from specdash.tui.ports import ProbeView
from specdash.tui.words import Line, one_line


class ProbeScreen(Page[None]):
    class Answered(Message):
        def __init__(self, view: ProbeView) -> None:
            super().__init__()
            self.view = view

    def __init__(self, host: str, profile: str) -> None:
        super().__init__()
        self.host_name, self.profile = host, profile
        self.title_words = f"Installed SGLang on {one_line(host)}"
        self.view: ProbeView | None = None

    def on_mount(self) -> None:
        super().on_mount()
        self.run_worker(self._ask(), exclusive=True)

    async def _ask(self) -> None:
        try:
            view = await self.host_app.operator.probe(self.host_name, self.profile)
        except SpecdashError as problem:
            view = ProbeView(problem=problem.sentence, step=problem.step)
        self.post_message(self.Answered(view))

    def on_probe_screen_answered(self, message: Answered) -> None:
        self.view = message.view
        self.update()

    def right(self) -> Line:
        return [(f"profile {one_line(self.profile)}", "dim")] if self.profile else []

    def rows(self, width: int) -> Sequence[Line]:
        view = self.view
        if view is None:
            return [[(" reading the installed files…", "dim")]]
        out: list[Line] = []
        if view.problem:
            out += [[(" " + row, "bad-strong")] for row in wrap("✗ " + one_line(view.problem), width, "  ")]
            out += [[(" " + row, "")] for row in wrap(one_line(view.step), width)]
        if view.version or view.path:
            version, path = one_line(view.version) or "version not told", one_line(view.path)
            head: Line = [(" SGLang ", "dim"), (version, "strong")]
            if width_of(head) + len(path) + 2 <= width:
                out.append([*head, (f"  {path}", "dim")])
            else:
                out += [head, *([("   " + row, "dim")] for row in wrap(path, width - 3))]
        if view.python:
            pieces = wrap(one_line(view.python), width - 13)
            out.append([(" interpreter ", "dim"), (pieces[0], "")])
            out += [[(" " * 13 + piece, "")] for piece in pieces[1:]]
        out += [
            [(" " + row, "warn")] for note in view.notes for row in wrap("! " + one_line(note), width, "  ")
        ]
        if view.algorithms:
            out += [[("", "")], [(f" Algorithms ({len(view.algorithms)})", "title")]]
            indent = " " * 18
            for row in view.algorithms:
                name = one_line(row.name)
                words = one_line(row.what) or "no notes about this one"
                pieces = wrap(words, width - 18)
                out.append([(f"   {name:<15}", "strong"), (pieces[0], "" if row.what else "dim")])
                out += [[(indent + piece, "")] for piece in pieces[1:]]
                more = [f"drafter: {row.needs_drafter}"] if row.needs_drafter else []
                more += [f"also spelled {', '.join(row.aliases)}"] if row.aliases else []
                more += list(row.changes)
                out += [
                    [(indent + piece, "dim")] for item in more for piece in wrap(one_line(item), width - 18)
                ]
        if view.theory:
            out += [[("", "")], [(" Techniques in theory, and in this build", "title")]]
            marks = {"in_build": ("✓", "ok"), "not_in_build": ("✗", "dim")}
            for technique, status, sentence in view.theory:
                glyph, role = marks.get(status, ("?", "warn"))
                out.append(
                    [(f" {glyph} ", role), (one_line(technique), "" if status == "in_build" else "dim")]
                )
                out += [[("     " + row, "dim")] for row in wrap(one_line(sentence), width - 5)]
        return out
