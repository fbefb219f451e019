"""A run's log: the story it tells, and its decode lines dated by when the host wrote them.

When specdash reattaches, hours of log arrive in one burst. Such lines are not *now*: the supervisor's
samples tell how long the log was at which boot time, and date every byte.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from specdash.monitor import backfill, memory, story_view
from specdash.monitor.events import Event, LogLost, LogRead
from specdash.monitor.memory import KEEP_S, MOST_LINES, MOST_PREFILLS, Prefill
from specdash.monitor.reduce_link import boot_to_local, seen
from specdash.monitor.reduce_run import server_of, with_server
from specdash.monitor.state import HostState, LogState, ServerState
from specdash.sglang.batches import Batch
from specdash.sglang.decode import DecodeLine, PrefillLine

Line = TypeVar("Line", DecodeLine, Prefill)


def log_read(host: HostState, event: Event, body: LogRead) -> HostState:
    server = server_of(host, event.run)
    log = server.log
    data, offset = body.data, body.offset
    if body.generation == log.generation and offset < log.read:
        # Never twice: what was read before is cut off.
        data = data[log.read - offset :]
        offset = log.read
    at = written_at(host, server, offset + len(data), event.at)
    server = replace(
        server,
        log=LogState(
            size=max(body.size, offset + len(data)),
            read=offset + len(data),
            generation=body.generation,
            last_growth=at if data else log.last_growth,
            missing="",
        ),
    )
    if data:
        if offset > log.read:  # a reader that began late, or a gap: the story counts from what it was fed
            was = memory.of(server)
            server = memory.keep(server, replace(was, log_base=was.log_base + offset - log.read))
        batches: list[Batch] = []
        server = replace(server, story=story_view.feed(server.story, data, at, batches))
        server = _take_lines(host, server, batches, event.at)
    return seen(with_server(host, server), event)


def log_lost(host: HostState, event: Event, body: LogLost) -> HostState:
    server = server_of(host, event.run)
    return with_server(host, replace(server, log=replace(server.log, missing=body.sentence)))


def written_at(host: HostState, server: ServerState, end: int, now: float) -> float:
    """Local time at which the log had grown to `end` bytes, to 2 s; `now` when no sample tells."""
    clock = memory.of(server).log_clock
    if not clock or end > clock[-1][0]:
        return now
    index = bisect_left(clock, (end, float("-inf")))
    local = boot_to_local(host, clock[index][1])
    return now if local is None else min(now, local)


def _take_lines(host: HostState, server: ServerState, batches: list[Batch], now: float) -> ServerState:
    """New batch lines, each with the time it was written, go to the windows."""
    copies = {rank for rank in {line.rank for line in batches} if not story_view.counts(rank)}
    if copies:
        batches = [line for line in batches if line.rank not in copies]
    if not batches:
        return server
    was = memory.of(server)
    fresh = _needed([line for line in batches if type(line) is DecodeLine], host, server, now)
    fresh = dated(fresh, _written(host, server, fresh, now))
    lines = (*was.lines, *fresh)[-MOST_LINES:]
    prefills = [line for line in batches if type(line) is PrefillLine][-MOST_PREFILLS:]
    batched = [
        Prefill(at, line.new_tokens or 0, line.cached_tokens or 0)
        for at, line in zip(_written(host, server, prefills, now), prefills, strict=True)
    ]
    return memory.keep(
        server,
        replace(
            backfill.remember(was, fresh, now),
            lines=_recent(lines, now - KEEP_S),
            prefills=_recent((*was.prefills, *batched)[-MOST_PREFILLS:], now - KEEP_S),
            last_decode=fresh[-1].at if fresh else was.last_decode,
            last_prefill=batched[-1].at if batched else was.last_prefill,
            speculates=fresh[-1].accept_len is not None if fresh else was.speculates,
        ),
    )


def _recent(lines: tuple[Line, ...], after: float) -> tuple[Line, ...]:
    """Those behind the last that is too old."""
    if not lines or (lines[0].at or 0.0) > after:
        return lines
    return tuple(line for line in lines if (line.at or 0.0) > after)


def _needed(lines: list[DecodeLine], host: HostState, server: ServerState, now: float) -> list[DecodeLine]:
    """The newest lines that windows or histories can use: of a burst that is live, or long past, few are."""
    if len(lines) <= MOST_LINES:
        return lines
    first, last = _written(host, server, [lines[0], lines[-1]], now)
    if lines[0].time is not None and lines[-1].time is not None:
        first = min(first, last - (lines[-1].time - lines[0].time))
    if last < now - backfill.REACH_S - KEEP_S:
        return lines[-1:]
    return lines[-MOST_LINES:] if first >= now - backfill.LATE_S else lines


def _written(host: HostState, server: ServerState, lines: Sequence[Batch], now: float) -> list[float]:
    """`written_at` of lines in the log's order. A line's first byte dates it: the log was that long before it came."""
    was = memory.of(server)
    clock, base, index = was.log_clock, was.log_base + 1, 0
    out: list[float] = []
    at, until = now, -1  # the time of all bytes up to `until`
    for line in lines:
        end = base + line.offset
        if end > until:
            index = bisect_left(clock, (end, float("-inf")), index)
            local = boot_to_local(host, clock[index][1]) if index < len(clock) else None
            at = now if local is None else min(now, local)
            until = clock[index][0] if index < len(clock) else sys.maxsize
        out.append(at)
    return out


def dated(lines: list[DecodeLine], written: list[float]) -> list[DecodeLine]:
    """Lines with their local time: not later than written, and as far apart as the log itself says."""
    out: list[DecodeLine] = []
    later, then = None, None
    for line, at in zip(reversed(lines), reversed(written), strict=True):
        if later is not None and then is not None and line.time is not None:
            at = min(at, later - max(0.0, then - line.time))
        out.append(line if line.at == at else line._replace(at=at))
        later, then = at, line.time
    out.reverse()
    return out
