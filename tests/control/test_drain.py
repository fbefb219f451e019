"""A stop closes the door first: what was accepted is answered, whatever else comes. Real processes, simulated engine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest
from control_helpers import events_of, until, up

from specdash.control import hostruns, stop
from tests.support.clients import Clients


def log_of(link, run_id: str) -> Path:
    return Path(hostruns.run_folder(link, run_id), "server.log")


def records(link, run_id: str) -> list[dict]:
    path = Path(hostruns.run_folder(link, run_id), "events.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


async def ended(link, run_id: str, **more):
    plan = await stop.plan(link, run_id, **more)
    return plan, await events_of(stop.run(link, plan))


@pytest.mark.slow
async def test_a_drained_stop_answers_all_it_accepted(link, stub):
    plan, _ = await up(link, stub("--load=0.1", "--least=0.6", "--tell-rid"))
    with Clients(plan.spec["run"]["http"]["port"], ("plain", "plain", "kept")) as clients:
        await until(lambda: clients.served() > 2)
        told, said = await ended(link, plan.id, drain_s=20, deadline_s=5)
        await until(lambda: any(one.how == "refused" for one in clients.asked))
    assert said[-1].final == "done", said[-1]
    assert any("INT to pid" in step.effect and "refused at once" in step.effect for step in told.steps)
    kinds = {one["event"] for one in records(link, plan.id)}
    assert "signal" in kinds and not kinds & {"given_up", "deadline", "killed"}
    counted = clients.count([log_of(link, plan.id)])
    assert counted["lost"] == 0 and counted["finished"] > 2 and counted["refused"] > 0, clients.lost(
        [log_of(link, plan.id)]
    )


@pytest.mark.slow
async def test_what_does_not_end_is_given_up_and_told(link, stub):
    plan, _ = await up(link, stub("--load=0.1", "--least=30", "--tell-rid"))
    with Clients(plan.spec["run"]["http"]["port"], ("plain",)) as clients:
        await until(lambda: "plain-" in log_of(link, plan.id).read_text())
        _, said = await ended(link, plan.id, drain_s=1, deadline_s=5)
    assert said[-1].final == "done", said[-1]
    assert any("not answered within 1 s: given up" in event.sentence for event in said)
    assert clients.count([log_of(link, plan.id)])["lost"] >= 1, "an honest count tells what was cut"


@pytest.mark.slow
async def test_a_supervisor_killed_while_it_drains_cuts_nothing(link, stub):
    plan, _ = await up(link, stub("--load=0.1", "--least=3", "--tell-rid"))
    supervisor = (await hostruns.order(link, plan.id, cmd="status"))["peer"]["pid"]
    with Clients(plan.spec["run"]["http"]["port"], ("plain",)) as clients:
        await until(lambda: "plain-" in log_of(link, plan.id).read_text())
        going = asyncio.create_task(ended(link, plan.id, drain_s=30, deadline_s=5))
        await until(lambda: "Shutting down" in log_of(link, plan.id).read_text())
        os.kill(supervisor, signal.SIGKILL)
        assert (await going)[1][-1].final == "failed", "it says that it was killed in the middle"
        _, said = await ended(link, plan.id, drain_s=30, deadline_s=5)
    assert said[-1].final == "done", said[-1]
    assert "closed_already" in {one["event"] for one in records(link, plan.id)}
    counted = clients.count([log_of(link, plan.id)])
    assert counted["lost"] == 0 and counted["finished"] > 0, clients.asked


@pytest.mark.slow
async def test_a_quiet_moment_is_waited_for_and_can_be_taken_back(link, stub):
    plan, _ = await up(link, stub("--load=0.1", "--requests=2", "--requests-for=3"))
    told, said = await ended(link, plan.id, idle_s=60, deadline_s=5)
    assert told.steps[0].name == "idle"
    assert any("2 requests in the engine" in event.sentence for event in said)
    assert said[-1].final == "done"
