"""All profiles: what each extends, what it resolves to, its exact command, the difference of two, edit."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message

from specdash.control.plans import Check
from specdash.errors import SpecdashError
from specdash.tui.cells import fit, wrap
from specdash.tui.dialogs.base import ListPage
from specdash.tui.dialogs.choose import AskName
from specdash.tui.dialogs.diff import diff_rows
from specdash.tui.dialogs.plan import CHECK
from specdash.tui.words import Line, one_line

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class ProfilesScreen(ListPage[str]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d", "mark", "difference", id="profiles.diff"),
        Binding("c", "show_command", "command", id="profiles.command"),
        Binding("y", "copy", "copy it", id="profiles.copy"),
        Binding("e", "edit", "edit", id="profiles.edit"),
        Binding("E", "edit_outside", "edit with $EDITOR", id="profiles.outside", show=False),
        Binding("D", "duplicate", "duplicate", id="profiles.duplicate"),
        Binding("v", "check", "check", id="profiles.check"),
    ]
    title_words = "Profiles"

    class Checked(Message):
        def __init__(self, profile: str, found: Sequence[Check] | str) -> None:
            super().__init__()
            self.profile = profile
            self.found = found

    def __init__(self, chosen: str) -> None:
        super().__init__()
        self.chosen = chosen
        self.marked = ""
        self.as_command = False
        self.checks: dict[str, Sequence[Check] | str] = {}
        """Profile → what the installed SGLang says of its flags, or a sentence while or why not."""

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
        out += self._check_rows(width)
        return out + [[("   " + one_line(line), "")] for line in self._safe_lines(self.chosen)]

    def _check_rows(self, width: int) -> list[Line]:
        found = self.checks.get(self.chosen)
        if found is None:
            return []
        if isinstance(found, str):
            return [[("   " + row, "dim")] for row in wrap(one_line(found), width - 3)]
        out: list[Line] = []
        for check in found:
            glyph, role = CHECK[check.status]
            words = f"{one_line(check.sentence)} {one_line(check.remedy)}".strip()
            pieces = wrap(words, width - 5)
            out.append([(f"   {glyph} ", role), (pieces[0], role if check.status == "block" else "")])
            out += [[("     " + piece, "")] for piece in pieces[1:]]
        return out

    def action_check(self) -> None:
        """Flags against the SGLang that is installed where the screen looks now."""
        host, name = self.host_app.host_name, self.chosen
        state = self.host_app.fleet.hosts.get(host)
        if not name:
            return
        if state is None or state.link.status != "up":
            self.checks[name] = "Not checked: the host is not connected."
            self.update()
            return
        self.checks[name] = f"Asking the SGLang installed on {host}…"
        self.update()
        self.run_worker(self._check(host, name), group="check", exclusive=True)

    async def _check(self, host: str, name: str) -> None:
        found: Sequence[Check] | str
        try:
            found = await self.host_app.operator.check_profile(host, name)
        except (SpecdashError, TimeoutError) as problem:
            found = f"Not checked: {problem}"
        self.post_message(self.Checked(name, found))

    def on_profiles_screen_checked(self, message: Checked) -> None:
        self.checks[message.profile] = message.found
        self.update()

    def action_duplicate(self) -> None:
        row = next((r for r in self.host_app.profile_rows if r.name == self.chosen), None)
        if row is None or not row.path:
            self.host_app.tell("This profile has no file that could be copied.", "warning")
            return
        taken = {r.name for r in self.host_app.profile_rows}
        number = next(n for n in range(2, 1000) if f"{row.name}-{n}" not in taken)
        dialog = AskName(f"Duplicate {one_line(row.name)} as", f"{row.name}-{number}")
        self.app.push_screen(dialog, lambda name: self._duplicate(row.path, name))

    def _duplicate(self, path: str, name: str | None) -> None:
        from specdash.config import write

        if not name:
            return
        if not NAME.fullmatch(name):
            self.host_app.tell(f"{name} is no name for a profile: letters, digits, dot, dash.", "warning")
            return
        source = Path(path)
        target = source.with_name(f"{name}.toml")
        try:
            write.create(target, source.read_text(encoding="utf-8"))
        except (SpecdashError, OSError, UnicodeError) as problem:
            self.host_app.tell(f"Could not write {target}: {problem}", "warning")
            return
        self.host_app.reload_profiles()
        self.chosen = name
        self.host_app.tell(f"Wrote {target}. e edits it.")
        self.update()

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
        """Here, with completion, help and checks from the installed SGLang; E opens $EDITOR instead."""
        from specdash.tui.dialogs.editing import edit

        edit(self.host_app, self.chosen, self._edited)

    def _edited(self, written: bool | None) -> None:
        if written:
            self.host_app.reload_profiles()
            self.action_check()

    def action_edit_outside(self) -> None:
        from specdash.tui.dialogs.editing import file_of

        path = file_of(self.host_app, self.chosen)
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
        if path is None:
            return
        try:
            with self.app.suspend():
                subprocess.run([*shlex.split(editor), str(path)], check=False)
        except Exception as problem:
            self.host_app.tell(f"Could not run {editor}: {problem}. Set EDITOR.", "warning")
        self._edited(True)
