"""Run a plan and tell everybody: each step becomes an `ActionChanged` in the hub's state. The last gate, too.

Read-only is refused here, below every screen and verb.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal, Protocol

from specdash.control import adopt, hot_switch, launch, stop, switch, tune
from specdash.control.plans import Danger, Plan, StepEvent
from specdash.errors import Refused, SpecdashError
from specdash.host.link import Link
from specdash.monitor.events import ActionChanged, Event

Status = Literal["running", "done", "failed", "refused", "aborted"]
_ENDS: dict[str, Status] = {"done": "done", "failed": "failed", "rolled_back": "failed", "aborted": "aborted"}


class Emits(Protocol):
    """What is needed of `monitor.hub.Hub`. Its `read_only`, and that of its `hosts`, is honoured where it has one."""

    def emit(self, event: Event) -> None: ...

    def link(self, host: str) -> Link: ...


async def perform(
    hub: Emits, plan: Plan, events: AsyncIterator[StepEvent] | None = None, *, read_only: bool = False
) -> AsyncIterator[StepEvent]:
    """Run the plan, pass its events on, and tell the hub of each.

    `events`: the run to follow (`launch.run(link, plan, wait=False)`, …); without it, the room that made the plan
    runs it over the hub's own link. Raises Refused, before the first effect, when the hub or the host (`read_only`) is read-only and the plan
    changes anything. An error of the run is told to the hub and raised again; a cancelled follower is told as
    such: what runs on the host goes on.
    """
    board = Board(hub, plan)
    known = getattr(hub, "hosts", {}).get(plan.host)
    gates = (read_only, getattr(hub, "read_only", False), getattr(known, "read_only", False))
    if plan.danger is not Danger.NONE and any(gates):
        sentence = f"{plan.title}: refused, this is read-only."
        board.tell("refused", "", sentence)
        raise Refused(sentence, "Start specdash without --read-only, or change the host's `read_only`.")
    board.tell("running", plan.steps[0].name if plan.steps else "", "")
    try:
        async for event in events if events is not None else start(hub.link(plan.host), plan):
            board.see(event)
            yield event
    except Refused as error:
        board.tell("refused", board.step, f"{error.sentence} {error.step}".strip())
        raise
    except SpecdashError as error:
        board.tell("failed", board.step, f"{error.sentence} {error.step}".strip())
        raise
    except TimeoutError:
        board.tell(
            "failed", board.step, "The host did not answer in time; what it was told may still happen."
        )
        raise
    except (asyncio.CancelledError, GeneratorExit):
        if board.status == "running":
            board.tell("aborted", board.step, "No longer followed from here; on the host it goes on.")
        raise
    if board.status == "running":
        board.tell("failed", board.step, "It ended without saying how.")


def start(link: Link, plan: Plan) -> AsyncIterator[StepEvent]:
    """The run of a plan by the room that made it. Secrets are resolved now, on this machine."""
    rooms: dict[str, Callable[[Link, Plan], AsyncIterator[StepEvent]]] = {
        "launch": launch.run,
        "stop": stop.run,
        "cleanup": stop.run,
        "switch": switch.run,
        "adopt": adopt.run,
        "hot_switch": hot_switch.run,
        "tune": tune.run,
    }
    if plan.kind not in rooms:
        raise Refused(f"{plan.title}: nothing here runs a plan of kind {plan.kind}.")
    return rooms[plan.kind](link, plan)


class Board:
    """The steps of one plan as the screen shows them."""

    def __init__(self, hub: Emits, plan: Plan) -> None:
        self.hub = hub
        self.plan = plan
        self.status: Status = "running"
        self.final = ""
        self.step = ""
        self.steps: dict[str, dict[str, Any]] = {
            one.name: {
                "name": one.name,
                "title": one.title,
                "status": "waiting",
                "sentence": "",
                "started": None,
                "ended": None,
            }
            for one in plan.steps
        }

    def see(self, event: StepEvent) -> None:
        self.step = event.step
        row = self.steps.setdefault(
            event.step,
            {
                "name": event.step,
                "title": event.step,
                "status": "waiting",
                "sentence": "",
                "started": None,
                "ended": None,
            },
        )
        row["status"] = event.status
        row["sentence"] = event.sentence or row["sentence"]
        if row["started"] is None:
            row["started"] = event.at_boot_s
        if event.status != "running":
            row["ended"] = event.at_boot_s
        self.final = event.final
        self.tell(_ENDS.get(event.final, "running"), event.step, event.sentence, event.at_boot_s)

    def tell(self, status: Status, step: str, sentence: str, at_boot_s: float | None = None) -> None:
        self.status = status
        body = ActionChanged(
            action_id=self.plan.id,
            kind=self.plan.kind,
            title=self.plan.title,
            status=status,
            step=step,
            sentence=sentence,
            steps=tuple(dict(row) for row in self.steps.values()),
            final=self.final,
        )
        self.hub.emit(Event(time.monotonic(), self.plan.host, body, source="control", host_at=at_boot_s))
