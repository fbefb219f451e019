"""Values that a host sent, taken apart without trusting their shape. Wrong shape is None, never an error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

LONGEST = 4096
EMPTY: Mapping[str, Any] = {}


def number(value: Any) -> float | None:
    """A finite number; booleans and strings are not numbers."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        out = float(value)
    except OverflowError:
        return None
    return out if math.isfinite(out) else None


def whole(value: Any) -> int | None:
    found = number(value)
    return None if found is None else int(found)


def text(value: Any, longest: int = LONGEST) -> str:
    """A string, cut; anything else is empty."""
    return value[:longest] if isinstance(value, str) else ""


def texts(value: Any) -> tuple[str, ...]:
    return (
        tuple(text(item) for item in value if isinstance(item, str))
        if isinstance(value, (list, tuple))
        else ()
    )


def flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else EMPTY


def rows(value: Any) -> tuple[Mapping[str, Any], ...]:
    """The mappings in a list; the rest is left out."""
    if not isinstance(value, (list, tuple)):
        return ()
    return tuple(row for row in value if isinstance(row, Mapping))
