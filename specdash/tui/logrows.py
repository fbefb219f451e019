"""Which lines of a log are shown: filters and folding over millions of lines, a slice at a time. Pure."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

from specdash.tui import logtext


class Source(Protocol):
    """What the log view reads: `monitor.logstore.LogStore` or a list in tests."""

    @property
    def line_count(self) -> int: ...

    def line(self, index: int, /) -> bytes: ...


@dataclass(frozen=True)
class Filter:
    """All that is set must hold. Empty values do not filter."""

    level: str = ""
    """"error": errors only; "warning": warnings and errors."""
    rank: str = ""
    """A rank as SGLang prints it, e.g. "TP0"; lines without any rank are kept out."""
    origin: str = ""
    """Who wrote the line: one of `logtext.ORIGINS`."""
    text: str = ""
    """A regular expression, or plain words where it does not compile."""
    fold: bool = False
    quiet: bool = False
    """Answered polls of the engine's port are left out."""

    @property
    def active(self) -> bool:
        return self.narrow or self.quiet

    @property
    def narrow(self) -> bool:
        """Something is looked for, beyond keeping polls out of sight."""
        return bool(self.level or self.rank or self.origin or self.text or self.fold)

    def words(self) -> str:
        parts = []
        if self.level:
            parts.append("errors" if self.level == "error" else "warnings and errors")
        if self.rank:
            parts.append(self.rank)
        if self.origin:
            parts.append(logtext.ORIGINS.get(self.origin, self.origin))
        if self.text:
            parts.append(f"/{self.text}/")
        if self.fold:
            parts.append("folded")
        if self.quiet:
            parts.append("polls hidden")
        return ", ".join(parts)


def compile_search(text: str) -> re.Pattern[bytes]:
    """A regex over bytes; smart case; plain words where the regex is broken."""
    raw = text.encode("utf-8", "surrogateescape")
    flags = re.IGNORECASE if text == text.lower() else 0
    try:
        return re.compile(raw, flags)
    except (re.error, OverflowError):
        return re.compile(re.escape(raw), flags)


def lines_of(source: Source, first: int, stop: int) -> list[bytes]:
    """Lines [first, stop), by one read where the source can."""
    many = getattr(source, "lines", None)
    if callable(many):
        return list(many(first, stop - first))
    return [source.line(index) for index in range(first, stop)]


READ_BYTES = 256 * 1024
"""Of log that are judged in one go, however long its lines are: about 10 ms by the slowest filter."""


