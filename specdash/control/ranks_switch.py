"""Switch a server over several hosts to another profile, with a way back: all stopped, all launched, rank 0 judged.

A switch on one host is carried out by that host. Over several, no host can prove the others, so whoever asked
carries it out, and writes a journal on rank 0's host before each step. When this specdash ends in the middle, the
ranks go on as they are, and the next one goes on from the journal (`attach`) or takes it back (`abort`). Two never
drive at once: the journal names its driver, who is heard every few seconds.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from specdash.config import secrets as config_secrets
from specdash.control import (
    hostruns,
    launch,
    ranks_launch,
    ranks_stop,
    switch,
)
from specdash.control.plans import Check, Danger, Plan, Step, StepEvent
from specdash.control.ranks import Ranks, run_id
from specdash.control.ranks_drive import ABORT, BACK, drive
from specdash.control.ranks_journal import STALE_S, Driver, server_of
from specdash.control.ranks_party import Party
from specdash.control.ranks_store import Member
from specdash.errors import LinkError, Refused, RemoteError
from specdash.sglang import pulse as rules


@dataclass(frozen=True, slots=True)
class Old:
    """What serves now."""

    id: str
    profile: str
    members: tuple[Member, ...]
    record: Mapping[str, Any]
    """Of rank 0."""


async def old_server(party: Party, ident: str, profile: str, members: Sequence[Member]) -> Old:
    """What serves now, all ranks alive. Raises Refused when one is not, LinkError when a host cannot be asked."""
    found = await ranks_stop.records(party, members)
    for member in members:
        record = found[member.rank]
        if record is None:
            raise LinkError(f"{member.host} is out of reach: {party.away.get(member.host, '')}", "")
        if not record.get("alive"):
            raise Refused(
                f"Rank {member.rank} of {ident} does not run on {member.host}: there is nothing to switch from.",
                f"Stop what is left (specdash stop {ident}), then launch.",
            )
    zero = found[members[0].rank] or {}
    return Old(ident, profile or str(zero.get("profile") or ident), tuple(members), zero)


def plan(
    party: Party,
    old: Old,
    ranks: Ranks,
    checks: tuple[Check, ...] = (),
    *,
    drain_s: float = 60.0,
    deadline_s: float = 60.0,
    ready_s: float | None = None,
    settle_s: float = switch.SETTLE_S,
    on_slower: Literal["ask", "keep", "roll_back"] = "ask",
    measure: bool = True,
) -> Plan:
    """From `old` to `ranks`. Changes nothing."""
    new = ranks_launch.plan(party, ranks, by=hostruns.operator())
    back_id = hostruns.new_id(old.profile)
    back = [Member(m.rank, m.host, run_id(back_id, m.rank)) for m in old.members]
    ident = hostruns.new_id(f"to-{ranks.profile}")
    names = ", ".join(dict.fromkeys([*(m.host for m in old.members), *ranks.hosts]))
    state = {
        "title": f"Switch {old.profile} → {ranks.profile} on {names}",
        "by": hostruns.operator(),
        "a": _server_json(old.id, old.profile, old.members),
        "b": _server_json(new.spec["together"], ranks.profile, _members(new.spec)),
        "back": _server_json(back_id, old.profile, back),
        "drain_s": drain_s,
        "deadline_s": deadline_s,
        "ready_s": ready_s or launch.READY_S,
        "settle_s": settle_s,
        "on_slower": on_slower,
        "measure": measure,
        "before": None,
        "why": "",
        "step": "prepared",
        "end": None,
    }
    steps = [
        Step(
            "prepare",
            f"Prepare {ranks.profile} and the way back on all hosts",
            f"journal on {old.members[0].host}",
        ),
        *([Step("measure", f"Pulse of {old.profile}", "while it still serves")] if measure else []),
        Step(
            "stop",
            f"Stop {old.profile} on all hosts, with proof on each",
            f"rank 0 first, at most {drain_s:.0f} s for what it accepted",
        ),
        Step("launch", f"Start all ranks of {ranks.profile} at once", new.steps[1].effect),
        Step("ready", "Wait until rank 0 generates", new.steps[2].effect, ready_s),
        Step("pulse", "Pulse on fixed prompts", f"on rank 0, {ranks.hosts[0]}"),
        Step("watch", f"All ranks have to live {settle_s:.0f} s", "", settle_s),
    ]
    notes = [
        *switch.difference(old.record, new.spec["runs"][0]),
        f"The ranks will meet at {ranks.init.text} ({ranks.init.rule}).",
        *rules.rule(ranks.ranks[0].spec.algorithm, None),
        f"Going back starts {old.profile} on all its hosts with the same commands and environment, and proves it with a pulse.",
        "It is carried out from here: when this specdash ends, it stands still with what runs then, and "
        f"`specdash switch --attach {ident} --host {old.members[0].host}` goes on.",
    ]
    return Plan(
        id=ident,
        kind="switch",
        host=old.members[0].host,
        title=str(state["title"]),
        danger=Danger.DESTROYS,
        steps=tuple(steps),
        checks=checks,
        notes=tuple(notes),
        typed_name=old.profile if old.record.get("adopted") else "",
        spec={
            "journal_host": old.members[0].host,
            "state": state,
            "new": new.spec,
            "run": new.spec["runs"][0],
        },
    )


async def run(
    party: Party, plan: Plan, *, resolve: launch.Resolve = config_secrets.resolve, force: bool = False
) -> AsyncIterator[StepEvent]:
    """Prepare everything, then carry it out. `final`: done, rolled_back, aborted (A was never touched) or failed."""
    if plan.blocked and not force:
        raise Refused(f"{plan.title}: {plan.blocked[0].sentence}", plan.blocked[0].remedy)
    host = str(plan.spec["journal_host"])
    if await journal(party, host, plan.id) is not None:  # run again, after a lost link: join it
        async with contextlib.aclosing(attach(party, host, plan.id)) as again:
            async for event in again:
                yield event
        return
    driver = Driver(party, plan.id, host, dict(plan.spec["state"]))
    try:
        await driver.save(step="preparing")
        yield StepEvent(plan.id, "prepare", "running", "Preparing the next server and the way back.")
        problem = await _prepare(party, plan, resolve)
        if problem:
            await driver.throw_away()
            said = f"{problem} {driver.old.profile} was not touched."
            end = {"final": "aborted", "sentence": said, "serves": driver.old.id}
            await driver.save(step="end", end=end)
            yield StepEvent(plan.id, "prepare", "failed", said, final="aborted", data=end)
            return
        await driver.save(step="prepared")
        yield StepEvent(plan.id, "prepare", "done", "Prepared on all hosts; nothing is stopped yet.")
        # Whoever stops following lets the journal go at once.
        async with contextlib.aclosing(drive(driver)) as events:
            async for event in events:
                yield event
    finally:
        await driver.release()


async def attach(
    party: Party, journal_host: str, ident: str, *, back: bool = False
) -> AsyncGenerator[StepEvent, None]:
    """Go on with a switch from its journal; with `back`, take it back. Refused while another specdash drives it."""
    state = await journal(party, journal_host, ident)
    if state is None:
        raise Refused(
            f"There is no switch {ident} over several hosts on {journal_host}.", "See: switch --list"
        )
    if state.get("end"):
        end = state["end"]
        yield StepEvent(ident, "prepare", "done", str(end["sentence"]), final=end["final"], data=end)
        return
    driver = Driver(party, ident, journal_host, dict(state))
    if back and driver.state["step"] not in BACK:
        driver.state["why"] = f"taken back by {hostruns.operator()}"
        driver.state["step"] = ABORT if driver.state["step"] in ("preparing", "prepared") else "back_stop"
    await driver.save()
    yield StepEvent(
        ident, "prepare", "running", f"Taking it up at step {driver.state['step'].replace('_', ' ')}."
    )
    async with contextlib.aclosing(drive(driver)) as events:
        async for event in events:
            yield event


async def journal(party: Party, host: str, ident: str) -> dict[str, Any] | None:
    """The state of a switch over hosts, from rank 0's host; None: there is none of that name."""
    base = hostruns.base(party.links[host])
    found = (await party.call(host, "ranks.load", {"base": base, "id": ident}))["journals"]
    state = found[0].get("state") if found else None
    return dict(state) if isinstance(state, Mapping) else None


