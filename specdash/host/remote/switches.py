"""Switches of this host, for the agent: create, list, read, resume, abort, answer. See switcher.py."""

from __future__ import annotations

import os
import shutil
import time
from typing import Any, Callable, Dict, List, Optional

from specdash.host.remote import folder as folders
from specdash.host.remote import journal, procs, runstore, switchstate, warm
from specdash.host.remote.kin import MARK
from specdash.host.remote.wire import CallError

KEEP = 200
"""Switches that a host remembers, as many as runs."""


def folder_of(base: str, ident: str) -> str:
    if not runstore.NAME.match(ident):
        raise CallError("bad_call", "%r is no switch id." % (ident,), "")
    return os.path.join(os.path.abspath(os.path.expanduser(base)), "switches", ident)


def holder(base: str) -> Optional[Dict[str, Any]]:
    """The switch that runs now: {"id", "by", "since_unix", "title", "step", "pid"}; None: none does."""
    return folders.ask("switch", switchstate.lock_id(base), {"cmd": "status"})


def create(base: str, plan: Dict[str, Any], run: Dict[str, Any], files: Dict[str, bytes]) -> Dict[str, Any]:
    """Prepare B and the way back to A, then start the switcher. Safe to repeat with the same plan id.

    `plan`: id, a (run id), b, restore (ids to make), names, drain_s, deadline_s, ready_s, settle_s, on_slower,
    hold_s, measure, before, pulse_rules, title, by. `run` and `files`: B's, as for `runs.create`.
    """
    folder = folder_of(base, str(plan.get("id") or ""))
    base = os.path.abspath(os.path.expanduser(base))
    _only_one(base, str(plan["id"]))
    if journal.load(folders.path(folder, switchstate.PLAN)) is None:
        a = runstore.record(runstore.folder_of(base, str(plan["a"])))
        if a is None or not a["alive"]:
            raise CallError(
                "gone", "Run %s does not run: there is nothing to switch from." % plan["a"], "Launch instead."
            )
        if a.get("managed_by"):
            raise CallError("denied", "%s is managed by %s." % (plan["a"], a["managed_by"]), "Stop it there.")
        hot = folders.ask("hot", folders.run_lock(str(a["folder"])), {"cmd": "status"})
        if hot is not None:
            raise CallError(
                "busy", "%s changes its draft weights (%s)." % (hot.get("by"), hot.get("title")), "Wait."
            )
        os.makedirs(folder, mode=0o700, exist_ok=True)
        try:
            runstore.prepare(base, run, files)
            _prepare_way_back(base, a, str(plan["restore"]), files["supervisor.pyz"])
            journal.put(folders.path(folder, folders.PYZ), files["supervisor.pyz"])
            journal.save(
                folders.path(folder, switchstate.PLAN),
                dict(plan, base=base, created_unix=round(time.time(), 3)),
            )
        except (CallError, OSError):
            for name in (str(run.get("id")), str(plan["restore"])):
                shutil.rmtree(runstore.folder_of(base, name), ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)
            raise
        prune(base, KEEP)
    try:
        return resume(base, str(plan["id"]))
    except CallError as error:
        if error.code == "busy" and not switchstate.progress(folder).get("began"):
            # another was faster by a moment
            for name in (str(run.get("id")), str(plan["restore"])):
                shutil.rmtree(runstore.folder_of(base, name), ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _prepare_way_back(base: str, a: Dict[str, Any], ident: str, pyz: bytes) -> None:
    """A run folder that starts A's very command again: argv, environment, working directory, secrets, port."""
    env = procs.environ(int(a["pid"])) or folders.read_env(str(a["folder"]))
    if not env:
        raise CallError(
            "denied",
            "The environment of the present server cannot be read.",
            "There is no way back; stop and launch.",
        )
    env.pop(MARK, None)
    stored = folders.read_env(str(a["folder"]))
    if (
        stored
    ):  # the process may have changed its own (titles clobber it); what it was launched with is in the folder
        env = stored
    files = {"env": folders.pack_env(env), "supervisor.pyz": pyz}
    for name in ("auth", "secrets.yaml"):
        raw = procs.read_bytes(os.path.join(str(a["folder"]), name), 1 << 20)
        if raw is not None:
            files[name] = raw
    here, there = str(a["folder"]), runstore.folder_of(base, ident)
    keep = (
        "profile",
        "spec",
        "cwd",
        "python",
        "log",
        "http",
        "rules",
        "target",
        "algorithm",
        "drafter",
        "env_names",
        "nnodes",
        "node_rank",
        "started_by",
    )
    run = {key: a[key] for key in keep if key in a}
    swap = os.path.join(here, "secrets.yaml")
    run.update(
        id=ident,
        run_id_all=ident,
        base=base,
        restores=a["id"],
        argv=[os.path.join(there, "secrets.yaml") if word == swap else word for word in a["argv"]],
    )
    # Its `log` link is only turned when it starts: until then the path belongs to the others.
    runstore.prepare(base, run, files)


def _only_one(base: str, ident: str) -> None:
    busy = holder(base)
    if busy is not None and busy.get("id") != ident:
        since = time.strftime("%H:%M:%S", time.localtime(float(busy.get("since_unix") or 0)))
        raise CallError(
            "busy",
            "A switch by %s runs here since %s (%s, step %s)."
            % (busy.get("by"), since, busy.get("title"), busy.get("step")),
            "Follow it (`specdash switch --attach %s`), or take it back (`--abort`)." % busy.get("id"),
        )


def resume(base: str, ident: str) -> Dict[str, Any]:
    """Start a switcher for a switch that has none (new, or the old one was killed), and wait until it is there."""
    folder = folder_of(base, ident)
    if journal.load(folders.path(folder, switchstate.PLAN)) is None:
        raise CallError(
            "not_found", "There is no switch %s on this host." % ident, "See `specdash switch --list`."
        )
    _only_one(base, ident)
    found = status(base, ident)
    if found["end"] is not None or found["alive"]:
        return found
    runstore.spawn_supervisor(folder, "switch")
    until = time.monotonic() + runstore.ACKNOWLEDGE_S
    while time.monotonic() < until:
        found = status(base, ident)
        if found["end"] is not None or found["alive"]:
            return found
        _only_one(base, ident)
        time.sleep(0.05)
    broken = journal.last(folders.path(folder, "supervisor.err"))
    raise CallError(
        "failed",
        "The switcher did not report: %s." % (broken[-1].get("error") if broken else "no word"),
        "Look into %s." % folder,
    )


def status(base: str, ident: str) -> Dict[str, Any]:
    """{"id", "plan", "alive", "direction", "steps", "why", "question", "end"} of one switch."""
    folder = folder_of(base, ident)
    busy = holder(base)
    said = switchstate.progress(folder)
    plan = journal.load(folders.path(folder, switchstate.PLAN))
    plan = plan if isinstance(plan, dict) else {}
    return dict(said, id=ident, plan=plan, alive=bool(busy and busy.get("id") == ident), folder=folder)


def listing(base: str, limit: int = 20) -> List[Dict[str, Any]]:
    """The newest switches, newest first."""
    try:
        names = os.listdir(os.path.join(os.path.abspath(os.path.expanduser(base)), "switches"))
    except OSError:
        return []
    found = [status(base, name) for name in names if runstore.NAME.match(name)]
    found.sort(key=lambda one: float(one["plan"].get("created_unix") or 0), reverse=True)
    return found[:limit]


def prune(base: str, keep: int) -> List[str]:
    """Remove the oldest switches that have ended, beyond the newest `keep`. Never one that has no end yet. Ids."""
    gone = []
    for one in listing(base, 1 << 30)[keep:]:
        if one["end"] is not None and not one["alive"]:
            shutil.rmtree(str(one["folder"]), ignore_errors=True)
            gone.append(str(one["id"]))
    return gone


def tell(base: str, ident: str, name: str, word: str) -> Dict[str, Any]:
    """Abort or answer: kept as a file, so that a switcher that has to be started anew knows of it too."""
    folder = folder_of(base, ident)
    if journal.load(folders.path(folder, switchstate.PLAN)) is None:
        raise CallError(
            "not_found", "There is no switch %s on this host." % ident, "See `specdash switch --list`."
        )
    found = status(base, ident)
    if found["end"] is not None:
        raise CallError("gone", "That switch has ended: %s" % found["end"].get("sentence"), "")
    if name == switchstate.ABORT and found["direction"] == "back":
        raise CallError("busy", "It is going back already.", "Follow it to its end.")
    journal.put(folders.path(folder, name), word.encode("utf-8") + b"\n")
    return resume(base, ident)


def _create(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    """{base, plan, run, files: {name: size}} + blob → `status`."""
    files = runstore.unpack(dict(params.get("files") or {}), blob)
    return create(runstore.base_of(params), dict(params["plan"]), dict(params["run"]), files)


def _read(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    """{base, id, position} → `status` with "records" since `position` and the new "position"."""
    base, ident = runstore.base_of(params), str(params.get("id") or "")
    found = status(base, ident)  # first the status: an end that it tells is in the records too
    path = folders.path(folder_of(base, ident), switchstate.STATE)
    records, position = journal.read(path, params.get("position"))
    return dict(found, records=records, position=position)


def _list(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    return {
        "switches": listing(runstore.base_of(params)),
        "running": holder(os.path.abspath(os.path.expanduser(runstore.base_of(params)))),
    }


def _resume(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    return resume(runstore.base_of(params), str(params.get("id") or ""))


def _abort(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    return tell(
        runstore.base_of(params), str(params.get("id") or ""), switchstate.ABORT, str(params.get("by") or "?")
    )


def _answer(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    word = str(params.get("answer") or "")
    if word not in ("keep", "roll_back"):
        raise CallError("bad_call", "The answer is keep or roll_back.", "")
    return tell(runstore.base_of(params), str(params.get("id") or ""), switchstate.ANSWER, word)


def _weigh(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    """{folders} → `warm.weigh`."""
    return warm.weigh([str(one) for one in params.get("folders") or ()])


CALLS: Dict[str, Callable[[Dict[str, Any], bytes], Dict[str, Any]]] = {
    "switches.create": _create,
    "switches.list": _list,
    "switches.read": _read,
    "switches.resume": _resume,
    "switches.abort": _abort,
    "switches.answer": _answer,
    "switches.weigh": _weigh,
}
