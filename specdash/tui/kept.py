"""What the operator chose to see, from one start to the next: the log's filters, wrap, times; the theme.

A convenience: a file that cannot be read or written costs the choice, never the screen.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

MOST_BYTES = 65_536


class Kept:
    """`values` by name; `file` None keeps nothing. 0600, since a filter may hold words of a log."""

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self.values: dict[str, Any] = {}
        if file is not None:
            with contextlib.suppress(OSError, ValueError, RecursionError):
                with file.open("rb") as handle:
                    found = json.loads(handle.read(MOST_BYTES))
                self.values = found if isinstance(found, dict) else {}

    def table(self, name: str) -> dict[str, Any]:
        found = self.values.get(name)
        return found if isinstance(found, dict) else {}

    def word(self, name: str) -> str:
        found = self.values.get(name)
        return found if isinstance(found, str) else ""

    def put(self, name: str, value: Any) -> None:
        """Written whole and renamed: another specdash never reads half of it."""
        if self.values.get(name) == value:
            return
        self.values[name] = value
        if self.file is None:
            return
        half = self.file.with_name(f".{self.file.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                json.dump(self.values, out)
            half.replace(self.file)
