"""What a hot switch must know before anything is sent: which drafter serves, which is meant, what stands in the way.

Read from the files on the host, in the engine's own interpreter, and from the server's own word. Changes nothing.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from specdash.control import hostruns, launch, switch_notes
from specdash.control.plans import Check
from specdash.control.preflight_facts import made
from specdash.errors import ConfigError, Refused
from specdash.host.bundle import pack
from specdash.host.link import Link
from specdash.sglang import hot_fit
from specdash.sglang.commandline import LaunchSpec
from specdash.sglang.fit import Finding

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
    told = [one for one in switch_notes.difference(record, asked) if not one.startswith(ONLY_WEIGHTS)]
    if told and told != [switch_notes.NOTHING_DIFFERS]:
        raise Refused(
            f"{spec.profile} differs in more than the drafter's weights: {'; '.join(told[:3])}.", ordinary
        )
    return spec.drafter if asked["cwd"] == record["cwd"] else posixpath.join(asked["cwd"], spec.drafter)


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
