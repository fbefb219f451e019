"""Rows of spans measured and cut in terminal cells (wide characters count two). Pure."""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size

from specdash.tui.words import Line, Span

ELLIPSIS = "…"


def width_of(line: Line) -> int:
    return sum(cell_len(text) for text, _ in line)


def cut(text: str, width: int) -> str:
    """At most `width` cells; what was longer ends with an ellipsis."""
    if width <= 0:
        return ""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip(" ") + ELLIPSIS if width > 1 else ELLIPSIS


def fit(text: str, width: int, align: str = "left") -> str:
    """Exactly `width` cells."""
    text = cut(text, width)
    pad = " " * (width - cell_len(text))
    return pad + text if align == "right" else text + pad


def cut_middle(text: str, width: int) -> str:
    """At most `width` cells, the ellipsis in the middle: names that differ at their ends stay apart."""
    if cell_len(text) <= width:
        return text
    if width < 6:
        return cut(text, width)
    tail = (width - 1) * 3 // 5
    end = text
    while cell_len(end) > tail:
        end = end[1:]
    return set_cell_size(text, width - 1 - cell_len(end)).rstrip(" ") + ELLIPSIS + end


def cut_line(line: Line, width: int) -> Line:
    """The line in at most `width` cells, with an ellipsis where it was longer."""
    if width_of(line) <= width:
        return line
    out: Line = []
    left = width
    for text, role in line:
        size = cell_len(text)
        if size < left:
            out.append((text, role))
            left -= size
            continue
        out.append((cut(text + ELLIPSIS if size == left else text, left), role))
        break
    return out


def spread(left: Line, right: Line, width: int, fill: Span = (" ", "")) -> Line:
    """`left` at the left edge, `right` at the right edge; the right one is kept when both do not fit."""
    space = width - width_of(left) - width_of(right)
    if space < 1:
        right = cut_line(right, max(0, width * 2 // 3))
        left = cut_line(left, width - width_of(right) - 1)
        space = width - width_of(left) - width_of(right)
    return [*left, (fill[0] * space, fill[1]), *right]


def heading(title: Line, right: Line, width: int, focused: bool = False) -> Line:
    """`── title ─────────── right ──`: a panel's top row. Heavy when it has the focus."""
    rule = "━" if focused else "─"
    role = "focus" if focused else "rule"
    tail: Line = [(" ", ""), *right, (" ", ""), (rule, role)] if right else []
    return spread([(rule + " ", role), *title, (" ", "")], tail, width, (rule, role))


def clip(rows: list[Line], most: int, width: int) -> list[Line]:
    """At most `most` rows; what was left out shows as an ellipsis at the end of the last."""
    if len(rows) <= most or most <= 0:
        return rows[: max(0, most)]
    last = rows[most - 1]
    return [*rows[: most - 1], [*cut_line(last, width - 2), (" " + ELLIPSIS, "dim")]]


def wrap(words: str, width: int, indent: str = "") -> list[str]:
    """Plain words in rows of at most `width` cells; continuation rows get `indent`."""
    if width < 4:
        return [cut(words, width)]
    rows: list[str] = []
    row = ""
    for word in words.split():
        at = 0
        # A word may be a line of 300,000 characters: only what a row can hold of it is ever measured.
        while len(ahead := word[at : at + 4 * width]) < len(word) - at or cell_len(ahead) > width - len(
            indent
        ):
            head = set_cell_size(ahead, width - len(indent) - (cell_len(row) + 1 if row else 0))
            if not head.strip() or not ahead.startswith(head):
                break
            row, at = f"{row} {head}" if row else head, at + len(head)
            rows.append(row)
            row = indent
        word = word[at:]
        candidate = f"{row} {word}" if row.strip() else row + word
        if cell_len(candidate) <= width:
            row = candidate
        else:
            rows.append(row)
            row = indent + word
    if row.strip():
        rows.append(row)
    return rows


def bar(value: float | None, width: int, unknown: str = "╌") -> str:
    """A horizontal bar of eighth blocks, `value` 0..1, exactly `width` cells; unknown is dotted."""
    if value is None:
        return unknown * width
    eighths = round(min(1.0, max(0.0, value)) * width * 8)
    full, part = divmod(eighths, 8)
    return ("█" * full + (" ▏▎▍▌▋▊▉"[part] if part else "")).ljust(width)[:width]


def sheared(line: Line, start: int, width: int) -> Line:
    """The cells from `start` on, at most `width` of them; a wide character cut in two becomes spaces."""
    out: Line = []
    at = 0
    for text, role in line:
        piece = []
        for char in text:
            size = cell_len(char)
            if at >= start and at + size <= start + width:
                piece.append(char)
            elif at < start < at + size or at < start + width < at + size:
                piece.append(" ")
            at += size
        if piece:
            out.append(("".join(piece), role))
        if at >= start + width:
            break
    return out


def thin_bar(value: float | None, width: int) -> tuple[str, str]:
    """(filled, rest) of a thin bar in half cells, together `width` cells; unknown is all rest, dotted."""
    if value is None:
        return "", "╌" * width
    halves = round(min(1.0, max(0.0, value)) * width * 2)
    full, half = divmod(halves, 2)
    filled = "━" * full + ("╸" if half else "")
    return filled, "─" * (width - len(filled))
