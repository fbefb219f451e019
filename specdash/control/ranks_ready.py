"""A launch of several ranks that has started, followed to a generation of rank 0 or to its first failure.

All or nothing here too: a rank that dies while it loads has the others stopped, which this very launch started. A
host that is out of reach does not: its rank may live on, so the rest is named, and stopped only when asked for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

from specdash.control import hostruns, launch, ranks_stop, ranks_store, ranks_story
from specdash.control.plans import StepEvent
from specdash.control.ranks_follow import Watch
from specdash.control.ranks_party import Party
from specdash.control.ranks_store import Member, Server
from specdash.errors import SpecdashError
from specdash.sglang import redact
from specdash.sglang.causes import Cause
from specdash.sglang.explain import cause_json

LOST_S = 60.0
"""A host that is out of reach for so long while the server loads is lost; a short break of its link is not."""
SETTLE_S = 4.0
"""After the first end that is seen: the others' ends come, and with them, which was first."""
FOLLOWER_STOP_S = 15.0
Lost = Literal["leave", "stop"]


async def follow(
    party: Party,
    plan_id: str,
    ident: str,
    members: Sequence[Member],
    *,
    lost: Lost = "leave",
    lost_s: float = LOST_S,
    ready_s: float = launch.READY_S,
    step: str = "ready",
    clean: bool = True,
) -> AsyncIterator[StepEvent]:
    """The ranks to a generation of rank 0, or to the first failure. With `clean`, a failure has the rest stopped."""
    began, told = time.monotonic(), ""
    first_end: float | None = None
    async with Watch(party, members) as watch:
        while True:
            await watch.changed()
            views = watch.views()
            now = time.monotonic()
            merged = ranks_story.merge(views)
            if merged.phase == "ready":
                quiet = await tell_ready(party, members)
                tail = f" {quiet}" if quiet else ""
                took = now - began
                said = f"Ready: a real generation came back from {views[0].name}. It took {took:.0f} s.{tail}"
                data = {"together": ident, "took_s": took, **merged.data}
                yield StepEvent(plan_id, step, "done", said, final="done", data=data)
                return
            asked = [view for view in views if view.stop_asked]
            if asked and not merged.first:
                said = f"A stop of {asked[0].name} was asked for while it was loading."
                yield StepEvent(
                    plan_id, step, "failed", said, final="failed", data={"together": ident, **merged.data}
                )
                return
            if merged.first is not None:
                first_end = now if first_end is None else first_end
                # A rank that hangs in a collective never ends by itself; the others' ends come within seconds.
                if now - first_end >= SETTLE_S or all(view.ended or view.away for view in views):
                    break
                continue
            gone = [view for view in views if view.away and party.away_s(view.host) > lost_s]
            if gone or now - began > ready_s:
                break
            if merged.sentence != told:
                told = merged.sentence
                yield StepEvent(plan_id, step, "running", told, data={"together": ident, **merged.data})
    async for event in _not_ready(
        party, plan_id, ident, members, merged, gone_of(views, merged), lost, step, clean
    ):
        yield event


def gone_of(
    views: Sequence[ranks_story.RankView], merged: ranks_story.Together
) -> list[ranks_story.RankView]:
    """Hosts that are out of reach, when that is the story."""
    if merged.first is not None and not (merged.first.away and not merged.first.ended):
        return []
    return [view for view in views if view.away]


async def _not_ready(
    party: Party,
    plan_id: str,
    ident: str,
    members: Sequence[Member],
    merged: ranks_story.Together,
    gone: Sequence[ranks_story.RankView],
    lost: Lost,
    step: str,
    clean: bool,
) -> AsyncIterator[StepEvent]:
    """The end of a launch that did not get ready: who was first, what the others did, what is left."""
    first = merged.first
    data: dict[str, Any] = {"together": ident, **merged.data, "folded": list(merged.folded)}
    if first is not None:
        said = " ".join([merged.sentence, *merged.folded])
        data |= {"host": first.host, "rank": first.rank, "run": first.run}
        if isinstance(first.cause, Cause):
            data["cause"] = redact.json_value(cause_json(first.cause))
    elif gone:
        names = ", ".join(f"{view.host} ({view.away})" for view in gone)
        said = f"Out of reach while it was loading: {names}. Its rank may go on there."
        data |= {"host": gone[0].host, "rank": gone[0].rank, "run": gone[0].run}
    else:
        said = f"Not ready in time. {merged.sentence}"
    if not clean:
        yield StepEvent(plan_id, step, "failed", said, final="failed", data=data)
        return
    if gone and lost == "leave":
        away = {view.host for view in gone}
        rest = [member for member in members if member.host not in away]
        names = ", ".join(f"{member.name}" for member in rest)
        said += f" The rest is left as it is: {names}. Stop it: specdash stop {ident}"
        yield StepEvent(plan_id, step, "failed", said, final="failed", data=data)
        return
    yield StepEvent(plan_id, step, "running", f"{said} Stopping what this launch started.", data=data)
    outcomes: list[ranks_stop.Outcome] = []
    async for event, outcome in ranks_stop.stop_all(party, plan_id, members, 0.0, FOLLOWER_STOP_S):
        if outcome is not None:
            outcomes.append(outcome)
        elif event is not None:
            yield event
    yield StepEvent(
        plan_id, step, "failed", f"{said} {after_stop(ident, members, outcomes)}", final="failed", data=data
    )


def after_stop(ident: str, members: Sequence[Member], outcomes: Sequence[ranks_stop.Outcome]) -> str:
    """What is left after a launch was taken back; remembered where something is not proven."""
    open_ = {one.member.host: one.sentence for one in outcomes if one.state != "proven"}
    known = ranks_store.get(ident)
    server = known or Server(ident, "", tuple(members), {})
    ranks_store.settled(server, open_)
    if not open_:
        return f"Nothing of it is left on {', '.join(member.host for member in members)}."
    said = " ".join(f"Not proven to be gone on {host}: {why}" for host, why in open_.items())
    return f"{said} Finish it with: specdash stop {ident}"


async def tell_ready(party: Party, members: Sequence[Member]) -> str:
    """Tell the other ranks that rank 0 generated. A sentence when one could not be told."""
    zero = members[0].run

    async def one(member: Member) -> str:
        try:
            link = party.links[member.host]
            await hostruns.order(link, member.run, cmd="ready", rank0=zero)
        except (SpecdashError, KeyError, TimeoutError):
            return member.host
        return ""

    silent = [host for host in await asyncio.gather(*(one(member) for member in members[1:])) if host]
    if not silent:
        return ""
    return (
        f"{', '.join(silent)} is out of reach for specdash just now; the ranks have each other all the same."
    )
