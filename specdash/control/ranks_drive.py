"""Carry a switch over several hosts on, from the step in its journal to its end or to where it must stand still."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Literal

from specdash.control import (
    hostruns,
    pulse,
    ranks_follow,
    ranks_launch,
    ranks_ready,
    ranks_stop,
    ranks_store,
    ranks_story,
)
from specdash.control.plans import StepEvent
from specdash.control.ranks_journal import Driver
from specdash.control.ranks_store import Server
from specdash.errors import ActionFailed, LinkError, Refused, SpecdashError
from specdash.sglang import pulse as rules

STEPS = ("prepared", "stop", "launch", "ready", "pulse", "watch")
"""Forward, in order; the journal has the one that is under way."""
BACK = ("back_stop", "back_launch", "back_ready", "back_pulse")
ABORT = "abort"
"""Taken back before anything was stopped."""


class Failed(Exception):
    """A step that sends the switch back. The text is why."""


class Stands(Exception):
    """A step that can neither go on nor back now: a host is out of reach."""


async def drive(driver: Driver) -> AsyncGenerator[StepEvent, None]:
    """Carry the switch on from the step in its journal, to its end or to where it must stand still."""
    beat = asyncio.create_task(driver.beat())
    try:
        async for event in _drive(driver):
            if driver.lost_it:
                raise Refused(f"This switch was taken over: {driver.lost_it}", "Follow it there.")
            yield event
    finally:
        beat.cancel()
        await driver.release()


async def _drive(driver: Driver) -> AsyncIterator[StepEvent]:
    state = driver.state
    try:
        if state["step"] == ABORT:
            yield await _end(driver, "aborted", f"Taken back; {driver.old.profile} was not touched.")
            return
        if state["step"] not in BACK:
            try:
                async for event in _forward(driver):
                    yield event
                yield await _end(driver, "done", _served(driver.new, state.get("said") or ""))
                return
            except Failed as problem:
                await driver.save(step="back_stop", why=str(problem))
                yield StepEvent(driver.id, "rollback", "running", f"Going back: {problem}")
        async for event in _backward(driver):
            yield event
        yield await _end(
            driver, "rolled_back", f"{driver.old.profile} serves again on all hosts. Why: {state['why']}"
        )
    except Failed as problem:
        said = f"Nothing serves: {problem} (It went back because of this: {state['why']})"
        yield await _end(driver, "failed", said)
    except (Stands, LinkError, ActionFailed) as problem:
        words = getattr(problem, "words", str(problem))
        said = (
            f"{words} The switch stands still at step {state['step'].replace('_', ' ')}; go on with "
            f"`specdash switch --attach {driver.id} --host {driver.host}`, or take it back with --abort."
        )
        yield StepEvent(
            driver.id, _shown(state["step"]), "failed", said, final="failed", data={"stands": True}
        )


def _served(server: Server, said: str) -> str:
    hosts = ", ".join(member.host for member in server.members)
    return f"{server.profile} serves on {hosts}. {said}".strip()


async def _forward(driver: Driver) -> AsyncIterator[StepEvent]:
    state, party = driver.state, driver.party
    at = STEPS.index(state["step"])
    if at <= 0:
        if state["measure"]:
            yield StepEvent(driver.id, "measure", "running", f"Pulse of {driver.old.profile}.")
            try:
                state["before"] = await pulse.measure(
                    party.links[driver.old.members[0].host], driver.old.members[0].run
                )
                yield StepEvent(driver.id, "measure", "done", str(state["before"].get("sentence") or ""))
            except (SpecdashError, KeyError, TimeoutError) as error:
                yield StepEvent(driver.id, "measure", "skipped", f"It was not measured: {error}")
        await driver.save(step="stop")
    if at <= 1:
        async for event in _stop(driver, driver.old, "stop", float(state["drain_s"])):
            yield event
        await driver.save(step="launch")
    if at <= 2:
        ranks_store.put(driver.new)
        async for event in ranks_launch.begin(
            party, driver.id, driver.new.id, driver.new.members, step="launch"
        ):
            if event.final:
                raise Failed(event.sentence)
            yield event
        await driver.save(step="ready")
    if at <= 3:
        async for event in _ready(driver, driver.new, "ready"):
            yield event
        await driver.save(step="pulse")
    if at <= 4:
        said = ""
        async for event in _pulse(driver):
            said = event.sentence
            yield event
        await driver.save(step="watch", said=said)
    async for event in _watch(driver):
        yield event


async def _stop(driver: Driver, server: Server, step: str, drain_s: float) -> AsyncIterator[StepEvent]:
    """All ranks to their proof; Stands where one cannot be proven, for nothing may be started beside it."""
    outcomes: list[ranks_stop.Outcome] = []
    deadline = float(driver.state["deadline_s"])
    yield StepEvent(driver.id, step, "running", f"Stopping {server.profile} on all hosts.")
    async for event, outcome in ranks_stop.stop_all(
        driver.party, driver.id, server.members, drain_s, deadline
    ):
        if outcome is not None:
            outcomes.append(outcome)
        if event is not None:
            yield StepEvent(driver.id, step, "running", event.sentence, event.at_boot_s, data=event.data)
    ended = ranks_stop.conclude(driver.id, server.id, server.profile, server.members, outcomes)
    if ended.final != "done":
        raise Stands(ended.sentence)
    yield StepEvent(driver.id, step, "done", ended.sentence, data=ended.data)


async def _ready(driver: Driver, server: Server, step: str) -> AsyncIterator[StepEvent]:
    async for event in ranks_ready.follow(
        driver.party,
        driver.id,
        server.id,
        server.members,
        ready_s=float(driver.state["ready_s"]),
        step=step,
        clean=False,
    ):
        if event.final == "failed":
            raise Failed(event.sentence)
        yield StepEvent(event.plan_id, step, event.status, event.sentence, event.at_boot_s, data=event.data)


async def _pulse(driver: Driver) -> AsyncIterator[StepEvent]:
    """Rank 0's pulse, judged against what was there before."""
    zero = driver.new.members[0]
    yield StepEvent(driver.id, "pulse", "running", "Pulse on fixed prompts.")
    if not await driver.party.again(zero.host):
        raise Stands(f"{zero.host} is out of reach: {driver.party.away.get(zero.host, '')}.")
    link = driver.party.links[zero.host]
    try:
        found = await pulse.measure(link, zero.run)
        algorithm = str((await hostruns.record(link, zero.run)).get("algorithm") or "")
    except ActionFailed as error:
        raise Failed(error.sentence) from None
    verdict = rules.judge(found["passes"], algorithm, driver.state.get("before"))
    said = str(verdict["sentence"])
    if verdict["decision"] == "roll_back":
        raise Failed(said)
    if verdict["decision"] == "ask":
        if driver.state["on_slower"] == "roll_back":
            raise Failed(f"Rolled back as asked: {said}")
        said += " It stays, for it works; switch back if that is not wanted."
    yield StepEvent(
        driver.id, "pulse", "done", said, data={"pulse": verdict["pulse"], "decision": verdict["decision"]}
    )


