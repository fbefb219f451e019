"""Stop one server over several hosts, with proof on each: rank 0 first, then the others.

Rank 0 goes first because it answers what it has accepted, which it cannot without the others. A host that is out
of reach is said so and remembered as unproven; the same stop, given again, finishes there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from specdash.control import hostruns, ranks_store, stop
from specdash.control.plans import Danger, Plan, Step, StepEvent
from specdash.control.ranks_party import Party
from specdash.control.ranks_store import Member
from specdash.errors import LinkError, Refused, RemoteError, SpecdashError

FOLLOWER_DEADLINE_S = 20.0
"""Without rank 0 nothing of the others is worth a longer wait: what it had accepted is answered by then."""
COME_BACK_S = 20.0
"""A link that breaks in the middle of a stop may come back; the stop itself goes on without it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one rank. unproven: something is left, or nobody could look."""

    member: Member
    state: Literal["proven", "unproven", "away"]
    sentence: str
    proof: Mapping[str, Any] | None = None


async def records(party: Party, members: Sequence[Member]) -> dict[int, dict[str, Any] | None]:
    """Rank → its record; None: its host cannot be asked, or knows no such run (then `phase` is "absent")."""

    async def one(member: Member) -> dict[str, Any] | None:
        if member.host not in party.links:
            return None
        try:
            return await hostruns.record(party.links[member.host], member.run)
        except RemoteError as error:
            return {"phase": "absent", "ended": True, "sentence": error.sentence}
        except (LinkError, TimeoutError) as error:
            await party.lose(member.host, getattr(error, "sentence", "it did not answer in time"))
            return None

    found = await asyncio.gather(*(one(member) for member in members))
    return {member.rank: record for member, record in zip(members, found, strict=True)}


def over(record: Mapping[str, Any] | None) -> bool:
    """Whether nothing of this rank is left to stop, and that is proven."""
    if record is None:
        return False
    if record.get("phase") in ("absent", "failed"):
        return True
    return bool(record.get("ended")) and bool((record.get("proof") or {}).get("proven", True))


async def plan(
    party: Party,
    all_id: str,
    profile: str,
    members: Sequence[Member],
    *,
    drain_s: float = 0.0,
    deadline_s: float = stop.DEADLINE_S,
) -> Plan:
    """What a stop of all ranks will do. Changes nothing. Raises Refused when all is over and proven."""
    found = await records(party, members)
    left = [member for member in members if not over(found[member.rank])]
    if not left:
        for server in (ranks_store.get(all_id),):
            if server is not None:
                ranks_store.settled(server, {})
        raise Refused(f"{all_id} has ended on all hosts already.", "Nothing of it is left.")
    steps, notes, adopted = [], [], False
    for member in left:
        record = found[member.rank]
        title = f"Stop {member.name}, with proof"
        if record is None:
            why = party.away.get(member.host, "it is out of reach")
            steps.append(Step(_step(member), title, f"not now: {why}"))
            notes.append(
                f"{member.host} is out of reach: rank {member.rank} there stays unproven until this stop is given again."
            )
        elif record.get("phase") == "created":
            steps.append(Step(_step(member), f"Remove the prepared {member.name}"))
        else:
            adopted = adopted or bool(record.get("adopted"))
            steps.append(Step(_step(member), title, f"pid {record.get('pid')}", drain_s + deadline_s + 30.0))
    done = [f"{m.name}" for m in members if m not in left]
    if done:
        notes.append(f"Ended and proven already: {', '.join(done)}.")
    if len(left) > 1 and left[0].rank == 0:
        notes.append("Rank 0 is stopped first: it answers what it has accepted, with the others' help.")
    return Plan(
        id=hostruns.new_id(f"stop-{all_id}"),
        kind="stop",
        host=members[0].host,
        title=f"Stop {profile or all_id} on {', '.join(member.host for member in left)}",
        danger=Danger.DESTROYS,
        steps=tuple(steps),
        notes=tuple(notes),
        typed_name=all_id if adopted else "",
        spec={
            "together": all_id,
            "profile": profile,
            "members": [member.as_json() for member in members],
            "drain_s": drain_s,
            "deadline_s": deadline_s,
        },
    )


async def run(party: Party, plan: Plan) -> AsyncIterator[StepEvent]:
    """Stop all, then say what is proven. `final` "done" only with every host's proof; `data["ranks"]` has each."""
    members = [Member.from_json(one) for one in plan.spec["members"]]
    outcomes: list[Outcome] = []
    async for event, outcome in stop_all(
        party, plan.id, members, float(plan.spec["drain_s"]), float(plan.spec["deadline_s"])
    ):
        if outcome is not None:
            outcomes.append(outcome)
        if event is not None:
            yield event
    yield conclude(
        plan.id, str(plan.spec["together"]), str(plan.spec.get("profile") or ""), members, outcomes
    )


