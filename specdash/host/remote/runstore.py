"""Runs of this host: prepare, begin, list, read, command. A run is its folder; nothing else remembers it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional

from specdash.host.remote import folder as folders
from specdash.host.remote import journal, kin, procs
from specdash.host.remote.wire import CallError

NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,120}$")
FILES = ("env", "auth", "secrets.yaml", "supervisor.pyz")
ACKNOWLEDGE_S = 20.0


def root_of(base: str) -> str:
    return os.path.join(os.path.abspath(os.path.expanduser(base)), "runs")


def folder_of(base: str, ident: str) -> str:
    if not NAME.match(ident):
        raise CallError("bad_call", "%r is no run id." % (ident,), "")
    return os.path.join(root_of(base), ident)


def prepare(
    base: str, run: Dict[str, Any], files: Dict[str, bytes], set_aside: bool = True
) -> Dict[str, Any]:
    """Make the run folder and all in it, start nothing. Safe to repeat: a run that has started is left alone."""
    folder = folder_of(base, str(run.get("id") or ""))
    if run.get("env_merge"):  # what the profile sets, over what a login on this host has
        over = folders.parse_env(files.get("env", b""))
        files = dict(files, env=folders.pack_env(_over_login(over)))
    if not run.get("argv") and not run.get("attach"):
        raise CallError("bad_call", "The run has no command.", "")
    if folders.headline(folder)["phase"] != "created":
        return {"folder": folder, "started": True}
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        os.chmod(folder, 0o700)
        for name, data in files.items():
            if name not in FILES:
                raise CallError("bad_call", "%r is no file of a run." % (name,), "")
            journal.put(os.path.join(folder, name), data)
        log = folders.path(folder, folders.LOG)
        if run.get("attach") and run.get("stdout"):
            if not os.path.lexists(log):  # the log of an adopted server is where it writes it
                os.symlink(str(run["stdout"]), log)
        else:
            os.close(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
        check_log(str(run.get("log") or ""), set_aside)
        facts = {
            "created_unix": round(time.time(), 3),
            "created_boot_s": procs.boot_now(),
            "boot_id": procs.boot_id(),
        }
        journal.save(folders.path(folder, folders.RUN), dict(facts, **dict(run, folder=folder)))
    except OSError as error:
        step = "Check free space and rights of %s." % root_of(base)
        raise CallError(
            "denied", "The run folder %s cannot be made: %s." % (folder, error.strerror), step
        ) from None
    return {"folder": folder, "started": False}


def _over_login(over: Dict[bytes, bytes]) -> Dict[bytes, bytes]:
    env = {k: v for k, v in os.environb.items() if not k.startswith((b"SSH_", b"SPECDASH_"))}
    env.update(over)
    return env


def check_log(wanted: str, set_aside: bool) -> None:
    """Can `wanted` become a link to the run's log? Changes nothing; raises CallError when not."""
    if not wanted:
        return
    if not os.path.isdir(os.path.dirname(wanted)):
        raise CallError(
            "not_found", "The folder of `log` %s does not exist." % wanted, "Make it, or correct `log`."
        )
    real = os.path.lexists(wanted) and not os.path.islink(wanted)
    if real and (os.path.isdir(wanted) or not set_aside):
        step = "Give `log` another path, or let the file be set aside."
        raise CallError("exists", "There is a real file at `log` %s; it is not overwritten." % wanted, step)


def link_log(wanted: str, log: str) -> str:
    """Make `wanted` a symlink to the run's log. A real file there is renamed, never truncated.

    Returns where the old file went ("" when there was none).
    """
    if not wanted:
        return ""
    aside = ""
    if os.path.lexists(wanted) and not os.path.islink(wanted):
        aside = "%s.specdash-%s" % (wanted, time.strftime("%Y%m%dT%H%M%S"))
        while os.path.lexists(aside):
            aside += "x"
        os.rename(wanted, aside)
    fresh = "%s.specdash-new-%d" % (wanted, os.getpid())
    os.symlink(log, fresh)
    os.replace(fresh, wanted)
    return aside


