"""Switch a serving run to another profile: a plan with a way back, which the host itself carries out.

`run` starts the host's switcher and follows it; when the link drops it goes on. `attach` follows a switch that
is under way, and brings a new switcher when the old one was killed. `abort` takes it back: before the stop
nothing changes, after it the previous server comes back.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any, Literal

from specdash.config import secrets as config_secrets
from specdash.control import hostruns, launch, stop, why
from specdash.control.plans import Check, Danger, Plan, Step, StepEvent
from specdash.control.switch_notes import difference, downtime, slower, warm_cost
from specdash.errors import Refused, RemoteError
from specdash.host.link import Link
from specdash.host.remote.switchstate import TITLES
from specdash.sglang import pulse as rules
from specdash.sglang import redact
from specdash.sglang.commandline import LaunchSpec
from specdash.sglang.explain import cause_json

__all__ = ["difference"]  # also for others: where a switch over several hosts says what differs
PULSE_RULES = "specdash.sglang.pulse"
SETTLE_S = 120.0
HOLD_S = 600.0
STEP_TITLES = TITLES
"""Every step that a host's switcher can tell, those of the way back too, in words."""


async def plan(
    link: Link,
    run_id: str,
    spec: LaunchSpec,
    *,
    checks: tuple[Check, ...] = (),
    drain_s: float = 60.0,
    idle_s: float = 0.0,
    deadline_s: float = 60.0,
    ready_s: float | None = None,
    settle_s: float = SETTLE_S,
    hold_s: float = HOLD_S,
    on_slower: Literal["ask", "keep", "roll_back"] = "ask",
    measure: bool = True,
    before: Mapping[str, Any] | None = None,
    requests: int | None = None,
    side_by_side: bool = False,
    warm_mb_s: float | None = None,
) -> Plan:
    """From run `run_id` (A) to profile `spec` (B). Changes nothing.

    `side_by_side`: B first, A is stopped when B has proven itself; B needs a port of its own (`beside`), and
    `checks` must be those of the host as it is. `warm_mb_s`: read B's files into the page cache at that rate
    while A still serves.

    `idle_s`: before the stop, wait so long for a moment without requests (until then it can be taken back for
    nothing). `drain_s`: how long what A accepted may take after its port is closed.

    `before`: A's last pulse (`sglang.pulse.read`), if one is known; with `measure`, A is pulsed before it is
    stopped. `requests`: running ones as last seen. Raises Refused when A is not there or another switch runs.
    """
    listed = await link.call("switches.list", {"base": hostruns.base(link)})
    busy = listed["running"]
    if busy:
        raise Refused(
            f"A switch by {busy['by']} runs already ({busy['title']}, step {busy['step']}).",
            f"Follow it (`specdash switch --attach {busy['id']}`), or take it back (`--abort`).",
        )
    a = await hostruns.record(link, run_id)
    if not a["alive"]:
        raise Refused(
            f"Run {run_id} does not run: there is nothing to switch from.", "Launch the profile instead."
        )
    if a.get("managed_by"):
        raise Refused(
            f"{run_id} is managed by {a['managed_by']}.",
            f"Stop it there ({a.get('stop_with')}), then launch.",
        )
    if len((a.get("together") or {}).get("members") or ()) > 1:
        raise Refused(
            f"{run_id} is one rank of a server over several hosts; it cannot be switched alone.",
            f"Name the server: specdash switch {a.get('run_id_all')} PROFILE",
        )
    ident, b_id = hostruns.new_id(f"to-{spec.profile}"), hostruns.new_id(spec.profile)
    restore = hostruns.new_id(str(a.get("profile") or "previous"))
    run = launch.describe(link, spec, b_id)
    runs = (await link.call("runs.list", {"base": hostruns.base(link)}))["runs"]
    old, new = str(a.get("profile") or run_id), spec.profile
    title = f"Switch {old} → {new} on {link.name}"
    switch_plan = {
        "id": ident,
        "a": run_id,
        "b": b_id,
        "restore": restore,
        "title": title,
        "by": hostruns.operator(),
        "names": {run_id: old, b_id: new, restore: old},
        "pulse_rules": PULSE_RULES,
        "drain_s": drain_s,
        "idle_s": idle_s,
        "deadline_s": deadline_s,
        "ready_s": ready_s,
        "settle_s": settle_s,
        "hold_s": hold_s,
        "on_slower": on_slower,
        "measure": measure,
        "before": dict(before) if before else None,
    }
    port = run["http"]["port"]
    if side_by_side:
        if port == (a.get("http") or {}).get("port"):
            raise Refused(
                f"Side by side, {new} needs a port of its own; {old} has {port}.", "Give it another port."
            )
        switch_plan["side_by_side"] = True
    steps = [
        Step(
            "stop",
            f"Close {old} and stop it, with proof",
            (f"wait at most {idle_s:.0f} s for a moment without requests, then " if idle_s else "")
            + stop.closing(a["pid"], drain_s, deadline_s),
            idle_s + drain_s + deadline_s,
        ),
        Step("launch", f"Launch {new}", f"in {run['cwd']}: {' '.join(run['argv'])}"),
        Step("ready", "Wait for a real generation", f"port {port}", ready_s),
        Step(
            "pulse",
            "Pulse on fixed prompts",
            f"{len(rules.PROMPTS)} prompts, greedy, {rules.PASSES} passes or more",
        ),
        Step("watch", f"It has to live {settle_s:.0f} s", "", settle_s),
    ]
    if side_by_side:
        steps.append(steps.pop(0))
    if measure:
        steps.insert(0, Step("measure", f"Pulse of {old}", "the same prompts, while it still serves"))
    notes = difference(a, run)
    if side_by_side:
        notes.append(
            f"{new} is launched beside {old}, on port {port}; {old} is stopped last. Move its users there."
        )
        notes.append(
            f"Both are measured while the other is on the machine. If {new} fails, {old} was never touched."
        )
    else:
        notes.append(downtime(runs, old, new))
    if warm_mb_s:
        folders = [posixpath.join(run["cwd"], path) for path in (run["target"], run["drafter"]) if path]
        weight = await link.call("switches.weigh", {"folders": folders}, timeout=30)
        switch_plan["warm"] = {"folders": folders, "bytes_s": warm_mb_s * 1e6}
        effect = f"{weight['bytes'] / 1e9:.1f} GB at most {warm_mb_s:.0f} MB/s, idle disk priority"
        steps.insert(0, Step("warm", f"Read the files of {new} into the page cache", effect))
        notes.append(warm_cost(weight, warm_mb_s))
    if requests:
        notes.append(
            f"{hostruns.running(requests)} now; what is left after {drain_s or deadline_s:.0f} s is given up."
        )
    notes += [stop.REFUSED, *stop.caveats(a)]
    notes += rules.rule(spec.algorithm, before)
    if measure or before:
        notes.append(slower(old, on_slower, hold_s))
    if not side_by_side:
        notes.append(
            f"Going back starts {old} with the same command, environment and port, and proves it with a pulse."
        )
    if a.get("drafter_now"):
        notes.append(
            f"{old} serves a hot-switched drafter, {a['drafter_now'].get('drafter')}; started again, it has the one "
            f"of its command line, {a.get('drafter') or 'none'}."
        )
    notes.append("It runs on the host: it goes on when specdash or the link ends. Nothing is tried twice.")
    return Plan(
        id=ident,
        kind="switch",
        host=link.name,
        title=title,
        danger=Danger.DESTROYS,
        steps=tuple(steps),
        checks=checks,
        notes=tuple(notes),
        typed_name=old if requests or a.get("adopted") else "",
        typed_also=(run_id,),
        spec={"switch": switch_plan, "launch": spec.as_json(), "run": run},
    )


