"""Adopting a server that somebody else started, and the gate that every plan passes. Real processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from control_helpers import down, events_of, until

from specdash.control import adopt, hostruns, launch, stop, switch
from specdash.control.perform import perform
from specdash.control.plans import Danger
from specdash.errors import Refused, RemoteError
from specdash.host.remote import procs

STUB = Path(__file__).parents[1] / "support" / "engine_stub.py"


@pytest.fixture
def foreign(root, free_port):
    """A simulated server under SGLang's own launcher name, started as an operator would: `nohup … > log &`."""
    script = root / "launch_server.py"
    shutil.copy(STUB, script)
    log = root / "their.log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [
                sys.executable,
                "-B",
                str(script),
                "--port",
                str(free_port),
                "--model-path",
                "/m/x",
                "--load",
                "0.1",
            ],
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
            cwd=root,
            env={**os.environ, "TEST_ROOT_MARK": str(root)},
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
        )
    yield server, log
    server.kill()
    server.wait()


async def found(link, pid):
    servers, _ = await adopt.find(link)
    return next((one for one in servers if one.pid == pid and one.listening), None)


async def test_a_foreign_server_is_found_adopted_and_stopped(link, foreign, free_port):
    server, log = foreign
    one = await until(lambda: found(link, server.pid))
    assert (one.form, one.port, one.model, one.managed_by) == ("script", free_port, "/m/x", "")
    assert one.listening == (free_port,) and len(one.workers) == 2
    assert one.details["stdout"] == str(log) and signal.SIGHUP in one.details["ignored"]
    with pytest.raises(RemoteError):
        await stop.plan(link, one.name)
    plan = adopt.plan(link, one)
    assert plan.typed_name == str(server.pid) and plan.danger is Danger.CHANGES
    for _ in range(2):
        assert (await events_of(adopt.run(link, plan)))[-1].final == "done", (
            "repeating it adopts nothing twice"
        )
    record = await hostruns.record(link, plan.id)
    assert record["adopted"] and record["alive"] and record["pid"] == server.pid
    assert os.readlink(f"{record['folder']}/server.log") == str(log)
    await until(lambda: ready(link, plan.id))
    assert await found(link, server.pid) is None, "it is one of ours now"
    order = await stop.plan(link, plan.id, deadline_s=5)
    assert order.typed_name and order.confirmed_by(order.typed_name) and order.confirmed_by(plan.id)
    assert not order.confirmed_by("") and not order.confirmed_by("x")
    said = await events_of(stop.run(link, order))
    assert said[-1].data["proven"], said[-1]
    assert server.poll() is not None or procs.stat(server.pid)["state"] == "Z"
    record = await until(lambda: ended(link, plan.id))
    assert record["exit_code"] is None and record["exit_signal"] is None


async def ready(link, run_id):
    record = await hostruns.record(link, run_id)
    return record["phase"] == "ready"


async def ended(link, run_id):
    record = await hostruns.record(link, run_id)
    return record if record.get("ended") else None


async def test_a_recycled_pid_cannot_be_adopted(link, foreign):
    server, _ = foreign
    one = await until(lambda: found(link, server.pid))
    plan = adopt.plan(link, one)
    run = plan.spec["run"]
    run["id"] = run["run_id_all"] = run["id"] + "-x"
    run["attach"]["start"] += 1
    events = await events_of(adopt.run(link, plan))
    assert events[-1].final == "failed" and "gone" in events[-1].sentence
    assert server.poll() is None


async def test_what_others_manage_is_refused_with_their_own_command(link, foreign):
    from dataclasses import replace

    server, _ = foreign
    one = await until(lambda: found(link, server.pid))
    managed = replace(one, managed_by="docker", stop_with="docker stop sgl-a", restart_policy_check=True)
    with pytest.raises(Refused, match="docker stop sgl-a"):
        adopt.plan(link, managed)


@pytest.mark.slow
async def test_an_adopted_server_can_be_switched_away_and_comes_back(link, foreign, stub):
    server, _ = foreign
    one = await until(lambda: found(link, server.pid))
    plan = adopt.plan(link, one)
    await events_of(adopt.run(link, plan))
    await until(lambda: ready(link, plan.id))
    bad = stub("--load=0.1", "--die=1", profile="bad", algorithm="EAGLE3")
    move = await switch.plan(link, plan.id, bad, drain_s=0, deadline_s=5, settle_s=0.2)
    assert move.typed_name
    events = await events_of(switch.run(link, move))
    assert events[-1].final == "rolled_back", events[-1]
    record = await hostruns.record(link, move.spec["switch"]["restore"])
    assert record["phase"] == "ready" and procs.argv(record["pid"]) == list(one.cmdline)
    await down(link, record["id"], deadline_s=5)


class FakeHub:
    """Stands for monitor's hub: keeps what it was told."""

    def __init__(self, link, read_only=False):
        self.one, self.read_only, self.events = link, read_only, []

    def emit(self, event):
        self.events.append(event)

    def link(self, host):
        return self.one


async def test_perform_tells_each_step_and_refuses_read_only(link, stub):
    plan = await launch.plan(link, stub("--load=0.1"), precheck=False)
    closed = FakeHub(link, read_only=True)
    with pytest.raises(Refused):
        await events_of(perform(closed, plan))
    assert [event.body.status for event in closed.events] == ["refused"]
    with pytest.raises(RemoteError):
        await hostruns.record(link, plan.id)
    hub = FakeHub(link)
    events = await events_of(perform(hub, plan))
    assert events[-1].final == "done"
    last = hub.events[-1].body
    assert last.status == "done" and [step["status"] for step in last.steps] == ["done", "done"]
    assert all(event.host == link.name for event in hub.events)
    order = await stop.plan(link, plan.id, deadline_s=5)
    assert order.danger is Danger.DESTROYS
    await events_of(perform(hub, order))
    assert hub.events[-1].body.status == "done"


async def test_perform_tells_of_a_blocked_plan(link, stub):
    plan = await launch.plan(link, type(stub())(**{**vars(stub()), "python": "/no/python"}))
    hub = FakeHub(link)
    with pytest.raises(Refused):
        await events_of(perform(hub, plan))
    assert hub.events[-1].body.status == "refused"


@pytest.mark.slow
async def test_a_follower_that_leaves_does_not_end_what_runs(link, stub):
    hub = FakeHub(link)
    plan = await launch.plan(link, stub("--load=1"), precheck=False)
    run = perform(hub, plan)
    async for event in run:
        if event.step == "ready":
            break
    await run.aclose()
    assert hub.events[-1].body.status == "aborted" and "goes on" in hub.events[-1].body.sentence
    await until(lambda: ready(link, plan.id))
    await down(link, plan.id, deadline_s=5)
