"""New draft weights for a server that goes on serving: proven alike first, watched after, with the way back at hand.

`plan` compares what serves with what is asked for, from the files on the host and from the server's own word, and
blocks what is not proven. `run` lets the host's keeper do it (it goes on when the link drops) and follows it.
"""

from __future__ import annotations

import posixpath
from collections.abc import AsyncIterator, Mapping
from typing import Any

from specdash.control import hostruns
from specdash.control.hot_facts import (
    BUNDLE,
    PROGRAM,
    drafter_named,
    drafter_of,
    judge,
    look,
    server_info,
    serving,
)
from specdash.control.plans import Danger, Plan, Step, StepEvent
from specdash.errors import Refused, RemoteError
from specdash.host.bundle import pack
from specdash.host.link import Link
from specdash.host.remote.hotstate import TITLES
from specdash.sglang import hot as rules
from specdash.sglang import hot_fit
from specdash.sglang import pulse as pulses

__all__ = ["drafter_named", "drafter_of", "judge", "look", "server_info", "serving"]
RULES, PULSE_RULES = "specdash.sglang.hot", "specdash.sglang.pulse"
STEP_TITLES = TITLES
"""Every step that a host's keeper can tell, in words."""


async def plan(
    link: Link,
    run_id: str,
    drafter: str,
    *,
    at_least: float | None = None,
    measure: bool = True,
    pulse: bool = True,
    flush: bool = False,
    requests: int | None = None,
) -> Plan:
    """From what run `run_id` drafts with now to the drafter in folder `drafter` of its host. Changes nothing.

    `at_least`: the accept length below which the old weights come back (never less than 1.05). `pulse` False:
    it is not judged. `flush`: empty the prefix cache, whose draft part is the old drafter's. Raises Refused
    when the run is not there; what stands in the way is a blocking check, and the ordinary switch remains.
    """
    run = await hostruns.record(link, run_id)
    if not run["alive"]:
        raise Refused(f"Run {run_id} does not run.", "Launch it with the new drafter.")
    if run.get("managed_by"):
        raise Refused(f"{run_id} is managed by {run['managed_by']}.", "Change it there.")
    there = await link.call("hot.look", {"base": hostruns.base(link), "run": run_id}, timeout=30)
    if there["busy"]:
        busy = there["busy"]
        raise Refused(
            f"{busy.get('by')} changes this server already ({busy.get('title')}).", "Wait for its end."
        )
    if there["left_open"]:
        raise Refused(
            f"The hot switch {there['left_open'][0]} was killed and may have left an update open.",
            f"First: specdash switch --hot --attach {there['left_open'][0]} {run_id}.",
        )
    info = await server_info(link, run_id)
    now = serving(run)
    read = await look(link, run, now, drafter)
    checks = judge(run, info, read, there)
    blocked = any(check.status == "block" for check in checks)
    ident = hostruns.new_id(f"hot-{posixpath.basename(drafter.rstrip('/'))}")
    title = f"Hot switch {_short(now)} → {_short(drafter)} on {link.name}"
    size = 0 if blocked else sum(one["bytes"] for one in _sent(read["new"]))
    spec = (
        {"run": run_id} if blocked else _spec(run, info, read, ident, title, at_least, measure, pulse, flush)
    )
    notes = [
        f"It serves {_short(now)} now; requests go on, none is stopped. Answers stay the same: the target checks each.",
        f"{size / 1e6:.0f} MB are copied to /dev/shm of {link.name} ({there['shm']['free_bytes'] / 1e9:.1f} GB free) "
        "and removed after.",
        "The prefix cache is emptied."
        if flush
        else "The prefix cache stays; its draft part is the old drafter's until it goes.",
        *(
            rules.rule(at_least)
            if pulse
            else ["It is not judged: the new weights stay, whatever they are accepted."]
        ),
        "It runs on the host: it goes on when specdash or the link ends; when it is killed, the old weights go in again.",
        f"A restart of this run starts with the drafter of its command line, {run.get('drafter') or 'none'}.",
    ]
    if requests:
        notes.append(f"{hostruns.running(requests)} now.")
    return Plan(
        id=ident,
        kind="hot_switch",
        host=link.name,
        title=title,
        danger=Danger.CHANGES,
        steps=_steps(measure, pulse, drafter),
        checks=checks,
        notes=tuple(notes),
        typed_name=str(run.get("profile") or run_id) if requests or run.get("adopted") else "",
        typed_also=(run_id,),
        spec={"hot": spec},
    )


def _steps(measure: bool, pulse: bool, drafter: str) -> tuple[Step, ...]:
    told = f"{len(pulses.PROMPTS)} prompts, greedy, {pulses.PASSES} passes or more"
    steps = [
        Step(
            "send",
            "Prove the payload, then send the weights",
            f"POST {rules.BEGIN}, {rules.UPDATE} (selector draft), {rules.END}; {rules.CHECK} before and after",
            rules.UPDATE_S,
        ),
        Step("pulse", f"Pulse with {_short(drafter)}", told if pulse else "one generation"),
    ]
    if measure:
        steps.insert(0, Step("before", "Pulse with the present weights", told))
    return tuple(steps)


