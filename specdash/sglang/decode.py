"""`Decode batch` and `Prefill batch` lines, by key and value: their order changes with every version."""

from __future__ import annotations

import re
from typing import Dict, NamedTuple, Optional


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


COMMON = re.compile(
    rb"Decode batch(?: \[\d+\])?[.,] #running-req: (\d{1,9}), #token: \d+, token usage: (\d+\.\d{1,6})"
    rb"(?:, accept len: (\d{1,6}\.\d{1,6}))?(?:, accept rate: (\d{1,6}\.\d{1,6}))?(?:, [a-z]{2,8} graph: (True|False))?"
    rb", gen throughput \(token/s\): (\d{1,12}\.\d{1,6}), #queue-req: (\d{1,9})[, ]*$"
)
"""The usual decode line of 0.4.3 to 0.5.23 at once; all others, and what comes next, go by key and value."""


def pairs(body: bytes) -> Dict[bytes, bytes]:
    """`key: value` pairs of a batch line; the last part of a key counts (`Decode batch, #running-req`)."""
    found: Dict[bytes, bytes] = {}
    start = body.find(b"#")
    for part in body[start if start > 0 else 0 : 4096].split(b","):
        key, colon, value = part.partition(b": ")
        if colon:
            found[key.strip()] = value.strip()
    return found


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
    for key in (b"token usage", b"full token usage", b"mamba usage"):
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
    usual = COMMON.match(body)
    if usual is not None:
        running, usage, length, rate, graph, speed, queued = usual.groups()
        return DecodeLine(
            time,
            at,
            rank,
            dp,
            int(running),
            int(queued),
            float(usage),
            None if length is None else float(length),
            None if rate is None else float(rate),
            float(speed),
            None if graph is None else graph.decode(),
            first_after_idle,
            offset,
        )
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
