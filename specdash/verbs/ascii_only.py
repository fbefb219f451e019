"""Output where the encoding is not UTF-8: the nearest ASCII in place of each character that is missing."""

from __future__ import annotations

import codecs

NAME = "specdash-ascii"
_NEAREST = {
    "…": "...",
    "–": "-",
    "—": "-",
    "−": "-",
    "→": "->",
    "←": "<-",
    "↑": "^",
    "↓": "v",
    "≥": ">=",
    "≤": "<=",
    "×": "x",
    "·": ".",
    "°": "deg",
    "✓": "ok",
    "✗": "x",
    "●": "*",
    "○": "o",
    "│": "|",
    "─": "-",
    "“": '"',
    "”": '"',
    "‘": "'",
    "’": "'",
    "µ": "u",
}


def register() -> None:
    """Makes `errors="specdash-ascii"` known to Python's codecs."""
    codecs.register_error(NAME, replace)


def replace(problem: UnicodeError) -> tuple[str | bytes, int]:
    """Codec error handler: nearest ASCII, else `?`; a byte carried as a surrogate is written as it is."""
    if not isinstance(problem, UnicodeEncodeError):
        raise problem
    char = problem.object[problem.start]
    if 0xDC80 <= ord(char) <= 0xDCFF:
        return bytes([ord(char) - 0xDC00]), problem.start + 1
    return _NEAREST.get(char, "?"), problem.start + 1


def to_ascii(text: str) -> str:
    """The same for a whole text."""
    return "".join(c if c.isascii() else _NEAREST.get(c, "?") for c in text)
