"""Roles to styles, and `Lines`: a widget that shows rows of spans and repaints only rows that changed.

Nothing here reads markup: a span's text goes to the terminal as it is, made safe by `words.one_line`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from specdash.tui.cells import cut_line
from specdash.tui.words import Line

ROLES: dict[str, tuple[str, str]] = {
    # role: (theme variable, extra)
    "": ("foreground", ""),
    "dim": ("sd-dim", ""),
    "stale": ("sd-dim", "italic"),
    "strong": ("foreground", "bold"),
    "rule": ("sd-rule", ""),
    "focus": ("accent", "bold"),
    "title": ("accent", "bold"),
    "key": ("accent", "bold"),
    "ok": ("success", ""),
    "ok-strong": ("success", "bold"),
    "warn": ("warning", ""),
    "warn-strong": ("warning", "bold"),
    "bad": ("error", ""),
    "bad-strong": ("error", "bold"),
    "bar": ("sd-bar", ""),
    "bar-other": ("sd-other", ""),
    "plot": ("sd-plot", ""),
    "plot-2": ("sd-bar", ""),
    "rule-mark": ("warning", ""),
    "big": ("foreground", "bold"),
    "badge": ("warning", "bold reverse"),
    "cursor": ("accent", "reverse"),
    "match": ("warning", "reverse"),
    "A": ("sd-bar", "bold"),
    "B": ("sd-plot", "bold"),
    "C": ("sd-other", "bold"),
}
"""Each meaning is also told by a letter, a glyph or a word: colour only repeats it."""

ASCII = str.maketrans(
    {
        **dict.fromkeys("─╌┄╴╶", "-"),
        **dict.fromkeys("│┃╷╵", "|"),
        **dict.fromkeys("╭╮╰╯├┤┴┬┼", "+"),
        **dict.fromkeys("█▉▊▋▌▇", "#"),
        **dict.fromkeys("▍▎▏▃▄▅▆", "="),
        **dict.fromkeys("▁▂", "_"),
        **{chr(0x2800 + i): ("." if i & 0xE4 else "'") for i in range(1, 256)},
        "●": "*", "○": "o", "◌": "o", "▸": ">", "▾": "v", "✓": "+", "✗": "x", "·": ".", "…": "~", "—": "-",
        "−": "-", "→": ">", "↑": "^", "↓": "v", "▲": "^", "▼": "v", "×": "x", "⚠": "!", "◆": "*", "━": "=", "╸": "=", "°": " ",
        "↵": "~", "«": "<", "»": ">", "▶": ">", "◇": "o", "↻": "@", "“": '"', "”": '"', "’": "'",
    }
)  # fmt: skip
"""What the C locale can show."""


def to_ascii(text: str) -> str:
    """The text in ASCII, cell for cell."""
    if text.isascii():
        return text
    text = text.translate(ASCII)
    return text if text.isascii() else "".join(c if c.isascii() else "?" * cell_len(c) for c in text)


def styles_for(variables: dict[str, str]) -> dict[str, Style]:
    """Rich styles by role from a theme's variables."""
    out = {}
    for role, (variable, extra) in ROLES.items():
        colour = variables.get(variable) or variables.get("foreground", "default")
        if colour.startswith("ansi_"):
            colour = colour.removeprefix("ansi_")
        try:
            out[role] = Style.parse(f"{extra} {colour}".strip())
        except Exception:
            # "auto 87%" and the like are CSS, not a terminal colour: leave the terminal's own.
            out[role] = Style.parse(extra) if extra else Style.null()
    return out


class Painter:
    """Mixed into widgets that draw by rows: role lookup and the ASCII fallback."""

    app: Any

    def strip_of(self, line: Line, width: int, base: Style) -> Strip:
        """One row of exactly `width` cells. Cut with an ellipsis when it is longer."""
        styles: dict[str, Style] = self.app.role_styles
        plain: bool = self.app.ascii_only
        segments = []
        for text, role in cut_line(line, width):
            if plain:
                text = to_ascii(text)
            style = styles.get(role)
            if style is None:
                style = Style()
                for part in role.split("+"):
                    style += styles.get(part, Style.null())
                styles[role] = style
            segments.append(Segment(text, base + style))
        return Strip(segments).adjust_cell_length(width, base)


class Lines(Widget, Painter):
    """Shows `rows`. `show_rows` compares with what is on screen and repaints only what differs."""

    DEFAULT_CSS = "Lines { height: auto; width: 1fr; }"

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.rows: list[Line] = []

    def show_rows(self, rows: Sequence[Line]) -> None:
        new = list(rows)
        old, self.rows = self.rows, new
        if len(new) != len(old) and self.styles.height is not None and self.styles.height.is_auto:
            self.refresh(layout=True)
            return
        changed = [
            y
            for y in range(max(len(new), len(old)))
            if (new[y] if y < len(new) else None) != (old[y] if y < len(old) else None)
        ]
        if changed:
            width = self.size.width
            self.refresh(*(Region(0, y, width, 1) for y in changed))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self.rows)

    def render_line(self, y: int) -> Strip:
        base = self.rich_style
        width = self.size.width
        if y < len(self.rows):
            return self.strip_of(self.rows[y], width, base)
        return Strip.blank(width, base)
