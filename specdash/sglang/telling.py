"""The fold: one piece of log after the other into a story. Only `story.feed` uses it.

A `Teller` is a thawed `Story`: the same fields, with lists in place of tuples, for the time of one feed. What
it does depends on the bytes before, never on how they were cut; times of arrival are the only other input.
Most lines have nothing to say, and meet no regex: their head is cut at fixed places, their first six bytes
are looked up, and a few byte searches decide.
"""

from __future__ import annotations

from typing import Callable, Dict, List, Optional, Set

from specdash.sglang import lines, phases, prefix, signs, skim
from specdash.sglang.batches import Batch, Head, Pending
from specdash.sglang.decode import MAX_SHAPED, ZERO
from specdash.sglang.ending import Ending
from specdash.sglang.speaking import LOUD, PRINTED, PYTHON_WARNING, STATE_NEEDLES, is_user_text, speaks
from specdash.sglang.storytypes import KEEP_NOTES, KEEP_RANKS, Note, Story

LISTS = ("ranks", "rank_states", "phases", "measured", "decodes", "prefills", "evidence", "notes")


class Teller(Ending):
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

    def settle_time(self) -> None:
        """Read the last time stamp, which stays bytes as long as nobody asks."""
        if self.stamp != self.settled_stamp:
            self.settled_stamp = self.stamp
            time = prefix.seconds(self.stamp.decode("ascii", "replace"))
            if time is not None:
                self.settled_time = time
                if self.first_time is None:
                    self.first_time = time

    def row(self, row: bytes, offset: int) -> None:
        """One line without its LF: pieces between CRs."""
        self.line = self.lines
        if b"\r" not in row:
            self.slow(row[: lines.MAX_PIECE], offset)
            return
        for part in row.split(b"\r"):
            if part:
                self.slow(part[: lines.MAX_PIECE], offset)
            offset += len(part) + 1

    def rows(self, rows: List[bytes], offset: int, crlf: bool) -> None:
        """Whole lines, the first at `offset`. What `skim` knows of a line's shape spares reading it.

        `crlf`: some end in CR LF, as of a container with a terminal.
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
                    kind = bodies.get(body.translate(ZERO)) if len(body) <= MAX_SHAPED else None
                    if kind is None:
                        kind = skim.body_of(body)
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

    def batch_seen(self, body: bytes, rank: str) -> None:
        """One decode or prefill line, read by the rules."""
        self.batches_seen([(Head(rank, self.stamp, self.settled_time), body, None, self.here)])

    def quick(self) -> bool:
        """Whether a line that says nothing changes nothing but the time."""
        return self.open is None and self.phase != "unknown" and self.first_time is not None

    def slow(self, data: bytes, offset: int) -> None:
        if lines.needs_cleaning(data):
            data = lines.clean(data)
        if not data.strip():
            if self.open is not None:
                self.continued(b"")
            return
        for shift, part in lines.unglue(prefix.unwrap(data)):
            self.here = offset + shift
            self.part(part)

    def part(self, part: bytes) -> None:
        """A record, a bar, or a line without a head."""
        head = prefix.read(part)
        self.stamped = head is not None
        if head is None:
            bar = lines.bar(part)
            if bar:
                self.bar_seen(bar)
            else:
                self.headless(part)
            return
        if head.time:
            self.stamp = head.time.encode()
            self.records += 1
            if self.first_time is None:
                self.settle_time()
        if head.rank:
            self.rank_seen(head.rank)
        key = head.body[:6]
        if head.level in LOUD:
            # A record whose level says that something is wrong.
            self.record(head.body, head.rank, head.level, key)
        elif head.standard and is_user_text(head.body):
            if self.open is not None:
                self.close()
            if self.phase == "unknown":
                self.enter("starting", "")
        elif key in KEYED or self.open is not None or speaks(head.body):
            self.record(head.body, head.rank, head.level, key)
        elif not head.standard:
            self.anchored(head.body, head.rank, head.level)
        elif self.phase == "unknown":
            self.enter("starting", "")

    def rank_seen(self, rank: str) -> None:
        if rank not in self.known_ranks and len(self.ranks) < KEEP_RANKS:
            self.known_ranks.add(rank)
            self.ranks.append(rank)

    def record(self, body: bytes, rank: str, level: str, key: bytes) -> None:
        """A record with something to say."""
        if self.open is not None:
            self.close()
        self.settle_time()
        if self.phase == "unknown":
            self.enter("starting", "")
        action = KEYED.get(key)
        if action is not None and action(self, body, rank):
            return
        if is_user_text(body):
            return
        for needle, meaning in phases.ANYWHERE:
            if needle in body and self.meant(phases.BY_MEANING[meaning], body, rank):
                return
        if any(needle in body for needle in STATE_NEEDLES) and self.state_line(body, rank):
            return
        self.suspicious(body, rank, level)

    def anchored(self, body: bytes, rank: str, level: str) -> None:
        """A message behind a head that we know only in part (a logging configuration of somebody's own)."""
        if is_user_text(body):
            return
        for anchor in phases.ANCHORS:
            at = body.find(anchor, 0, 300)
            if at > 0 and b"'" not in body[:at] and b'"' not in body[:at]:
                self.record(body[at:], rank, level, body[at : at + 6])
                return
        if self.phase == "unknown":
            self.settle_time()
            self.enter("starting", "")

    def headless(self, part: bytes) -> None:
        """A line without a head: it continues a traceback, begins one, or is somebody's print."""
        warned = PYTHON_WARNING.match(part)
        if warned and self.open is not None:
            self.close()
        if self.open is not None and self.continued(part):
            return
        if part[:1] in b" \t" and part[:1]:
            return
        if part.startswith(b"Traceback (most recent call last)"):
            self.settle_time()
            self.begin_trace("", part, "", 1)
            return
        if is_user_text(part):
            return
        found = signs.EXCEPTION_LINE.match(part)
        if found and not found.group("type").endswith(b"Warning"):
            self.settle_time()
            self.begin_trace("", part, "", 1)
            return
        if part[:7] == b"usage: " or b"Warning: " in part[:600]:
            if self.phase == "unknown":
                self.enter("starting", "")
            if b"Warning: " in part[:600] and part[:5] != b"usage":
                self.note("warning", part, "")
            return
        if speaks(part):
            self.record(part, "", "", part[:6])
        else:
            self.anchored_print(part)

    def anchored_print(self, part: bytes) -> None:
        if any(word in part for word in PRINTED):
            self.anchored(b" " + part, "", "")

    def suspicious(self, body: bytes, rank: str, level: str) -> None:
        """Evidence, a warning, or nothing."""
        if b"Traceback (most recent call last)" in body:
            self.errors += 1
            head, _, _ = body.partition(b"Traceback (most recent call last)")
            self.begin_trace(text(head).strip(), b"Traceback (most recent call last):", rank, -1)
            return
        known = level not in ("INFO", "DEBUG") and any(needle in body for needle in signs.NEEDLES)
        if known and self.evidence_line(body, rank, level):
            self.errors += 1
            return
        if level in ("ERROR", "CRITICAL", "FATAL"):
            self.errors += 1
            self.note("error", body, rank)
            self.begin_plain(body, rank)
        elif level.startswith("WARN") or (level == "" and signs.WARNING.search(body[:2000])):
            self.note("warning", body, rank)

    def note(self, kind: str, body: bytes, rank: str) -> None:
        """Fold repeats: eight ranks say the same."""
        if kind == "warning":
            self.warnings += 1
        words = text(body[:400])
        i = self.note_at.get(words)
        if i is not None:
            old = self.notes[i]
            ranks = old.ranks if rank in old.ranks or len(old.ranks) >= 64 else old.ranks + (rank,)
            self.notes[i] = old._replace(seen=old.seen + 1, ranks=ranks)
        elif len(self.notes) < KEEP_NOTES:
            self.note_at[words] = len(self.notes)
            self.notes.append(Note(kind, words, 1, rank, (rank,), self.here, self.line))


def text(body: bytes) -> str:
    return body.decode("utf-8", "replace")


def _decode(teller: Teller, body: bytes, rank: str) -> bool:
    if not body.startswith(b"Decode batch"):
        return False
    teller.batch_seen(body, rank)
    return True


def _prefill(teller: Teller, body: bytes, rank: str) -> bool:
    if not body.startswith(b"Prefill batch"):
        return False
    teller.batch_seen(body, rank)
    return True


def _told(rules: "tuple[phases.Rule, ...]") -> Callable[[Teller, bytes, str], bool]:
    def action(teller: Teller, body: bytes, rank: str) -> bool:
        return any(teller.meant(rule, body, rank) for rule in rules)

    return action


def _ignored(teller: Teller, body: bytes, rank: str) -> bool:
    """`Ignore import error when loading …`: dozens in every start, one per model file."""
    return True


def _uvicorn(teller: Teller, body: bytes, rank: str) -> bool:
    """`INFO:     …` or `ERROR:    …` behind a bracketed time: read it without its level."""
    level, _, rest = body.partition(b":")
    rest = rest.lstrip()
    if b'" ' in rest and b"HTTP/" in rest:
        return True
    teller.record(rest, rank, level.decode(), rest[:6])
    return True


KEYED: Dict[bytes, Callable[[Teller, bytes, str], bool]] = {
    b"Decode": _decode,
    b"Prefil": _prefill,
    b"Ignore": _ignored,
    b"INFO: ": _uvicorn,
    b"ERROR:": _uvicorn,
    b"WARNIN": _uvicorn,
    b"CRITIC": _uvicorn,
}
KEYED.update({key: _told(rules) for key, rules in phases.BY_FIRST_WORDS.items()})


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
    teller.rows(rows, start, b"\r\n" in buffer)
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
