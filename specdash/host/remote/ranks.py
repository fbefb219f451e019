"""One host's part of a server over several hosts: prepare first, start when told, take back what never started.

A launch over hosts is all or nothing, so what `runs.create` does in one step is here in two. Also the journal of
a switch over hosts, and the files of a model by size and hash.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from typing import Any, Callable, Dict, List

from specdash.host.remote import folder as folders
from specdash.host.remote import journal, procs, runstore, switches
from specdash.host.remote.wire import CallError

HASH_BYTES = 32 << 20
"""A config or an index is smaller; weights are compared by size."""
MOST_FILES = 4096


def _prepare(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    """{base, run, files, set_aside} + blob → {"folder", "started"}. Nothing runs; safe to repeat."""
    files = runstore.unpack(dict(params.get("files") or {}), blob)
    base, run = runstore.base_of(params), dict(params["run"])
    try:
        return runstore.prepare(base, run, files, bool(params.get("set_aside", True)))
    except CallError:
        discard(base, str(run.get("id") or ""))
        raise


def _begin(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    """{base, id} → the run's `record`. A run that has started is left alone."""
    base, ident = runstore.base_of(params), str(params.get("id") or "")
    return runstore.begin(runstore.folder_of(base, ident))


def discard(base: str, ident: str) -> bool:
    """Remove a run that never started, its secrets with it. False: it started, or is not there."""
    folder = runstore.folder_of(base, ident)
    if not os.path.isdir(folder) or folders.headline(folder)["phase"] not in ("created", "failed"):
        return False
    if folders.ask("run", folders.run_lock(folder), {"cmd": "status"}) is not None:
        return False
    if folders.headline(folder)["phase"] == "failed":  # it tried: its record stays, and says why
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return True


def _discard(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    return {"gone": discard(runstore.base_of(params), str(params.get("id") or ""))}


def _way_back(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    """{base, of, id, changes} + blob (the program) → a prepared run that starts run `of` again as it was.

    `changes`: keys of run.json that differ (`run_id_all`, `together`). Safe to repeat, also when `of` has ended.
    """
    base, ident = runstore.base_of(params), str(params.get("id") or "")
    folder = runstore.folder_of(base, ident)
    made = journal.load(folders.path(folder, folders.RUN))
    changes = dict(params.get("changes") or {})
    if not isinstance(made, dict):
        of = runstore.record(runstore.folder_of(base, str(params.get("of") or "")))
        if of is None or not of["alive"]:
            raise CallError("gone", "Run %s does not run any more." % params.get("of"), "Launch instead.")
        switches._prepare_way_back(os.path.abspath(os.path.expanduser(base)), of, ident, blob)
        made = journal.load(folders.path(folder, folders.RUN)) or {}
        zero = (of.get("together") or {}).get("zero")
        if zero and changes.get("together"):  # rank 0 will be found where it was
            changes["together"] = dict(changes["together"], zero=zero)
        journal.save(folders.path(folder, folders.RUN), dict(made, **changes))
    return {"folder": folder}


def _files(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    """{paths} → {"folders": {path: {name: {"size", "sha256" or None}}}}: top-level files, JSON ones hashed."""
    found: Dict[str, Any] = {}
    for path in params.get("paths") or ():
        found[str(path)] = model_files(os.path.expanduser(str(path)))
    return {"folders": found}


def model_files(path: str) -> Dict[str, Any]:
    """Files of a model's folder, links followed; a file alone is its own only entry. Empty: nothing there."""
    try:
        names: List[str] = sorted(os.listdir(path))[:MOST_FILES] if os.path.isdir(path) else [""]
    except OSError:
        return {}
    out: Dict[str, Any] = {}
    for name in names:
        full = os.path.join(path, name) if name else path
        try:
            if not os.path.isfile(full):
                continue
            size = os.stat(full).st_size
        except OSError:
            continue
        told = None
        if full.endswith(".json") and size <= HASH_BYTES:
            raw = procs.read_bytes(full, HASH_BYTES + 1)
            told = hashlib.sha256(raw).hexdigest() if raw is not None else None
        out[name or os.path.basename(full)] = {"size": size, "sha256": told}
    return out


def _journals(base: str) -> str:
    return os.path.join(os.path.abspath(os.path.expanduser(base)), "together")


def _journal_file(base: str, ident: str) -> str:
    if not runstore.NAME.match(ident):
        raise CallError("bad_call", "%r is no switch id." % (ident,), "")
    return os.path.join(_journals(base), ident + ".json")


def _save(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    """{base, id, state, driver, stale_s, release} → the journal of a switch over hosts, replaced whole.

    Without `state`, a heart-beat alone; `release`: nobody drives it from now on. One driver at a time: another one's
    journal that was written within `stale_s` is not touched (code "busy").
    """
    base, ident = runstore.base_of(params), str(params.get("id") or "")
    path, driver = _journal_file(base, ident), str(params.get("driver") or "")
    old = journal.load(path)
    now = procs.boot_now()
    if isinstance(old, dict) and old.get("driver") not in ("", driver):
        same_boot = old.get("boot_id") == procs.boot_id()
        quiet = now - float(old.get("beat_boot_s") or 0.0) if same_boot else 1e9
        if quiet < float(params.get("stale_s", 30.0)):
            raise CallError(
                "busy",
                "This switch is driven by %s (heard %.0f s ago)." % (old.get("driver"), quiet),
                "Wait, or ask there.",
            )
    os.makedirs(_journals(base), mode=0o700, exist_ok=True)
    state = params.get("state")
    if state is None and isinstance(old, dict):  # a heart-beat alone
        state = old.get("state")
    if params.get("release"):
        driver = ""
    record = {"id": ident, "driver": driver, "beat_boot_s": now, "boot_id": procs.boot_id(), "state": state}
    journal.save(path, record)
    return {"saved": True}


def _load(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    """{base, id} → {"journals": [...]}: that of `id`, or the newest 50 when none is named."""
    base, ident = runstore.base_of(params), str(params.get("id") or "")
    if ident:
        one = journal.load(_journal_file(base, ident))
        return {"journals": [one] if isinstance(one, dict) else [], "now_boot": procs.boot_now()}
    try:
        names = [n for n in os.listdir(_journals(base)) if n.endswith(".json")]
    except OSError:
        names = []
    names.sort(key=lambda n: os.stat(os.path.join(_journals(base), n)).st_mtime, reverse=True)
    found = [journal.load(os.path.join(_journals(base), name)) for name in names[:50]]
    return {"journals": [one for one in found if isinstance(one, dict)], "now_boot": procs.boot_now()}


CALLS: Dict[str, Callable[[Dict[str, Any], bytes], Dict[str, Any]]] = {
    "ranks.prepare": _prepare,
    "ranks.begin": _begin,
    "ranks.discard": _discard,
    "ranks.way_back": _way_back,
    "ranks.files": _files,
    "ranks.save": _save,
    "ranks.load": _load,
}
