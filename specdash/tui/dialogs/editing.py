"""The profile editor: text at the top; below it what can come next, what the word means, and what is wrong so far.

Completion, help and checks are those of the SGLang that the profile would launch, read from its files on the
profile's host (`control.profile_text`). Where that is not known it says so, and the text can still be written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

from specdash.control import profile_text
from specdash.control.profile_text import Known, Problem, Suggestion
from specdash.errors import SpecdashError
from specdash.tui.cells import fit, heading, wrap
from specdash.tui.dialogs.base import Modal
from specdash.tui.panels import Row
from specdash.tui.words import Line, one_line

MARK = {"block": ("✗", "bad"), "warn": ("!", "warn"), "not_checked": ("?", "dim")}
LIST_ROWS, HELP_ROWS, CHECK_ROWS = 4, 3, 3


class Pen(TextArea):
    """The text. Tab takes the suggestion that is marked; where there is none it writes nothing and stays."""

    class Key(Message):
        """A key that belongs to the list below the text."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    async def _on_key(self, event: events.Key) -> None:
        if event.key in ("tab", "ctrl+n", "ctrl+p"):
            event.stop()
            event.prevent_default()
            self.post_message(self.Key(event.key))
            return
        await super()._on_key(event)


class EditProfile(Modal[bool]):
    """Answers whether the file was written."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "save", "save", id="edit.save", priority=True),
        Binding("escape", "leave", "back", id="edit.leave", priority=True),
    ]
    DEFAULT_CSS = """
    EditProfile { background: $background; align: left top; layout: vertical; }
    EditProfile #edit-title { height: 1; }
    EditProfile #edit-text { height: 1fr; border: none; padding: 0; background: $background; }
    EditProfile #edit-list { height: auto; max-height: 4; background: $panel; }
    EditProfile #edit-help { height: 3; }
    EditProfile #edit-checks { height: auto; max-height: 3; }
    EditProfile #edit-keys { height: 1; background: $panel; }
    """

    class FlagsRead(Message):
        def __init__(self, known: Known) -> None:
            super().__init__()
            self.known = known

    def __init__(self, name: str, path: Path) -> None:
        super().__init__()
        self.profile, self.path = name, path
        self.written = path.read_text(encoding="utf-8")
        self.known = Known(problem="Reading the flags of the SGLang installed there…")
        self.found: tuple[Suggestion, ...] = ()
        self.at = 0
        self.problems: tuple[Problem, ...] = ()
        self.judged: tuple[str, Known] | None = None
        self.saved = self.warned = False

    def compose(self) -> ComposeResult:
        yield Row(self._title, id="edit-title")
        yield Pen(self.written, id="edit-text", show_line_numbers=True, soft_wrap=False, tab_behavior="focus")
        yield Row(self._list, id="edit-list")
        yield Row(self._help, id="edit-help")
        yield Row(self._checks, id="edit-checks")
        yield Row(self._keys, id="edit-keys")

    @property
    def pen(self) -> Pen:
        return self.query_one(Pen)

    def on_mount(self) -> None:
        self.set_focus(self.pen)
        self.run_worker(self._ask(), group="flags", exclusive=True)
        self.call_after_refresh(self._look)

    async def _ask(self) -> None:
        app: Any = self.app
        try:
            known = await app.operator.flags_of(app.host_name, self.profile)
        except (SpecdashError, TimeoutError) as problem:
            known = Known(problem=f"Flags unknown: {problem}")
        self.post_message(self.FlagsRead(known))

    def on_edit_profile_flags_read(self, message: FlagsRead) -> None:
        self.known = message.known
        self._look()

    @on(TextArea.Changed)
    @on(TextArea.SelectionChanged)
    def _moved(self) -> None:
        self._look()

    def _look(self) -> None:
        """Everything below the text, for where the cursor is now."""
        if not self.is_mounted:
            return
        row, column = self.pen.cursor_location
        place = profile_text.place(self.pen.text, row, column)
        begun = bool(place.word.strip()) or bool(place.key)
        self.found = profile_text.suggest(self.known, self.pen.text, place) if begun else ()
        self.at = 0
        if self.judged != (self.pen.text, self.known):  # not for each move of the cursor
            self.judged = (self.pen.text, self.known)
            self.problems = profile_text.problems(self.known, self.pen.text, self.path)
        self._draw()

    def _draw(self) -> None:
        self.query_one("#edit-list").styles.height = min(LIST_ROWS, len(self.found))
        self.query_one("#edit-checks").styles.height = max(1, min(CHECK_ROWS, len(self.problems)))
        for row in self.query(Row):
            row.update()

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    # What is drawn ------------------------------------------------------------------------------------

    def _title(self, width: int, height: int, focused: bool) -> list[Line]:
        changed = " (not saved)" if self.pen.text != self.written else ""
        right: Line = [(one_line(self.known.sentence), "dim" if self.known.table is not None else "warn")]
        return [heading([(f"{one_line(self.profile)}{changed}", "title")], right, width)]

    def _list(self, width: int, height: int, focused: bool) -> list[Line]:
        first = max(0, min(self.at - 1, len(self.found) - LIST_ROWS))
        out: list[Line] = []
        for index, one in enumerate(self.found[first : first + LIST_ROWS], first):
            chosen = index == self.at
            text = fit(one_line(one.text.removesuffix("= ").strip()), min(34, width // 2))
            count = f" {index + 1}/{len(self.found)}" if chosen else ""
            out.append(
                [("▸ " if chosen else "  ", "focus"), (text, "strong" if chosen else ""), (f"{count} ", "dim"), (one_line(one.words), "dim")]
            )  # fmt: skip
        return out

    def _help(self, width: int, height: int, focused: bool) -> list[Line]:
        row, column = self.pen.cursor_location
        place = profile_text.place(self.pen.text, row, column)
        if self.found and not place.key:  # what the marked word would be
            place = replace(place, key=self.found[self.at].text.partition(" =")[0])
        said = " ".join(profile_text.explain(self.known, place))
        if not said and self.known.table is None:
            said = self.known.sentence
        pieces = wrap(one_line(said), width - 2)[:HELP_ROWS] if said else []
        return [[(" " + piece, "")] for piece in pieces]

    def _checks(self, width: int, height: int, focused: bool) -> list[Line]:
        if not self.problems:
            known = self.known.table is not None
            return [[(" ✓ nothing is wrong with this file" if known else " ✓ well-formed", "ok")]]
        out: list[Line] = []
        for one in self.problems[:CHECK_ROWS]:
            glyph, role = MARK.get(one.status, ("?", "dim"))
            where = f"line {one.line}: " if one.line else ""
            out.append([(f" {glyph} ", role), (where, "dim"), (one_line(one.sentence), "")])
        more = len(self.problems) - CHECK_ROWS
        if more > 0:
            out[-1].append((f"  and {more} more", "dim"))
        return out

    def _keys(self, width: int, height: int, focused: bool) -> list[Line]:
        words = (("tab", "take it"), ("^n", "next"), ("^p", "previous"), ("^s", "save"), ("esc", "back"))
        row: Line = []
        for key, what in words:
            row += [(f" {key}", "key"), (f" {what} ", "")]
        return [row]

    # What is done -------------------------------------------------------------------------------------

    def on_pen_key(self, message: Pen.Key) -> None:
        if not self.found:
            return
        if message.key != "tab":
            self.at = (self.at + (1 if message.key == "ctrl+n" else -1)) % len(self.found)
            self._draw()
            return
        row, column = self.pen.cursor_location
        place = profile_text.place(self.pen.text, row, column)
        end = column if place.key else self._word_end(row, column)
        self.pen.replace(
            self.found[self.at].text, (row, place.start), (row, end), maintain_selection_offset=False
        )

    def _word_end(self, row: int, column: int) -> int:
        """A key is replaced up to its `=`, when there is one already."""
        line = self.pen.document.get_line(row)
        rest = line[column:]
        return (
            len(line)
            if not rest.strip() or not rest.lstrip().startswith("=")
            else column + rest.index("=") + 1
        )

    def action_save(self) -> None:
        from specdash.config import write

        text = self.pen.text
        try:
            there = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
            if there != self.written and there != text:
                self.written = there
                self.app.notify(
                    "The file was changed by somebody else. ^s again writes over it.",
                    markup=False,
                    severity="warning",
                )
                return
            write.create(self.path, text if text.endswith("\n") else text + "\n", replace=True)
        except (SpecdashError, OSError, UnicodeError) as problem:
            self.app.notify(f"Not saved: {problem}", markup=False, severity="error")
            return
        self.written, self.saved, self.warned = text, True, False
        bad = sum(one.status == "block" for one in self.problems)
        words = f"Saved {self.path}." + (f" {bad} line(s) would be refused." if bad else "")
        self.app.notify(words, markup=False, severity="warning" if bad else "information")
        self._draw()

    def action_leave(self) -> None:
        if self.pen.text != self.written and not self.warned:
            self.warned = True
            self.app.notify(
                "Not saved: ^s saves, esc again throws the changes away.", markup=False, severity="warning"
            )
            return
        self.dismiss(self.saved)


def file_of(app: Any, name: str) -> Path | None:
    """The file of a profile; None, and said, when it has none."""
    row = next((row for row in app.profile_rows if row.name == name), None)
    if row is not None and row.path:
        return Path(row.path)
    app.tell("This profile has no file that could be edited.", "warning")
    return None


def edit(app: Any, name: str, done: Callable[[bool | None], None]) -> None:
    """Open the editor on a profile, from wherever profiles are listed; a file that cannot be read is said."""
    path = file_of(app, name)
    if path is None:
        return
    try:
        editor = EditProfile(name, path)
    except (OSError, UnicodeError) as problem:
        app.tell(f"Could not read {path}: {problem}. E of the profiles (P) opens it with $EDITOR.", "warning")
        return
    app.push_screen(editor, done)