def spawn_supervisor(folder: str, mode: str) -> None:
    """Start the packed program detached. It goes on when this process, its session and its user's login end."""
    pyz = folders.path(folder, folders.PYZ)
    if not os.path.exists(pyz):
        raise CallError("not_found", "The run folder has no supervisor program.", "Launch it again.")
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.Popen(
        [sys.executable, "-I", pyz, mode, folder],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        close_fds=True,
        start_new_session=True,
        cwd="/",
        env=env,
    )  # it forks twice: what we wait for here is only the first parent
    try:
        _, told = done.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        done.kill()
        raise CallError(
            "failed", "The supervisor did not detach within 30 s.", "Is the host out of memory?"
        ) from None
    if done.returncode:
        text = told.decode("utf-8", "replace").strip().splitlines()[-1:] or ["exit code %s" % done.returncode]
        raise CallError(
            "failed", "The supervisor did not start: %s." % text[0][:300], "Check `python` of the host."
        )


def create(base: str, run: Dict[str, Any], files: Dict[str, bytes], set_aside: bool = True) -> Dict[str, Any]:
    """Prepare and start a run; returns `record` once it has started or could not. Repeating it starts nothing twice."""
    made = prepare(base, run, files, set_aside)
    return dict(begin(made["folder"]), repeated=made["started"])


def begin(folder: str) -> Dict[str, Any]:
    """Start a prepared run and wait until its supervisor acknowledges. A run that has started is left alone."""
    found = record(folder)
    if found is None:
        raise CallError("not_found", "There is no prepared run in %s." % folder, "")
    aside = ""
    if (
        found["phase"] == "created"
        and folders.ask("run", folders.run_lock(folder), {"cmd": "status"}) is None
    ):
        if not found.get("attach"):
            try:
                aside = link_log(str(found.get("log") or ""), folders.path(folder, folders.LOG))
            except OSError as error:
                text = "`log` %s cannot be made a link: %s." % (found.get("log"), error.strerror)
                raise CallError("denied", text, "Correct `log` in the profile.") from None
        spawn_supervisor(folder, "attach" if found.get("attach") else "run")
    until = time.monotonic() + ACKNOWLEDGE_S
    while time.monotonic() < until:
        found = record(folder)
        if found is not None and found["phase"] != "created":
            return dict(found, set_aside=aside)
        time.sleep(0.05)
    broken = journal.last(folders.path(folder, "supervisor.err"))
    why = str(broken[-1].get("error")) if broken else "it said nothing within %.0f s" % ACKNOWLEDGE_S
    raise CallError(
        "failed", "The supervisor of this run did not report: %s." % why, "Look into %s." % folder
    )


def record(folder: str) -> Optional[Dict[str, Any]]:
    """One run: run.json plus `folder.headline` plus liveness. None when the folder is no run.

    Liveness: alive (the launcher; None: other boot, cannot be), supervisor_alive, log_size (bytes), and
    `sentence` where the supervisor is gone while the server lives.
    """
    run = journal.load(folders.path(folder, folders.RUN))
    if not isinstance(run, dict) or "id" not in run:
        return None
    said = folders.headline(folder)
    alive: Optional[bool] = False
    supervised = False
    if said.get("pid") and said.get("boot_id") == procs.boot_id():
        row = procs.stat(int(said["pid"]))
        alive = row is not None and row["start"] == said.get("start") and row["state"] not in "ZX"
        supervised = (
            not said.get("ended")
            and folders.ask("run", folders.run_lock(folder), {"cmd": "status"}) is not None
        )
    elif said["phase"] == "created":
        alive = None
    if alive and not supervised:
        said["sentence"] = "Its supervisor is gone: the server runs on, and its exit code will not be known."
    if not alive and said["phase"] in ("starting", "ready", "stopping") and not supervised:
        said["sentence"] = (
            "It ended while nobody watched: the supervisor was killed, or the host was restarted."
        )
        said["phase"] = "exited"
    try:
        size: Optional[int] = os.stat(folders.path(folder, folders.LOG)).st_size
    except OSError:
        size = None
    return dict(run, **dict(said, alive=alive, supervisor_alive=supervised, log_size=size))


