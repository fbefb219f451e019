"""Stop a run, with proof: close its door → what it accepted ends → deadline → KILL for the rest → what is left.

The run's supervisor on the host does it (a new one is brought when the old was killed), so a stop goes on when
the link drops. `cleanup` is the same for a run whose launcher died and left processes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from specdash.control import hostruns
from specdash.control.plans import Danger, Plan, Step, StepEvent
from specdash.errors import ActionFailed, Refused
from specdash.host.link import Link

DEADLINE_S = 60.0
REFUSED = (
    "From then on clients are refused, and idle kept-alive connections are closed. A request that was sent but not yet "
    "read by the server is closed unanswered: the server has not begun it."
)


async def plan(
    link: Link,
    run_id: str,
    *,
    drain_s: float = 0.0,
    idle_s: float = 0.0,
    deadline_s: float = DEADLINE_S,
    requests: int | None = None,
) -> Plan:
    """What a stop will do: wait `idle_s` for a moment without requests, close the door, let what was accepted end
    within `drain_s`, give the launcher `deadline_s`, KILL. `requests`: running ones as the monitor last saw them, for the note.

    Raises RemoteError `not_found`, or Refused when nothing of the run is there to stop.
    """
    record = await hostruns.record(link, run_id)
    if record.get("ended") or (record["phase"] == "failed"):
        said = str((record.get("proof") or {}).get("sentence") or "No process of it is left.")
        raise Refused(f"Run {run_id} has ended already.", said)
    if record["phase"] == "created":
        raise Refused(
            f"Run {run_id} was prepared but has not started.",
            "It belongs to a switch: see `specdash switch --list`, and abort that instead (`--abort ID`).",
        )
    if record.get("managed_by"):
        raise Refused(
            f"{run_id} is managed by {record['managed_by']}.", f"Stop it there: {record.get('stop_with')}."
        )
    left = record["phase"] == "exited"
    port = (record.get("http") or {}).get("port")
    steps: list[Step] = []
    if idle_s and not left:
        effect = f"at most {idle_s:.0f} s, it goes on accepting; until then it can be taken back"
        steps.append(Step("idle", "Wait for a moment without requests", effect, idle_s))
    if not left:
        pid = record.get("pid")
        if record["phase"] == "starting":
            steps.append(Step("signal", "Ask the server to end", f"INT to pid {pid} alone", deadline_s))
        else:
            title = "Close its port, let what it accepted end"
            steps.append(Step("signal", title, closing(pid, drain_s, deadline_s), drain_s + deadline_s))
    steps.append(Step("kill", "KILL what is left of the run", "by identity (boot, pid, start time)", 15.0))
    steps.append(Step("proof", "Prove that nothing is left", f"processes, GPU memory, port {port}", 20.0))
    notes = [f"This ends {record.get('profile') or run_id} (pid {record.get('pid')}, port {port})."]
    others = [one for one in (record.get("together") or {}).get("members") or () if one.get("run") != run_id]
    if others:
        names = ", ".join(f"rank {one.get('rank')} on {one.get('host')}" for one in others)
        notes.append(
            f"It is one rank of a server: {names} cannot serve without it, and is stopped with it only by "
            f"`specdash stop {record.get('run_id_all')}`."
        )
    if requests:
        notes.append(
            f"{hostruns.running(requests)}; what is left after {drain_s or deadline_s:.0f} s is given up."
        )
    if not left and record["phase"] != "starting":
        notes += [REFUSED, *caveats(record)]
    return Plan(
        id=hostruns.new_id(f"stop-{run_id}"),
        kind="cleanup" if left else "stop",
        host=link.name,
        title=f"{'Clean up after' if left else 'Stop'} {record.get('profile') or run_id} on {link.name}",
        danger=Danger.DESTROYS,
        steps=tuple(steps),
        notes=tuple(notes),
        typed_name=str(record.get("profile") or run_id) if record.get("adopted") or requests else "",
        typed_also=(run_id,),
        spec={"run_id": run_id, "drain_s": drain_s, "idle_s": idle_s, "deadline_s": deadline_s},
    )


def caveats(record: Mapping[str, Any]) -> list[str]:
    """What of this server's command line makes its end less gentle than `closing` says."""
    flags = dict(zip(record.get("argv") or (), (record.get("argv") or ())[1:], strict=False))
    workers = str(flags.get("--tokenizer-worker-num") or "1")
    if workers == "1":
        return []
    return [
        f"It has {workers} tokenizer workers: there SGLang ends each by its own TERM, and the first that is idle ends the "
        "schedulers (by its source). What the others have accepted may be cut; wait for a quiet moment (--wait-idle)."
    ]


def closing(pid: object, drain_s: float, deadline_s: float) -> str:
    """What the signal does, in words for a plan."""
    said = f"INT to pid {pid} alone: new connections are refused at once, what runs is answered"
    if not drain_s:
        return f"{said}, at most {deadline_s:.0f} s"
    return f"{said}, at most {drain_s:.0f} s; then INT again, and {deadline_s:.0f} s later KILL"


