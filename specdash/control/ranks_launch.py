"""Launch one server over several hosts, all or nothing: prepared everywhere, then started everywhere at once.

Each rank is a run of its own host, detached, under one common id. A rank that cannot be prepared or started takes
back what this very launch did on the others. A host that is lost in the middle does not: its rank may live on, so
the rest is named, and stopped only when that was asked for (`lost="stop"`).
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from specdash.config import secrets as config_secrets
from specdash.control import hostruns, launch, ranks_compare, ranks_ready, ranks_stop, ranks_store
from specdash.control.plans import Check, Danger, Plan, Step, StepEvent
from specdash.control.ranks import Ranks, run_id
from specdash.control.ranks_party import Party
from specdash.control.ranks_store import Member, Server
from specdash.errors import LinkError, Refused, RemoteError, SpecdashError
from specdash.sglang.commandline import LaunchSpec


def plan(
    party: Party, ranks: Ranks, checks: tuple[Check, ...] = (), *, all_id: str = "", by: str = ""
) -> Plan:
    """What a launch of all ranks will do: every host's exact command and folder. Changes nothing."""
    ident = all_id or hostruns.new_id(ranks.profile)
    members = [Member(one.rank, one.host, run_id(ident, one.rank), one.role) for one in ranks.ranks]
    runs = describe(party, ranks, ident, members, by)
    commands = [
        f"{one.host}: in {run['cwd']}: {shlex.join(run['argv'])}"
        for one, run in zip(ranks.ranks, runs, strict=True)
    ]
    meet = "Clients use" if ranks.ranks[0].role else "Ranks meet at"
    notes = [f"{meet} {ranks.init.text} ({ranks.init.rule})."]
    if not ranks.ranks[0].role:
        notes.append(f"One server: {ranks_compare.parallel(ranks.ranks[0].spec.flags, len(ranks.ranks))}")
    for one, run in zip(ranks.ranks, runs, strict=True):
        env = ", ".join(f"{k}={v}" for k, v in one.spec.env.items() if k.endswith(("IFNAME", "HOST_IP")))
        notes.append(
            f"{_up(one.role or f'rank {one.rank}')} on {one.host}: run folder {run['folder']}{f', {env}' if env else ''}."
        )
    notes.append("All or nothing: a rank that cannot be started has the others stopped.")
    notes.append("It goes on when specdash, the links or the logins end.")
    port = runs[0]["http"]["port"]
    return Plan(
        id=ident,
        kind="launch",
        host=ranks.hosts[0],
        title=f"Launch {ranks.profile} on {', '.join(ranks.hosts)} as one server",
        danger=Danger.CHANGES,
        steps=(
            Step("prepare", "Prepare the run on every host", "", launch.START_S),
            Step("start", "Start all ranks at once", "; ".join(commands), launch.START_S),
            Step(
                "ready",
                f"Wait until {ranks.ranks[0].role or 'rank 0'} generates",
                f"port {port} on {ranks.hosts[0]}",
                launch.READY_S,
            ),
        ),
        checks=checks,
        notes=tuple(notes),
        spec={
            "together": ident,
            "profile": ranks.profile,
            "init": ranks.init.text,
            "run_id": members[0].run,
            "members": [member.as_json() for member in members],
            "runs": runs,
            "launches": [one.spec.as_json() for one in ranks.ranks],
        },
    )


def describe(
    party: Party, ranks: Ranks, ident: str, members: Sequence[Member], by: str = ""
) -> list[dict[str, Any]]:
    """run.json of every rank, each with all members, so that any host's record leads to the others."""
    out = []
    for one, member in zip(ranks.ranks, members, strict=True):
        run = launch.describe(party.links[one.host], one.spec, member.run, by)
        run.update(together_json(ident, member, members, ranks.init.text))
        run["together"]["zero"] = zero_of(ranks)
        if member.role:  # a part that is not the router is loaded, and ready only when the router generates
            run.update(role=member.role, follows=member.rank > 0)
        out.append(run)
    return out


def zero_of(ranks: Ranks) -> dict[str, Any]:
    """Where the other hosts reach rank 0's HTTP port; empty where it listens on its loopback only."""
    spec = ranks.ranks[0].spec
    bind = str(spec.flag("--host") or "127.0.0.1").strip("[]")
    one_machine = ranks.init.address == "127.0.0.1" or len(set(ranks.hosts)) == 1
    address = ranks.init.address if bind in ("0.0.0.0", "::") else bind
    if bind in ("127.0.0.1", "::1", "localhost") and not one_machine:
        return {}
    if address in ("0.0.0.0", "::"):
        address = "127.0.0.1" if one_machine else ""
    port = spec.http()[1]
    tls = spec.flag("--ssl-certfile") is not None
    return {"host": address, "port": port, "tls": tls} if address else {}


