"""What can go wrong around a switch, and must not leave a host without its server: real processes, a simulated engine."""

from __future__ import annotations

import asyncio
import os
import pathlib
import socket
import sys
import threading
import time
from pathlib import Path

import pytest
from control_helpers import down, events_of, up

from specdash.config.hosts import Host
from specdash.control import hostruns, switch
from specdash.errors import Refused
from specdash.host.open import open_link
from specdash.host.remote import journal, procs, runstore, switches, worker
from specdash.host.remote.switcher import Switcher
from specdash.host.remote.switchstate import progress
from specdash.host.remote.switchsteps import StepFailed
from specdash.sglang import pulse

FAST = {"drain_s": 0.0, "deadline_s": 5.0, "settle_s": 0.2, "hold_s": 0.5}


def fast(stub, *flags, **more):
    return stub("--load=0.1", "--tok-s=4000", *flags, **more)


async def alive(link):
    listed = (await link.call("runs.list", {"base": hostruns.base(link)}))["runs"]
    return {run["id"]: run for run in listed if run["alive"]}


def prepared(tmp_path, **more) -> Switcher:
    """A switcher that is given a made-up host by each test."""
    plan = {"id": "s", "base": str(tmp_path), "a": "a", "b": "b", "restore": "c", "by": "t"}
    plan.update(pulse_rules="specdash.sglang.pulse", names={"a": "old", "b": "new", "c": "old"}, **more)
    return Switcher(str(tmp_path), plan)


@pytest.mark.slow
async def test_the_limit_of_the_next_server_is_not_that_of_the_way_back(link, stub):
    a, _ = await up(link, stub("--load=3", "--tok-s=4000", profile="base"))
    bad = fast(stub, "--die=1", profile="bad", algorithm="EAGLE3")
    plan = await switch.plan(link, a.id, bad, **FAST, ready_s=1.5, measure=False)
    events = await events_of(switch.run(link, plan))
    assert events[-1].final == "rolled_back", events[-1]
    await down(link, plan.spec["switch"]["restore"], deadline_s=5)


@pytest.mark.slow
async def test_of_two_switches_at_the_same_moment_one_leaves_nothing(link, stub, root):
    a, _ = await up(link, fast(stub, profile="base"))
    one = await switch.plan(link, a.id, fast(stub, profile="one"), **FAST)
    two = await switch.plan(link, a.id, fast(stub, profile="two"), **FAST)
    other = await open_link(Host(name="local", run_root=str(root / "specdash"), python=sys.executable))
    told = await asyncio.gather(
        events_of(switch.run(link, one)), events_of(switch.run(other, two)), return_exceptions=True
    )
    await other.close()
    won, lost = told if isinstance(told[1], Refused) else reversed(told)
    assert won[-1].final == "done" and isinstance(lost, Refused) and "runs here since" in str(lost)
    assert [found["end"]["final"] for found in await switch.listing(link)] == ["done"]
    serving = list(await alive(link))
    assert len(serving) == 1 and set(os.listdir(Path(hostruns.base(link), "runs"))) == {a.id, *serving}
    await down(link, serving[0], deadline_s=5)


@pytest.mark.slow
async def test_a_switch_that_stood_still_leaves_alone_who_took_the_port_since(link, stub):
    a, _ = await up(link, fast(stub, profile="base"))
    plan, _ = await _go(link, a.id, fast(stub, profile="next"))
    await down(link, plan.spec["switch"]["b"], deadline_s=5)
    (Path(hostruns.base(link)) / "switches" / plan.id / "state.jsonl").write_text("")  # as if killed at once
    later, _ = await up(link, fast(stub, profile="later"))
    events = await events_of(switch.attach(link, plan.id))
    assert events[-1].final == "failed" and later.id in events[-1].sentence, events[-1]
    assert list(await alive(link)) == [later.id]
    assert len(os.listdir(Path(hostruns.base(link), "runs"))) == 3, "nothing was launched"
    await down(link, later.id, deadline_s=5)


