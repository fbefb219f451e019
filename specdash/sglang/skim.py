"""What a line is, remembered by its shape, so that most lines of a log are known after two look-ups.

Nearly all lines of a server repeat few shapes with other numbers in them: access lines, batch lines, chatter. A
shape is the line with every digit made a zero. For a shape that was met before it is known whether a line of it
says nothing (`SILENT`), is a batch whose numbers stand at known places (a `Shape`), or must be read (`SPEAKS`).
What is here follows from the rules that read lines one by one (`oneline.OneLine.part`) and never differs from
them: whatever is in doubt must be read. The memories are bounded; forgetting costs time only.
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Union

from specdash.sglang import decode, lines, phases, prefix
from specdash.sglang.batches import Head
from specdash.sglang.decode import MAX_SHAPED, ZERO, Shape
from specdash.sglang.signs import EXCEPTION_LINE
from specdash.sglang.speaking import KEYS, LOUD, PRINTED, PYTHON_WARNING, is_user_text, speaks

SILENT, SPEAKS = True, False
Verdict = Union[bool, Shape]
KEEP = 4096
LONGEST_REQUEST = lines.MAX_PIECE // 2
USER_KEYS = frozenset((b"Receiv", b"Finish", b"Reques"))
HEAD = b"[2000-01-01 00:00:00] "
DATED = (b"[00", b"00-00")
"""Years begin with 20 and digits are zeros here: what may be a time must be read."""


HEADS: Dict[bytes, Head] = {}
"""By all bytes before the `] `."""
BODIES: Dict[bytes, Verdict] = {}
"""By the shape of what follows the `] `."""
LINES: Dict[bytes, bool] = {}
"""By the shape of a whole line without such a head: SILENT when it changes nothing at all while no traceback is open."""


def head_of(head: bytes) -> Optional[Head]:
    """Reads a head and remembers it. None: such a line must be read as a whole."""
    found = None
    if b"[20" in head and b"\r" not in head and not lines.CONTROLS.search(head):
        piece = prefix.unwrap(head + b"] x")
        read = prefix.STANDARD.match(piece)
        if read is not None and read.end() == len(piece) - 1:
            stamp = read.group("time")
            time = prefix.seconds(stamp.decode())
            if time is not None:
                found = Head(prefix.rank_text(read.group("ranks")), stamp, time)
                if len(head) <= MAX_SHAPED:
                    _keep(HEADS, head, found)
    return found


def body_of(body: bytes) -> Verdict:
    """What a message behind such a head is, from now on known by its shape."""
    if is_silent_request(body):
        return SILENT  # every one is another: not worth remembering
    if len(body) > MAX_SHAPED:
        return SPEAKS
    zeros = body.translate(ZERO)
    one = b"\r" not in body and DATED[0] not in zeros and not lines.needs_cleaning(body)
    verdict: Verdict = (decode.shape(body) if one else None) or _is_silent(body)
    _keep(BODIES, zeros, verdict)
    return verdict


def line_of(row: bytes) -> bool:
    """The same for a whole line that has no such head."""
    if len(row) > MAX_SHAPED:
        return SPEAKS
    verdict = _is_silent_line(row)
    _keep(LINES, row.translate(ZERO), verdict)
    return verdict


def is_silent_request(body: bytes, plain: bool = False) -> bool:
    """Whether a message is a logged request, in which nothing can be a fact or another record's head.

    `plain`: it is known to need no cleaning.
    """
    return (
        body[:6] in USER_KEYS
        and len(body) < LONGEST_REQUEST
        and b"\r" not in body
        and (plain or not lines.needs_cleaning(body))
        and is_user_text(body)
        and lines.RECORD_START.search(body) is None
    )


def _is_silent(body: bytes) -> bool:
    if b"\r" in body:
        return SPEAKS
    if lines.needs_cleaning(body):
        body = lines.clean(body)
    if DATED[0] in body.translate(ZERO):
        return SPEAKS
    head = prefix.read(HEAD + body)
    if head is None or head.level in LOUD:
        return SPEAKS
    return is_user_text(head.body) or (head.body[:6] not in KEYS and not speaks(head.body))


def _is_silent_line(row: bytes) -> bool:
    if b"\r" in row:
        return SPEAKS
    if lines.needs_cleaning(row):
        row = lines.clean(row)
    if not row.strip():
        return SILENT
    zeros = row.translate(ZERO)
    if DATED[0] in zeros or DATED[1] in zeros or b"%" in row:
        return SPEAKS
    part = prefix.unwrap(row)
    if part[:1] == b"{":
        return SPEAKS
    head = prefix.read(part)
    if head is not None:
        if head.time or head.rank or head.standard or head.level in LOUD:
            return SPEAKS
        body = head.body
        return is_user_text(body) or not (
            body[:6] in KEYS or speaks(body) or any(anchor in body for anchor in phases.ANCHORS)
        )
    if PYTHON_WARNING.match(part):
        return SPEAKS
    if part[:1] in b" \t" and part:
        return SILENT
    if is_user_text(part):
        return SILENT
    return not (
        part.startswith((b"Traceback", b"usage: "))
        or EXCEPTION_LINE.match(part)
        or b"Warning: " in part
        or any(word in part for word in PRINTED)
        or speaks(part)
    )


def _keep(memory: Dict[bytes, Any], key: bytes, value: Any) -> None:
    if len(memory) >= KEEP:
        memory.clear()
    memory[key] = value
