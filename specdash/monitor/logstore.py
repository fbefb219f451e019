"""A run's log on the operator's side: exact bytes in a spill file, with a sparse index of lines.

In memory is only how many lines ended before each block of 16 kB (a 1 GB log: 0.5 MB, however long its lines
are), so ten million lines cost nothing, `append` is one write and one count, and `line(i)` reads a block. The file is 0600, since engines print secrets into their logs, and goes away with
the store; files that a killed specdash left behind are removed when the next one starts.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import re
import time
from array import array
from bisect import bisect_left
from pathlib import Path

BLOCK = 16 * 1024
LONGEST_LINE = 64 * 1024
KEEP_S = 24 * 3600.0
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")
_OURS = re.compile(r"\.(\d+)\.log$")


def cache_folder() -> Path:
    """Where spill files are: the user's cache folder of specdash."""
    from platformdirs.unix import Unix

    return Path(Unix("specdash", appauthor=False).user_cache_path) / "logs"


def sweep(folder: Path) -> list[str]:
    """Removes spill files whose specdash is gone, or that are a day old. Returns their names."""
    gone = []
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            match = _OURS.search(entry.name)
            if not match or int(match.group(1)) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                old = time.time() - entry.stat().st_mtime > KEEP_S
                if old or not _alive(int(match.group(1))):
                    entry.unlink()
                    gone.append(entry.name)
    return gone


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


class LogStore:
    """Bytes as they were on the host, in order. `generation_starts`: where a replaced file began."""

    def __init__(self, host: str, run: str, folder: Path | None = None) -> None:
        folder = folder or cache_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = _UNSAFE.sub("_", f"{host}.{run}")[:150]
        self.path = folder / f"{name}.{os.getpid()}.log"
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._file = os.fdopen(handle, "r+b", buffering=0)
        self.size = 0
        self.generation_starts = [0]
        self._before = array("Q", [0])
        self._newlines = 0
        self._ends_with_newline = True

    def append(self, data: bytes) -> None:
        """Raises OSError when the disk is full; what was written before stays right."""
        if not data:
            return
        view = memoryview(data)
        at = self.size
        while view:
            wrote = os.pwrite(self._file.fileno(), view, at)
            at += wrote
            view = view[wrote:]
        self._index(data, self.size)
        self.size += len(data)
        self._ends_with_newline = data.endswith(b"\n")

    def _index(self, data: bytes, base: int) -> None:
        """Notes how many lines have ended before each block."""
        position = 0
        while position < len(data):
            end = position + BLOCK - (base + position) % BLOCK
            self._newlines += data.count(b"\n", position, end)
            if end > len(data):
                return
            self._before.append(self._newlines)
            position = end

    def new_generation(self) -> None:
        """The file on the host was replaced or truncated; what follows comes from the new one."""
        self.generation_starts.append(self.size)

    @property
    def line_count(self) -> int:
        """Lines, an unfinished last one included."""
        return self._newlines + (0 if self._ends_with_newline else 1)

    @property
    def whole_lines(self) -> int:
        """Lines that a newline has ended."""
        return self._newlines

    def read(self, offset: int, length: int) -> bytes:
        """Exact bytes."""
        return os.pread(self._file.fileno(), max(0, min(length, self.size - offset)), max(0, offset))

    def line_offset(self, index: int) -> int:
        """Offset of a line's first byte. IndexError when there is no such line."""
        if not 0 <= index < self.line_count:
            raise IndexError(index)
        if index == 0:
            return 0
        # The line begins behind newline number `index`: in the last block before which there are fewer.
        block = bisect_left(self._before, index) - 1
        data = self.read(block * BLOCK, BLOCK)
        rest = data.split(b"\n", index - self._before[block])[-1]
        return block * BLOCK + len(data) - len(rest)

    def _after_newline(self, offset: int) -> int:
        step = 4096
        while offset < self.size:
            part = self.read(offset, step)
            found = part.find(b"\n")
            if found >= 0:
                return offset + found + 1
            offset += len(part)
            step = min(step * 4, 1 << 20)
        return self.size

    def line(self, index: int) -> bytes:
        """A line without its newline, cut at 64 kB. IndexError when there is no such line."""
        return self._line_at(self.line_offset(index))

    def _line_at(self, offset: int) -> bytes:
        data = self.read(offset, 4096)
        if b"\n" not in data and len(data) == 4096:
            data = self.read(offset, LONGEST_LINE)
        return data.partition(b"\n")[0]

    def lines(self, first: int, count: int) -> list[bytes]:
        """Up to `count` lines from `first`: cheaper than `line` for each."""
        first = max(0, first)
        if first >= self.line_count or count <= 0:
            return []
        offset = self.line_offset(first)
        out: list[bytes] = []
        while len(out) < count and offset < self.size:
            block = self.read(offset, 1 << 18)
            cut = block.rfind(b"\n") + 1
            if cut == 0:  # one line longer than the block, or the unfinished last one
                out.append(block[:LONGEST_LINE])
                offset = self._after_newline(offset)
                continue
            found = block[:cut].split(b"\n")[:-1]
            out.extend(part[:LONGEST_LINE] for part in found)
            offset += cut
        return out[:count]

    def line_at(self, offset: int) -> int:
        """The line that a byte belongs to."""
        block = min(max(offset, 0), self.size) // BLOCK
        return self._before[block] + self.read(block * BLOCK, offset - block * BLOCK).count(b"\n")

    def search(self, pattern: re.Pattern[bytes] | bytes, start: int = 0, direction: int = 1) -> int | None:
        """The nearest line at or after (direction 1), or at or before (-1), line `start` that matches."""
        if self.size == 0 or self.line_count == 0:
            return None
        rule = re.compile(pattern) if isinstance(pattern, bytes) else pattern
        rule = re.compile(rule.pattern, rule.flags | re.MULTILINE)  # `^` and `$` are a line's
        start = min(max(start, 0), self.line_count - 1)
        with mmap.mmap(self._file.fileno(), self.size, access=mmap.ACCESS_READ) as memory:
            if direction >= 0:
                return self._forwards(rule, memory, start)
            return self._backwards(rule, start)

    def _forwards(self, rule: re.Pattern[bytes], memory: mmap.mmap, start: int) -> int | None:
        position = self.line_offset(start)
        while position < self.size:
            found = rule.search(memory, position)
            if found is None:
                return None
            line = self.line_at(found.start())
            # A pattern must hold within one line; `\s` may have crossed into the next.
            if rule.search(self.line(line)):
                return line
            position = self._after_newline(found.start())
            if rule.match(b"") and position <= found.start():
                return None
        return None

    def _backwards(self, rule: re.Pattern[bytes], start: int) -> int | None:
        block_end = start + 1
        while block_end > 0:
            first = max(0, block_end - 1024)
            found = self.lines(first, block_end - first)
            for index in range(len(found) - 1, -1, -1):
                if rule.search(found[index]):
                    return first + index
            block_end = first
        return None

    def sha256(self) -> str:
        """Of all bytes: equal to `sha256sum` of the file on the host when the log was never replaced."""
        digest = hashlib.sha256()
        offset = 0
        while part := self.read(offset, 1 << 20):
            digest.update(part)
            offset += len(part)
        return digest.hexdigest()

    def close(self) -> None:
        """Removes the spill file."""
        if not self._file.closed:
            self._file.close()
            with contextlib.suppress(OSError):
                self.path.unlink()
