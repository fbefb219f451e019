"""Base measurements: from logs of earlier runs, read once over the link, and used for the right runs only."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from specdash.config.hosts import Host
from specdash.errors import RemoteError
from specdash.monitor import bases, sources
from specdash.monitor.events import BaseMeasured, BasesRead, Event
from specdash.monitor.logstore import LogStore
from specdash.monitor.reduce import reduce
from specdash.monitor.sources import HostSource
from specdash.monitor.state import (
    BreakEven,
    DrafterNow,
    FleetState,
    GpuBoard,
    HostState,
    LinkState,
    LogState,
    RunFacts,
    RunStatus,
    ServerState,
)
from specdash.verbs.watching import settled


def line(second: int, running: int, tok_s: float, accept: float | None = None, dp: str = "") -> str:
    spec = f"accept len: {accept:.2f}, accept rate: 0.50, " if accept is not None else ""
    clock = f"10:{second // 60:02d}:{second % 60:02d}"
    return (
        f"[2026-05-04 {clock}{dp}] Decode batch, #running-req: {running}, #token: 9, token usage: 0.12, {spec}"
        f"cuda graph: True, gen throughput (token/s): {tok_s:.2f}, #queue-req: 0\n"
    )


def prefill(second: int, running: int = 0) -> str:
    clock = f"10:{second // 60:02d}:{second % 60:02d}"
    return f"[2026-05-04 {clock}] Prefill batch, #new-seq: 1, #new-token: 9, #cached-token: 0, token usage: 0.00, #running-req: {running}, #queue-req: 0\n"


def levels(text: str) -> dict[int, float]:
    return {level.running: level.tok_s for level in bases.levels(bases.lines_of(text.encode()))}


def test_each_load_that_was_held_is_one_measurement() -> None:
    text = "".join(line(s, 1, 60.0) for s in range(60)) + "".join(line(s, 4, 200.0) for s in range(60, 120))
    found = levels(text)
    assert set(found) == {1, 4}
    assert found[1] == pytest.approx(60) and found[4] == pytest.approx(200)


def test_loads_that_change_all_the_time_and_speculation_measure_nothing() -> None:
    assert levels("".join(line(s, 1 + s % 3, 60.0) for s in range(120))) == {}
    assert levels("".join(line(s, 1, 60.0, 2.0) for s in range(120))) == {}
    assert levels("".join(line(s, 1, 60.0) for s in range(4))) == {}


def test_pauses_are_no_part_of_a_measurement() -> None:
    text = ""
    for start in range(0, 300, 60):
        text += (
            prefill(start) + line(start + 1, 1, 0.5) + "".join(line(start + s, 1, 60.0) for s in range(2, 40))
        )
    assert levels(text)[1] == pytest.approx(60)


def test_dp_ranks_are_added_and_tp_copies_are_not() -> None:
    text = "".join(line(s, 1, 60.0, dp=" DP0 TP0") + line(s, 2, 100.0, dp=" DP1 TP4") for s in range(60))
    assert levels(text) == {3: pytest.approx(160)}


def test_a_log_of_any_length_is_read_whole() -> None:
    text = "".join(line(s % 3600, 1, 50.0 + (s % 2)) for s in range(3500))
    (found,) = bases.levels(bases.lines_of(text.encode()))
    assert found.seconds > 3000


def server(ident: str, algorithm: str = "", target: str = "t", tp: int = 1, **status: Any) -> ServerState:
    argv = ("x", "--model-path", target, "--tp-size", str(tp))
    facts = RunFacts(
        ident,
        target=target,
        algorithm=algorithm,
        argv=argv,
        log_path=f"/runs/{ident}",
        created_unix=float(len(ident)),
    )
    return ServerState(facts, RunStatus(**{"ready_boot_s": 1.0, **status}), drafter=DrafterNow(algorithm))


def test_only_base_runs_of_a_target_that_speculates_now_are_wanted() -> None:
    now = server("now", "EAGLE3", alive=True)
    fitting = server("base", alive=False)
    others = [
        server("other", target="u"),
        server("tp8", tp=8),
        server("never-ready", ready_boot_s=None),
        server("spec", "NGRAM", alive=False),
    ]
    assert [s.run.id for s in bases.wanted([now, fitting, *others])] == ["base"]
    assert bases.wanted([fitting, *others]) == []


class OneLog:
    """A link that knows one file."""

    def __init__(self, text: str) -> None:
        self.text, self.asked = text, []  # type: ignore[var-annotated]

    async def call(
        self, method: str, params: Any = None, *, timeout: float = 10.0, blob: bytes = b""
    ) -> dict[str, Any]:
        self.asked.append((method, params["path"]))
        if not params["path"].endswith("base"):
            raise RemoteError("gone", "not_found")
        return {"blob": self.text.encode()}


async def test_the_source_reads_each_base_log_once(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "BASES_EVERY_S", 0.01)
    known = {s.run.id: s for s in (server("now", "EAGLE3", alive=True), server("base"), server("lost"))}
    seen: list[Event] = []
    came, again = asyncio.Event(), asyncio.Event()
    looks: list[str] = []

    def see(run: str) -> ServerState | None:
        looks.append(run)
        if looks.count(run) > 3:
            again.set()
        return known.get(run)

    def emit(event: Event) -> None:
        seen.append(event)
        came.set()

    source = HostSource(Host(name="h"), emit, see, lambda run: LogStore("h", run, tmp_path), sources.DEFAULT)
    source._listed = list(known)
    source._first_list.set()
    link = OneLog("".join(line(s, 2, 120.0) for s in range(60)))
    task = asyncio.create_task(source._bases(link))  # type: ignore[arg-type]
    async with asyncio.timeout(10):
        await came.wait()
        await again.wait()  # a second round, which asks for nothing again
    task.cancel()
    event, *rest = seen
    assert rest and all(
        isinstance(later.body, BasesRead) for later in rest
    )  # told once it is all that there is
    assert isinstance(event.body, BaseMeasured)
    assert event.body.record["tok_s"] == pytest.approx(120) and event.body.record["running"] == 2.0
    assert "run base" in event.body.record["source"]
    assert len(link.asked) == 2 and len(source.faults) == 1


def test_a_picture_is_not_whole_while_break_even_may_only_lack_what_was_not_read_yet() -> None:
    """On an H200 `status` said *no base measurement* a second before it would have had it."""
    host = HostState(
        "h", link=LinkState("up"), gpus=GpuBoard((), "nvml"), sample={"now_boot": 1.0}, runs_at=1.0
    )
    drafting = replace(
        server("now", "EAGLE3", alive=True),
        log=LogState(missing="unreadable"),
        breakeven=BreakEven("unknown"),
    )
    state = FleetState(hosts={"h": replace(host, servers={"now": drafting})})
    assert not settled(state)
    assert settled(reduce(state, Event(2.0, "h", BasesRead())))
    base = replace(drafting, breakeven=BreakEven("not_speculating"))
    assert settled(FleetState(hosts={"h": replace(host, servers={"now": base})}))
