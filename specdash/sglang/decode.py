"""`Decode batch` and `Prefill batch` lines, by key and value: their order changes with every version."""

from __future__ import annotations

import re
from operator import itemgetter
from typing import Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple


class DecodeLine(NamedTuple):
    """One decode log interval of one rank (default: 40 decode steps). None: not printed."""

    time: Optional[float]
    """Log time, seconds in the host's own time zone."""
    at: Optional[float]
    """When the bytes arrived, on the clock of whoever feeds."""
    rank: str
    dp: Optional[int]
    running: Optional[int]
    queued: Optional[int]
    token_usage: Optional[float]
    """Share 0..1 of the KV pool in use (of the full-attention pool where there are several)."""
    accept_len: Optional[float]
    """Tokens per verify step in this interval, bonus token included; None without speculation, never 0."""
    accept_rate: Optional[float]
    """Its definition changes at 0.5.11 (see the surface notes); None when not printed."""
    tok_s: Optional[float]
    graph: Optional[str]
    """What follows `cuda graph:` (or cpu, npu, musa, xpu): "True", "False", a mode."""
    first_after_idle: bool
    """The interval holds waiting time: leave it out of throughput."""
    offset: int
    """Byte offset of the line in what was fed."""


class PrefillLine(NamedTuple):
    """One prefill batch. Token counts are of this batch."""

    time: Optional[float]
    at: Optional[float]
    rank: str
    dp: Optional[int]
    new_seqs: Optional[int]
    new_tokens: Optional[int]
    cached_tokens: Optional[int]
    running: Optional[int]
    queued: Optional[int]
    token_usage: Optional[float]
    tok_s: Optional[float]
    offset: int

    @property
    def cached_share(self) -> Optional[float]:
        """Share 0..1 of the prompt tokens that the prefix cache had."""
        if self.new_tokens is None or self.cached_tokens is None:
            return None
        total = self.new_tokens + self.cached_tokens
        return self.cached_tokens / total if total else None


ZERO = bytes.maketrans(b"123456789", b"0" * 9)
"""Digits to one digit: what is left of a line is its shape, and lines of one shape are read alike."""
MAX_SHAPED = 400
"""Bytes: longer messages are read one by one."""
WHOLE = re.compile(rb"\d{1,15}")
BROKEN = re.compile(rb"\d{1,12}(?:\.\d{1,9})?")
NO_NUMBER = re.compile(rb"[^\s0-9._+a-zA-Z-]")
"""What Python takes for no number whatever the digits are."""
DECODE_KEYS = (
    b"#running-req",
    b"#queue-req",
    b"",
    b"accept len",
    b"accept rate",
    b"gen throughput (token/s)",
)
PREFILL_KEYS = (b"#new-seq", b"#new-token", b"#cached-token", b"#running-req", b"#queue-req", b"",
                b"input throughput (token/s)")  # fmt: skip
USAGES = (b"token usage", b"full token usage", b"mamba usage")
Span = Tuple[int, int]
NOWHERE = (0, 0)


class Shape(NamedTuple):
    """Where the numbers stand in batch lines of one shape."""

    decode: bool
    """A decode line, else a prefill line."""
    cut: Callable[[bytes], Tuple[bytes, ...]]
    """The numbers' bytes in the order of the keys above (usage for the empty key); b"" for what is no number or not printed."""
    graph: Optional[str]


INTS: Dict[bytes, Optional[int]] = {b"": None}
INTS.update((b"%d" % i, i) for i in range(1024))
FLOATS: Dict[bytes, Optional[float]] = {b"": None}
FLOATS.update((b"%.2f" % (i / 100), float("%.2f" % (i / 100))) for i in range(1001))
"""The usual values, made already."""


def whole(texts: Iterable[bytes]) -> List[Optional[int]]:
    """Integers of a shape's bytes."""
    return [INTS[text] if text in INTS else int(text) for text in texts]