async def _watch(driver: Driver) -> AsyncIterator[StepEvent]:
    """All ranks have to live through their first minutes."""
    seconds = float(driver.state["settle_s"])
    yield StepEvent(driver.id, "watch", "running", f"All ranks have to live {seconds:.0f} s.")
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    async with ranks_follow.Watch(driver.party, driver.new.members) as watch:
        while True:
            await watch.changed()
            ended = [view for view in watch.views() if view.ended]
            if ended:
                await asyncio.sleep(ranks_ready.SETTLE_S)
                merged = ranks_story.merge(watch.views())
                raise Failed(
                    " ".join([merged.sentence, *merged.folded]) + " That was within its first minutes."
                )
            if loop.time() >= until:
                break
    yield StepEvent(driver.id, "watch", "done", "All ranks live.")


async def _backward(driver: Driver) -> AsyncIterator[StepEvent]:
    state, party = driver.state, driver.party
    at = BACK.index(state["step"])
    if at <= 0:
        async for event in _stop(driver, driver.new, "rollback_stop", 0.0):
            yield event
        async for event in _stop(driver, driver.old, "rollback_stop", float(state["drain_s"])):
            yield event  # taken back in the middle of its stop: whatever is left of it goes first
        await driver.save(step="back_launch")
    if at <= 1:
        ranks_store.put(driver.back)
        async for event in ranks_launch.begin(
            party, driver.id, driver.back.id, driver.back.members, step="rollback_launch"
        ):
            if event.final:
                raise Failed(event.sentence)
            yield event
        await driver.save(step="back_ready")
    if at <= 2:
        async for event in _ready(driver, driver.back, "rollback_ready"):
            yield event
        await driver.save(step="back_pulse")
    zero = driver.back.members[0]
    if not await party.again(zero.host):
        raise Stands(f"{zero.host} is out of reach: {party.away.get(zero.host, '')}.")
    yield StepEvent(driver.id, "rollback_pulse", "running", "Pulse on fixed prompts.")
    try:
        found = await pulse.measure(party.links[zero.host], zero.run)
    except ActionFailed as error:
        raise Failed(error.sentence) from None
    if not found["ok"]:
        raise Failed(f"It came back but does not answer the pulse: {found.get('problem')}.")
    yield StepEvent(
        driver.id, "rollback_pulse", "done", str(found.get("sentence") or ""), data={"pulse": found}
    )


async def _end(
    driver: Driver, final: Literal["done", "failed", "rolled_back", "aborted"], said: str
) -> StepEvent:
    await driver.throw_away()
    serves = {"done": driver.new.id, "rolled_back": driver.back.id, "aborted": driver.old.id}.get(final, "")
    end = {"final": final, "sentence": said, "serves": serves}
    await driver.save(step="end", end=end)
    status: Literal["done", "failed"] = "done" if final == "done" else "failed"
    return StepEvent(
        driver.id, "rollback" if final == "rolled_back" else "watch", status, said, final=final, data=end
    )


def _shown(step: str) -> str:
    return "rollback" if step in BACK else "prepare" if step == "prepared" else step
