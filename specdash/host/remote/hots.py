"""Changes of weights in living servers, for the agent: look, create, read, resume, abort. See hotkeeper.py."""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict, List, Optional

from specdash.host.remote import folder as folders
from specdash.host.remote import hotkeys, hotstate, hotweights, journal, kin, procs, runstore, switches, warm
from specdash.host.remote.wire import CallError


def folder_of(base: str, run: str, ident: str) -> str:
    if not runstore.NAME.match(ident):
        raise CallError("bad_call", "%r is no id of a hot switch." % (ident,), "")
    return os.path.join(runstore.folder_of(base, run), "hot", ident)


def holder(run_folder: str) -> Optional[Dict[str, Any]]:
    """Who changes weights of this run now, or None."""
    return folders.ask("hot", folders.run_lock(run_folder), {"cmd": "status"})


def look(base: str, run: str) -> Dict[str, Any]:
    """{shm: {free_bytes, total_bytes}, memory_bytes (what may still be used; None: not told), started_unix (of its process, s), strangers: [why a process of the run would not see our files], busy,
    left_open: ids of changes that were killed and may have left an update open}."""
    folder = runstore.folder_of(base, run)
    found = _living(folder, run)
    strangers: List[str] = []
    mine = _namespace("self")
    family = kin.Kin(folders.mark(run, folder), found["pid"], found["start"], bool(found.get("own_session")))
    for row in family.members():
        pid = int(row["pid"])
        if row["state"] in "ZX":
            continue
        if procs.user_of(pid).get("uid") not in (None, os.getuid()):
            strangers.append("pid %d runs as user %s" % (pid, procs.user_of(pid).get("user")))
        elif _namespace(str(pid)) != mine:
            strangers.append("pid %d is in another container" % pid)
    left = [one for one in listing(base, run) if one["open"] and not one["alive"]]
    return {
        "shm": hotweights.room(),
        "memory_bytes": memory_left(os.getpid()),
        # An adopted server's records begin with its adoption, its process does not.
        "started_unix": time.time() - procs.boot_now() + found["start"] / float(os.sysconf("SC_CLK_TCK")),
        "strangers": strangers[:5],
        "busy": holder(folder) or switches.holder(base),
        "left_open": [one["id"] for one in left],
    }


def memory_left(pid: int) -> Optional[int]:
    """Bytes that a process may still take: of the machine, or of its own control group (v2) if that is less."""
    found = [one for one in (warm.available(), _cgroup_left(pid)) if one is not None]
    return min(found) if found else None


def _cgroup_left(pid: int) -> Optional[int]:
    """The tightest limit on the way up. None: no limit, or not version 2."""
    line = (procs.read_bytes("/proc/%d/cgroup" % pid, 65536) or b"").decode("utf-8", "replace").strip()
    path = line.rpartition("0::")[2].strip("/") if "0::" in line else ""
    left: List[int] = []
    while True:
        place = os.path.join("/sys/fs/cgroup", path)
        limit = (procs.read_bytes(os.path.join(place, "memory.max"), 64) or b"").strip()
        used = (procs.read_bytes(os.path.join(place, "memory.current"), 64) or b"").strip()
        if limit.isdigit() and used.isdigit():
            left.append(max(0, int(limit) - int(used)))
        if not path:
            return min(left) if left else None
        path = os.path.dirname(path)


def _living(folder: str, run: str) -> Dict[str, Any]:
    found = runstore.record(folder)
    if found is None or not found["alive"]:
        raise CallError("gone", "Run %s does not run." % run, "Launch it.")
    return found


def _namespace(pid: str) -> str:
    try:
        return os.readlink("/proc/%s/ns/mnt" % pid)
    except OSError:
        return "?" + pid


def create(base: str, plan: Dict[str, Any], files: Dict[str, bytes]) -> Dict[str, Any]:
    """Start a change of weights. `files`: supervisor.pyz (the packed keeper), proof.zip. Safe to repeat by id."""
    run, ident = str(plan.get("run") or ""), str(plan.get("id") or "")
    base = os.path.abspath(os.path.expanduser(base))
    folder, run_folder = folder_of(base, run, ident), runstore.folder_of(base, run)
    busy = holder(run_folder)
    if busy is not None and busy.get("id") != ident:
        raise CallError(
            "busy",
            "%s changes the weights of this server already (%s)." % (busy.get("by"), busy.get("title")),
            "Wait for its end, or abort it: %s." % busy.get("id"),
        )
    switching = switches.holder(base)
    if switching is not None:
        raise CallError("busy", "A switch by %s runs here." % switching.get("by"), "Wait for its end.")
    if journal.load(folders.path(folder, hotstate.PLAN)) is None:
        _living(run_folder, run)
        for one in listing(base, run):
            if one["open"] and not one["alive"]:
                raise CallError(
                    "left_open",
                    "The hot switch %s was killed and may have left an update open." % one["id"],
                    "Attach to it first: it closes what is open and goes back.",
                )
        os.makedirs(folder, mode=0o700, exist_ok=True)
        for name, data in files.items():
            if name not in (folders.PYZ, hotstate.BUNDLE):
                raise CallError("bad_call", "%r is no file of a hot switch." % (name,), "")
            journal.put(folders.path(folder, name), data)
        saved = dict(plan, base=base, created_unix=round(time.time(), 3))
        journal.save(folders.path(folder, hotstate.PLAN), saved)
    return resume(base, run, ident)


