"""Following one file the way `tail -F` does, exactly: every byte once, at its own offset.

A position is (device, inode, offset) plus the last bytes before it, `before`. A file is another one when its
inode changed, when it is shorter than the offset, or when the bytes before the offset are not the ones that
were read (truncated and grown again between two looks, or an inode number that was given away again).
Each other file starts a new `generation` at offset 0. A file that was renamed (rotation) is read to its end
first, as long as its old name starts with the log's name, also when it happened while nobody was looking.
"""

from __future__ import annotations

import os
import stat
from typing import Any, Dict, List, Optional, Tuple

PIECE = 256 * 1024
GUARD = 64
"""Bytes before the offset that must still be the same."""
MAX_SIBLINGS = 2000


class Follower:
    """Pure stepping, no thread and no clock: call `step` again and again."""

    def __init__(self, path: str, position: Optional[Dict[str, Any]] = None) -> None:
        position = position or {}
        self.path = os.path.expanduser(path)
        self.offset = int(position.get("offset") or 0)
        self.device = int(position.get("device") or 0)
        self.inode = int(position.get("inode") or 0)
        self.generation = int(position.get("generation") or 0)
        self.size = 0
        self._before = _bytes(position.get("before"))
        self._known = self.inode != 0
        self._fd = -1
        self._gone = ""
        self._replaced = False

    def step(self, limit: int) -> List[Tuple[Dict[str, Any], bytes]]:
        """New chunks as (header, data), at most `limit` bytes; empty when nothing is new."""
        out: List[Tuple[Dict[str, Any], bytes]] = []
        try:
            if self._fd < 0 and not self._open(out):
                return out
            generation = self.generation
            data = self._read(min(limit, PIECE))
        except OSError as error:  # a stale NFS handle, a disk error: look again by name
            self.close()
            self._say_gone(out, "%s: %s" % (self.path, error.strerror or error))
            return out
        if data or generation != self.generation:
            out.append(self._chunk(data))
            return out
        self._look_for_change(out)
        return out

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _chunk(self, data: bytes, gone: str = "") -> Tuple[Dict[str, Any], bytes]:
        header = {
            "t": "chunk",
            "offset": self.offset,
            "size": self.size,
            "generation": self.generation,
            "device": self.device,
            "inode": self.inode,
            "gone": gone,
        }
        self.offset += len(data)
        if data:
            self._before = (self._before + data)[-GUARD:] if len(data) < GUARD else data[-GUARD:]
        return header, data

    def _say_gone(self, out: List[Tuple[Dict[str, Any], bytes]], sentence: str) -> None:
        if sentence != self._gone:
            self._gone = sentence
            out.append(self._chunk(b"", sentence))

    def _open(self, out: List[Tuple[Dict[str, Any], bytes]]) -> bool:
        try:
            fd, info = _open_regular(self.path)
        except OSError as error:
            renamed = self._renamed() if self._known else None
            if renamed is None:
                self._say_gone(out, "%s: %s" % (self.path, error.strerror or error))
                return False
            fd, info = renamed
        if self._known and not self._continues(fd, info):
            older = self._renamed()
            if older is not None:
                os.close(fd)
                fd, info = older
            else:
                self._restart()
        self._fd, self.device, self.inode, self.size = fd, info.st_dev, info.st_ino, info.st_size
        if not self._known or self._gone:
            # Says where we stand, also for an empty file, and takes back an earlier "gone".
            self._gone = ""
            out.append(self._chunk(b""))
        self._known = True
        return True

    def _continues(self, fd: int, info: os.stat_result) -> bool:
        now = (info.st_dev, info.st_ino)
        return same_file((self.device, self.inode), self.offset, now, info.st_size) and self._guard_holds(fd)

    def _guard_holds(self, fd: int) -> bool:
        before = self._before[-self.offset :] if self.offset else b""
        return not before or os.pread(fd, len(before), self.offset - len(before)) == before

    def _restart(self) -> None:
        self.generation += 1
        self.offset = 0
        self._before = b""

    def _renamed(self) -> Optional[Tuple[int, os.stat_result]]:
        """The file we were reading under another name beside the log, if it is still there."""
        folder, name = os.path.split(self.path)
        try:
            with os.scandir(folder or ".") as entries:
                for count, entry in enumerate(entries):
                    if count > MAX_SIBLINGS:
                        break
                    if not entry.name.startswith(name) or entry.name == name or entry.inode() != self.inode:
                        continue
                    fd, info = _open_regular(entry.path)
                    if self._continues(fd, info):
                        return fd, info
                    os.close(fd)
        except OSError:
            pass
        return None

    def _read(self, limit: int) -> bytes:
        """New bytes; on truncation starts again from 0 in a new generation. One pread also checks the guard."""
        before = self._before
        raw = os.pread(self._fd, len(before) + limit, self.offset - len(before))
        if len(raw) > len(before) and raw.startswith(before):
            self.size = max(self.size, self.offset + len(raw) - len(before))
            if len(raw) - len(before) == limit:
                self.size = max(self.size, os.fstat(self._fd).st_size)
            return raw[len(before) :]
        if raw == before and os.fstat(self._fd).st_size >= self.offset:
            return b""
        self._restart()
        self.size = os.fstat(self._fd).st_size
        return os.pread(self._fd, limit, 0)

    def _look_for_change(self, out: List[Tuple[Dict[str, Any], bytes]]) -> None:
        """At the end of the open file: is the path still this file?"""
        try:
            info = os.stat(self.path)
        except OSError as error:
            # The writer may still write to the file that we hold open: go on reading it.
            self._replaced = False
            self._say_gone(out, "%s: %s" % (self.path, error.strerror or error))
            return
        if (info.st_dev, info.st_ino) == (self.device, self.inode):
            self._replaced = False
            if self._gone:
                self._gone = ""
                out.append(self._chunk(b""))
            return
        if not self._replaced:
            # One more look at the old file before leaving it: its writer may not have moved over yet.
            self._replaced = True
            return
        self._replaced = False
        self.close()
        try:
            fd, info = _open_regular(self.path)
        except OSError as error:
            self._say_gone(out, "%s: %s" % (self.path, error.strerror or error))
            return
        self._restart()
        self._fd, self.device, self.inode, self.size = fd, info.st_dev, info.st_ino, info.st_size
        self._gone = ""
        out.append(self._chunk(b""))


def same_file(known: Tuple[int, int], offset: int, now: Tuple[int, int], size: int) -> bool:
    """Whether a file, by (device, inode) and size, can be the one that was read up to `offset`."""
    return now == known and size >= offset


def _open_regular(path: str) -> Tuple[int, os.stat_result]:
    # O_NONBLOCK: opening a named pipe must not hang the agent.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        os.close(fd)
        raise OSError(0, "it is not a regular file")
    return fd, info


def _bytes(value: Any) -> bytes:
    """`before` travels as a latin-1 string."""
    return value.encode("latin-1")[-GUARD:] if isinstance(value, str) else b""
