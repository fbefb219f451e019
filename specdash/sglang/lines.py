"""Cut a log into pieces, over raw bytes: lines, progress bars, and records glued to each other.

A *piece* is what ends in LF or CR. tqdm writes its bars with CR and no LF, several times a second, and
the next log record lands right behind the bar; eight ranks write into one pipe, so that a record can start
in the middle of another one. Nothing here decodes: one bad byte must not cost a line.
"""

from __future__ import annotations

import re
from typing import List, Optional, Tuple

MAX_PIECE = 128 * 1024
"""Bytes of one piece that are looked at. SGLang 0.5.23 prints its arguments in one line of 14 kB; what is
longer than this is counted, and only its beginning is read."""

ESCAPES = re.compile(
    rb"\x1b\[[0-9;?<=>]*[ -/]*[@-~]"  # CSI: colours, cursor, modes
    rb"|\x1b\][^\x07\x1b\r\n]*(?:\x07|\x1b\\)?"  # OSC: window titles, links
    rb"|\x1b[PX^_][^\x1b\r\n]*(?:\x1b\\)?"  # DCS, SOS, PM, APC
    rb"|\x1b[ -/]*[0-~]?"  # what is left of a two-byte sequence
)
CONTROLS = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
RECORD_START = re.compile(rb"\[20\d\d-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})?(?: [A-Z][A-Z_]*\d+)*\] ")
BAR = re.compile(rb"%(?: Completed \||\|[^|]*\|)\s*(\d{1,12})/(\d{1,12}) \[")
"""A tqdm bar with a known total, from its `%` on. The bracket must be there: half a number is no progress."""


def bar(piece: bytes) -> Optional[Tuple[bytes, int, int]]:
    """(label, done, total) of a piece that begins with a progress bar, else None."""
    mark = piece.find(b"%", 0, 400)
    if mark < 1:
        return None
    found = BAR.match(piece, mark)
    if found is None:
        return None
    label = piece[:mark].rstrip(b"0123456789").strip().rstrip(b":").strip()
    return label[-80:], int(found.group(1)), int(found.group(2))


def split(data: bytes) -> Tuple[List[bytes], bytes]:
    """(complete lines without their LF, the incomplete rest). CRs stay: they part a line into pieces."""
    rows = data.split(b"\n")
    return rows, rows.pop()


def clean(piece: bytes) -> bytes:
    """Without escape sequences, NUL and other control bytes (tab stays)."""
    if b"\x1b" in piece:
        piece = ESCAPES.sub(b"", piece)
    return CONTROLS.sub(b"", piece)


def needs_cleaning(piece: bytes) -> bool:
    """Cheap test that keeps `clean` away from the lines that need none."""
    return b"\x1b" in piece or b"\x00" in piece or b"\x07" in piece or b"\x08" in piece


def visible(piece: bytes) -> str:
    """The text that a person may see: no controls, bad UTF-8 replaced. Not a place for markup."""
    return clean(piece[:MAX_PIECE]).decode("utf-8", "replace")


def unglue(piece: bytes) -> List[Tuple[int, bytes]]:
    """The records in one piece, each with its offset in the piece.

    A record start inside of quotes is somebody's text (a prompt in a logged request), not a record.
    """
    if piece.find(b"[20", 1) < 0:
        return [(0, piece)]
    cuts = [0]
    for found in RECORD_START.finditer(piece, 1):
        before = piece[cuts[-1] : found.start()]
        if before.count(b"'") % 2 or before.count(b'"') % 2:
            break
        cuts.append(found.start())
    cuts.append(len(piece))
    return [(a, piece[a:b]) for a, b in zip(cuts, cuts[1:]) if b > a]
