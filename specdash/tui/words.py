"""Numbers and ages as words. Pure; every function takes None and says "—": unknown is never 0."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from specdash.monitor.state import Reading

DASH = "—"
STALE_AFTER_S = 5.0
"""Older than this is drawn stale: three missed one-second samples and the way back."""

Span = tuple[str, str]
"""(text, role). A role is a word such as "dim" or "bad"; `tui.paint` turns it into a style."""
Line = list[Span]


def age(seconds: float | None) -> str:
    """12 → "12 s", 95 → "1 min 35 s", 7300 → "2 h 1 min"; None → "—"."""
    if seconds is None:
        return DASH
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def clock(seconds: float | None) -> str:
    """A duration as 0:42, 5:13, 1:02:03; None → "—"."""
    if seconds is None:
        return DASH
    whole = max(0, round(seconds))
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d}"
    return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"


def number(value: float | None, digits: int = 1) -> str:
    """Thousands by a comma; no decimals from 1000 on."""
    if value is None:
        return DASH
    if digits and abs(value) >= 999.95:
        digits = 0
    return f"{value:,.{digits}f}"


def share(value: float | None) -> str:
    """0..1 as a percentage."""
    return DASH if value is None else f"{value * 100:.0f} %"


def percent(value: float | None) -> str:
    """0..100 as a percentage without a space, for bars."""
    return DASH if value is None else f"{value:.0f}%"


def signed_share(value: float | None) -> str:
    return DASH if value is None else f"{value * 100:+.0f} %".replace("-", "−")


def gib(mib: float | None) -> str:
    """MiB as GiB without its unit: 101044 → "98.7"; from 100 on no decimals."""
    if mib is None:
        return DASH
    value = mib / 1024
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}"


def size(count: int | float | None) -> str:
    """Bytes: 1536 → "1.5 KiB"."""
    if count is None:
        return DASH
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def millis(seconds: float | None) -> str:
    """A latency: 0.0123 → "12 ms", 2.5 → "2.5 s"."""
    if seconds is None:
        return DASH
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.00995 else f"{seconds * 1000:.1f} ms"
    return f"{seconds:.1f} s" if seconds < 99.95 else f"{seconds:.0f} s"


def stale(reading: Reading[Any], now: float, limit_s: float = STALE_AFTER_S) -> bool:
    """True when it was once seen and is now too old to be called live."""
    old = reading.age(now)
    return old is not None and old > limit_s + (reading.window_s or 0.0)


def age_note(seconds: float | None, limit_s: float = STALE_AFTER_S) -> str:
    """ "12 s old" when past the limit, else ""."""
    return f"{age(seconds)} old" if seconds is not None and seconds > limit_s else ""


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def one_line(text: object) -> str:
    """Untrusted text made safe and flat for a single row: no control, no bidi override, no newline."""
    out = []
    for char in str(text):
        code = ord(char)
        if code < 32 or 0x7F <= code < 0xA0:
            out.append(" " if char in "\t\n\r" else "\ufffd")
        elif code in BIDI or 0xD800 <= code <= 0xDFFF:
            out.append("\ufffd")
        else:
            out.append(char)
    return "".join(out)


BIDI = frozenset({0x200E, 0x200F, 0x061C, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029})
"""Marks that reorder what follows on a terminal row: never sent on."""


def text_of(lines: Iterable[Line]) -> list[str]:
    """The words alone, for tests and for copying."""
    return ["".join(text for text, _ in line).rstrip() for line in lines]