def conclude(
    plan_id: str, all_id: str, profile: str, members: Sequence[Member], outcomes: Sequence[Outcome]
) -> StepEvent:
    """The last event of a stop, and what is remembered of it."""
    open_ = {one.member.host: one.sentence for one in outcomes if one.state != "proven"}
    ranks_store.settled(ranks_store.Server(all_id, profile, tuple(members), {}), open_)
    data = {
        "ranks": [
            {**one.member.as_json(), "state": one.state, "sentence": one.sentence, "proof": one.proof}
            for one in sorted(outcomes, key=lambda one: one.member.rank)
        ]
    }
    if not open_:
        said = (
            f"Nothing of it is left on any of the {len(members)} hosts: {', '.join(m.host for m in members)}."
        )
        return StepEvent(plan_id, "proof", "done", said, final="done", data=data)
    proven = [one.member.host for one in outcomes if one.state == "proven"]
    said = " ".join(f"Not proven on {host}: {why}" for host, why in open_.items())
    tail = f" Proven on {', '.join(proven)}." if proven else ""
    return StepEvent(
        plan_id,
        "proof",
        "failed",
        f"{said}{tail} Finish it when the host is back: specdash stop {all_id}",
        final="failed",
        data=data,
    )


async def stop_all(
    party: Party, plan_id: str, members: Sequence[Member], drain_s: float, deadline_s: float
) -> AsyncIterator[tuple[StepEvent | None, Outcome | None]]:
    """Rank 0 to its proof, then all the others at once. Events as they come, and one `Outcome` a rank."""
    order = sorted(members, key=lambda member: member.rank)
    groups = [order[:1], order[1:]] if order and order[0].rank == 0 else [order]
    for at, group in enumerate(groups):
        queue: asyncio.Queue[tuple[StepEvent | None, Outcome | None]] = asyncio.Queue()
        limit = deadline_s if at == 0 else min(deadline_s, FOLLOWER_DEADLINE_S)
        drain = drain_s if at == 0 else 0.0
        tasks = [
            asyncio.create_task(_stop_one(party, plan_id, member, drain, limit, queue)) for member in group
        ]
        try:
            left = len(tasks)
            while left:
                event, outcome = await queue.get()
                left -= outcome is not None
                yield event, outcome
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _stop_one(
    party: Party,
    plan_id: str,
    member: Member,
    drain_s: float,
    deadline_s: float,
    queue: asyncio.Queue[tuple[StepEvent | None, Outcome | None]],
) -> None:
    try:
        outcome = await _one(party, plan_id, member, drain_s, deadline_s, queue)
    except SpecdashError as error:
        outcome = Outcome(member, "unproven", error.sentence)
    except Exception as error:  # the others are stopped all the same, and this one is said
        outcome = Outcome(member, "unproven", f"The stop failed here: {type(error).__name__}: {error}")
    status: Literal["done", "failed"] = "done" if outcome.state == "proven" else "failed"
    said = f"{member.host}: {outcome.sentence}"
    await queue.put((StepEvent(plan_id, _step(member), status, said, data=outcome.proof or {}), outcome))


async def _one(
    party: Party,
    plan_id: str,
    member: Member,
    drain_s: float,
    deadline_s: float,
    queue: asyncio.Queue[tuple[StepEvent | None, Outcome | None]],
) -> Outcome:
    loop = asyncio.get_running_loop()
    give_up = loop.time() + COME_BACK_S
    why = ""
    while True:
        if not await party.again(member.host):
            why = party.away.get(member.host, why)
            if loop.time() > give_up:
                return Outcome(
                    member, "away", f"it is out of reach ({why}); what its rank does is not known."
                )
            await asyncio.sleep(0.3)
            continue
        try:
            return await _reached(party, plan_id, member, drain_s, deadline_s, queue)
        except (LinkError, TimeoutError) as error:
            why = getattr(error, "sentence", "it did not answer in time")
            await party.lose(member.host, why)
            give_up = loop.time() + COME_BACK_S


async def _reached(
    party: Party,
    plan_id: str,
    member: Member,
    drain_s: float,
    deadline_s: float,
    queue: asyncio.Queue[tuple[StepEvent | None, Outcome | None]],
) -> Outcome:
    link = party.links[member.host]
    try:
        record = await hostruns.record(link, member.run)
    except RemoteError as error:
        if error.code == "not_found":
            return Outcome(member, "proven", "it was never there.", {"proven": True})
        raise
    if record.get("phase") == "created":
        asked = {"base": hostruns.base(link), "id": member.run}
        gone = (await party.call(member.host, "ranks.discard", asked))["gone"]
        if gone:
            return Outcome(
                member, "proven", "it was prepared, never started, and is removed.", {"proven": True}
            )
        record = await hostruns.record(link, member.run)
    if over(record):
        proof = record.get("proof") or {"proven": True}
        return Outcome(member, "proven", str(proof.get("sentence") or "it had ended."), proof)
    single = await stop.plan(link, member.run, drain_s=drain_s, deadline_s=deadline_s)
    outcome = Outcome(member, "unproven", "it ended without saying how.")
    async for event in stop.run(link, single):
        if event.final:
            good = event.final == "done"
            return Outcome(member, "proven" if good else "unproven", event.sentence, event.data)
        said = f"{member.host}: {event.sentence}"
        named = replace(event, plan_id=plan_id, step=_step(member), status="running", sentence=said)
        await queue.put((named, None))
    return outcome


def _step(member: Member) -> str:
    return f"rank{member.rank}"