def _sent(one: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tensors that are sent: all but those that are the target's or read at start only."""
    left_out = set(hot_fit.not_sent(one["config"], one["tensors"]))
    return [{"name": name, **table} for name, table in one["tensors"].items() if name not in left_out]


def _spec(
    run: Mapping[str, Any],
    info: Mapping[str, Any],
    look: Mapping[str, Any],
    ident: str,
    title: str,
    at_least: float | None,
    measure: bool,
    pulse: bool,
    flush: bool,
) -> dict[str, Any]:
    """plan.json of the host's keeper."""
    spec = run.get("spec") or {}
    ways = {
        name: {
            "path": look[key]["path"],
            "full": look[key]["full"],
            "tensors": _sent(look[key]),
            "stamps": look[key]["stamps"],
        }
        for name, key in (("old", "now"), ("new", "new"))
    }
    return {
        "id": ident,
        "run": run["id"],
        "title": title,
        "by": hostruns.operator(),
        "rules": RULES,
        "pulse_rules": PULSE_RULES,
        "algorithm": str(info["speculative_algorithm"]),
        "ranks": int(info["tp_size"]),
        "http": dict(run["http"]),
        "argv": list(run.get("argv") or ()),
        "measure": measure,
        "pulse": pulse,
        "at_least": at_least,
        "flush": flush,
        "proof": {
            "python": run.get("python") or spec.get("python") or "python3",
            "cwd": run["cwd"],
            "module": PROGRAM,
            "func": "prove",
        },
        **ways,
    }


def program() -> bytes:
    """The keeper with the rules it needs, as one file that `python -I` runs."""
    return pack(
        ("specdash.host.remote", "specdash.sglang"),
        main="specdash.host.remote.hotkeeper:main",
    )


async def run(link: Link, plan: Plan) -> AsyncIterator[StepEvent]:
    """Start the host's keeper and follow it: `final` done, rolled_back, aborted or failed. Repeating it joins.

    Raises Refused when a check blocks: nothing here can force it, for a wrong tensor kills the server.
    """
    if plan.blocked:
        raise Refused(f"{plan.title}: {plan.blocked[0].sentence}", plan.blocked[0].remedy)
    hot = dict(plan.spec["hot"])
    files = {"supervisor.pyz": program(), "proof.zip": pack(BUNDLE)}
    params = {
        "base": hostruns.base(link),
        "plan": hot,
        "files": {name: len(data) for name, data in files.items()},
    }
    yield StepEvent(plan.id, plan.steps[0].name, "running", "Handing it to the host.")
    try:
        await link.call("hot.create", params, timeout=60, blob=b"".join(files.values()))
    except RemoteError as error:
        said = f"{error.sentence} {error.step}".strip()
        yield StepEvent(plan.id, plan.steps[0].name, "failed", said, final="failed")
        return
    async for event in follow(link, str(hot["run"]), plan.id):
        yield event


async def attach(link: Link, run_id: str, ident: str) -> AsyncIterator[StepEvent]:
    """Follow a hot switch. One that was killed altogether is closed and taken back first."""
    await link.call("hot.resume", {"base": hostruns.base(link), "run": run_id, "id": ident}, timeout=60)
    async for event in follow(link, run_id, ident):
        yield event


async def follow(link: Link, run_id: str, ident: str) -> AsyncIterator[StepEvent]:
    """A hot switch's records as step events, to its end; starts nothing."""
    import asyncio

    position: Mapping[str, Any] | None = None
    step = "send"
    while True:
        asked = {"base": hostruns.base(link), "run": run_id, "id": ident, "position": position}
        answer = await link.call("hot.read", asked)
        position = answer["position"]
        for one in answer["records"]:
            kind, at, said = one.get("event"), one.get("boot_s"), str(one.get("sentence") or "")
            if kind == "step":
                step = str(one["step"])
                yield StepEvent(ident, step, one["status"], said, at, data=one)
            elif kind == "resumed":
                yield StepEvent(
                    ident, step, "running", "Its worker was killed; another one goes on.", at, data=one
                )
            elif kind == "end":
                status = "done" if one["final"] == "done" else "failed"
                yield StepEvent(ident, step, status, said, at, one["final"], one)  # type: ignore[arg-type]
                return
        if not answer["alive"] and answer["end"] is None:
            said = "Its program on the host was killed. Attach to it: it closes what is open and goes back."
            yield StepEvent(ident, step, "failed", said, final="failed", data={"lost": True})
            return
        await asyncio.sleep(hostruns.POLL_S)


async def abort(link: Link, run_id: str, ident: str) -> None:
    """Take it back: before the send nothing changes, after it the old weights go in again."""
    await link.call("hot.abort", {"base": hostruns.base(link), "run": run_id, "id": ident}, timeout=60)


async def listing(link: Link, run_id: str) -> list[dict[str, Any]]:
    """All hot switches of a run, newest first (host/remote/hots.py `status`)."""
    answer = await link.call("hot.list", {"base": hostruns.base(link), "run": run_id})
    found: list[dict[str, Any]] = answer["changes"]
    return found


def _short(path: str) -> str:
    return posixpath.basename(path.rstrip("/")) or "nothing"