async def beside(link: Link, spec: LaunchSpec, run_id: str) -> LaunchSpec:
    """`spec` with a port of its own: the profile's where A has another one, else the next that nobody listens on."""
    a = await hostruns.record(link, run_id)
    port = spec.http()[1]
    if port != (a.get("http") or {}).get("port"):
        return spec
    for candidate in range(port + 1, min(port + 200, 65536)):
        held = await link.call("procs.listeners", {"port": candidate})
        if not held["listening"]:
            flags = tuple(pair for pair in spec.flags if pair[0] != "--port")
            return replace(spec, flags=(*flags, ("--port", candidate)))
    raise Refused(f"No free port was found from {port + 1} on.", "Give the profile another port.")


async def run(
    link: Link, plan: Plan, *, resolve: launch.Resolve = config_secrets.resolve, force: bool = False
) -> AsyncIterator[StepEvent]:
    """Start the host's switcher and follow it to its end: `final` done, rolled_back, aborted or failed.

    Repeating it (after a lost link) joins the same switch. Raises Refused when a check blocks, or RemoteError
    `busy` when another switch was faster.
    """
    if plan.blocked and not force:
        raise Refused(f"{plan.title}: {plan.blocked[0].sentence}", plan.blocked[0].remedy)
    yield StepEvent(plan.id, plan.steps[0].name, "running", "Preparing the next run and the way back.")
    spec = LaunchSpec.from_json(plan.spec["launch"])
    prepared = await launch.prepare(link, spec, plan.spec["run"], resolve)
    params, blob = prepared.call(hostruns.base(link))
    try:
        await link.call("switches.create", {**params, "plan": plan.spec["switch"]}, timeout=60, blob=blob)
    except RemoteError as error:
        if error.code in ("busy", "gone", "denied", "exists", "not_found"):
            raise Refused(error.sentence, error.step) from None
        raise
    async for event in follow(link, plan.id):
        yield event


