"""SGLang versions compared by their release number: `0.5.15.post1`, `0.5.9.dev3+g1a2b3c`."""

from __future__ import annotations

import re
from typing import Optional, Tuple

_RELEASE = re.compile(r"\s*v?(\d+(?:\.\d+)*)")


def release(version: str) -> Optional[Tuple[int, ...]]:
    """(0, 5, 15) of `0.5.15.post1`; None for what is no version, or the 0.0.0 of an unbuilt checkout."""
    match = _RELEASE.match(version or "")
    if match is None or len(match.group(1)) > 40:
        return None
    numbers = tuple(int(part) for part in match.group(1).split("."))
    return numbers if any(numbers) else None


def between(version: str, first: str = "", last: str = "") -> bool:
    """Whether `first` <= version <= `last`, by release number; an empty bound is open.

    An unknown version counts as newer than all: rules for old builds do not hold for it.
    """
    number = release(version)
    low, high = release(first), release(last)
    if number is None:
        return high is None
    return (low is None or number >= low) and (high is None or number <= high)


def known(version: str) -> bool:
    return release(version) is not None
