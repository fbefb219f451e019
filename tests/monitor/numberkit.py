"""Captures of tests/capture/make_numbers.py replayed through the reducer: what would have been shown, each second."""

from __future__ import annotations

import bisect
import json
import lzma
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdash.monitor.events import (
    BaseMeasured,
    Event,
    HostSeen,
    HttpSeen,
    LinkChanged,
    LogRead,
    RunsListed,
    Tick,
)
from specdash.monitor.reduce import reduce, start
from specdash.monitor.state import FleetState, Numbers, ServerState

DATA = Path(__file__).parents[1] / "data" / "numbers"
SOURCES: dict[str, tuple[str, ...]] = {"log": ("log",), "metrics": ("metrics",), "loads": ("loads",)}
"""Which rows are fed so that the numbers come from one source."""


def rows(name: str) -> list[dict[str, Any]]:
    with lzma.open(DATA / f"{name}.jsonl.xz", "rt") as file:
        return [json.loads(line) for line in file]


@dataclass
class Level:
    """One load: when it ran, and what the client counted between any two of its seconds."""

    streams: int
    begin: float
    end: float
    client: list[tuple[float, int]] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)

    def steady(self, settle_s: float = 12.0) -> tuple[float, float]:
        return self.begin + settle_s, self.end

    def tokens(self, begin: float, end: float) -> tuple[float, float]:
        """(tokens, seconds) that the client received between two of its counts."""
        inside = [(t, n) for t, n in self.client if begin <= t <= end]
        return inside[-1][1] - inside[0][1], inside[-1][0] - inside[0][0]


def levels(all_rows: list[dict[str, Any]]) -> list[Level]:
    marks = [row for row in all_rows if row["kind"] == "level"]
    out = [Level(a["streams"], a["t"], b["t"]) for a, b in zip(marks[::2], marks[1::2], strict=True)]
    for level in out:
        level.client = [
            (r["t"], r["tokens"])
            for r in all_rows
            if r["kind"] == "client" and level.begin <= r["t"] <= level.end
        ]
        level.requests = [
            r
            for r in all_rows
            if r["kind"] == "request" and r["whole"] and level.begin <= r["began"] and r["t"] <= level.end
        ]
    return out


def replay(
    all_rows: list[dict[str, Any]],
    source: str,
    algorithm: str = "",
    bases: list[dict[str, Any]] | None = None,
    target: str = "models/base",
) -> Iterator[tuple[float, ServerState]]:
    """(second, server) at each tick. Ticks come once a second, as the hub's do, 0.5 s after the polls."""
    argv = ("python3", "-m", "sglang.launch_server", "--model-path", target)
    record = {"id": "r", "alive": True, "http": {"port": 1}, "argv": argv, "ready_boot_s": 1.0}
    state = start([("h", "")])
    state = feed(state, 0.0, LinkChanged("up"))
    state = feed(state, 0.0, HostSeen({"now_boot": 1000.0, "boot_id": "b"}))
    state = feed(state, 0.0, RunsListed(({**record, "algorithm": algorithm},)))
    for base in bases or ():
        state = feed(state, 0.0, BaseMeasured(base))
    tick, told = 0.5, False
    for row in all_rows:
        while row["t"] >= tick:
            state = feed(state, tick, Tick())
            yield tick, state.hosts["h"].servers["r"]
            tick += 1.0
        if row["kind"] == "log" and "log" in SOURCES[source]:
            data = row["data"].encode("latin-1")
            state = feed(state, row["t"], LogRead(row["offset"], data, row["offset"] + len(data)), "r")
        if row["kind"] == "http" and row["endpoint"] == "server_info":
            if told:
                continue
            told = True  # once is enough: it tells what does not change
            state = feed(state, row["t"], HttpSeen("server_info", 200, row["body"].encode("latin-1")), "r")
        if row["kind"] == "http" and row["endpoint"] in SOURCES[source]:
            body = row["body"].encode("latin-1")
            state = feed(state, row["t"], HttpSeen(row["endpoint"], row["status"], body), "r")


def feed(state: FleetState, at: float, body: Any, run: str = "") -> FleetState:
    return reduce(state, Event(at, "" if isinstance(body, Tick) else "h", body, run))


def shown(
    seen: list[tuple[float, ServerState]], begin: float, end: float, what: Callable[[Numbers], Any]
) -> list[float]:
    """What was shown each second between two times; seconds with a dash are left out."""
    values = [what(server.numbers) for at, server in seen if begin <= at <= end]
    return [value for value in values if value is not None]


def counted(client: list[tuple[float, int]], begin: float, end: float) -> float | None:
    """Tokens per second that the client received between two times, linear between its counts; None outside."""
    if not client or begin < client[0][0] or end > client[-1][0] or end <= begin:
        return None
    return (_at(client, end) - _at(client, begin)) / (end - begin)


def _at(client: list[tuple[float, int]], when: float) -> float:
    index = max(1, min(len(client) - 1, bisect.bisect_left(client, (when, -1))))
    (t0, n0), (t1, n1) = client[index - 1], client[index]
    return n0 + (n1 - n0) * (when - t0) / (t1 - t0)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)