def listing(base: str) -> List[Dict[str, Any]]:
    """All runs, newest first."""
    try:
        names = os.listdir(root_of(base))
    except OSError:
        return []
    found = (record(os.path.join(root_of(base), name)) for name in names if NAME.match(name))
    return sorted((r for r in found if r), key=lambda r: float(r.get("created_unix") or 0), reverse=True)


def read(base: str, ident: str, positions: Dict[str, Any]) -> Dict[str, Any]:
    """What is new of a run since `positions` ({"events": …, "samples": …}; {} is from the start)."""
    folder = folder_of(base, ident)
    found = record(folder)
    if found is None:
        raise CallError("not_found", "There is no run %s on this host." % ident, "")
    events, at_events = journal.read(folders.path(folder, folders.EVENTS), positions.get("events"))
    samples, at_samples = journal.read(folders.path(folder, folders.SAMPLES), positions.get("samples"))
    return {
        "record": found,
        "events": events,
        "samples": samples,
        "positions": {"events": at_events, "samples": at_samples},
        "exit": journal.load(folders.path(folder, folders.EXIT)),
    }


def command(base: str, ident: str, order: Dict[str, Any]) -> Dict[str, Any]:
    """Give the run's supervisor an order (stop, abort, status); brings a new one when the old was killed."""
    folder = folder_of(base, ident)
    found = record(folder)
    if found is None:
        raise CallError("not_found", "There is no run %s on this host." % ident, "")
    reply = folders.ask("run", folders.run_lock(folder), order)
    if reply is not None:
        return reply
    if order.get("cmd") == "status":
        return {"ok": False, "supervisor_alive": False, "record": found}
    if found.get("boot_id") != procs.boot_id() or not found.get("pid"):
        return {
            "ok": True,
            "accepted": False,
            "ended": True,
            "sentence": "Nothing of it can run since the host restarted.",
        }
    if not found["alive"] and not kin.Kin(
        folders.mark(ident, folder), found["pid"], found["start"], bool(found.get("own_session"))
    ).members(True):
        return {"ok": True, "accepted": False, "ended": True, "sentence": "No process of the run is left."}
    spawn_supervisor(folder, "attach")
    until = time.monotonic() + ACKNOWLEDGE_S
    while time.monotonic() < until:
        reply = folders.ask("run", folders.run_lock(folder), order)
        if reply is not None:
            return dict(reply, attached=True)
        time.sleep(0.05)
    raise CallError("failed", "A new supervisor for run %s did not answer." % ident, "Look into %s." % folder)


def prune(base: str, keep: int, max_bytes: int) -> List[str]:
    """Remove the oldest ended runs beyond `keep` runs or `max_bytes` in sum. Never one that lives. Returns ids."""
    gone: List[str] = []
    size = 0
    for count, found in enumerate(listing(base), 1):
        folder = folder_of(base, str(found["id"]))
        size += sum(os.lstat(os.path.join(folder, n)).st_size for n in os.listdir(folder))
        busy = (
            found["alive"]
            or found["supervisor_alive"]
            or found["phase"] in ("created", "starting", "ready", "stopping")
        )
        if not busy and not found.get("pinned") and (count > keep or size > max_bytes):
            shutil.rmtree(folder, ignore_errors=True)
            gone.append(str(found["id"]))
    return gone


def unpack(sizes: Dict[str, Any], blob: bytes) -> Dict[str, bytes]:
    """Files that travelled one after another in a blob: {name: size} in order."""
    files, at = {}, 0
    for name, size in sizes.items():
        files[name] = blob[at : at + int(size)]
        at += int(size)
    if at != len(blob):
        raise CallError("bad_call", "The files of the run came incomplete.", "Try again.")
    return files


def base_of(params: Dict[str, Any]) -> str:
    base = str(params.get("base") or "")
    if not base:
        raise CallError("bad_call", "The call names no base folder.", "")
    return base
