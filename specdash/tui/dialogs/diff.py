"""The difference of two profiles as rows: what goes, what comes, nothing that stays the same."""

from __future__ import annotations

from collections.abc import Sequence

from specdash.tui.words import Line, one_line


def diff_rows(before: Sequence[str], after: Sequence[str]) -> list[Line]:
    """`− old` and `+ new` rows, an option's old and new value together."""
    gone = [row for row in before if row not in after]
    come = [row for row in after if row not in before]
    names = {row.split(" ", 1)[0]: row for row in come}
    out: list[Line] = []
    used: set[str] = set()
    for row in gone:
        out.append([(" − ", "bad"), (one_line(row), "")])
        partner = names.get(row.split(" ", 1)[0])
        if partner is not None and partner not in used:
            used.add(partner)
            out.append([(" + ", "ok"), (one_line(partner), "")])
    out += [[(" + ", "ok"), (one_line(row), "")] for row in come if row not in used]
    return out or [[(" no difference", "dim")]]
