"""The fold: one piece of log after the other into a story. Only `story.feed` uses it.

A `Teller` is a thawed `Story`: the same fields, with lists in place of tuples, for the time of one feed. What
it does depends on the bytes before, never on how they were cut; times of arrival are the only other input.
Most lines have nothing to say, and meet no regex: their head is cut at fixed places, their first six bytes
are looked up, and a few byte searches decide.
"""

from __future__ import annotations

import re
from typing import Callable, Dict, List, Optional

from specdash.sglang import lines, phases, prefix, signs
from specdash.sglang.loading import Loading
from specdash.sglang.storytypes import KEEP_NOTES, KEEP_RANKS, Note, Story

LISTS = (
    "ranks",
    "rank_states",
    "phases",
    "measured",
    "decodes",
    "prefills",
    "history",
    "dp_states",
    "evidence",
    "notes",
)
BATCH = (b"Decode", b"Prefil")


class Teller(Loading):
    """A story that is being grown."""

    def __init__(self, story: Story, at: Optional[float]) -> None:
        self.__dict__.update(vars(story))
        for name in LISTS:
            self.__dict__[name] = list(getattr(story, name))
        self.at = at
        self.stamped = False
        self.known_ranks = {rank.encode() for rank in story.ranks}
        self.here = 0
        self.line = story.lines
        self.note_at: Dict[str, int] = {note.text: i for i, note in enumerate(story.notes)}

    def freeze(self) -> Story:
        """The story again."""
        fields = {name: self.__dict__[name] for name in Story.__dataclass_fields__}
        for name in LISTS:
            fields[name] = tuple(fields[name])
        return Story(**fields)

    def forget_notes(self) -> None:
        self.note_at.clear()

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

    def rows(self, rows: List[bytes], offset: int) -> None:
        """Lines of a chunk without CR and control bytes: most end here, after a few looks at fixed places."""
        known, said = self.known_ranks, 0
        for row in rows:
            if row[:3] == b"[20" and row[11:12] == b" ":
                end = row.find(b"]", 20, 120)
                ranks = row[20:end] if row[20:21] not in b".," else row[24:end]
                if (
                    end > 0
                    and (not ranks or ranks[1:] in known)
                    and row.find(b"[20", 3) < 0
                    and row[end + 1 : end + 2] == b" "
                    and len(row) < 65536
                    and self.phase != "unknown"
                    and self.first_time is not None
                ):
                    key = row[end + 2 : end + 8]
                    self.stamp = row[1 : 20 if row[20:21] not in b".," else 24]
                    said += 1
                    if (
                        self.open is not None
                        or (key != b"INFO: " and (key in KEYED or speaks(row)))
                        or (key == b"INFO: " and b'" ' not in row)
                    ):
                        self.line, self.here, self.stamped = self.lines, offset, True
                        self.record(row[end + 2 :], ranks[1:].decode(), "", key)
                    offset += len(row) + 1
                    self.lines += 1
                    continue
            elif row[:2] == b"  " and self.open is None and b"%" not in row[:6] and row.find(b"[20") < 0:
                # A frame or a wrapped line of somebody's print, and no traceback is open.
                offset += len(row) + 1
                self.lines += 1
                continue
            self.row(row, offset)
            offset += len(row) + 1
            self.lines += 1
        self.records += said

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
        if head.level in ("ERROR", "CRITICAL", "FATAL", "WARNING", "WARN"):
            self.levelled(head)
        elif key in KEYED or self.open is not None or speaks(head.body):
            self.record(head.body, head.rank, head.level, key)
        elif not head.standard:
            self.anchored(head.body, head.rank, head.level)
        elif self.phase == "unknown":
            self.enter("starting", "")

    def rank_seen(self, rank: str) -> None:
        key = rank.encode()
        if key not in self.known_ranks and len(self.ranks) < KEEP_RANKS:
            self.known_ranks.add(key)
            self.ranks.append(rank)

    def levelled(self, head: prefix.Head) -> None:
        """A record whose level says that something is wrong."""
        self.record(head.body, head.rank, head.level, head.body[:6])

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
        if (
            b"batch" in part
            or b"oad weight" in part
            or b"server" in part
            or b"KV Cache" in part
            or b"Captur" in part
        ):
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


PYTHON_WARNING = re.compile(rb"\S+:\d+: \w*Warning: ")
STATE_NEEDLES = (b"etract", b"SIGTERM", b"Gracefully", b"Health check failed", b"kill_process_tree", b"hutting down",
                 b"inished server process", b"reset to ", b"ersion")  # fmt: skip
LOWER = bytes(
    c + 32 if 65 <= c <= 90 else c if 97 <= c <= 122 or 48 <= c <= 57 or c in b"_-" or c > 127 else 32
    for c in range(256)
)
WORDS = frozenset(
    b"""allocated bound jit autotune autotuning auto-tune auto-tuning retract retracted retracting retraction
    retracted_reqs sigterm gracefully health kill_process_tree shutting finished reset version watchdog crashed died
    dead sigquit terminated exit nccl nvml xid nvrm space killed segmentation bus aborted memory profiled use
    available timed timeout unbalanced module oom-kill command peer leave found warning userwarning warn deprecated deprecation
    sub-optimal falling fallback fail failed fails failure unable sglang oom fault""".split()
)
"""Words of the needles below, in lower case: a message with none of them (and no error) has nothing to say."""
SPEAKS = (
    tuple(needle for needle, _ in phases.ANYWHERE) + STATE_NEEDLES + signs.NEEDLES + signs.WARNING_NEEDLES
)


def speaks(body: bytes) -> bool:
    """Whether a message may have something to say. False costs about a microsecond: one look at its words."""
    if b"rror" not in body and b"xception" not in body and WORDS.isdisjoint(body.translate(LOWER).split()):
        return False
    return any(needle in body for needle in SPEAKS)


def is_user_text(body: bytes) -> bool:
    """A logged request: what is in it was written by a user, and is no fact."""
    begin = body[:200]
    return (
        b"ReqInput(" in begin
        or b"obj=" in begin
        or (
            body[:7] in (b"Receive", b"Finish:", b"Finishe", b"Request")
            and (b"rid" in body or b"text=" in body)
        )
    )


def text(body: bytes) -> str:
    return body.decode("utf-8", "replace")


def _decode(teller: Teller, body: bytes, rank: str) -> bool:
    return teller.decode_seen(body, rank) if body.startswith(b"Decode batch") else False


def _prefill(teller: Teller, body: bytes, rank: str) -> bool:
    return teller.prefill_seen(body, rank) if body.startswith(b"Prefill batch") else False


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


def tell(story: Story, data: bytes, at: Optional[float]) -> Story:
    """The story with some bytes more."""
    teller = Teller(story, at)
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
    if lines.DIRT.search(buffer):
        for row in rows:
            teller.row(row, start)
            start += len(row) + 1
            teller.lines += 1
    else:
        teller.rows(rows, start)
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