def resume(base: str, run: str, ident: str) -> Dict[str, Any]:
    """Start the keeper where none is and the change has not ended; wait until it is there."""
    folder = folder_of(base, run, ident)
    if journal.load(folders.path(folder, hotstate.PLAN)) is None:
        raise CallError("not_found", "There is no hot switch %s of run %s." % (ident, run), "")
    found = status(base, run, ident)
    if found["end"] is not None or found["alive"]:
        return found
    runstore.spawn_supervisor(folder, "hot")
    until = time.monotonic() + runstore.ACKNOWLEDGE_S
    while time.monotonic() < until:
        found = status(base, run, ident)
        if found["end"] is not None or found["alive"]:
            return found
        time.sleep(0.05)
    broken = journal.last(folders.path(folder, "supervisor.err"))
    why = str(broken[-1].get("error"))[-500:] if broken else "it said nothing"
    raise CallError("failed", "The hot switch did not report: %s" % why, "Look into %s." % folder)


def status(base: str, run: str, ident: str) -> Dict[str, Any]:
    """{id, plan, alive, open, steps, end, …} of one change of weights."""
    folder = folder_of(base, run, ident)
    busy = holder(runstore.folder_of(base, run))  # first: who holds it now may end while we read
    said = hotstate.progress(folder)
    plan = journal.load(folders.path(folder, hotstate.PLAN)) or {}
    facts = {k: plan.get(k) for k in ("title", "by", "created_unix", "algorithm")}
    facts.update(new=(plan.get("new") or {}).get("path"), old=(plan.get("old") or {}).get("path"))
    return dict(
        said, id=ident, run=run, plan=facts, alive=bool(busy and busy.get("id") == ident), folder=folder
    )


def listing(base: str, run: str) -> List[Dict[str, Any]]:
    """All changes of weights of a run, newest first."""
    try:
        names = os.listdir(os.path.join(runstore.folder_of(base, run), "hot"))
    except OSError:
        return []
    found = [status(base, run, name) for name in names if runstore.NAME.match(name)]
    found.sort(key=lambda one: float(one["plan"].get("created_unix") or 0), reverse=True)
    return found


def _names(params: Dict[str, Any]) -> List[str]:
    return [runstore.base_of(params), str(params.get("run") or ""), str(params.get("id") or "")]


def _look(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    base, run, _ = _names(params)
    return look(base, run)


def _create(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    """{base, plan, files: {name: size}} + blob → `status`."""
    files = runstore.unpack(dict(params.get("files") or {}), blob)
    return create(runstore.base_of(params), dict(params["plan"]), files)


def _read(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    """{base, run, id, position} → `status` with "records" since `position` and the new "position"."""
    base, run, ident = _names(params)
    found = status(base, run, ident)
    records, position = journal.read(
        folders.path(folder_of(base, run, ident), hotstate.STATE), params.get("position")
    )
    return dict(found, records=records, position=position)


def _resume(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    return resume(*_names(params))


def _abort(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    base, run, ident = _names(params)
    found = status(base, run, ident)
    if found["end"] is not None:
        raise CallError("gone", "It has ended: %s" % found["end"].get("sentence"), "")
    journal.put(folders.path(folder_of(base, run, ident), hotstate.ABORT), b"abort\n")
    return resume(base, run, ident)


def _list(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    base, run, _ = _names(params)
    return {"changes": listing(base, run)}


def _note(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    """{base, run, event, facts}: a fact about a living run that only an operator's action knows, for all to see."""
    base, run, _ = _names(params)
    event = str(params.get("event") or "")
    if event not in ("tuned", "hot_note"):
        raise CallError("bad_call", "%r is no note." % (event,), "")
    folder = runstore.folder_of(base, run)
    _living(folder, run)
    facts = {
        str(k): v for k, v in dict(params.get("facts") or {}).items() if k not in ("event", "boot_s", "unix")
    }
    notes = journal.Journal(folders.path(folder, folders.EVENTS), 1 << 62, sync=True)
    return {"record": notes.add(event=event, **facts)}


def _ask(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    """{base, run, request}: one request to the run's port with its administrative key, which never leaves the host."""
    from specdash.host.remote import httpask

    base, run, _ = _names(params)
    folder = runstore.folder_of(base, run)
    found = _living(folder, run)
    request = dict(params["request"])
    key = hotkeys.admin(folder, list(found.get("argv") or []))
    if key:
        request["headers"] = dict(request.get("headers") or {}, Authorization="Bearer " + key)
    answer = httpask.ask(found["http"], request, float(params.get("timeout") or 20.0))
    return {"status": answer["status"], "problem": answer["problem"], "blob": answer["body"]}


CALLS: Dict[str, Callable[[Dict[str, Any], bytes], Dict[str, Any]]] = {
    "hot.look": _look,
    "hot.create": _create,
    "hot.read": _read,
    "hot.resume": _resume,
    "hot.abort": _abort,
    "hot.list": _list,
    "runs.note": _note,
    "runs.ask": _ask,
}
