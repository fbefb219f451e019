"""A run's log: the story it tells, and its decode lines dated by when the host wrote them.

When specdash reattaches, hours of log arrive in one burst. Such lines are not *now*: the supervisor's
samples tell how long the log was at which boot time, and date every byte.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from itertools import takewhile

from specdash.monitor import backfill, memory, story_view
from specdash.monitor.events import Event, LogLost, LogRead
from specdash.monitor.memory import KEEP_S, MOST_LINES, MOST_PREFILLS, Prefill
from specdash.monitor.reduce_link import boot_to_local, seen
from specdash.monitor.reduce_run import server_of, with_server
from specdash.monitor.state import HostState, LogState, ServerState
from specdash.sglang.decode import DecodeLine

PIECE = 48 * 1024


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
        # In pieces that hold no more decode lines than the story keeps: none of a burst may be lost.
        for begin in range(0, len(data), PIECE):
            server = replace(server, story=story_view.feed(server.story, data[begin : begin + PIECE], at))
            server = _take_lines(host, server, event.at)
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


def _take_lines(host: HostState, server: ServerState, now: float) -> ServerState:
    """New decode and prefill lines of the story, each with the time it was written, go to the windows."""
    was = memory.of(server)
    newest = list(takewhile(lambda line: line.offset > was.taken, reversed(server.story.decodes)))
    fresh = [line for line in reversed(newest) if story_view.counts(line.rank)]
    # The log was as long as a line's offset before the line came: its first byte is what dates it.
    fresh = dated(fresh, [written_at(host, server, was.log_base + line.offset + 1, now) for line in fresh])
    prefills = list(takewhile(lambda line: line.offset > was.taken, reversed(server.story.prefills)))
    prefills = [line for line in reversed(prefills) if story_view.counts(line.rank)]
    if not fresh and not prefills:
        return server
    lines = tuple(line for line in (*was.lines, *fresh) if (line.at or 0.0) > now - KEEP_S)[-MOST_LINES:]
    batches = [
        Prefill(
            written_at(host, server, was.log_base + line.offset + 1, now),
            line.new_tokens or 0,
            line.cached_tokens or 0,
        )
        for line in prefills
    ]
    return memory.keep(
        server,
        replace(
            backfill.remember(was, fresh, now),
            lines=lines,
            prefills=tuple(b for b in (*was.prefills, *batches) if b.at > now - KEEP_S)[-MOST_PREFILLS:],
            taken=max([*(line.offset for line in fresh), *(line.offset for line in prefills)]),
            last_decode=fresh[-1].at if fresh else was.last_decode,
            last_prefill=batches[-1].at if batches else was.last_prefill,
            speculates=fresh[-1].accept_len is not None if fresh else was.speculates,
        ),
    )


def dated(lines: list[DecodeLine], written: list[float]) -> list[DecodeLine]:
    """Lines with their local time: not later than written, and as far apart as the log itself says."""
    out: list[DecodeLine] = []
    for line, at in zip(reversed(lines), reversed(written), strict=True):
        if out and out[-1].at is not None and line.time is not None and out[-1].time is not None:
            at = min(at, out[-1].at - max(0.0, out[-1].time - line.time))
        out.append(line._replace(at=at))
    out.reverse()
    return out