def together_json(ident: str, member: Member, members: Sequence[Member], init: str) -> dict[str, Any]:
    told = [one.as_json() for one in members]
    return {
        "run_id_all": ident,
        "together": {"id": ident, "rank": member.rank, "init": init, "members": told},
    }


async def run(
    party: Party,
    plan: Plan,
    *,
    resolve: launch.Resolve = config_secrets.resolve,
    wait: bool = True,
    force: bool = False,
    lost: ranks_ready.Lost = "leave",
    lost_s: float = ranks_ready.LOST_S,
    ready_s: float = launch.READY_S,
) -> AsyncIterator[StepEvent]:
    """Prepare all, start all, then (with `wait`) follow them to ready or to the first failure.

    Repeating it starts nothing twice. Raises Refused when a check blocks (`force` overrides).
    """
    if plan.blocked and not force:
        first = plan.blocked[0]
        raise Refused(f"{plan.title}: {first.sentence}", first.remedy)
    members = [Member.from_json(one) for one in plan.spec["members"]]
    async for event in prepare(party, plan, members, resolve):
        yield event
        if event.final:
            return
    async for event in begin(party, plan.id, str(plan.spec["together"]), members, last=not wait):
        yield event
        if event.final:
            return
    if not wait:
        return
    ident = str(plan.spec["together"])
    keeping = asyncio.create_task(prune(party, members))
    try:
        async for event in ranks_ready.follow(
            party, plan.id, ident, members, lost=lost, lost_s=lost_s, ready_s=ready_s
        ):
            yield event
    finally:
        keeping.cancel()


async def prepare(
    party: Party, plan: Plan, members: Sequence[Member], resolve: launch.Resolve
) -> AsyncIterator[StepEvent]:
    """Every host's run folder, or none: what was made is taken away when one host cannot."""
    hosts = ", ".join(member.host for member in members)
    yield StepEvent(plan.id, "prepare", "running", f"Preparing on {hosts}.")
    ranks_store.put(Server(plan.spec["together"], str(plan.spec["profile"]), tuple(members), {}))

    async def one(member: Member, run: Mapping[str, Any], spec: LaunchSpec) -> None:
        link = party.links.get(member.host)
        if link is None:
            raise LinkError(party.away.get(member.host, "it is out of reach"))
        made = await launch.prepare(link, spec, run, resolve)
        params, blob = made.call(hostruns.base(link))
        await party.call(member.host, "ranks.prepare", params, timeout=60, blob=blob)

    specs = [LaunchSpec.from_json(one) for one in plan.spec["launches"]]
    jobs = (
        one(member, run, spec) for member, run, spec in zip(members, plan.spec["runs"], specs, strict=True)
    )
    results = await asyncio.gather(*jobs, return_exceptions=True)
    bad = _failures(members, results)
    if not bad:
        yield StepEvent(plan.id, "prepare", "done", f"Prepared on {hosts}; nothing runs yet.")
        return
    left = await discard(party, members)
    said = " ".join(f"{_up(member.title)} cannot be prepared on {member.host}: {why}" for member, why in bad)
    tail = " Nothing was started; what was prepared on the others is removed."
    if left:
        tail = f" Nothing was started; {', '.join(left)} could not be cleaned up: specdash stop {plan.spec['together']}"
    _forget(str(plan.spec["together"]), str(plan.spec["profile"]), members, left)
    yield StepEvent(plan.id, "prepare", "failed", said + tail, final="failed", data=_bad_json(bad))


