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