class Reader:
    """Reads lines in pieces of about `READ_BYTES`, by how long the last ones were."""

    def __init__(self) -> None:
        self._piece = 256

    def piece(self, wanted: int) -> int:
        return max(1, min(wanted, self._piece))

    def took(self, lines: int, length: int) -> None:
        self._piece = max(4, READ_BYTES * lines // max(1, length + lines))


CHUNK = 1024
"""Lines of one chunk: what a look back into a filtered log reads anew (some milliseconds)."""
CACHED = 32
_ONE = array("I", [1])


class Chunk:
    """Which lines of a stretch are shown, and how many equal lines each stands for. 12 bytes a row."""

    def __init__(self, key: bytes | None) -> None:
        self.lines: array[int] = array("Q")
        self.repeats: array[int] = array("I")
        self.lead = 0
        """Lines at its start that repeat the last row before it."""
        self.key = key
        """What the row before the next line folds by; at first that of the row before the chunk."""


class Rows:
    """Row number → line number. Without a filter both are equal and nothing is kept.

    With one, the newest chunk is kept whole; of those before it only how many rows it has, so that a filter over ten
    million lines costs as little as over ten thousand. A look back reads its chunk again.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.reader = Reader()
        self.set_filter(Filter())

    def set_filter(self, new: Filter) -> None:
        self.filter = new
        self.scanned = 0
        self._pattern = compile_search(new.text) if new.text else None
        self._before: array[int] = array("Q")
        """Per closed chunk: rows before it."""
        self._keys: list[bytes | None] = []
        """Per closed chunk: what the row before it folds by (a digest), None where nothing is folded."""
        self._leads: array[int] = array("I")
        self._open = Chunk(None)
        self._open_at = 0
        """First line of the open chunk."""
        self._rows_before = 0
        self._open_key: bytes | None = None
        """What the row before the open chunk folds by."""
        self._took = ""
        """What the last line judged became: "row", "repeat" or nothing."""
        self._key_before: bytes | None = None
        self._cache: dict[int, Chunk] = {}

    @property
    def count(self) -> int:
        return self._rows_before + len(self._open.lines) if self.filter.active else self.source.line_count

    @property
    def behind(self) -> int:
        """Lines that the filter has not seen yet."""
        return max(0, self.source.line_count - self.scanned) if self.filter.active else 0

    def line_number(self, row: int) -> int:
        if not self.filter.active:
            return row
        if row >= self._rows_before:
            return self._open.lines[row - self._rows_before]
        number = bisect_right(self._before, row) - 1
        return self._chunk(number).lines[row - self._before[number]]

    def repeats(self, row: int) -> int:
        """How many equal lines this row stands for."""
        if not self.filter.fold or not 0 <= row < self.count:
            return 1
        number = len(self._before) if row >= self._rows_before else bisect_right(self._before, row) - 1
        chunk, at = self._chunk(number), row - self._first(number)
        found = chunk.repeats[at]
        if at < len(chunk.lines) - 1:
            return found
        # The last row of its chunk: what repeats it may go on at the start of the next ones.
        for later in range(number + 1, len(self._before) + 1):
            found += self._leads[later] if later < len(self._before) else self._open.lead
            if self._first(later + 1) > row + 1:
                break
        return found

    def _first(self, number: int) -> int:
        """The first row of a chunk, also of the open one and of that after it."""
        if number < len(self._before):
            return self._before[number]
        return self._rows_before + (len(self._open.lines) if number > len(self._before) else 0)

    def row_of(self, line: int) -> int:
        """The row that shows `line`, or the nearest row before it."""
        if not self.filter.active:
            return max(0, min(line, self.count - 1))
        number = min(line // CHUNK, len(self._before))
        return max(0, self._first(number) + bisect_right(self._chunk(number).lines, line) - 1)

    def _chunk(self, number: int) -> Chunk:
        """A closed chunk read again, or the open one."""
        if number >= len(self._before):
            return self._open
        found = self._cache.get(number)
        if found is None:
            found = Chunk(self._keys[number])
            start = number * CHUNK
            for index, line in enumerate(lines_of(self.source, start, start + CHUNK), start):
                self._judge(found, index, line)
            while len(self._cache) >= CACHED:
                del self._cache[next(iter(self._cache))]
            self._cache[number] = found
        return found

    def scan(self, budget: int) -> bool:
        """Look at up to `budget` more lines, at fewer where they are long. True when there is more to do."""
        if not self.filter.active:
            self.scanned = self.source.line_count
            return False
        if self.scanned:
            self._undo()
        stop = min(self.source.line_count, self.scanned + budget)
        length = 0
        while self.scanned < stop and length < READ_BYTES:
            last = self.scanned + self.reader.piece(stop - self.scanned)
            found = lines_of(self.source, self.scanned, last)
            if self.filter.narrow:
                self._take(found)
            else:
                self._take_but_polls(found)
            read = sum(map(len, found))
            self.reader.took(last - self.scanned, read)
            length += read
            self.scanned = last
        return self.scanned < self.source.line_count

    def _take(self, found: list[bytes]) -> None:
        for index, line in enumerate(found, self.scanned):
            if index - self._open_at >= CHUNK:
                self._close()
            self._key_before = self._open.key
            self._took = self._judge(self._open, index, line)

    def _take_but_polls(self, found: list[bytes]) -> None:
        """The same where only polls are left out, as by default: a look at each line of a fast log would cost too much."""
        polls = {self.scanned + at for at in logtext.polls(found)}
        index, stop = self.scanned, self.scanned + len(found)
        while index < stop:
            if index - self._open_at >= CHUNK:
                self._close()
            end = min(stop, self._open_at + CHUNK)
            shown = [at for at in range(index, end) if at not in polls] if polls else range(index, end)
            self._open.lines.extend(shown)
            self._open.repeats.extend(_ONE * len(shown))
            self._took = "" if end - 1 in polls else "row"
            index = end
        self._key_before = self._open.key

    def lines(self, first: int, stop: int) -> list[bytes]:
        """What stands in the rows [first, stop): neighbours are read together."""
        if not self.filter.active:
            return lines_of(self.source, first, stop)
        out: list[bytes] = []
        row = first
        while row < stop:
            start = end = self.line_number(row)
            while row < stop and self.line_number(row) == end:
                row, end = row + 1, end + 1
            out += lines_of(self.source, start, end)
        return out

    def _undo(self) -> None:
        """The newest line may have been unfinished when it was judged: judge it again."""
        self.scanned -= 1
        if self._took == "row":
            self._open.lines.pop()
            self._open.repeats.pop()
            self._open.key = self._key_before
        elif self._took == "repeat" and self._open.lines:
            self._open.repeats[-1] -= 1
        elif self._took == "repeat":
            self._open.lead -= 1
        self._took = ""

    def _close(self) -> None:
        """The open chunk is full, and a line after it shows that its last one is whole."""
        done = self._open
        self._before.append(self._rows_before)
        self._leads.append(done.lead)
        self._keys.append(self._open_key)
        self._rows_before += len(done.lines)
        self._open_at += CHUNK
        self._open = Chunk(done.key)
        self._open_key = done.key

    def _judge(self, chunk: Chunk, index: int, line: bytes) -> str:
        if not self.keeps(line):
            return ""
        if self.filter.fold:
            # A digest: a line may have 64 kB, and one is kept per chunk.
            key = blake2b(logtext.fold_key(logtext.clean(line)), digest_size=12).digest()
            if key == chunk.key:
                if chunk.lines:
                    chunk.repeats[-1] += 1
                else:
                    chunk.lead += 1
                return "repeat"
            chunk.key = key
        chunk.lines.append(index)
        chunk.repeats.append(1)
        return "row"

    def keeps(self, line: bytes) -> bool:
        wanted = self.filter
        if wanted.quiet and logtext.is_poll(line):
            return False
        if self._pattern is not None and not self._pattern.search(line):
            return False
        if wanted.level:
            found = logtext.level(line)
            if found == "info" or (wanted.level == "error" and found != "error"):
                return False
        if wanted.origin and logtext.origin(line) != wanted.origin:
            return False
        return not wanted.rank or self._of_rank(line)

    def _of_rank(self, line: bytes) -> bool:
        rank = self.filter.rank
        if rank.encode("utf-8", "surrogateescape") not in line and b"\x1b" not in line:
            return False
        return rank in logtext.head(logtext.clean(line)).rank.split()
