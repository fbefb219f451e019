"""New draft weights for a server that goes on serving: proven alike first, watched after, with the way back at hand.

`plan` compares what serves with what is asked for, from the files on the host and from the server's own word, and
blocks what is not proven. `run` lets the host's keeper do it (it goes on when the link drops) and follows it.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any

from specdash.control import hostruns, launch, switch
from specdash.control.plans import Check, Danger, Plan, Step, StepEvent
from specdash.control.preflight_facts import made
from specdash.errors import ConfigError, Refused, RemoteError
from specdash.host.bundle import pack
from specdash.host.link import Link
from specdash.host.remote.hotstate import TITLES
from specdash.sglang import hot as rules
from specdash.sglang import hot_fit
from specdash.sglang import pulse as pulses
from specdash.sglang.commandline import LaunchSpec
from specdash.sglang.fit import Finding

RULES, PULSE_RULES = "specdash.sglang.hot", "specdash.sglang.pulse"
PROGRAM = "specdash.control.remote_hot"
BUNDLE = (
    PROGRAM,
    "specdash.control.remote_models",
    "specdash.control.remote_probe",
    "specdash.sglang",
)
ONLY_WEIGHTS = ("drafter:", "--speculative-draft-model-path:", "--speculative-draft-model:")
"""How the lines of a difference begin that a hot switch may carry."""
LOOK_S = 180.0
SPARE_MEMORY = 2 << 30
"""Bytes beside the weights: torch is imported once, and the engine must not be the one that is killed."""


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


async def drafter_named(
    link: Link, run_id: str, name: str, resolve: Callable[[str], LaunchSpec]
) -> tuple[str, str]:
    """(the drafter's path as the run's process would write it, the profile it came from or "").

    `name`: a path, a folder below the run's working directory, or a profile (`resolve` finds it, or raises ConfigError).
    """
    if "/" in name:
        return name, ""
    try:
        spec = resolve(name)
    except ConfigError:
        return name, ""
    return drafter_of(link, await hostruns.record(link, run_id), spec), name


def drafter_of(link: Link, record: Mapping[str, Any], spec: LaunchSpec) -> str:
    """The drafter of a profile, as a path for `plan`, where the profile differs from the run in nothing else.

    Raises Refused with what else differs: that needs the ordinary switch.
    """
    name = str(record.get("profile") or record["id"])
    ordinary = f"The ordinary switch: specdash switch {name} {spec.profile}."
    if not spec.drafter:
        raise Refused(f"{spec.profile} has no drafter.", ordinary)
    asked = launch.describe(link, replace(spec, host=link.name), "x")
    told = [one for one in switch.difference(record, asked) if not one.startswith(ONLY_WEIGHTS)]
    if told and told != [switch.NOTHING_DIFFERS]:
        raise Refused(
            f"{spec.profile} differs in more than the drafter's weights: {'; '.join(told[:3])}.", ordinary
        )
    return spec.drafter if asked["cwd"] == record["cwd"] else posixpath.join(asked["cwd"], spec.drafter)


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


def serving(run: Mapping[str, Any]) -> str:
    """Path of the drafter that a run (its record) serves with now: the last hot switch, else its command line."""
    return str((run.get("drafter_now") or {}).get("drafter") or run.get("drafter") or "")


async def server_info(link: Link, run_id: str) -> dict[str, Any]:
    """The engine's own /server_info. Raises Refused when it gives none."""
    request = {"method": "GET", "path": "/server_info", "headers": {}, "body": ""}
    asked = {"base": hostruns.base(link), "run": run_id, "request": request}
    answer = await link.call("runs.ask", asked, timeout=30)
    try:
        found = json.loads(bytes(answer["blob"]).decode("utf-8", "replace"))
    except ValueError:
        found = None
    if answer["status"] != 200 or not isinstance(found, dict):
        said = f"HTTP {answer['status']}" if answer["status"] else str(answer["problem"])
        raise Refused(f"The server of {run_id} does not tell what it runs ({said}).", "Is it ready?")
    return found


async def look(link: Link, run: Mapping[str, Any], now: str, new: str) -> dict[str, Any]:
    spec = run.get("spec") or {}
    """What `remote_hot.look` reads in the engine's own interpreter. Raises RemoteError."""
    asked = {
        "python": run.get("python") or spec.get("python") or "python3",
        "cwd": run["cwd"],
        "env": dict(spec.get("env") or {}),
        "module": PROGRAM,
        "func": "look",
        "args": {"now": now, "new": new},
        "timeout": LOOK_S,
    }
    answer = await link.call("py.run", asked, timeout=LOOK_S + 10, blob=pack(BUNDLE))
    found: dict[str, Any] = answer["result"]
    return found


