"""Compute capability by a GPU's marketing name, for when nobody can ask the driver."""

from __future__ import annotations

import re
from typing import Tuple

_NAMES: Tuple[Tuple[str, str], ...] = (
    (r"\b(GB300|B300)\b", "10.3"),
    (r"\b(GB200|B200|B100)\b", "10.0"),
    (r"\b(GB10|RTX (PRO )?[456]0\d\d Blackwell|RTX PRO|RTX 50\d\d)\b", "12.0"),
    (r"\b(GH200|H200|H100|H800|H20|GH\d+)\b", "9.0"),
    (r"\b(L40S?|L4|L20|RTX 40\d\d|RTX 6000 Ada)\b", "8.9"),
    (r"\b(A10G?|A16|A2|A40|RTX A\d+|RTX 30\d\d)\b", "8.6"),
    (r"\b(A100|A800|A30)\b", "8.0"),
    (r"\b(T4|RTX 20\d\d|Quadro RTX \d+|TITAN RTX)\b", "7.5"),
    (r"\b(V100S?|TITAN V)\b", "7.0"),
    (r"\b(P100)\b", "6.0"),
)


def compute_capability(name: str) -> str:
    """`9.0` for an H200; empty for a name that is not known."""
    for pattern, capability in _NAMES:
        if re.search(pattern, name):
            return capability
    return ""
