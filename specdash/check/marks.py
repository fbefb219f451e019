"""What the last check saw, so that this one can tell what is new: how far the log was read, and the token counter.

One small file for each thing looked at, in the state folder of whoever checks, replaced whole. It holds positions
and counts, no text of a log. A mark belongs to one command line (`tag`): a person who checks by hand must not take
news away from the cron job. Without a folder that can be written there is no memory, and nothing else changes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import stat
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MOST_FILES = 1024
OLDEST_S = 30 * 86400.0
BEFORE = 64
"""Bytes before a position that must be the same there: else the log is another one."""


@dataclass(frozen=True, slots=True)
class Mark:
    """`offset`: end of the last whole line that was read. `before`: hex of the bytes in front of it."""

    at_unix: float
    device: int = 0
    inode: int = 0
    offset: int = 0
    before: str = ""
    running: float | None = None
    tokens: float | None = None
    deaf_unix: float | None = None
    """When its port was first seen to give no answer; None: it answered."""

    def same_file(self, device: object, inode: object) -> bool:
        return bool(self.inode) and (self.device, self.inode) == (device, inode)


class Marks:
    """`folder` None: nothing is kept."""

    def __init__(self, folder: Path | None, tag: str = "") -> None:
        self._folder = folder
        self._tag = tag

    def get(self, key: str) -> Mark | None:
        """The last check's mark; None when there is none, or none that can be read."""
        if self._folder is None:
            return None
        try:
            data = json.loads(_start_of(self._path(key)))
            mark = Mark(**{name: data[name] for name in Mark.__dataclass_fields__ if name in data})
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None
        return mark if _sound(mark) else None

    def put(self, key: str, mark: Mark) -> None:
        """Never raises: a check without a memory is still a check."""
        if self._folder is None:
            return
        path = self._path(key)
        beside = ""
        with contextlib.suppress(OSError):
            if not path.exists():
                self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._thin_out()
            handle, beside = tempfile.mkstemp(".new", ".mark-", self._folder)
            with os.fdopen(handle, "w", encoding="ascii") as file:
                json.dump(asdict(mark), file)
            Path(beside).replace(path)
            beside = ""
        if beside:
            with contextlib.suppress(OSError):
                Path(beside).unlink()

    def _path(self, key: str) -> Path:
        assert self._folder is not None
        name = hashlib.sha256(f"{self._tag}\0{key}".encode("utf-8", "surrogateescape")).hexdigest()[:32]
        return self._folder / f"{name}.json"

    def _thin_out(self) -> None:
        """Before a new file: what nobody has looked at for a month goes, and what is above the bound."""
        assert self._folder is not None
        aged = []
        with os.scandir(self._folder) as found:
            for entry in found:
                with contextlib.suppress(OSError):
                    aged.append((entry.stat().st_mtime, entry.path))
        aged.sort()
        oldest = time.time() - OLDEST_S
        too_many = len(aged) - (MOST_FILES - 1)
        for at, (written, path) in enumerate(aged):
            if written < oldest or at < too_many:
                with contextlib.suppress(OSError):
                    Path(path).unlink()


def _start_of(path: Path) -> bytes:
    """Of a plain file: a pipe in its place would be waited for beyond every timeout."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        return file.read(4096) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""


def _sound(mark: Mark) -> bool:
    places: tuple[Any, ...] = (mark.device, mark.inode, mark.offset)
    counts = (mark.running, mark.tokens, mark.deaf_unix)
    return (
        all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in places)
        and _finite(mark.at_unix)
        and mark.at_unix >= 0
        and all(c is None or _finite(c) for c in counts)
        and isinstance(mark.before, str)
    )


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