async def attach(link: Link, switch_id: str) -> AsyncIterator[StepEvent]:
    """Follow a switch from its first record. When its switcher was killed, a new one goes on where it was."""
    await link.call("switches.resume", {"base": hostruns.base(link), "id": switch_id}, timeout=60)
    async for event in follow(link, switch_id):
        yield event


async def follow(link: Link, switch_id: str) -> AsyncIterator[StepEvent]:
    """A switch's records as step events, to its end; starts nothing.

    When its switcher is gone before the end, the last event says so (`final` "failed", data["lost"] True).
    """
    position: Mapping[str, Any] | None = None
    step = loading = failed = ""
    while True:
        answer = await link.call(
            "switches.read", {"base": hostruns.base(link), "id": switch_id, "position": position}
        )
        position = answer["position"]
        for one in answer["records"]:
            step = one.get("step") or step
            event = _event(switch_id, one, step)
            loading = one.get("run") or loading
            if one.get("status") == "failed":
                failed = loading
            if event is not None and event.final and event.final != "done" and failed:
                event = await _with_cause(link, event, failed)
            if event is not None:
                yield event
                if event.final:
                    return
        if not answer["alive"] and answer["end"] is None:
            said = "The switcher on the host was killed; the switch stands still. Attach to it to go on, or abort it."
            yield StepEvent(switch_id, step, "failed", said, final="failed", data={"lost": True})
            return
        await asyncio.sleep(hostruns.POLL_S)


async def _with_cause(link: Link, event: StepEvent, run_id: str) -> StepEvent:
    """The end of a switch whose next server died by itself says why, as that server's log tells it."""
    words, cause = await why.of_ended(link, run_id)
    if cause is None:
        return event
    data = {**event.data, "cause": redact.json_value(cause_json(cause))}
    return replace(event, sentence=f"{event.sentence} {words}", data=data)


def _event(switch_id: str, one: Mapping[str, Any], step: str) -> StepEvent | None:
    kind, at, said = one.get("event"), one.get("boot_s"), str(one.get("sentence") or "")
    if kind == "step":
        return StepEvent(switch_id, step, one["status"], said, at, data=one)
    if kind in ("question", "resumed", "pulse", "before", "answer"):
        said = said or {
            "resumed": "A new switcher went on.",
            "answer": f"Answered: {one.get('answer')}.",
        }.get(str(kind), "")
        return StepEvent(switch_id, step, "running", said, at, data=one) if said else None
    if kind == "end":
        final = one["final"]
        return StepEvent(switch_id, step, "done" if final == "done" else "failed", said, at, final, one)
    return None


async def abort(link: Link, switch_id: str) -> None:
    """Take a switch back (also one whose switcher was killed). RemoteError when it has ended or goes back already."""
    asked = {"base": hostruns.base(link), "id": switch_id, "by": hostruns.operator()}
    await link.call("switches.abort", asked, timeout=60)


async def answer(link: Link, switch_id: str, word: Literal["keep", "roll_back"]) -> None:
    """Answer the question of a switch whose next server is slower."""
    await link.call(
        "switches.answer", {"base": hostruns.base(link), "id": switch_id, "answer": word}, timeout=60
    )


async def listing(link: Link) -> list[dict[str, Any]]:
    """The host's newest switches (host/remote/switches.py `status`); one with neither `end` nor `alive` stands still."""
    found: list[dict[str, Any]] = (await link.call("switches.list", {"base": hostruns.base(link)}))[
        "switches"
    ]
    return found
