"""All profiles: what each extends, what it resolves to, its exact command, the difference of two, edit."""

from __future__ import annotations

import os
import shlex
import subprocess
from typing import ClassVar

from textual.binding import Binding, BindingType

from specdash.errors import SpecdashError
from specdash.tui.cells import fit, wrap
from specdash.tui.dialogs.base import ListPage
from specdash.tui.dialogs.diff import diff_rows
from specdash.tui.words import Line, one_line


class ProfilesScreen(ListPage[str]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d", "mark", "difference", id="profiles.diff"),
        Binding("c", "show_command", "command", id="profiles.command"),
        Binding("y", "copy", "copy command", id="profiles.copy"),
        Binding("e", "edit", "edit", id="profiles.edit"),
    ]
    title_words = "Profiles"

    def __init__(self, chosen: str) -> None:
        super().__init__()
        self.chosen = chosen
        self.marked = ""
        self.as_command = False

    def choices(self, width: int) -> list[tuple[str, Line]]:
        out: list[tuple[str, Line]] = []
        room = min(30, width // 3)
        for row in self.host_app.profile_rows:
            mark = "◆" if row.name == self.marked else " "
            line: Line = [(f"{mark} ", "warn"), (fit(one_line(row.name), room) + " ", "strong")]
            line.append((f"{one_line(row.algorithm) or 'base':<11}", ""))
            if row.extends:
                line.append((f"extends {' → '.join(one_line(x) for x in row.extends)}  ", "dim"))
            line.append((one_line(row.description), "dim"))
            if row.problem:
                line = [*line[:2], ("✗ " + one_line(row.problem), "bad")]
            out.append((row.name, line))
        return out or [("", [("no profile found in ./profiles or the config folder", "dim")])]

    def _safe_lines(self, name: str) -> list[str]:
        try:
            return self.host_app.operator.profile_lines(name)  # type: ignore[no-any-return]
        except SpecdashError as problem:
            return [str(problem)]

    def _command(self) -> str:
        try:
            return str(self.host_app.operator.command(self.chosen))
        except SpecdashError as problem:
            return f"# {problem}"

    def below(self, width: int) -> list[Line]:
        if not self.chosen:
            return []
        row = next((r for r in self.host_app.profile_rows if r.name == self.chosen), None)
        out: list[Line] = [[("", "")]]
        if self.marked and self.marked != self.chosen:
            out.append([(f" {one_line(self.marked)} → {one_line(self.chosen)}", "title")])
            return out + diff_rows(self._safe_lines(self.marked), self._safe_lines(self.chosen))
        if self.as_command:
            out.append([(" Exact command (secrets as references)", "title")])
            return out + [[(" " + piece, "")] for piece in wrap(one_line(self._command()), width, "    ")]
        out.append(
            [(f" {one_line(self.chosen)}", "title"), (f"  {one_line(row.path) if row else ''}", "dim")]
        )
        return out + [[("   " + one_line(line), "")] for line in self._safe_lines(self.chosen)]

    def action_mark(self) -> None:
        self.marked = "" if self.marked == self.chosen else self.chosen
        if self.marked:
            self.app.notify("Marked. Move to another profile to see the difference.", markup=False, timeout=4)
        self.update()

    def action_show_command(self) -> None:
        self.as_command = not self.as_command
        self.update()

    def action_copy(self) -> None:
        self.host_app.doing.copy(self._command())

    def action_edit(self) -> None:
        row = next((r for r in self.host_app.profile_rows if r.name == self.chosen), None)
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
        if row is None or not row.path:
            self.host_app.tell("This profile has no file that could be edited.", "warning")
            return
        try:
            with self.app.suspend():
                subprocess.run([*shlex.split(editor), row.path], check=False)
        except Exception as problem:
            self.host_app.tell(f"Could not run {editor}: {problem}. Set EDITOR.", "warning")
        self.host_app.reload_profiles()
        self.update()