async def _go(link, a, spec):
    plan = await switch.plan(link, a, spec, **FAST, measure=False)
    return plan, await events_of(switch.run(link, plan))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run.json", "events.jsonl"])
async def test_a_server_whose_folder_is_broken_is_not_taken_for_gone(link, stub, name):
    a, _ = await up(link, stub("--load=0.1", "--tok-s=500", profile="base"))
    found = await hostruns.record(link, a.id)
    plan = await switch.plan(link, a.id, fast(stub, profile="next"), **FAST)
    file = pathlib.PurePath(found["folder"], name)
    whole = broken(file)
    last = None
    async for event in switch.run(link, plan):
        last = event
        if event.step == "measure" and event.status == "running" and event.at_boot_s:
            whole = broken(file, 9)
    assert last is not None and last.final == "failed" and "Nothing was changed" in last.sentence, last
    assert procs.same(found["pid"], found["start"]) and last.data["serves"] == a.id
    with open(file, "wb") as back:  # noqa: ASYNC230
        back.write(whole)
    await down(link, a.id, deadline_s=5)


def broken(file, keep=None):
    """What a file has; it is cut to `keep` bytes after that."""
    with open(file, "r+b") as handle:
        whole = handle.read()
        if keep is not None:
            handle.truncate(keep)
    return whole


@pytest.mark.slow
async def test_a_port_that_somebody_took_meanwhile_brings_the_old_server_back(link, stub):
    a, _ = await up(link, fast(stub, profile="base"))
    with socket.socket() as held:
        held.bind(("0.0.0.0", 0))
        held.listen()
        spec = fast(stub, profile="next", port=held.getsockname()[1])
        plan, events = await _go(link, a.id, spec)
        assert events[-1].final == "rolled_back", events[-1]
        assert list(await alive(link)) == [plan.spec["switch"]["restore"]]
        held.getsockname()  # still ours
    await down(link, plan.spec["switch"]["restore"], deadline_s=5)


def test_an_error_that_nobody_thought_of_goes_back_too(tmp_path, monkeypatch):
    one = prepared(tmp_path)
    monkeypatch.setattr(
        one, "forward", lambda said: (_ for _ in ()).throw(OSError(12, "Cannot allocate memory"))
    )
    monkeypatch.setattr(one, "back", lambda why: "back: " + why)
    one.step_name = "launch"
    assert "Cannot allocate memory" in one.run()
    monkeypatch.setattr(one, "back", lambda why: (_ for _ in ()).throw(KeyError("x")))
    assert one.run() == "failed"
    end = journal.last(str(tmp_path / "state.jsonl"))[-1]
    assert end["event"] == "end" and "NEITHER" in end["sentence"] and "KeyError" in end["sentence"]


def test_a_server_that_ended_while_nobody_watched_does_not_hold_the_switch_up(tmp_path, monkeypatch):
    """Its supervisor was killed, and then it went: there is nobody to write a proof, and nothing to prove."""
    one = prepared(tmp_path)
    found = {"phase": "exited", "supervisor_alive": False, "alive": False}
    monkeypatch.setattr(one, "record", lambda run_id: found)
    replies = [
        {"ok": True, "accepted": True},
        {"ok": True, "ended": True, "sentence": "No process of the run is left."},
    ]
    monkeypatch.setattr(runstore, "command", lambda *_: replies.pop(0))
    done = threading.Thread(target=one.stop, args=("a", "stop", 0, True), daemon=True)
    done.start()
    done.join(10)
    assert not done.is_alive()
    assert journal.last(str(tmp_path / "state.jsonl"))[-1]["status"] == "done"


def test_a_server_that_does_not_end_is_not_started_a_second_time(tmp_path, monkeypatch):
    one = prepared(tmp_path)
    found = {"id": "a", "phase": "stopping", "alive": True, "stop_asked": True, "pid": 7}
    monkeypatch.setattr(one, "record", lambda run_id: found if run_id == "a" else None)
    monkeypatch.setattr(one, "launch", lambda *_: pytest.fail("a second one on the same port"))
    with pytest.raises(StepFailed, match="lives on"):
        one.back("why")
    assert "Still there: old, run a, pid 7" in one.neither("x")