async def run(link: Link, plan: Plan) -> AsyncIterator[StepEvent]:
    """Order the stop and follow it. `final` "done" only with the proof; its `data` is the proof."""
    run_id = str(plan.spec["run_id"])
    names = [step.name for step in plan.steps]
    yield StepEvent(plan.id, names[0], "running", "Asking its supervisor.")
    times = {name: plan.spec.get(name, 0.0) for name in ("drain_s", "idle_s", "deadline_s")}
    answer = await hostruns.order(link, run_id, cmd="stop", **times)
    if answer.get("ended"):
        yield StepEvent(
            plan.id, "proof", "done", str(answer["sentence"]), final="done", data={"proven": True}
        )
        return
    if not answer.get("ok"):
        raise ActionFailed(f"The supervisor of {run_id} said no: {answer.get('sentence')}")
    if answer.get("attached"):
        said = "Its supervisor was gone; a new one took over. The exit code will not be known."
        yield StepEvent(plan.id, names[0], "running", said)
    asked = float((answer.get("asked") or {}).get("boot_s") or 0.0)
    if answer.get("already"):
        by = (answer.get("asked") or {}).get("by") or "somebody"
        yield StepEvent(plan.id, names[0], "running", f"A stop by {by} is under way already; following it.")
    async for event in follow(link, plan.id, run_id, asked):
        yield event


async def follow(link: Link, plan_id: str, run_id: str, asked_boot_s: float) -> AsyncIterator[StepEvent]:
    """The steps of a stop that was asked for at `asked_boot_s`, to its proof."""
    async for record, events in hostruns.follow(link, run_id):
        for event in events:
            at = float(event.get("boot_s") or 0.0)
            told = None if at < asked_boot_s else _step(plan_id, event, at)
            if told is not None:
                yield told
                if told.final:
                    return
        if record.get("ended") and not record.get("supervisor_alive"):
            proof = record.get("proof") or {}
            said = str(proof.get("sentence") or "No process of the run is left.")
            good = bool(proof.get("proven", True))
            yield StepEvent(
                plan_id,
                "proof",
                "done" if good else "failed",
                said,
                final="done" if good else "failed",
                data=proof,
            )
            return
        if not record.get("supervisor_alive") and not record.get("ended"):
            said = "Its supervisor was killed in the middle of the stop."
            yield StepEvent(
                plan_id, "kill", "failed", said + " Stop it again: a new one takes over.", final="failed"
            )
            return


def _step(plan_id: str, event: dict[str, Any], at: float) -> StepEvent | None:
    kind = event.get("event")
    if kind == "draining":
        if event.get("door") == "closed":
            return StepEvent(plan_id, "signal", "running", str(event["sentence"]), at, data=event)
        idle = event.get("requests") == 0
        said = str(event.get("sentence") or "")
        return StepEvent(plan_id, "idle", "done" if idle else "running", said, at, data=event)
    if kind == "given_up":
        return StepEvent(plan_id, "signal", "running", str(event["sentence"]), at, data=event)
    if kind == "signal":
        said = f"{event['signal']} to pid {event['pid']}."
        if event.get("closes"):
            said += " Its port is closed; what it accepted is answered."
        return StepEvent(plan_id, "signal", "running", said, at, data=event)
    if kind in ("signal_ignored", "signal_denied", "deadline"):
        said = {
            "signal_ignored": f"It ignores {event.get('signal')}, or has no handler for it; sending {event.get('instead')}.",
            "signal_denied": f"Pid {event.get('pid')} belongs to {event.get('user')}: not allowed to signal it.",
            "deadline": str(event.get("sentence")),
        }[str(kind)]
        return StepEvent(plan_id, "signal", "running", said, at, data=event)
    if kind == "exited":
        return StepEvent(plan_id, "signal", "done", "The launcher has ended.", at, data=event)
    if kind == "killed":
        names = ", ".join(f"{one['pid']} {one['title'][:40]}" for one in event["processes"][:8])
        return StepEvent(plan_id, "kill", "done", f"Killed: {names or 'none'}.", at, data=event)
    if kind == "stop_aborted":
        return StepEvent(plan_id, "idle", "skipped", f"Taken back by {event.get('by')}.", at, "aborted")
    if kind == "stop_failed":
        return StepEvent(plan_id, "kill", "failed", str(event["sentence"]), at, "failed")
    if kind == "stopped":
        proof = event["proof"]
        if proof["proven"]:
            return StepEvent(plan_id, "proof", "done", proof["sentence"], at, "done", proof)
        return StepEvent(plan_id, "proof", "failed", proof["sentence"], at, "failed", proof)
    return None


async def abort(link: Link, run_id: str) -> str:
    """Take back a stop that still waits for a quiet moment. The sentence says what became of it; ActionFailed when it is too late."""
    answer = await hostruns.order(link, run_id, cmd="abort")
    if not answer.get("ok"):
        raise ActionFailed(str(answer.get("sentence")))
    return str(answer.get("sentence"))