async def listing(party: Party, host: str) -> list[dict[str, Any]]:
    """{"id", "title", "step", "end", "driver", "heard_s"} of a host's newest switches over several hosts."""
    answer = await party.call(host, "ranks.load", {"base": hostruns.base(party.links[host])})
    out = []
    for one in answer["journals"]:
        state = one.get("state") or {}
        heard = float(answer["now_boot"]) - float(one.get("beat_boot_s") or 0.0)
        row = {
            "id": one.get("id"),
            "title": state.get("title"),
            "step": state.get("step"),
            "end": state.get("end"),
        }
        out.append(
            {
                **row,
                "driver": one.get("driver"),
                "heard_s": round(heard, 1),
                "driven": bool(one.get("driver")) and heard < STALE_S,
            }
        )
    return out


async def _prepare(party: Party, plan: Plan, resolve: launch.Resolve) -> str:
    """Empty, or why it could not be prepared."""
    from specdash.control.plans import Plan as PlanType

    inner = PlanType(plan.id, "launch", plan.host, plan.title, Danger.CHANGES, (), spec=plan.spec["new"])
    async for event in ranks_launch.prepare(party, inner, _members(plan.spec["new"]), resolve):
        if event.final:
            return event.sentence
    state = plan.spec["state"]
    old, back = server_of(state["a"]), server_of(state["back"])
    program = hostruns.program()
    init = ""
    for a, b in zip(old.members, back.members, strict=True):
        changes = ranks_launch.together_json(back.id, b, back.members, init) if len(back.members) > 1 else {}
        asked = {"base": hostruns.base(party.links[a.host]), "of": a.run, "id": b.run, "changes": changes}
        try:
            await party.call(a.host, "ranks.way_back", asked, timeout=60, blob=program)
        except (RemoteError, LinkError) as error:
            return f"{a.host}: {error.words}"
    return ""


def _server_json(ident: str, profile: str, members: Sequence[Member]) -> dict[str, Any]:
    return {"id": ident, "profile": profile, "members": [member.as_json() for member in members]}


def _members(spec: Mapping[str, Any]) -> tuple[Member, ...]:
    return tuple(Member.from_json(one) for one in spec["members"])
