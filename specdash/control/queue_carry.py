"""Follows one switch to its end, over as many links and switchers as it takes, and reads how it ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from specdash.control import hostruns, switch
from specdash.control.keeper import Keeper
from specdash.control.plans import StepEvent
from specdash.control.queue_facts import Outcome, outcome_of
from specdash.errors import LinkError, RemoteError
from specdash.host.link import Link

RESUMES = 5
Start = Callable[[Link], AsyncIterator[StepEvent]]


async def to_end(keeper: Keeper, ident: str, start: Start | None, tell: Callable[[str], None]) -> None:
    """`start` None: the switch is under way already. Raises RemoteError: `not_found`, or it cannot be carried on."""
    told = ("", "", "")
    begun = start is None
    resumes = 0
    while True:
        link = await keeper.link()
        events = start(link) if start is not None and not begun else switch.attach(link, ident)
        try:
            async for event in events:
                now = (event.step, event.status, event.sentence)
                if now != told and event.sentence:
                    tell(f"[{event.status}] {event.step}: {event.sentence}")
                told = now
                if event.data.get("lost"):
                    break
                if event.final:
                    return
            resumes += 1
            if resumes > RESUMES:
                raise RemoteError("failed", f"The switcher of {ident} was killed {resumes} times.")
            begun = True
        except RemoteError as problem:
            # The link may have broken before the switch was created there: then it is created now.
            if problem.code != "not_found" or start is None or not begun:
                raise
            begun = False
        except (LinkError, TimeoutError) as problem:
            await keeper.lost(problem)
            begun = True


async def records(link: Link, current: Mapping[str, Any]) -> Outcome:
    """The whole journal of a switch, in as many reads as it takes."""
    found: list[Mapping[str, Any]] = []
    position: Mapping[str, Any] | None = None
    while True:
        asked = {"base": hostruns.base(link), "id": current["switch"], "position": position}
        answer = await link.call("switches.read", asked, timeout=30)
        found += answer["records"]
        if not answer["records"]:
            return outcome_of(found, str(current["b"]), str(current["restore"]), str(current["a"]))
        position = answer["position"]
