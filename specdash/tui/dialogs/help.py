"""Keys of what is on the screen: read from the bindings themselves, remapped ones included."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from textual.binding import Binding
from textual.widget import Widget

from specdash.tui.actions import ACTIONS, key_word
from specdash.tui.cells import wrap
from specdash.tui.dialogs.base import Page
from specdash.tui.logview import LogView
from specdash.tui.side import Side
from specdash.tui.words import Line

WORDS = (
    "accept length: tokens per target verify step, the bonus token included, as SGLang counts.",
    "break-even: the accept length at which speculation is as fast as the base server under the same load.",
    "— is not available. idle is idle, not 0. Dimmed italics with an age are old data.",
    "GPU letters: a run's letter, s another run of ours, o others, ? hidden, · free, ! a problem.",
)


class HelpScreen(Page[None]):
    title_words = "Keys"

    def __init__(self, focused: Widget | None) -> None:
        super().__init__()
        self.focused_widget = focused

    def rows(self, width: int) -> Sequence[Line]:
        app = self.host_app
        keymap: dict[str, str] = app._keys
        out: list[Line] = []
        panels: list[tuple[str, type[Widget]]] = [("In the log", LogView), ("In hosts and profiles", Side)]
        if isinstance(self.focused_widget, Side):
            panels.reverse()
        for title, kind in panels[:1]:
            out += self._keys_of(title, kind, keymap, width)
        groups = list(dict.fromkeys(action.group for action in ACTIONS))
        shown = ""
        for action in sorted(ACTIONS, key=lambda a: groups.index(a.group)):
            if action.group != shown:
                shown = action.group
                out.append([(f" {shown}", "title")])
            why = app.why_not(action)
            out += _action(key_word(keymap.get(action.id, action.key)), action.help, why, width)
        out.append([("   Tab       ", "key"), ("Next panel", "")])
        out.append([("   Esc       ", "key"), ("End a search or selection; put a message away", "")])
        for title, kind in panels[1:]:
            out += self._keys_of(title, kind, keymap, width)
        out.append([(" Words", "title")])
        out += [[(f"   {word}", "dim")] for word in WORDS]
        return out

    def _keys_of(self, title: str, kind: type[Widget], keymap: dict[str, str], width: int) -> list[Line]:
        out: list[Line] = [[(f" {title}", "title")]]
        for binding in kind.BINDINGS:
            if isinstance(binding, Binding):
                keys = keymap.get(binding.id or "", binding.key)
                out.append([(f"   {key_word(keys):<10}", "key"), (binding.description, "")])
        return out


def _action(key: str, words: str, why: str, width: int) -> list[Line]:
    """One row where it fits; else the words, and why it is not to be had now, in rows of their own."""
    role = "dim" if why else ""
    start: Line = [(f"   {key:<10}", "key")]
    if 13 + cell_len(words) + (11 + cell_len(why) if why else 0) <= width:
        return [[*start, (words, role), *([(f"  not now: {why}", "warn")] if why else [])]]
    rows = [(row, role) for row in wrap(words, width - 13)]
    rows += [(row, "warn") for row in wrap(f"not now: {why}", width - 13, "  ")] if why else []
    return [[*(start if i == 0 else [(" " * 13, "")]), row] for i, row in enumerate(rows)]
