"""Switches on real processes: forward, back, killed in the middle, refused. The engine is simulated."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from control_helpers import down, events_of, until, up

from specdash.control import hostruns, switch
from specdash.errors import Refused, RemoteError
from specdash.host.remote import procs

FAST = {"drain_s": 0.0, "deadline_s": 5.0, "settle_s": 0.2, "hold_s": 0.5}


async def go(link, a, spec, **more):
    plan = await switch.plan(link, a, spec, **{**FAST, **more})
    return plan, await events_of(switch.run(link, plan))


def fast(stub, *flags, **more):
    return stub("--load=0.1", "--tok-s=4000", *flags, **more)


async def alive(link):
    listed = (await link.call("runs.list", {"base": hostruns.base(link)}))["runs"]
    return {run["id"]: run for run in listed if run["alive"]}


@pytest.mark.slow
async def test_switch_keeps_a_better_drafter(link, stub):
    a, _ = await up(link, fast(stub, profile="base"))
    plan, events = await go(link, a.id, fast(stub, "--accept=2.5", profile="eagle", algorithm="EAGLE3"))
    assert events[-1].final == "done", events[-1]
    steps = [event.step for event in events if event.status == "done"]
    assert [steps.index(name) for name in ("measure", "stop", "launch", "ready", "pulse", "watch")] == sorted(
        steps.index(name) for name in ("measure", "stop", "launch", "ready", "pulse", "watch")
    )
    pulse = next(event.data["pulse"] for event in events if event.step == "pulse" and event.status == "done")
    assert pulse["accept_length"] == pytest.approx(2.5, abs=0.05)
    living = await alive(link)
    assert list(living) == [plan.spec["switch"]["b"]]
    folders = os.listdir(Path(hostruns.base(link), "runs"))
    assert plan.spec["switch"]["restore"] not in folders, "an unused way back keeps no secrets"
    assert any("none → EAGLE3" in note for note in plan.notes) and any(
        "Expected downtime" in n for n in plan.notes
    )
    await down(link, plan.spec["switch"]["b"], deadline_s=5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--die=1",), "code 1"),
        (("--accept=1.0",), "not accepted"),
        (("--accept=2.0", "--die-after=0.3"), "signal 9"),
    ],
)
async def test_a_drafter_that_fails_is_rolled_back_exactly(link, stub, flags, why):
    a, _ = await up(link, fast(stub, profile="base", env={"EXACT": "ä b\n'\""}))
    old = await hostruns.record(link, a.id)
    cmdline, env = procs.argv(old["pid"]), procs.environ(old["pid"])
    slow = {"settle_s": 5.0} if "--die-after=0.3" in flags else {}
    plan, events = await go(link, a.id, fast(stub, *flags, profile="bad", algorithm="EAGLE3"), **slow)
    assert events[-1].final == "rolled_back" and why in events[-1].sentence, events[-1]
    living = await alive(link)
    assert list(living) == [plan.spec["switch"]["restore"]]
    back = living[plan.spec["switch"]["restore"]]
    assert procs.argv(back["pid"]) == cmdline and back["phase"] == "ready"
    again = procs.environ(back["pid"])
    assert {k: v for k, v in again.items() if k != b"SPECDASH_RUN"} == {
        k: v for k, v in env.items() if k != b"SPECDASH_RUN"
    }
    assert os.readlink(f"/proc/{back['pid']}/cwd") == old["cwd"]
    await down(link, back["id"], deadline_s=5)


@pytest.mark.slow
async def test_ngram_is_judged_on_its_second_pass_and_base_on_speed(link, stub):
    a, _ = await up(link, fast(stub, profile="base"))
    plan, events = await go(link, a.id, fast(stub, "--accept=1.0", profile="ngram", algorithm="NGRAM"))
    assert events[-1].final == "rolled_back"
    plan, events = await go(link, plan.spec["switch"]["restore"], fast(stub, profile="base2"))
    assert events[-1].final == "done"
    await down(link, plan.spec["switch"]["b"], deadline_s=5)


@pytest.mark.slow
async def test_a_slower_server_is_asked_about(link, stub):
    a, _ = await up(link, fast(stub, profile="base"))
    slow = stub("--load=0.1", "--tok-s=1500", "--accept=2", profile="slow", algorithm="EAGLE3")
    plan = await switch.plan(link, a.id, slow, **{**FAST, "hold_s": 60.0})
    seen = []
    async for event in switch.run(link, plan):
        seen.append(event)
        if event.data.get("event") == "question":
            assert "slower" in event.sentence
            await switch.answer(link, plan.id, "roll_back")
    assert seen[-1].final == "rolled_back"
    await down(link, plan.spec["switch"]["restore"], deadline_s=5)


@pytest.mark.slow
async def test_a_rollback_that_fails_is_loud_and_does_not_loop(link, stub, root):
    marker = root / "broken"
    spec = fast(stub, f"--die-if={marker}", profile="base")
    a, _ = await up(link, spec)
    marker.write_text("")
    _, events = await go(link, a.id, fast(stub, "--die=1", profile="bad", algorithm="EAGLE3"))
    assert events[-1].final == "failed" and "NEITHER" in events[-1].sentence
    assert not await alive(link)
    runs = (await link.call("runs.list", {"base": hostruns.base(link)}))["runs"]
    assert len(runs) == 3, "one attempt forward, one back"


@pytest.mark.slow
async def test_the_second_operator_sees_who_and_since_when(link, stub):
    a, _ = await up(link, fast(stub, profile="base"))
    plan = await switch.plan(link, a.id, stub("--load=30", profile="next"), **FAST)
    other = await switch.plan(link, a.id, stub(profile="other"), **FAST)
    follower = asyncio.create_task(events_of(switch.run(link, plan)))
    await until(lambda: _step(link, plan.id, "ready"))
    with pytest.raises(Refused, match=hostruns.operator()):
        await switch.plan(link, a.id, stub(profile="other"), **FAST)
    with pytest.raises(Refused, match="since"):
        await events_of(switch.run(link, other))
    await switch.abort(link, plan.id)
    events = await follower
    assert events[-1].final == "rolled_back" and "operator" in events[-1].sentence
    with pytest.raises(RemoteError):
        await switch.abort(link, plan.id)
    await down(link, plan.spec["switch"]["restore"], deadline_s=5)


async def _status(link, ident):
    try:
        return await link.call("switches.read", {"base": hostruns.base(link), "id": ident, "position": None})
    except RemoteError:
        return None


async def _step(link, ident, name):
    found = await _status(link, ident)
    return found if found and any(step["step"] == name for step in found["steps"]) else None


@pytest.mark.slow
async def test_abort_while_it_waits_for_a_quiet_moment_changes_nothing(link, stub):
    a, _ = await up(link, fast(stub, "--requests=2", profile="base"))
    plan = await switch.plan(link, a.id, fast(stub, profile="next"), **{**FAST, "idle_s": 60.0})
    seen = []
    async for event in switch.run(link, plan):
        seen.append(event)
        if event.step == "stop" and "in the engine" in event.sentence:
            await switch.abort(link, plan.id)
    assert seen[-1].final == "aborted"
    assert list(await alive(link)) == [a.id]
    await down(link, a.id, deadline_s=5)


SLOW = pytest.mark.slow


@pytest.mark.slow
@pytest.mark.parametrize(
    "step",
    [
        pytest.param("measure", marks=SLOW),
        "stop",
        pytest.param("launch", marks=SLOW),
        "ready",
        pytest.param("pulse", marks=SLOW),
        pytest.param("watch", marks=SLOW),
        pytest.param("rollback_launch", marks=SLOW),
        "rollback_ready",
    ],
)
async def test_killing_the_switcher_at_any_step_ends_well(link, stub, step):
    back = step.startswith("rollback")
    a, _ = await up(link, stub("--load=0.5", "--tok-s=2000", profile="base"))
    flags = ("--die=1",) if back else ("--accept=2",)
    nxt = stub("--load=0.5", "--tok-s=2000", *flags, profile="next", algorithm="EAGLE3")
    plan = await switch.plan(link, a.id, nxt, **{**FAST, "settle_s": 1.0, "on_slower": "keep"})
    killed = False
    last = None
    async for event in switch.run(link, plan):
        last = event
        if event.step == step and not killed:
            killed = True
            busy = (await link.call("switches.list", {"base": hostruns.base(link)}))["running"]
            if busy:
                os.kill(busy["pid"], signal.SIGKILL)
    assert killed and last is not None
    if last.data.get("lost"):
        events = await events_of(switch.attach(link, plan.id))
        last = events[-1]
    assert last.final == ("rolled_back" if back else "done"), last
    living = await alive(link)
    assert list(living) == [plan.spec["switch"]["restore" if back else "b"]]
    assert next(iter(living.values()))["phase"] == "ready"
    await down(link, next(iter(living)), deadline_s=5)


@pytest.mark.slow
async def test_a_switch_goes_on_without_its_operator(link, stub):
    a, _ = await up(link, fast(stub, profile="base"))
    plan = await switch.plan(link, a.id, fast(stub, "--accept=2", profile="next", algorithm="EAGLE3"), **FAST)
    async for event in switch.run(link, plan):
        if event.step == "measure" and event.status == "running" and event.at_boot_s:
            break
    found = await until(lambda: _ended(link, plan.id))
    assert found["end"]["final"] == "done"
    events = await events_of(switch.attach(link, plan.id))
    assert events[-1].final == "done"
    await down(link, plan.spec["switch"]["b"], deadline_s=5)


async def _ended(link, ident):
    found = await _status(link, ident)
    return found if found and found["end"] else None


@pytest.mark.slow
async def test_old_switches_are_forgotten_and_unended_ones_never(link, stub, root):
    from specdash.host.remote import switches

    a, _ = await up(link, fast(stub, profile="base"))
    base, run = hostruns.base(link), a.id
    for turn in range(3):
        plan, events = await go(link, run, fast(stub, profile=f"next{turn}"), measure=False)
        assert events[-1].final == "done"
        run = plan.spec["switch"]["b"]
    newest, middle, oldest = (one["id"] for one in switches.listing(base))
    (Path(base) / "switches" / oldest / "state.jsonl").write_text("")  # it stands still: it has no end
    assert switches.prune(base, 1) == [middle]
    assert [one["id"] for one in switches.listing(base)] == [newest, oldest]
    await down(link, run, deadline_s=5)
