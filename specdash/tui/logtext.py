"""One log line from exact bytes to cells that are safe to draw. Pure.

Terminal control never passes: CSI/OSC sequences are dropped, a carriage return keeps what a terminal would
show last (progress bars), other control bytes and bad UTF-8 become visible marks. Markup is never read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from specdash.tui.words import BIDI

_ESCAPES = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor moves
    rb"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC, DCS, SOS, PM, APC: titles, links, clipboard
    rb"|\x1b[ -/]*[0-~]"  # other two-byte escapes (a bare 0x9b is left: it may be part of a UTF-8 letter)
)
_HEAD = re.compile(
    rb"^\[(?P<stamp>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)(?P<rank>(?: (?:DP|TP|PP|EP|CP|ATTN_\w+)\d+)*)\] ?"
)
_HEAD_PLAIN = re.compile(rb"^(?P<stamp>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)(?P<rank>)[ :|-]+")
_BAD = re.compile(
    rb"(?i:\berror\b)|Error\b|Exception\b|Traceback \(most recent|CRITICAL|FATAL|(?i:out of memory)|Segmentation fault|core dumped|SIGQUIT received"
)
_BAD_NEEDLES = (
    b"error",
    b"exception",
    b"traceback",
    b"critical",
    b"fatal",
    b"out of memory",
    b"segmentation",
    b"core dumped",
    b"sigquit",
)
"""In lower case, what each alternative of `_BAD` needs: plain words are looked for ten times as fast as a rule."""
_WARN_NEEDLES = (b"warn", b"deprecated")
_WARN = re.compile(rb"(?i:\bwarn(?:ing)?\b)|Warning\b|deprecated")
_PHASE = re.compile(
    rb"Init torch distributed|Load weight (?:begin|end)|KV Cache is allocated|Capture (?:\w+ )*cuda graph|server_args=|fired up and ready"
    rb"|Started server process|Application startup complete|max_total_num_tokens=|Memory pool end|[Cc]aptur\w+ (?:batches|begin|end)"
)
LEVELS = ("error", "warning", "info")


@dataclass(frozen=True)
class Head:
    """What a line's prefix says. `length` bytes of it; `stamp` as written; `rank` like "TP0 EP0"."""

    stamp: str = ""
    rank: str = ""
    length: int = 0


def clean(line: bytes) -> bytes:
    """The bytes a terminal would leave on the row: escapes out, the last carriage-return segment kept."""
    if b"\x1b" in line:
        line = _ESCAPES.sub(b"", line)
    line = line.rstrip(b"\r\n")
    if b"\r" in line:
        # A bar redraws its row: what follows the last return is what stays, when it is not empty.
        for part in reversed(line.split(b"\r")):
            if part.strip():
                return part
        return b""
    return line


def decode(line: bytes) -> str:
    """`clean` bytes as printable text. Bad bytes, controls and bidi marks become U+FFFD or ␀-style pictures."""
    text = line.decode("utf-8", errors="replace")
    if text.isascii() and text.isprintable():
        return text
    out = []
    column = 0
    for char in text:
        code = ord(char)
        if char == "\t":
            step = 8 - column % 8
            out.append(" " * step)
            column += step
            continue
        if code < 0x20:
            out.append(chr(0x2400 + code))
        elif code == 0x7F:
            out.append("␡")
        elif 0x80 <= code < 0xA0 or code in BIDI or 0xD800 <= code <= 0xDFFF or 0xFFF9 <= code <= 0xFFFB:
            out.append("\ufffd")
        elif code in (0x200B, 0xFEFF, 0x00AD):
            continue
        else:
            out.append(char)
        column += 1
    return "".join(out)


def head(line: bytes) -> Head:
    match = _HEAD.match(line) or _HEAD_PLAIN.match(line)
    if match is None:
        return Head()
    return Head(
        match["stamp"].decode("ascii", "replace"),
        match["rank"].decode("ascii", "replace").strip(),
        match.end(),
    )


def level(line: bytes) -> str:
    """ "error", "warning" or "info", from the words of the line: SGLang's format has no level field."""
    shape = b""
    if len(line) <= MAX_SHAPED:
        shape = line.translate(None, b"0123456789")
        if shape in _CALM:
            return "info"
    lower = line.lower()
    if not _any(_BAD_NEEDLES, lower) and not _any(_WARN_NEEDLES, lower):
        if shape and not _any(_BAD_NEEDLES + _WARN_NEEDLES, shape.lower()):
            if len(_CALM) >= KEEP:
                _CALM.clear()
            _CALM.add(shape)
        return "info"
    if _any(_BAD_NEEDLES, lower) and _BAD.search(line):
        # A benign line may carry the word in a flag or a count: error=0, "errors": [].
        return "error" if not _NOT_BAD.search(line) else "info"
    return "warning" if _any(_WARN_NEEDLES, lower) and _WARN.search(line) else "info"


MAX_SHAPED = 400
KEEP = 4096
_CALM: set[bytes] = set()
"""Shapes, lines without their digits, in which no needle is: nor is one then in any line of such a shape."""


def _any(needles: tuple[bytes, ...], lower: bytes) -> bool:
    for needle in needles:  # noqa: SIM110 - a generator takes twice as long
        if needle in lower:
            return True
    return False


_NOT_BAD = re.compile(
    rb"log_level_http|server_args=|(?i:errors?['\"]?\s*[=:]\s*(?:0|None|null|\[\])\b)|INFO: .* 200 OK"
)


def is_phase(line: bytes) -> bool:
    """A line at which a load moves on."""
    return _PHASE.search(line) is not None


ORIGINS = {"engine": "engine", "http": "HTTP", "other": "not engine"}
"""Who wrote a line: SGLang's own logger (dated), the web server (uvicorn's), or anybody else: libraries, tracebacks,
progress bars, the kernel."""
_HTTP = re.compile(rb"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL): {2,}")


def origin(line: bytes) -> str:
    """One of `ORIGINS`."""
    line = clean(line[:512])
    if _HTTP.match(line) or b" HTTP/1." in line[:256]:
        return "http"
    return "engine" if head(line).length else "other"


_POLL = re.compile(
    rb'"(?:GET|POST|HEAD) /(?:metrics|health|health_generate|server_info|get_server_info|model_info|get_model_info|get_load|v1/loads)'
    rb'/?(?:\?[^ "]*)? HTTP/[0-9.]+" [23]\d\d'
)


def is_poll(line: bytes) -> bool:
    """An access-log line of a poll that was answered: what specdash and monitors ask every second."""
    return b"HTTP/" in line and _POLL.search(line) is not None


def polls(lines: list[bytes]) -> list[int]:
    """Which of these lines are polls, found by one look over all of them: few lines of a busy log are."""
    found: list[int] = []
    data = b"\n".join(lines)
    number = at = 0
    for match in _POLL.finditer(data):
        number += data.count(b"\n", at, match.start())
        at = match.start()
        # A query may have matched over the end of its line: the line itself says whether it is one.
        if is_poll(lines[number]) and found[-1:] != [number]:
            found.append(number)
    return found


def fold_key(line: bytes) -> bytes:
    """Lines with the same key are repeats: the same words, whatever the time, the rank and the numbers' pids."""
    found = head(line)
    return line[found.length :] if found.length else line