def broken(texts: Iterable[bytes]) -> List[Optional[float]]:
    """Fractions of a shape's bytes."""
    return [FLOATS[text] if text in FLOATS else float(text) for text in texts]


def spans(body: bytes) -> Dict[bytes, Span]:
    """Where the values of a batch line stand, by key; the last part of a key counts (`Decode batch, #running-req`)."""
    found: Dict[bytes, Span] = {}
    start = max(body.find(b"#"), 0)
    for part in body[start:4096].split(b","):
        key, colon, value = part.partition(b": ")
        if colon:
            begin = start + len(key) + 2 + len(value) - len(value.lstrip())
            found[key.strip()] = (begin, begin + len(value.strip()))
        start += len(part) + 1
    return found


def pairs(body: bytes) -> Dict[bytes, bytes]:
    """The values of a batch line by key."""
    return {key: body[begin:end] for key, (begin, end) in spans(body).items()}


def shape(body: bytes) -> Optional[Shape]:
    """The shape of a batch line, if its numbers are plain; None: read it by `decode_line` or `prefill_line`."""
    decode = body.startswith(b"Decode batch")
    if not decode and not body.startswith(b"Prefill batch"):
        return None
    found = spans(body)
    usage = next((found[key] for key in USAGES if key in found), NOWHERE)
    where: List[Span] = []
    for key in DECODE_KEYS if decode else PREFILL_KEYS:
        span = found.get(key, NOWHERE) if key else usage
        text = body[span[0] : span[1]]
        if span == NOWHERE or NO_NUMBER.search(text):
            span = NOWHERE
        elif not (WHOLE if b"#" in key else BROKEN).fullmatch(text):
            return None
        where.append(span)
    graph = _graph(pairs(body))
    if graph is not None and any(c.isdigit() for c in graph):
        return None
    return Shape(decode, itemgetter(*(slice(begin, end) for begin, end in where)), graph)


def _int(text: Optional[bytes]) -> Optional[int]:
    if text is None or len(text) > 15:
        return None
    try:
        return int(text)
    except ValueError:
        return None


def _float(text: Optional[bytes]) -> Optional[float]:
    if text is None or len(text) > 24:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value == value and abs(value) != float("inf") else None


def _graph(found: Dict[bytes, bytes]) -> Optional[str]:
    for key, value in found.items():
        if key.endswith(b" graph"):
            return value[:32].decode("ascii", "replace")
    return None


def _usage(found: Dict[bytes, bytes]) -> Optional[float]:
    for key in USAGES:
        if key in found:
            return _float(found[key])
    return None


def decode_line(
    body: bytes,
    time: Optional[float],
    at: Optional[float],
    rank: str,
    dp: Optional[int],
    offset: int,
    first_after_idle: bool,
) -> DecodeLine:
    """Read a `Decode batch` message of any version."""
    found = pairs(body)
    return DecodeLine(
        time,
        at,
        rank,
        dp,
        _int(found.get(b"#running-req")),
        _int(found.get(b"#queue-req")),
        _usage(found),
        _float(found.get(b"accept len")),
        _float(found.get(b"accept rate")),
        _float(found.get(b"gen throughput (token/s)")),
        _graph(found),
        first_after_idle,
        offset,
    )


def prefill_line(
    body: bytes, time: Optional[float], at: Optional[float], rank: str, dp: Optional[int], offset: int
) -> PrefillLine:
    """Read a `Prefill batch` message of any version."""
    found = pairs(body)
    return PrefillLine(
        time,
        at,
        rank,
        dp,
        _int(found.get(b"#new-seq")),
        _int(found.get(b"#new-token")),
        _int(found.get(b"#cached-token")),
        _int(found.get(b"#running-req")),
        _int(found.get(b"#queue-req")),
        _usage(found),
        _float(found.get(b"input throughput (token/s)")),
        offset,
    )
