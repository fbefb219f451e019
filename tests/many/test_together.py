"""Launch, stop and switch of ranks on two links of this machine, with simulated ranks that meet for real."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from specdash.config.hosts import Host
from specdash.config.profile import OnHost
from specdash.control import hostruns, ranks, ranks_launch, ranks_stop, ranks_store, ranks_switch
from specdash.control.plans import Plan, StepEvent
from specdash.control.ranks import Layout, Network
from specdash.control.ranks_party import Party
from specdash.control.ranks_store import Member
from specdash.errors import LinkLost, Refused
from specdash.host.link import Link
from specdash.host.open import open_link
from specdash.host.remote import procs
from specdash.sglang.commandline import LaunchSpec

STUB = Path(__file__).parent / "rank_stub.py"
slow = pytest.mark.slow


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Bench:
    """Two hosts of this machine, a and b, each with its own run root; `cut` takes one out of reach."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.gone: set[str] = set()
        self.party = Party(self._open, ("a", "b"))
        self.port, self.other, self.init = free_port(), free_port(), free_port()

    async def _open(self, host: str) -> Link:
        if host in self.gone:
            raise LinkLost("no route to it")
        return await open_link(Host(name=host, run_root=str(self.root / host), python=sys.executable))

    async def cut(self, host: str) -> None:
        self.gone.add(host)
        await self.party.lose(host, "its cable is out")

    def spec(self, *flags: tuple[str, Any], profile: str = "p", algorithm: str = "") -> LaunchSpec:
        all_flags = (("--port", self.port), *flags)
        env = {"TEST_ROOT_MARK": str(self.root)}
        python = sys.executable
        return LaunchSpec(profile, "a", python, ("-B", str(STUB)), all_flags, env=env, algorithm=algorithm)

    def plan(self, *flags: tuple[str, Any], **more: Any) -> ranks.Ranks:
        spec = self.spec(("--dist-init-addr", f"127.0.0.1:{self.init}"), *flags, **more)
        on = {"a": OnHost(), "b": OnHost(server={"port": self.other})}
        return ranks.plan(Layout(spec, ("a", "b"), "", on), {"a": Network(), "b": Network()})

    async def launch(self, *flags: tuple[str, Any], **more: Any) -> tuple[Plan, list[StepEvent]]:
        made = ranks_launch.plan(self.party, self.plan(*flags))
        return made, [event async for event in ranks_launch.run(self.party, made, **more)]

    async def stop(self, plan: Plan) -> list[StepEvent]:
        members = members_of(plan)
        made = await ranks_stop.plan(self.party, plan.spec["together"], "p", members, deadline_s=5)
        return [event async for event in ranks_stop.run(self.party, made)]

    def alive(self) -> list[int]:
        """Living stubs of this test, by its mark: the test's own look."""
        word = str(self.root).encode()
        found = []
        for pid in procs.pids():
            line = procs.read_bytes(f"/proc/{pid}/cmdline", 4096) or b""
            env = procs.environ(pid) or {}
            if b"rank_stub" in line and env.get(b"TEST_ROOT_MARK") == word:
                found.append(pid)
        return found

    def folders(self) -> list[str]:
        return sorted(path.name for path in self.root.glob("*/hosts/*/runs/*"))


def members_of(plan: Plan) -> list[Member]:
    return [Member.from_json(one) for one in plan.spec["members"]]


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(ranks_stop, "COME_BACK_S", 2.0)
    made = Bench(tmp_path)
    await made.party.open()
    yield made
    await made.party.close()
    for pid in made.alive():
        with contextlib.suppress(ProcessLookupError):  # its peer went, and so it went by itself
            os.kill(pid, signal.SIGKILL)


