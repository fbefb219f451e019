"""An hour away: what the supervisor recorded meanwhile gives the state that a specdash that stayed would have.

The run folder is real files over a real (local) link, its process is real; only the hour is made up. The one that
stayed is the same reducer, fed every two seconds with a clock of the past.
"""

# ruff: noqa: ASYNC220  (a child and small local files)
from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specdash.config.hosts import Host
from specdash.host.remote import procs, runstore
from specdash.monitor.events import (
    Event,
    HostSeen,
    LinkChanged,
    LogRead,
    RunRecorded,
    RunSampled,
    RunsListed,
    Tick,
)
from specdash.monitor.hub import Hub
from specdash.monitor.reduce import reduce, start
from specdash.monitor.state import FleetState, ServerState

RUN = "away-20261129-120000-abcd"
HOUR = 3600.0
LOAD_S, KV_S, READY_S = 20.0, 200.0, 240.0


class Hour:
    """What happened in the last hour: log pieces and samples by boot time, and the supervisor's events."""

    def __init__(self, pid: int) -> None:
        self.now = procs.boot_now()
        self.began = self.now - HOUR
        self.wall = time.time() - HOUR
        row = procs.stat(pid)
        assert row is not None
        self.pid, self.start = pid, row["start"]
        self.log = list(self._log())
        self.events = [
            self._event(
                0.0, "started", pid=pid, start=row["start"], boot_id=procs.boot_id(), own_session=True
            ),
            self._event(READY_S, "ready", port=1),
        ]
        self.samples = list(self._samples())

    def _event(self, at: float, kind: str, **facts: Any) -> dict[str, Any]:
        return {"boot_s": self.began + at, "unix": self.wall + at, "event": kind, **facts}

    def _log(self) -> Iterator[tuple[float, bytes]]:
        def line(at: float, text: str) -> tuple[float, bytes]:
            stamp = time.strftime("[%Y-%m-%d %H:%M:%S] ", time.localtime(self.wall + at))
            return at, (stamp + text + "\n").encode()

        yield line(5.0, "server_args=ServerArgs(model_path='models/base', port=1)")
        yield line(LOAD_S, "Load weight begin. avail mem=79.00 GB")
        yield line(
            KV_S,
            "Load weight end. elapsed=180 s, type=LlamaForCausalLM, avail mem=40.00 GB, mem usage=39 GB.",
        )
        yield line(KV_S + 2, "KV Cache is allocated. #tokens: 16384, K size: 8.00 GB, V size: 8.00 GB")
        yield line(READY_S, "The server is fired up and ready to roll!")
        at = READY_S + 10
        while at < HOUR - 3:
            # Rates and accept lengths that change with time, and a quiet minute in every ten.
            if int(at) % 600 > 60:
                accept, rate = 2.0 + at / HOUR, 100.0 + (at % 300)
                yield line(
                    at,
                    f"Decode batch, #running-req: 2, #token: 512, token usage: 0.03, accept len: {accept:.2f}, "
                    f"accept rate: 0.61, cuda graph: True, gen throughput (token/s): {rate:.2f}, #queue-req: 0",
                )
            at += 2

    def _samples(self) -> Iterator[dict[str, Any]]:
        at, pieces, size = 0.0, list(self.log), 0
        while at < HOUR:
            while pieces and pieces[0][0] <= at:
                size += len(pieces.pop(0)[1])
            read = int(min(max(at - LOAD_S, 0), KV_S - LOAD_S) * 1e9)
            yield {
                "boot_s": self.began + at,
                "unix": self.wall + at,
                "log_size": size,
                "read_bytes": read,
                "rchar": 0,
                "cpu_s": at,
                "procs": 1,
                "states": {"S": 1},
                "gpu_mib": None,
            }
            at += 2.0

    def write(self, base: Path) -> None:
        folder = Path(runstore.root_of(str(base))) / RUN
        folder.mkdir(parents=True)
        run = {
            "id": RUN,
            "profile": "away",
            "argv": ["sleep", "600"],
            "folder": str(folder),
            "target": "models/base",
            "created_unix": self.wall,
            "boot_id": procs.boot_id(),
        }
        (folder / "run.json").write_text(json.dumps(run))
        (folder / "server.log").write_bytes(b"".join(data for _, data in self.log))
        for name, rows in (("events.jsonl", self.events), ("samples.jsonl", self.samples)):
            (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def stayed(hour: Hour, record: dict[str, Any], seen_at: float, seen_boot: float) -> FleetState:
    """The state of a specdash that was there all the time; its clock is the one that attaches later."""

    def local(at: float) -> float:
        return seen_at + hour.began + at - seen_boot

    state = start([("local", "")])
    facts = {"now_boot": hour.began, "boot_id": procs.boot_id()}
    state = reduce(state, Event(local(0.0), "local", LinkChanged("up")))
    state = reduce(state, Event(local(0.0), "local", HostSeen(facts)))
    early = {key: value for key, value in record.items() if key != "ready_boot_s"}
    state = reduce(state, Event(local(0.0), "local", RunsListed(({**early, "phase": "starting"},))))
    events, pieces, samples = list(hour.events), list(hour.log), list(hour.samples)
    size, at = 0, 0.0
    while at < HOUR:
        here = local(at)
        while events and events[0]["boot_s"] <= hour.began + at:
            state = reduce(state, Event(here, "local", RunRecorded((events.pop(0),)), RUN))
        while samples and samples[0]["boot_s"] <= hour.began + at:
            state = reduce(state, Event(here, "local", RunSampled((samples.pop(0),)), RUN))
        while pieces and pieces[0][0] <= at:
            data = pieces.pop(0)[1]
            state = reduce(state, Event(here, "local", LogRead(size, data, size + len(data)), RUN))
            size += len(data)
        if at > HOUR - 1000 or int(at) % 20 == 0:
            state = reduce(state, Event(here, "", Tick()))
        at += 1.0
    return state


def phases(server: ServerState) -> list[tuple[str, str, float | None]]:
    return [(p.name, p.sub, p.seconds) for p in server.story.phases]


def by_second(history: tuple[tuple[float, float | None], ...]) -> dict[int, float | None]:
    return {round(at): value for at, value in history}


@pytest.mark.timeout(180)
async def test_after_an_hour_away_it_is_as_if_specdash_had_stayed(root: Path) -> None:
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        host = Host(name="local", run_root=str(root / "specdash"), python=sys.executable)
        hour = Hour(child.pid)
        async with Hub([host], cache=root / "cache") as probe:
            assert await probe.until(lambda s: s.hosts["local"].link.status == "up", 30)
            base = Path(probe.link("local").hello["base"])
        hour.write(base)
        async with Hub([host], cache=root / "cache2") as hub:

            def read(state: FleetState) -> bool:
                server = state.hosts["local"].servers.get(RUN)
                return server is not None and server.log.read > 0 and server.log.behind == 0

            assert await hub.until(read, 60)
            hub.settle()
            back = hub.state.hosts["local"].servers[RUN]
            facts = hub.state.hosts["local"].facts
            assert not hub.faults
        record = runstore.record(str(base / "runs" / RUN))
        assert record is not None
        there = stayed(hour, record, facts["seen_at"], facts["now_boot"]).hosts["local"].servers[RUN]
    finally:
        child.kill()
        child.wait()

    assert phases(back) == phases(there)
    assert ("loading_weights", KV_S - LOAD_S) in [(n, s) for n, _, s in phases(back)]
    assert back.verdict.kind == there.verdict.kind == "ready"
    assert back.status.ready_boot_s == there.status.ready_boot_s
    assert back.samples[-60:] == there.samples[-60:] and len(back.samples) == len(there.samples)

    for name, tolerance in (("accept_history", 0.02), ("decode_history", 0.05)):
        mine, theirs = by_second(getattr(back.numbers, name)), by_second(getattr(there.numbers, name))
        common = sorted(set(mine) & set(theirs))
        assert len(common) > 800, f"{name}: only {len(common)} seconds of the last 15 minutes are there"
        told = [at for at in common if theirs[at] is not None]
        assert len(told) > 600
        near = [at for at in told if mine[at] is not None and abs(mine[at] / theirs[at] - 1) < tolerance]
        off = [(at, mine[at], theirs[at]) for at in told if at not in near]
        assert len(near) > 0.95 * len(told), f"{name}: {len(near)} of {len(told)} agree: {off[:5]} {off[-5:]}"
        quiet = [at for at in common if theirs[at] is None]
        assert quiet and sum(mine[at] is None for at in quiet) > 0.7 * len(quiet)
