"""Settings that make the drawn text the same everywhere, and the snapshot fixture."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ["TEXTUAL_ANIMATIONS"] = "none"
for name in ("LC_ALL", "LC_CTYPE", "SSH_CONNECTION", "NO_COLOR", "SPECDASH_ASCII"):
    os.environ.pop(name, None)
os.environ["LANG"] = "C.UTF-8"

SNAPSHOTS = Path(__file__).parent / "snapshots"


@pytest.fixture
def same() -> Callable[[str, str], None]:
    """Compares with tests/tui/snapshots/NAME.txt; SPECDASH_SNAPSHOTS=write makes them anew."""

    def compare(name: str, text: str) -> None:
        path = SNAPSHOTS / f"{name}.txt"
        if os.environ.get("SPECDASH_SNAPSHOTS") == "write":
            SNAPSHOTS.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        assert path.exists(), f"no snapshot {path.name}; make it with SPECDASH_SNAPSHOTS=write"
        assert text == path.read_text(encoding="utf-8")

    return compare
