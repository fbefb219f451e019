"""Append-only JSON lines: what a supervisor writes and everybody else reads by byte position.

A line is whole or it is not there (one write each). When the disk is full the newest lines wait in memory,
bounded, and are written when there is room again.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from typing import Any, Deque, Dict, List, Optional, Tuple

from specdash.host.remote.procs import boot_now, read_bytes

MAX_LINE = 1 << 20


class Journal:
    """Writer of one file. `max_bytes`: when it grows past, it becomes `FILE.1` and a new one starts."""

    def __init__(self, path: str, max_bytes: int = 8 << 20, sync: bool = False) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.sync = sync
        self.waiting: Deque[bytes] = deque(maxlen=500)
        self.lock = threading.Lock()

    def add(self, **facts: Any) -> Dict[str, Any]:
        """Write one record; `boot_s` (CLOCK_BOOTTIME, s) and `unix` (s) are added. Returns the record."""
        record = dict(boot_s=round(boot_now(), 3), unix=round(time.time(), 3), **facts)
        with self.lock:
            self.waiting.append(json.dumps(record, separators=(",", ":")).encode("ascii") + b"\n")
            self._flush()
        return record

    def _flush(self) -> None:
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        try:
            size = os.fstat(handle).st_size
            while self.waiting:
                line = self.waiting[0]
                wrote = os.write(handle, line)
                if wrote < len(line):  # no room for the whole line: take back the piece
                    os.ftruncate(handle, size)
                    return
                size += wrote
                self.waiting.popleft()
            if self.sync:
                os.fsync(handle)
            if size > self.max_bytes:
                os.replace(self.path, self.path + ".1")
        except OSError:
            return
        finally:
            os.close(handle)


def read(
    path: str, position: Optional[Dict[str, int]] = None, limit: int = 1 << 20
) -> Tuple[List[Any], Dict[str, int]]:
    """Whole records from `position` ({"inode", "offset"}), at most `limit` bytes, and the position after them.

    When the file was rotated meanwhile, the rest of `FILE.1` comes first. A torn last line waits for its end;
    a line that is no JSON object is skipped.
    """
    inode, offset = (position or {}).get("inode", 0), (position or {}).get("offset", 0)
    for name in (path + ".1", path):
        try:
            with open(name, "rb") as file:
                here = os.fstat(file.fileno()).st_ino
                if name != path:
                    if position is None:
                        inode = here  # from the first record there is
                    elif inode != here:
                        continue
                elif inode != here:
                    inode, offset = here, 0
                file.seek(offset)
                data = file.read(limit)
        except OSError:
            continue
        data = data[: data.rfind(b"\n") + 1]
        if not data and name != path:
            continue
        return parse(data), {"inode": inode, "offset": offset + len(data)}
    return [], {"inode": inode, "offset": offset}


def parse(data: bytes) -> List[Any]:
    found = []
    for line in data.splitlines():
        try:
            record = json.loads(line.decode("utf-8", "replace"))
        except ValueError:
            continue
        if isinstance(record, dict):
            found.append(record)
    return found


def last(path: str, limit: int = 65536) -> List[Any]:
    """Records in the last `limit` bytes of a file, oldest first."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - limit))
            data = file.read(limit)
    except OSError:
        return []
    if size > limit:
        data = data.partition(b"\n")[2]
    return parse(data)


def load(path: str, limit: int = 4 << 20) -> Optional[Any]:
    """One JSON file, or None when it is missing or broken."""
    raw = read_bytes(path, limit)
    try:
        return None if raw is None else json.loads(raw.decode("utf-8", "replace"))
    except ValueError:
        return None


def save(path: str, value: Any) -> None:
    """Write one JSON file so that a reader sees the old or the new one, never half of it."""
    put(path, json.dumps(value, indent=1).encode("ascii") + b"\n")


def put(path: str, data: bytes) -> None:
    """Write bytes to a 0600 file, by rename."""
    fresh = "%s.new.%d" % (path, os.getpid())
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except OSError:
        if os.path.exists(fresh):
            os.unlink(fresh)
        raise
