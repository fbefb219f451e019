"""Side by side, and warm-up: real processes, the engine is simulated."""

from __future__ import annotations

import os
import signal
import socket

import pytest
from control_helpers import down, events_of, until, up

from specdash.control import hostruns, switch
from specdash.errors import Refused
from specdash.host.remote import procs, warm

FAST = {"drain_s": 0.0, "deadline_s": 5.0, "settle_s": 0.2, "hold_s": 0.5, "side_by_side": True}


@pytest.fixture
def other_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def fast(stub, *flags, **more):
    return stub("--load=0.1", "--tok-s=4000", *flags, **more)


async def living(link) -> dict[str, dict]:
    listed = (await link.call("runs.list", {"base": hostruns.base(link)}))["runs"]
    return {run["id"]: run for run in listed if run["alive"]}


@pytest.mark.slow
async def test_b_serves_before_a_is_stopped(link, stub, other_port):
    a, _ = await up(link, fast(stub, profile="base"))
    b = fast(stub, "--accept=2.5", profile="eagle", algorithm="EAGLE3", port=other_port)
    plan = await switch.plan(link, a.id, b, **FAST)
    assert [step.name for step in plan.steps] == ["measure", "launch", "ready", "pulse", "watch", "stop"]
    assert any(f"on port {other_port}" in note for note in plan.notes)
    assert not any("Going back starts" in note for note in plan.notes)
    events = await events_of(switch.run(link, plan))
    assert events[-1].final == "done", events[-1]
    done = [event.step for event in events if event.status == "done"]
    assert done.index("pulse") < done.index("watch") < done.index("stop")
    assert list(await living(link)) == [plan.spec["switch"]["b"]]
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
async def test_a_b_that_fails_leaves_a_untouched(link, stub, other_port, flags, why):
    a, _ = await up(link, fast(stub, profile="base"))
    before = await hostruns.record(link, a.id)
    b = fast(stub, *flags, profile="bad", algorithm="EAGLE3", port=other_port)
    more = {"settle_s": 5.0} if "--die-after=0.3" in flags else {}
    plan = await switch.plan(link, a.id, b, **{**FAST, **more})
    events = await events_of(switch.run(link, plan))
    assert events[-1].final == "rolled_back" and why in events[-1].sentence, events[-1]
    assert "never stopped" in events[-1].sentence
    assert not any(event.step == "stop" for event in events)
    alive = await living(link)
    assert list(alive) == [a.id] and alive[a.id]["pid"] == before["pid"]
    assert (await switch.listing(link))[0]["end"]["serves"] == a.id
    await down(link, a.id, deadline_s=5)


@pytest.mark.slow
async def test_a_killed_switcher_beside_is_taken_back_without_touching_a(link, stub, other_port):
    a, _ = await up(link, fast(stub, profile="base"))
    b = stub("--load=30", profile="slow", algorithm="EAGLE3", port=other_port)
    plan = await switch.plan(link, a.id, b, **{**FAST, "measure": False})
    stream = switch.run(link, plan)
    async for event in stream:
        if event.step == "ready":
            break
    os.kill(
        (await link.call("switches.list", {"base": hostruns.base(link)}))["running"]["pid"], signal.SIGKILL
    )
    await until(lambda: _free(link))
    await switch.abort(link, plan.id)
    events = await events_of(switch.follow(link, plan.id))
    assert events[-1].final == "rolled_back" and "never stopped" in events[-1].sentence
    assert list(await living(link)) == [a.id]
    await down(link, a.id, deadline_s=5)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["launch", "ready", "pulse", "watch", "stop"])
async def test_a_switcher_killed_beside_at_any_step_goes_on(link, stub, other_port, step):
    a, _ = await up(link, stub("--load=0.5", "--tok-s=2000", profile="base"))
    b = stub(
        "--load=0.5", "--tok-s=2000", "--accept=2.5", profile="eagle", algorithm="EAGLE3", port=other_port
    )
    plan = await switch.plan(
        link, a.id, b, **{**FAST, "settle_s": 1.0, "on_slower": "keep", "measure": False}
    )
    last, killed = None, False
    async for event in switch.run(link, plan):
        last = event
        if event.step == step and not killed:
            busy = (await link.call("switches.list", {"base": hostruns.base(link)}))["running"]
            if busy:
                killed = True
                os.kill(busy["pid"], signal.SIGKILL)
    assert killed and last is not None
    if last.data.get("lost"):
        last = (await events_of(switch.attach(link, plan.id)))[-1]
    assert last.final == "done", last
    assert list(await living(link)) == [plan.spec["switch"]["b"]]
    await down(link, plan.spec["switch"]["b"], deadline_s=5)


async def _free(link) -> bool:
    return (await link.call("switches.list", {"base": hostruns.base(link)}))["running"] is None


@pytest.mark.slow
async def test_the_same_port_is_refused_and_another_is_found(link, stub):
    a, _ = await up(link, fast(stub, profile="base"))
    same = fast(stub, "--accept=2.5", profile="eagle", algorithm="EAGLE3")
    with pytest.raises(Refused, match="port of its own"):
        await switch.plan(link, a.id, same, **FAST)
    moved = await switch.beside(link, same, a.id)
    assert moved.http()[1] != same.http()[1] and moved.http()[1] > same.http()[1]
    assert (await switch.beside(link, moved, a.id)) == moved, "a port of its own stays"
    await down(link, a.id, deadline_s=5)


@pytest.mark.slow
async def test_warm_up_shows_its_cost_and_reads_before_the_stop(link, stub, root):
    files = root / "model"
    files.mkdir()
    (files / "model.safetensors").write_bytes(b"x" * 5_000_000)
    a, _ = await up(link, fast(stub, profile="base"))
    b = fast(stub, f"--model-path={files}", "--accept=2.5", profile="eagle", algorithm="EAGLE3")
    plan = await switch.plan(link, a.id, b, **{**FAST, "side_by_side": False, "warm_mb_s": 1000})
    assert plan.steps[0].name == "warm" and any("1 files" in note for note in plan.notes)
    events = await events_of(switch.run(link, plan))
    assert events[-1].final == "done", events[-1]
    told = [event for event in events if event.step == "warm"]
    assert told[-1].status in ("done", "skipped"), told
    assert events.index(told[-1]) < next(i for i, e in enumerate(events) if e.step == "stop")
    await down(link, plan.spec["switch"]["b"], deadline_s=5)


@pytest.mark.slow
def test_a_warm_up_keeps_to_its_rate_and_stops_when_told(tmp_path, monkeypatch):
    (tmp_path / "a.safetensors").write_bytes(b"x" * 9_000_000)
    (tmp_path / "b.txt").write_bytes(b"x")
    assert [size for _, size in warm.files([str(tmp_path)])] == [9_000_000]
    slept: list[float] = []
    monkeypatch.setattr(warm.time, "sleep", slept.append)
    assert warm.read([str(tmp_path)], 1e6, lambda: False, lambda _: None) == (9_000_000, "")
    assert max(slept) > 5.0, "9 MB at 1 MB/s"
    assert warm.read([str(tmp_path)], 1e6, lambda: True, lambda _: None) == (0, "it was taken back")
    monkeypatch.setattr(warm, "available", lambda: 1 << 20)
    assert warm.read([str(tmp_path)], 1e6, lambda: False, lambda _: None) == (0, "memory got short")
    assert procs.read_bytes(str(tmp_path / "b.txt")) == b"x"