async def begin(
    party: Party,
    plan_id: str,
    ident: str,
    members: Sequence[Member],
    *,
    last: bool = False,
    step: str = "start",
) -> AsyncIterator[StepEvent]:
    """All prepared ranks at once. A rank that cannot be started has the others stopped."""
    yield StepEvent(plan_id, step, "running", "Starting all ranks.")
    began = time.monotonic()
    sent: dict[int, float] = {}

    async def one(member: Member) -> dict[str, Any]:
        base = hostruns.base(party.links[member.host]) if member.host in party.links else ""
        sent[member.rank] = time.monotonic() - began
        made = await party.call(member.host, "ranks.begin", {"base": base, "id": member.run}, timeout=60)
        if made["phase"] == "failed":
            raise RemoteError("failed", f"{made.get('sentence')} {made.get('step') or ''}".strip())
        return made

    results = await asyncio.gather(*(one(member) for member in members), return_exceptions=True)
    bad = _failures(members, results)
    if not bad:
        good = [one for one in results if isinstance(one, dict)]
        spread = await start_spread(party, members, good)
        pids = ", ".join(f"{m.name} as pid {r['pid']}" for m, r in zip(members, good, strict=True))
        apart = f", {spread:.2f} s apart" if spread is not None else ""
        said = f"Started {pids}{apart}."
        data = {
            "together": ident,
            "ranks": [m.as_json() for m in members],
            "apart_s": spread,
            "pids": [r["pid"] for r in good],
        }
        yield StepEvent(plan_id, step, "done", said, final="done" if last else "", data=data)
        return
    said = " ".join(
        f"{_up(member.title)} could not be started on {member.host}: {why}" for member, why in bad
    )
    yield StepEvent(plan_id, step, "running", f"{said} Stopping the others, which this launch started.")
    outcomes: list[ranks_stop.Outcome] = []
    async for event, outcome in ranks_stop.stop_all(
        party, plan_id, members, 0.0, ranks_ready.FOLLOWER_STOP_S
    ):
        if outcome is not None:
            outcomes.append(outcome)
        elif event is not None:
            yield event
    yield StepEvent(
        plan_id,
        step,
        "failed",
        f"{said} {ranks_ready.after_stop(ident, members, outcomes)}",
        final="failed",
        data=_bad_json(bad),
    )


async def start_spread(
    party: Party, members: Sequence[Member], made: Sequence[Mapping[str, Any]]
) -> float | None:
    """Seconds between the first and the last start, by each host's own clock set against ours. None: not told."""

    async def ahead(member: Member) -> float:
        before = time.time()
        told = await party.call(member.host, "network.look", {}, timeout=10)
        return float(told["now_unix"]) - (before + time.time()) / 2

    try:
        aheads = await asyncio.gather(*(ahead(member) for member in members))
        starts = [float(one["started_unix"]) - a for one, a in zip(made, aheads, strict=True)]
    except (SpecdashError, KeyError, TypeError, ValueError):
        return None
    return max(starts) - min(starts)


async def discard(party: Party, members: Sequence[Member]) -> list[str]:
    """Remove what was prepared and never started. Hosts where that could not be done."""

    async def one(member: Member) -> str:
        try:
            base = hostruns.base(party.links[member.host])
            await party.call(member.host, "ranks.discard", {"base": base, "id": member.run})
        except RemoteError:
            return ""
        except (LinkError, KeyError):
            return member.host
        return ""

    return [host for host in await asyncio.gather(*(one(member) for member in members)) if host]


async def prune(party: Party, members: Sequence[Member]) -> None:
    """Old ended runs, as every launch looks after them. It must not fail a launch."""
    for member in members:
        with contextlib.suppress(SpecdashError, KeyError, TimeoutError):
            base = hostruns.base(party.links[member.host])
            kept = {"base": base, "keep": launch.KEEP_RUNS, "max_bytes": launch.KEEP_BYTES}
            await party.call(member.host, "runs.prune", kept, timeout=30)


def _forget(ident: str, profile: str, members: Sequence[Member], left: Sequence[str]) -> None:
    unproven = dict.fromkeys(left, "what was prepared there could not be removed.")
    ranks_store.settled(Server(ident, profile, tuple(members), {}), unproven)


def _up(text: str) -> str:
    return text[:1].upper() + text[1:]


def _failures(members: Sequence[Member], results: Sequence[object]) -> list[tuple[Member, str]]:
    out = []
    for member, result in zip(members, results, strict=True):
        if isinstance(result, asyncio.CancelledError):
            raise result
        if isinstance(result, SpecdashError):
            out.append((member, result.words))
        elif isinstance(result, BaseException):
            out.append((member, f"{type(result).__name__}: {result}"))
    return out


def _bad_json(bad: Sequence[tuple[Member, str]]) -> dict[str, Any]:
    return {
        "host": bad[0][0].host,
        "rank": bad[0][0].rank,
        "failed": [{**m.as_json(), "why": w} for m, w in bad],
    }