async def test_all_ranks_start_at_once_and_stop_with_proof_on_each(bench: Bench) -> None:
    plan, events = await bench.launch()
    assert events[-1].final == "done", events[-1].sentence
    started = next(event for event in events if event.step == "start" and event.status == "done")
    assert started.data["apart_s"] < 1.0
    for member in members_of(plan):
        record = await hostruns.record(bench.party.links[member.host], member.run)
        assert (record["phase"], record["run_id_all"]) == ("ready", plan.spec["together"])
        assert ranks_store.members_of(record["together"]) == tuple(members_of(plan))
    assert [event async for event in ranks_launch.run(bench.party, plan)][-1].final == "done", (
        "again starts nothing"
    )
    assert len(bench.alive()) == 2

    stopped = await bench.stop(plan)
    assert stopped[-1].final == "done"
    assert [rank["state"] for rank in stopped[-1].data["ranks"]] == ["proven", "proven"]
    assert bench.alive() == [] and ranks_store.unproven() == ()
    with pytest.raises(Refused, match="ended on all hosts already"):
        await bench.stop(plan)


@slow
async def test_the_first_failure_leads_its_echo_is_folded_and_nothing_is_left(bench: Bench) -> None:
    _, events = await bench.launch(("--die-rank", 1))
    end = events[-1]
    assert end.final == "failed"
    assert end.sentence.startswith("Rank 1 on b failed first:") and "Rank 0 on a ended" in end.sentence
    assert end.data["host"] == "b" and end.data["cause"]["category"] == "oom_kv_pool"
    assert "Nothing of it is left on a, b." in end.sentence
    assert bench.alive() == []


@slow
async def test_a_rank_that_cannot_be_prepared_leaves_nothing_anywhere(bench: Bench) -> None:
    plan = ranks_launch.plan(bench.party, bench.plan())
    plan.spec["runs"][1]["log"] = "/not/there/server.log"
    events = [event async for event in ranks_launch.run(bench.party, plan)]
    assert events[-1].final == "failed"
    assert (
        "Rank 1 cannot be prepared on b" in events[-1].sentence
        and "Nothing was started" in events[-1].sentence
    )
    assert bench.folders() == [] and bench.alive() == []


@slow
async def test_a_rank_that_cannot_be_started_has_the_other_stopped(bench: Bench) -> None:
    plan = ranks_launch.plan(bench.party, bench.plan())
    plan.spec["runs"][1]["argv"][0] = "/not/there/python"
    events = [event async for event in ranks_launch.run(bench.party, plan)]
    assert events[-1].final == "failed"
    assert "Rank 1 could not be started on b" in events[-1].sentence
    assert "Nothing of it is left on a, b." in events[-1].sentence
    assert bench.alive() == []


@slow
@pytest.mark.parametrize("lost", ["leave", "stop"])
async def test_a_host_lost_in_the_middle_is_named_and_finished_when_it_is_back(
    bench: Bench, lost: Any
) -> None:
    plan = ranks_launch.plan(bench.party, bench.plan(("--load", 30)))
    events = []
    async for event in ranks_launch.run(bench.party, plan, lost=lost, lost_s=1.0):
        events.append(event)
        if event.step == "start" and event.status == "done":
            await bench.cut("b")
    end = events[-1]
    assert end.final == "failed" and "Out of reach while it was loading: b" in end.sentence
    if lost == "leave":
        assert f"rank 0 on a. Stop it: specdash stop {plan.spec['together']}" in end.sentence
        assert len(bench.alive()) == 2, "nothing was stopped that nobody asked for"
        stopped = await bench.stop(plan)
        assert stopped[-1].final == "failed" and "Not proven on b" in stopped[-1].sentence
    else:
        assert "Not proven to be gone on b" in end.sentence
    assert len(bench.alive()) <= 1
    assert [one.id for one in ranks_store.unproven()] == [plan.spec["together"]]
    bench.gone.clear()
    assert await bench.party.again("b") or await _later(bench)
    try:
        assert (await bench.stop(plan))[-1].final == "done"
    except Refused as over:  # rank 1 lost its peer and went by itself, with its supervisor's proof
        assert "ended on all hosts already" in over.sentence
    assert bench.alive() == [] and ranks_store.unproven() == ()


async def _later(bench: Bench) -> bool:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if await bench.party.again("b"):
            return True
        await asyncio.sleep(0.2)
    return False