def test_who_does_not_answer_one_prompt_is_not_asked_the_next(monkeypatch):
    asked = []
    monkeypatch.setattr(
        worker.httpask,
        "ask",
        lambda *_: asked.append(1) or {"status": None, "problem": "timeout", "body": b""},
    )
    found = worker.passes(pulse, {"port": 1}, "EAGLE3", "", lambda: False)
    assert len(asked) == 1 and not found[-1]["ok"]
    assert pulse.judge(found, "EAGLE3")["decision"] == "roll_back"


def test_an_abort_is_heard_during_the_pulse(tmp_path, monkeypatch):
    one = prepared(tmp_path)
    monkeypatch.setattr(
        one, "record", lambda run_id: {"alive": True, "phase": "ready", "http": {"port": 1}, "folder": ""}
    )
    monkeypatch.setattr(worker.httpask, "ask", lambda *_: pytest.fail("it is asked on"))
    (tmp_path / "abort").write_text("me")
    with pytest.raises(StepFailed, match="during the pulse"):
        one.pulse("b", "pulse", None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "then"),
    [("ask", "without an answer within 7 s"), ("roll_back", "rolled back"), ("keep", "is kept")],
)
async def test_the_plan_tells_what_happens_to_a_slower_server(link, stub, rule, then):
    a, _ = await up(link, fast(stub, profile="base"))
    plan = await switch.plan(
        link, a.id, fast(stub, profile="next"), **{**FAST, "hold_s": 7.0}, on_slower=rule
    )
    assert any("slower than base" in note and then in note for note in plan.notes), plan.notes
    plan = await switch.plan(link, a.id, fast(stub, profile="next"), **FAST, measure=False)
    assert not any("slower" in note for note in plan.notes), "nothing is known to compare with"
    await down(link, a.id, deadline_s=5)


def test_what_is_broken_in_a_journal_is_passed_over(tmp_path):
    lines = [
        b'{"event":"back","why":"x"}',
        b"123",
        b"null",
        b"[]",
        b"\0\0",
        b'{"event":"step"}',
        b'{"event":"st',
    ]
    (tmp_path / "state.jsonl").write_bytes(b"\n".join(lines))
    found = progress(str(tmp_path))
    assert (found["direction"], found["why"], found["steps"]) == ("back", "x", [])
    folder = tmp_path / "switches" / "one"
    folder.mkdir(parents=True)
    (folder / "plan.json").write_bytes(b"[1, 2]")
    assert [one["plan"] for one in switches.listing(str(tmp_path))] == [{}]


def test_who_goes_on_compares_with_what_was_measured_before_the_kill(tmp_path, monkeypatch):
    one = prepared(tmp_path, measure=True)
    one.state.add(event="begun")
    one.state.add(event="before", pulse={"tok_s": 9.0})
    for step in ("measure", "stop"):
        one.say(step, "done", "")
    monkeypatch.setattr(one, "measure", lambda: pytest.fail("it is gone"))
    monkeypatch.setattr(one, "stop", lambda *_: pytest.fail("it is gone"))
    for name in ("launch", "ready", "decide", "watch"):
        monkeypatch.setattr(one, name, lambda *_, **__: None)
    told = []
    monkeypatch.setattr(one, "pulse", lambda run, step, before: told.append(before) or {"sentence": ""})
    assert one.run() == "done" and told == [{"tok_s": 9.0}]


def test_a_death_within_the_first_minutes_is_seen_at_once(tmp_path, monkeypatch):
    one = prepared(tmp_path, settle_s=60)
    dead = {"id": "b", "phase": "exited", "alive": False, "exit_signal": 9, "ready_boot_s": procs.boot_now()}
    monkeypatch.setattr(one, "record", lambda run_id: dead)
    began = time.monotonic()
    with pytest.raises(StepFailed, match="signal 9 within its first minutes"):
        one.watch()
    assert time.monotonic() - began < 20
