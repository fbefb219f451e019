"""One line, read by the rules: its head, what a known message means, what may be evidence. Base of `telling.Teller`.

Most lines have nothing to say, and meet no regex here: their head is cut, their first six bytes are looked up, and
a few byte searches decide.
"""

from __future__ import annotations

from typing import Callable, Dict, Set

from specdash.sglang import lines, phases, prefix, signs
from specdash.sglang.batches import Head
from specdash.sglang.ending import Ending
from specdash.sglang.speaking import LOUD, PRINTED, PYTHON_WARNING, STATE_NEEDLES, is_user_text, speaks
from specdash.sglang.storytypes import KEEP_NOTES, KEEP_RANKS, Note


class OneLine(Ending):
    """What a line does to a story."""

    known_ranks: Set[str]
    note_at: Dict[str, int]

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

    def batch_seen(self, body: bytes, rank: str) -> None:
        """One decode or prefill line, read by the rules."""
        self.batches_seen([(Head(rank, self.stamp, self.settled_time), body, None, self.here)])

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


def _decode(teller: OneLine, body: bytes, rank: str) -> bool:
    if not body.startswith(b"Decode batch"):
        return False
    teller.batch_seen(body, rank)
    return True


def _prefill(teller: OneLine, body: bytes, rank: str) -> bool:
    if not body.startswith(b"Prefill batch"):
        return False
    teller.batch_seen(body, rank)
    return True


def _told(rules: "tuple[phases.Rule, ...]") -> Callable[[OneLine, bytes, str], bool]:
    def action(teller: OneLine, body: bytes, rank: str) -> bool:
        return any(teller.meant(rule, body, rank) for rule in rules)

    return action


def _ignored(teller: OneLine, body: bytes, rank: str) -> bool:
    """`Ignore import error when loading …`: dozens in every start, one per model file."""
    return True


def _uvicorn(teller: OneLine, body: bytes, rank: str) -> bool:
    """`INFO:     …` or `ERROR:    …` behind a bracketed time: read it without its level."""
    level, _, rest = body.partition(b":")
    rest = rest.lstrip()
    if b'" ' in rest and b"HTTP/" in rest:
        return True
    teller.record(rest, rank, level.decode(), rest[:6])
    return True


KEYED: Dict[bytes, Callable[[OneLine, bytes, str], bool]] = {
    b"Decode": _decode,
    b"Prefil": _prefill,
    b"Ignore": _ignored,
    b"INFO: ": _uvicorn,
    b"ERROR:": _uvicorn,
    b"WARNIN": _uvicorn,
    b"CRITIC": _uvicorn,
}
KEYED.update({key: _told(rules) for key, rules in phases.BY_FIRST_WORDS.items()})
