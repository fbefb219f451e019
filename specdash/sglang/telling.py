"""The fold: one piece of log after the other into a story. Only `story.feed` uses it.

A `Teller` is a thawed `Story`: the same fields, with lists in place of tuples, for the time of one feed. What
it does depends on the bytes before, never on how they were cut; times of arrival are the only other input.
A line whose shape was met before is known (`skim`); all others are read by the rules (`oneline`).
"""

from __future__ import annotations

from typing import Dict, List, Optional, Set

from specdash.sglang import lines, skim
from specdash.sglang.batches import Batch, Head, Pending
from specdash.sglang.decode import MAX_SHAPED, ZERO
from specdash.sglang.oneline import OneLine
from specdash.sglang.storytypes import Story

LISTS = ("ranks", "rank_states", "phases", "measured", "decodes", "prefills", "evidence", "notes")


class Teller(OneLine):
    """A story that is being grown."""

    def __init__(self, story: Story, at: Optional[float]) -> None:
        self.at = at
        self.stamped = False
        self.here = 0
        self.line = story.lines
        self.told: List[Batch] = []
        self.known_ranks: Set[str] = set()
        self.thaw(story)

    def thaw(self, story: Story) -> None:
        """Go on from a story."""
        self.__dict__.update(vars(story))
        for name in LISTS:
            self.__dict__[name] = list(getattr(story, name))
        super().thaw(story)
        self.known_ranks.clear()
        self.known_ranks.update(story.ranks)
        self.note_at: Dict[str, int] = {note.text: i for i, note in enumerate(story.notes)}

    def freeze(self) -> Story:
        """The story again."""
        fields = {name: self.__dict__[name] for name in Story.__dataclass_fields__}
        for name in LISTS:
            fields[name] = tuple(fields[name])
        fields.update(self.frozen())
        return Story(**fields)

    def rows(self, rows: List[bytes], offset: int, crlf: bool, plain: bool = False) -> None:
        """Whole lines, the first at `offset`. What `skim` knows of a line's shape spares reading it.

        `crlf`: some end in CR LF, as of a container with a terminal. `plain`: none needs cleaning.
        """
        heads, bodies, others, known = skim.HEADS, skim.BODIES, skim.LINES, self.known_ranks
        first, said, quick = self.lines, 0, self.quick()
        last: Optional[Head] = None
        pending: List[Pending] = []
        for number, row in enumerate(rows, first):
            start = offset
            offset += len(row) + 1
            if quick:
                if crlf and row.endswith(b"\r"):
                    row = row[:-1]
                head, mark, body = row.partition(b"] ")
                read = (heads.get(head) or skim.head_of(head)) if mark else None
                if read is None:
                    silent = others.get(row.translate(ZERO)) if len(row) <= MAX_SHAPED else None
                    if skim.line_of(row) if silent is None else silent:
                        continue
                elif not read.rank or read.rank in known:
                    if len(body) <= MAX_SHAPED:
                        kind = bodies.get(body.translate(ZERO))
                        if kind is None:
                            kind = skim.body_of(body)
                    else:
                        kind = skim.is_silent_request(body, plain)
                    if kind is True:
                        said, last = said + 1, read
                        continue
                    if kind is not False:
                        said, last = said + 1, read
                        pending.append((read, body, kind, start))
                        continue
            if pending:
                self.batches_seen(pending)
                pending.clear()
            if last is not None:
                self.stamp, last = last.stamp, None
            self.lines = number
            self.row(row, start)
            quick = self.quick()
        if pending:
            self.batches_seen(pending)
        if last is not None:
            self.stamp = last.stamp
        self.lines = first + len(rows)
        self.records += said

    def quick(self) -> bool:
        """Whether a line that says nothing changes nothing but the time."""
        return self.open is None and self.phase != "unknown" and self.first_time is not None


def tell(story: Story, data: bytes, at: Optional[float], batches: Optional[List[Batch]] = None) -> Story:
    """The story with some bytes more. `batches` gets all new batch lines, also those that a story does not keep."""
    teller = Teller(story, at)
    if batches is not None:
        teller.told = batches
    if at is not None and data:
        teller.last_at = at
    teller.size += len(data)
    start = story.size - len(story.rest) - story.skipped
    rest, skipped = story.rest, story.skipped
    if skipped or len(rest) >= lines.MAX_PIECE:
        # Only the beginning of an over-long piece is kept: find its end, and go on behind it.
        cut = _first_end(data)
        if cut < 0:
            teller.skipped = skipped + len(data)
            return teller.freeze()
        buffer = data[cut:]
        teller.row(rest, start)
        start = story.size + cut
        if buffer[:1] == b"\n":
            teller.lines += 1
        after_cr = buffer[:1] == b"\r"
        buffer = buffer[1:]
        start += 1
    else:
        buffer = rest + data
        after_cr = story.after_cr and not rest
    teller.after_cr = (buffer or data).endswith(b"\r")
    rows, last = lines.split(buffer)
    if after_cr and rows and not rows[0]:
        # The LF of a CR LF: the line was told when its CR came.
        del rows[0]
        start += 1
        teller.lines += 1
    teller.rows(rows, start, b"\r\n" in buffer, not lines.needs_cleaning(buffer))
    start = story.size + len(data) - len(last)
    end = last.rfind(b"\r") + 1
    if end:
        teller.row(last[:end], start)
        last = last[end:]
    teller.rest = last[: lines.MAX_PIECE]
    teller.skipped = len(last) - len(teller.rest)
    return teller.freeze()


def _first_end(data: bytes) -> int:
    ends = [i for i in (data.find(b"\n"), data.find(b"\r")) if i >= 0]
    return min(ends) if ends else -1
