"""The head of a log record, for every generation of SGLang and for what is wrapped around it.

Forms (surface notes, section 5): `[time]`, `[time TP0]`, `[time.ms DP0 PP1 ATTN_CP0 MOE_DP0 TP3 EP2]`, custom
logging configurations with level, pid and file, JSON logging, uvicorn's `INFO:`; wrapped by docker compose,
`docker logs -t`, Kubernetes, journald, Ray, torchrun or `srun -l`.
"""

from __future__ import annotations

import datetime
import json
import re
from functools import lru_cache
from typing import Any, NamedTuple, Optional, Tuple

_TIME = rb"20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
_RANKS = rb"[A-Z][A-Z_]*\d+"
_LEVEL = rb"DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL"

STANDARD = re.compile(rb"\[(?P<time>" + _TIME + rb")(?P<ranks>(?: " + _RANKS + rb")*)\s?\](?: |$)")
CUSTOM = re.compile(
    rb"\[?(?P<time>" + _TIME + rb")(?:Z|[+-]\d\d:?\d\d)?\]?\s*(?:[|-]\s*)?"
    rb"(?:\[?(?P<level>" + _LEVEL + rb")\b\]?:?)?\s*(?:[|-]\s*)?(?:\[?\d+\]?\s+)?"
    rb"(?:\[\s*(?P<ranks>(?:" + _RANKS + rb"\s*)*)(?:[\w./<>-]+:\d+)?\s*\]:?\s*|[\w.]+:[\w<>]+:\d+\s+-\s+)?"
    rb"(?:[a-z_][a-z_0-9]*(?:\.[a-z_0-9]+)+(?:: | - ))?"
)
LEVEL_FIRST = re.compile(
    rb"(?P<level>" + _LEVEL + rb")\s+(?:(?:20\d\d-)?\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?\s+)"
    rb"(?:\d+\s+)?(?:\[\s*(?P<ranks>(?:" + _RANKS + rb"\s*)*)(?:[\w./-]+:\d+)?\s*\]\s*)?"
)
UVICORN = re.compile(rb"(?P<level>" + _LEVEL + rb"|TRACE):\s+")
WRAPPER = re.compile(
    rb"(?:[A-Za-z0-9][\w.-]{0,63}\s*\|\s(?=\s*\S)"  # docker compose: `sglang-1  | `
    rb"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ [\w@.:/-]+\[\d+\]: "  # journald, short
    rb"|20\d\d-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d) (?:std(?:out|err) [FP] )?"  # docker -t, Kubernetes
    rb"(?:\S+ [\w@.:/-]+\[\d+\]: )?"  # journald, short-iso
    rb"|\([^()]{0,80}pid=\d+[^()]{0,80}\) "  # Ray
    rb"|\[(?:rank|default)\d+\]:\s?(?!\[[WEI]\d)"  # torchrun
    rb"|\s{0,3}\d{1,4}: (?=\[20))"  # srun -l
)
RANK = re.compile(rb"([A-Z][A-Z_]*?)(\d+)")


class Head(NamedTuple):
    """What stands before the message. `time` is text as printed; `rank` like "DP0 TP1", "" for none."""

    time: str
    rank: str
    level: str
    body: bytes
    standard: bool = False
    """SGLang's own `[time ranks] `: the message begins right behind it."""


def read(piece: bytes) -> Optional[Head]:
    """The head of a record, or None: a continuation, a progress bar, a print of somebody."""
    found = STANDARD.match(piece)
    if found:
        body = piece[found.end() :]
        level = ""
        if body[:1] in b"DIWECFT" and body:
            inner = UVICORN.match(body)
            if inner:
                level, body = inner.group("level").decode(), body[inner.end() :]
        return Head(found.group("time").decode(), rank_text(found.group("ranks")), level, body, True)
    first = piece[:1]
    if first in (b"2", b"["):
        found = CUSTOM.match(piece)
        if found:
            level = (found.group("level") or b"").decode()
            ranks = rank_text(found.group("ranks") or b"")
            return Head(found.group("time").decode(), ranks, level, piece[found.end() :])
    elif first == b"{":
        return _json(piece)
    elif first in (b"D", b"I", b"W", b"E", b"C", b"F", b"T"):
        found = UVICORN.match(piece)
        if found:
            return Head("", "", found.group("level").decode(), piece[found.end() :])
        found = LEVEL_FIRST.match(piece)
        if found:
            return Head(
                "",
                rank_text(found.group("ranks") or b""),
                found.group("level").decode(),
                piece[found.end() :],
            )
    return None


def unwrap(piece: bytes) -> bytes:
    """Without what docker compose, journald, Kubernetes, Ray, torchrun or srun put in front."""
    found = WRAPPER.match(piece)
    return piece[found.end() :] if found else piece


def rank_text(text: bytes) -> str:
    """As kept: `"DP0 TP1"`."""
    return b" ".join(text.split()).decode()


def _json(piece: bytes) -> Optional[Head]:
    if not piece.rstrip().endswith(b"}"):
        return None
    try:
        row: Any = json.loads(piece.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    text = next((row[k] for k in ("message", "msg", "log", "event") if isinstance(row.get(k), str)), None)
    if text is None:
        return None
    inner = unwrap(text.rstrip("\n").encode("utf-8", "replace"))
    head = read(inner) if inner[:1] != b"{" else None
    time = next((str(row[k]) for k in ("asctime", "timestamp", "time", "ts") if row.get(k)), "")
    level = next((row[k] for k in ("levelname", "level", "severity") if isinstance(row.get(k), str)), "")
    rank = row.get("rank") if isinstance(row.get("rank"), str) else row.get("prefix")
    rank = rank_text(rank.encode("utf-8", "replace")) if isinstance(rank, str) and _is_rank(rank) else ""
    if head is not None:
        return Head(head.time or time, head.rank or rank, head.level or level.upper(), head.body)
    return Head(time, rank, level.upper(), inner)


def _is_rank(text: str) -> bool:
    return re.fullmatch(r"(?:\s*[A-Z][A-Z_]*\d+)+\s*", text) is not None


@lru_cache(maxsize=4096)
def rank_number(rank: str, part: str) -> Optional[int]:
    """`rank_number("DP3 TP1", "DP")` is 3; None when the part is not there."""
    for name, number in RANK.findall(rank.encode()):
        if name.decode() == part:
            return int(number[:9])
    return None


@lru_cache(maxsize=64)
def _day(date: str) -> Optional[float]:
    try:
        year, month, day = (int(part) for part in date.split("-"))
        return (datetime.date(year, month, day).toordinal() - 719163) * 86400.0
    except ValueError:
        return None


def seconds(time: str) -> Optional[float]:
    """A printed time as seconds since 1970 *in the host's own time zone, which the log does not tell*.

    Only differences mean something. None when it is no time.
    """
    if len(time) < 19:
        try:
            return float(time)
        except ValueError:
            return None
    day = _day(time[:10])
    if day is None:
        return None
    try:
        hour, minute, second = int(time[11:13]), int(time[14:16]), int(time[17:19])
        fraction = float("0." + time[20:]) if len(time) > 20 and time[20:].isdigit() else 0.0
    except ValueError:
        return None
    return day + hour * 3600 + minute * 60 + second + fraction


def order(rank: str) -> Tuple[int, ...]:
    """Sort key that puts the lowest rank first; a line without rank is the main process."""
    return tuple(int(n[:9]) for _, n in RANK.findall(rank.encode()))
