"""Plots in braille and blocks. Pure: numbers in, rows of text out; a missing value is a gap, never 0."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

Series = Sequence[tuple[float, float | None]]
"""(time in seconds, value or None for a gap), oldest first."""

_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def resample(series: Series, start: float, end: float, columns: int) -> list[float | None]:
    """Mean per column over [start, end); an empty column within one step of a value repeats it.

    Samples come once a second but seldom fall one into each column, so holes of a single sampling step are
    bridged; longer holes stay gaps.
    """
    if columns <= 0 or end <= start:
        return []
    sums = [0.0] * columns
    counts = [0] * columns
    gaps = [False] * columns
    step = (end - start) / columns
    times = []
    for at, value in series:
        if not start <= at < end:
            continue
        times.append(at)
        column = min(columns - 1, int((at - start) / step))
        if value is None:
            gaps[column] = True
        else:
            sums[column] += value
            counts[column] += 1
    spacing = sorted(b - a for a, b in pairwise(times))
    usual = spacing[len(spacing) // 2] if spacing else 0.0
    reach = max(1, round(1.6 * usual / step)) if usual else 1
    out: list[float | None] = []
    last: float | None = None
    since = 0
    for column in range(columns):
        if counts[column]:
            last = sums[column] / counts[column]
            since = 0
            out.append(last)
        elif gaps[column]:
            last = None
            out.append(None)
        else:
            since += 1
            out.append(last if last is not None and since <= reach else None)
    return out


def nice_top(values: Sequence[float | None], floor: float = 1.0) -> float:
    """A round number at or over the largest value."""
    top = max([floor, *(v for v in values if v is not None)])
    magnitude = 1.0
    while magnitude * 10 <= top:
        magnitude *= 10
    while magnitude > top:
        magnitude /= 10
    for factor in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10):
        if factor * magnitude >= top - 1e-9:
            return factor * magnitude
    return top


def spark(values: Sequence[float | None], low: float = 0.0, high: float | None = None) -> str:
    """One row of block elements; a gap is a space, and a known 0 is the lowest block."""
    top = nice_top(values) if high is None else high
    span = (top - low) or 1.0
    out = []
    for value in values:
        if value is None:
            out.append(" ")
        else:
            out.append("▁▂▃▄▅▆▇█"[min(7, max(0, int((value - low) / span * 7.999)))])
    return "".join(out)


def braille(
    values: Sequence[float | None], width: int, height: int, low: float, high: float
) -> list[list[int]]:
    """Braille bits per cell for a line through `values` (two per cell in x, four dots a cell in y)."""
    grid = [[0] * width for _ in range(height)]
    span = (high - low) or 1.0
    rows = height * 4
    previous: int | None = None
    for x, value in enumerate(values[: width * 2]):
        if value is None:
            previous = None
            continue
        y = rows - 1 - min(rows - 1, max(0, int((value - low) / span * (rows - 1) + 0.5)))
        first, last = (y, y) if previous is None else (min(y, previous), max(y, previous))
        for dot in range(first, last + 1):
            grid[dot // 4][x // 2] |= _DOTS[x % 2][dot % 4]
        previous = y
    return grid


def chart(
    values: Sequence[float | None],
    width: int,
    height: int,
    low: float,
    high: float,
    rule: float | None = None,
) -> list[list[tuple[str, str]]]:
    """Rows of (text, role): the curve has role "plot", the horizontal `rule` (break-even) "rule-mark".

    The curve is drawn over the rule: where both meet, the curve wins and the rule shows on both sides.
    """
    grid = braille(values, width, height, low, high)
    rule_row = None
    if rule is not None and low <= rule <= high:
        span = (high - low) or 1.0
        rule_row = height - 1 - min(height - 1, int((rule - low) / span * (height - 1) + 0.5))
    out = []
    for y, cells in enumerate(grid):
        row: list[tuple[str, str]] = []
        for bits in cells:
            if bits:
                char, role = chr(0x2800 + bits), "plot"
            elif y == rule_row:
                char, role = "╌", "rule-mark"
            else:
                char, role = " ", ""
            if row and row[-1][1] == role:
                row[-1] = (row[-1][0] + char, role)
            else:
                row.append((char, role))
        out.append(row)
    return out


_BIG = {
    "0": ("╭─╮", "│ │", "╰─╯"),
    "1": ("╶╮ ", " │ ", "╶┴╴"),
    "2": ("╶─╮", "╭─╯", "╰─╴"),
    "3": ("╶─╮", " ─┤", "╶─╯"),
    "4": ("╷ ╷", "╰─┤", "  ╵"),
    "5": ("╭─╴", "╰─╮", "╶─╯"),
    "6": ("╭─╴", "├─╮", "╰─╯"),
    "7": ("╶─╮", "  │", "  ╵"),
    "8": ("╭─╮", "├─┤", "╰─╯"),
    "9": ("╭─╮", "╰─┤", "╶─╯"),
    ".": (" ", " ", "."),
    ",": (" ", " ", ","),
    "—": ("   ", "╶─╴", "   "),
    "-": ("   ", "╶─╴", "   "),
    " ": (" ", " ", " "),
}


def big(text: str) -> list[str]:
    """Three rows of box-drawn digits."""
    return ["".join(_BIG.get(char, _BIG[" "])[row] for char in text) for row in range(3)]
