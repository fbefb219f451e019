"""Choose a profile from those there are."""

from __future__ import annotations

from collections.abc import Sequence

from specdash.tui.cells import fit
from specdash.tui.dialogs.base import ListPage
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