async def switched(bench: Bench, plan: Plan, new: ranks.Ranks, **more: Any) -> tuple[Plan, list[StepEvent]]:
    old = await ranks_switch.old_server(bench.party, plan.spec["together"], "p", members_of(plan))
    more = {"settle_s": 0.2, "drain_s": 5.0, "deadline_s": 5.0, **more}
    made = ranks_switch.plan(bench.party, old, new, **more)
    return made, [event async for event in ranks_switch.run(bench.party, made)]


@slow
async def test_a_switch_over_hosts_and_its_way_back(bench: Bench) -> None:
    plan, _ = await bench.launch()
    first = set(bench.alive())
    new = bench.plan(("--accept", 2.5), profile="q", algorithm="EAGLE3")
    made, events = await switched(bench, plan, new)
    assert events[-1].final == "done", events[-1].sentence
    assert "q serves on a, b." in events[-1].sentence
    assert len(bench.alive()) == 2 and not first & set(bench.alive())
    assert all(name.startswith(("p-", "q-")) for name in bench.folders())
    assert len(bench.folders()) == 4, "what was prepared for the way back is gone"

    old = await ranks_switch.old_server(
        bench.party,
        made.spec["state"]["b"]["id"],
        "q",
        [Member.from_json(m) for m in made.spec["new"]["members"]],
    )
    bad = bench.plan(("--accept", 1.0), profile="r", algorithm="EAGLE3")
    other = ranks_switch.plan(bench.party, old, bad, settle_s=0.2, drain_s=5, deadline_s=5, measure=False)
    events = [event async for event in ranks_switch.run(bench.party, other)]
    assert events[-1].final == "rolled_back", events[-1].sentence
    assert "q serves again on all hosts. Why: Accept length 1.00" in events[-1].sentence
    assert len(bench.alive()) == 2
    listed = await ranks_switch.listing(bench.party, "a")
    assert {one["end"]["final"] for one in listed} == {"done", "rolled_back"}
    assert not any(one["driven"] for one in listed)


@slow
async def test_the_next_specdash_goes_on_where_one_ended_and_two_never_drive(bench: Bench) -> None:
    plan, _ = await bench.launch()
    new = bench.plan(profile="q")
    old = await ranks_switch.old_server(bench.party, plan.spec["together"], "p", members_of(plan))
    made = ranks_switch.plan(bench.party, old, new, settle_s=0.2, drain_s=5, deadline_s=5, measure=False)
    first = ranks_switch.run(bench.party, made)
    async for event in first:
        if event.step == "launch" and event.status == "done":
            break
    with pytest.raises(Refused, match="is driven by"):
        async for _ in ranks_switch.attach(bench.party, "a", made.id):
            pass
    await first.aclose()  # type: ignore[attr-defined]
    events = [event async for event in ranks_switch.attach(bench.party, "a", made.id)]
    assert events[-1].final == "done", events[-1].sentence
    again = [event async for event in ranks_switch.attach(bench.party, "a", made.id)]
    assert [event.final for event in again] == ["done"]
    assert [event.final async for event in ranks_switch.run(bench.party, made)] == ["done"], (
        "again does nothing"
    )
    assert len(bench.alive()) == 2


@slow
async def test_a_switch_is_taken_back_before_and_after_the_stop(bench: Bench) -> None:
    plan, _ = await bench.launch()
    serving = bench.alive()
    old = await ranks_switch.old_server(bench.party, plan.spec["together"], "p", members_of(plan))
    for step, final in (("prepare", "aborted"), ("stop", "rolled_back")):
        made = ranks_switch.plan(
            bench.party, old, bench.plan(profile="q"), settle_s=0.2, drain_s=5, deadline_s=5, measure=False
        )
        run = ranks_switch.run(bench.party, made)
        async for event in run:
            if event.step == step and event.status == "done":
                break
        await run.aclose()  # type: ignore[attr-defined]
        events = [event async for event in ranks_switch.attach(bench.party, "a", made.id, back=True)]
        assert events[-1].final == final, events[-1].sentence
        assert len(bench.alive()) == 2
        assert (bench.alive() == serving) is (final == "aborted")