def judge(
    run: Mapping[str, Any], info: Mapping[str, Any], look: Mapping[str, Any], there: Mapping[str, Any]
) -> tuple[Check, ...]:
    """All that must be proven before anything is sent. Pure. What is not proven is a block."""
    found: list[Finding] = []
    able = look["capability"]
    if not able["able"]:
        text = f"SGLang {look.get('version') or ''} on the host cannot do it: it lacks {'; '.join(able['missing'][:3])}."
        found.append(Finding("block", "hot_not_offered", text, hot_fit.REMEDY))
    else:
        text = f"SGLang {look.get('version') or ''} offers new draft weights to a living server."
        found.append(Finding("ok", "hot_offered", text))
    if version_differs(look, info):
        text = f"The server runs SGLang {info.get('version')}, its files are {look.get('version')} now."
        found.append(Finding("block", "hot_version", text, "Restart it by an ordinary switch."))
    found += hot_fit.server(info, run)
    now, new = look.get("now"), look.get("new")
    if now is None:
        found.append(Finding("block", "hot_no_drafter", "The run has no drafter to replace.", hot_fit.REMEDY))
    elif new is not None:
        found += hot_fit.alike(now, new)
        found += same_as_loaded(run, info, now, there.get("started_unix"))
        if now["full"] == new["full"]:
            found.append(Finding("warn", "hot_same", "It serves with this drafter already."))
        size = sum(one["bytes"] for one in new["tensors"].values())
        if size + (64 << 20) > there["shm"]["free_bytes"]:
            text = f"/dev/shm has {there['shm']['free_bytes'] / 1e9:.1f} GB free; the weights need {size / 1e9:.1f} GB."
            found.append(Finding("block", "hot_no_room", text, "Make room, or use the ordinary switch."))
        left = there.get("memory_bytes")
        if left is not None and size + SPARE_MEMORY > left:
            text = f"{left / 1e9:.1f} GB of memory may still be used; the weights need {size / 1e9:.1f} GB and some to spare."
            found.append(Finding("block", "hot_no_room", text, "Make room, or use the ordinary switch."))
    for why in there["strangers"][:1]:
        text = f"The server would not see our shared memory: {why}."
        found.append(Finding("block", "hot_stranger", text, hot_fit.REMEDY))
    shown = tuple(able["evidence"][:2])
    return tuple(
        made(
            f.category,
            f.status,
            f.sentence,
            shown if f.category == "hot_offered" else (),
            f.remedy,
            f.category,
        )
        for f in found
    )


def version_differs(look: Mapping[str, Any], info: Mapping[str, Any]) -> bool:
    told, read = str(info.get("version") or ""), str(look.get("version") or "")
    return bool(told and read and told != read)


def same_as_loaded(
    run: Mapping[str, Any], info: Mapping[str, Any], now: Mapping[str, Any], started: float | None
) -> list[Finding]:
    """Are the present drafter's files still those that the engine loaded? Else nothing is proven of what runs.

    `started`: when the server's process was (Unix s).
    """
    serves = run.get("drafter_now")
    if serves:
        if dict(serves.get("stamps") or {}) != dict(now["stamps"]):
            text = f"The files of {now['path']} have changed since they were sent; what runs is not proven."
            return [Finding("block", "hot_changed", text, hot_fit.REMEDY)]
        return []
    told = str(info.get("speculative_draft_model_path") or "")
    if told != str(run.get("drafter") or ""):
        text = f"The server says that it drafts with {told or 'nothing'}, its record says {run.get('drafter') or 'nothing'}."
        return [Finding("block", "hot_not_known", text, hot_fit.REMEDY)]
    newest = max((int(stamp[1]) for stamp in now["stamps"].values()), default=0) / 1e9
    if not started:
        return [
            Finding("block", "hot_not_known", "When the server was started is not known.", hot_fit.REMEDY)
        ]
    if newest > float(started):
        text = (
            f"The files of {now['path']} were written after the server had started; what runs is not proven."
        )
        return [Finding("block", "hot_changed", text, hot_fit.REMEDY)]
    return []


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
