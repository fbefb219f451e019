"""Base measurements: what a server without speculation decodes, by load. Break-even compares with these alone.

Two ways: a base server that decodes now under a steady load, and the log that an earlier base run left in its run
folder. Nothing is written anywhere: the log is the memory, so it works after any absence and for old runs too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from specdash.monitor import memory, numbers, numbers_metrics, rates, story_view
from specdash.monitor.breakeven import Base
from specdash.monitor.memory import Memory
from specdash.monitor.reduce_run import flag_of
from specdash.monitor.state import HostState, ServerState
from specdash.monitor.untrusted import number, text, whole
from specdash.sglang.batches import Batch
from specdash.sglang.decode import DecodeLine
from specdash.sglang.story import Story

WINDOW_S = 10.0
LATEST = 200
MOST_RUNS = 3
"""Base runs of one target whose logs are read: the newest."""
"""Bytes fed at once: holds no more decode lines than a story keeps."""


class Level(NamedTuple):
    """Decoding under one steady load."""

    running: int
    tok_s: float
    seconds: float


def target_of(server: ServerState, m: Memory) -> str:
    return server.run.target or (m.info.model if m.info else "")


def tp_of(server: ServerState, m: Memory) -> int | None:
    if m.info is not None and m.info.tp is not None:
        return m.info.tp
    word = flag_of(server.run.argv, "--tp-size", "--tensor-parallel-size", "--tp")
    if word.isdigit():
        return int(word)
    return 1 if server.run.argv else None


def known(host: HostState) -> list[Base]:
    """The host's records as break-even takes them."""
    out = []
    for record in host.bases:
        running, tok_s = number(record.get("running")), number(record.get("tok_s"))
        if running is None or tok_s is None:
            continue
        where = text(record.get("host")) or host.name
        tp, window = whole(record.get("tp")), number(record.get("window_s"))
        out.append(
            Base(text(record.get("target")), where, tp, running, tok_s, text(record.get("source")), window)
        )
    return out


def measured(host: HostState, now: float) -> HostState:
    """A base server that decodes under a steady load is itself a base measurement: the newest per load."""
    found = list(host.bases)
    changed = False
    for server in host.servers.values():
        m = memory.of(server)
        level = _live(server, m, now)
        if level is None or not target_of(server, m):
            continue
        source = f"run {server.run.id}, {m.source}"
        record = _record(host.name, server, level, source, "live")
        same = ("target", "tp", "running", "measured")
        found = [old for old in found if any(old.get(key) != record[key] for key in same)]
        found.append(MappingProxyType(record))
        changed = True
    return replace(host, bases=tuple(found[-LATEST:])) if changed else host


def _live(server: ServerState, m: Memory, now: float) -> Level | None:
    if server.breakeven.verdict != "not_speculating":
        return None
    if m.source == numbers.METRICS:
        found = numbers_metrics.steady(m, now)
        return None if found is None else Level(round(found.running), found.tok_s, found.window_s)
    told = server.numbers.decode_tok_s
    if told.source != numbers.LOG or not told.value or not told.load or (told.age(now) or 0.0) > 2.0:
        return None
    recent = {line.running for line in m.lines if line.at is not None and line.at > now - WINDOW_S}
    if recent != {told.load}:
        return None
    return Level(told.load, told.value, told.window_s or WINDOW_S)


def _record(host: str, server: ServerState, level: Level, source: str, how: str) -> dict[str, Any]:
    m = memory.of(server)
    return {
        "target": target_of(server, m),
        "host": host,
        "tp": tp_of(server, m),
        "running": float(level.running),
        "tok_s": level.tok_s,
        "window_s": level.seconds,
        "source": source,
        "measured": how,
    }


def wanted(servers: Iterable[ServerState]) -> list[ServerState]:
    """Base runs whose logs are worth reading: of the targets that a living run speculates on, newest first."""
    every = list(servers)
    targets = {
        (s.run.target, tp_of(s, memory.of(s)))
        for s in every
        if s.status.alive and s.run.target and (s.drafter.algorithm or s.run.algorithm)
    }
    out: list[ServerState] = []
    for target in sorted(targets, key=str):
        fitting = [
            s
            for s in every
            if not s.run.algorithm
            and not s.run.node_rank
            and s.run.log_path
            and s.status.ready_boot_s is not None
            and (s.run.target, tp_of(s, memory.of(s))) == target
        ]
        fitting.sort(key=lambda s: s.run.created_unix or 0.0, reverse=True)
        out += fitting[:MOST_RUNS]
    return out


def of_log(host: str, server: ServerState, data: bytes) -> list[dict[str, Any]]:
    """Records of a base run by (the end of) its log."""
    source = f"run {server.run.id}, its log"
    return [_record(host, server, level, source, "log") for level in levels(lines_of(data))]


def lines_of(data: bytes) -> list[DecodeLine]:
    """All decode lines that count, however many; `at` is the log's own time."""
    rows = [row for row in data.split(b"\n") if b" batch" in row]
    batches: list[Batch] = []
    story_view.feed(Story(), b"\n".join(rows) + b"\n", 0.0, batches)
    lines = [line for line in batches if isinstance(line, DecodeLine) and story_view.counts(line.rank)]
    return [line._replace(at=line.time) for line in lines]


def levels(lines: Iterable[DecodeLine]) -> list[Level]:
    """Loads that were held for at least `WINDOW_S`, with their mean tok/s over all such windows.

    A window counts when every DP rank in it ran the same number of requests all the time, nothing in it was idle
    or speculated, and each rank that decoded before or after it is in it.
    """
    found: dict[int, list[float]] = {}
    for window in _windows(lines):
        ranks: dict[int, list[DecodeLine]] = {}
        for line in window:
            ranks.setdefault(line.dp or 0, []).append(line)
        if any(line.first_after_idle or line.accept_len is not None or not line.running for line in window):
            continue
        if any(len(rows) < 2 or len({row.running for row in rows}) != 1 for rows in ranks.values()):
            continue
        told = [rates.decode_window(rows, (rows[-1].at or 0.0) + 1.0, 1e9) for rows in ranks.values()]
        whole_ = rates.add_up([one for one in told if one is not None])
        if whole_ is not None and whole_.tok_s:
            load = sum(rows[-1].running or 0 for rows in ranks.values())
            found.setdefault(load, []).append(whole_.tok_s)
    return [Level(load, sum(v) / len(v), WINDOW_S * len(v)) for load, v in sorted(found.items())]


def _windows(lines: Iterable[DecodeLine]) -> Iterator[list[DecodeLine]]:
    """Lines by `WINDOW_S` of log time. The first line of a new load holds some of the old one: left out."""
    last: dict[int, int | None] = {}
    window: list[DecodeLine] = []
    began: float | None = None
    for line in lines:
        if line.time is None:
            continue
        dp = line.dp or 0
        changed = last.get(dp, line.running) != line.running
        last[dp] = line.running
        if changed:
            began, window = None, []
            continue
        if began is not None and line.time - began >= WINDOW_S:
            if (window[-1].time or 0.0) - began >= WINDOW_S / 2:
                yield window
            began = None
        if began is None or line.time < began:
            began, window = line.time, []
        window.append(line)
