"""The program that lives as long as a run: parent of the engine, its witness, and the one that stops it.

    python -I supervisor.pyz run FOLDER        start the run that FOLDER/run.json describes
    python -I supervisor.pyz attach FOLDER     watch a process that is there already (its supervisor died, or
                                               it was started by others): all the same but its exit code
    python -I supervisor.pyz switch FOLDER     see switcher.py

It detaches itself, is in a session of its own (killing the engine's group never hits it), ignores hang-ups,
and writes FOLDER/events.jsonl, samples.jsonl and exit. It holds the run's lock, an abstract unix socket, on
which it takes commands: status, stop, abort. It ends when no process of the run is left.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from typing import Any, Dict, List, Optional

from specdash.host.remote import folder as folders
from specdash.host.remote import gpuhold, journal, procs, spawn
from specdash.host.remote.detached import detach, wakeup
from specdash.host.remote.kin import MARK, Kin, living, name
from specdash.host.remote.readiness import Readiness
from specdash.host.remote.sampler import GpuReader, Sampler
from specdash.host.remote.stopper import Stopper

SAMPLE_EVERY_S = 2.0
LOOK_EVERY_S = 0.5
LEFTOVERS_AFTER_S = 12.0
"""A dead launcher's children may need some seconds to follow it; what is there after that is left over."""


class Supervisor:
    def __init__(self, folder: str, run: Dict[str, Any], lock: socket.socket, umask: int) -> None:
        self.folder = folder
        self.run = run
        self.lock = lock
        self.umask = umask
        self.id = str(run["id"])
        self.boot = procs.boot_id()
        self.events = journal.Journal(folders.path(folder, folders.EVENTS), 64 << 20, sync=True)
        self.samples = journal.Journal(folders.path(folder, folders.SAMPLES), 8 << 20)
        self.child: Optional[int] = None
        self.exited_at: Optional[float] = None
        self.told_leftovers = False
        self.next_deep = 0.0
        self.began = time.monotonic()

    def start(self) -> bool:
        """Start the engine. False: it could not be started, and events.jsonl says why."""
        env = folders.read_env(self.folder) or dict(os.environb)
        env[MARK] = folders.mark(self.id, self.folder).encode()
        argv = [os.fsencode(part) for part in self.run["argv"]]
        cwd = str(self.run.get("cwd") or os.path.expanduser("~"))
        try:
            pid = spawn.start(argv, env, cwd, folders.path(self.folder, folders.LOG), self.umask)
        except (spawn.SpawnFailed, OSError) as error:
            sentence = getattr(error, "sentence", "The server could not be started: %s." % error)
            self.events.add(
                event="failed",
                sentence=sentence,
                step=getattr(error, "step", ""),
                errno=getattr(error, "number", None) or getattr(error, "errno", None),
            )
            folders.remove_secrets(self.folder)
            self._write_exit({"failed": sentence})
            return False
        row = procs.stat(pid)
        self.child = pid
        self._adopt_root(pid, row["start"] if row else 0, True)
        self.events.add(
            event="started",
            pid=pid,
            start=self.kin.start,
            sid=pid,
            pgid=pid,
            boot_id=self.boot,
            own_session=True,
            **self._self(),
        )
        return True

    def attach(self) -> bool:
        """Watch a process that exists: by the run's last "started" record, or run.json's `attach`."""
        said = folders.headline(self.folder)
        target = said if said.get("pid") else (self.run.get("attach") or {})
        pid, start = int(target.get("pid") or 0), int(target.get("start") or 0)
        own = bool(target.get("own_session"))
        if str(target.get("boot_id")) != self.boot or (not procs.same(pid, start) and not own):
            self.events.add(
                event="failed" if not said.get("pid") else "exited",
                code=None,
                signal=None,
                sentence="Process %d is gone; how it ended is not known." % pid,
            )
            return False
        self._adopt_root(pid, start, own)
        if not said.get("pid"):
            self.events.add(
                event="started",
                pid=pid,
                start=start,
                boot_id=self.boot,
                own_session=own,
                adopted=bool(self.run.get("adopted")),
                **self._self(),
            )
        self.events.add(
            event="supervisor_attached",
            sentence="This supervisor did not start the server: its exit code will not be known.",
            **self._self(),
        )
        if said.get("phase") == "exited":
            self.exited_at = time.monotonic()
        self.readiness.ready = said.get("phase") in ("ready", "stopping") and bool(said.get("ready_boot_s"))
        return True

    def _self(self) -> Dict[str, Any]:
        row = procs.stat(os.getpid())
        return {
            "supervisor_pid": os.getpid(),
            "supervisor_start": row["start"] if row else 0,
            "python": sys.version.split()[0],
            "subreaper": self.subreaper,
        }

    subreaper = False

    def _adopt_root(self, pid: int, start: int, own: bool) -> None:
        self.kin = Kin(folders.mark(self.id, self.folder), pid, start, own)
        self.gpu = GpuReader()
        self.sampler = Sampler(self.kin, folders.path(self.folder, folders.LOG), self.gpu)
        self.readiness = Readiness(self.folder, self.run, self.events)
        port = (self.run.get("http") or {}).get("port")
        self.stopper = Stopper(self.kin, self.boot, int(port) if port else None, self.events)
        self.stopper.gpu_seen = lambda: self.sampler.gpu_seen
        self.stopper.work = self.readiness.work
        self.stopper.number = self._stop_signal
        self.stopper.serves = lambda: self.readiness.ready and self._closes_door()
        self.stopper.settled = lambda: self.exited_at is not None

    def _stop_signal(self) -> int:
        rules = self.readiness.rules
        word = "SIGTERM"
        if rules is not None:
            word = rules.SERVING_SIGNAL if self.readiness.ready else rules.STARTING_SIGNAL
        return int(getattr(signal, word))

    def _closes_door(self) -> bool:
        return bool(getattr(self.readiness.rules, "SERVING_SIGNAL_CLOSES", False))

    def loop(self, wake: int) -> None:
        """Until no process of the run is left."""
        sample_at = look_at = time.monotonic()
        rows = self.kin.members()
        while True:
            wait = max(0.05, min(sample_at, look_at) - time.monotonic())
            readable, _, _ = select.select([self.lock.fileno(), wake], [], [], wait)
            if wake in readable:
                os.read(wake, 4096)
            if self.lock.fileno() in readable:
                folders.answer(self.lock.accept()[0], self.command)
            now = time.monotonic()
            self._reap()
            if now >= look_at or wake in readable:
                look_at = now + LOOK_EVERY_S
                deep = self.exited_at is not None and now >= self.next_deep
                if deep:
                    self.next_deep = now + (1.0 if now - (self.exited_at or now) < 30 else 10.0)
                rows = self.kin.members(deep)
                if self.exited_at is None:
                    self.readiness.look(rows)
                    self._see_root(rows)
                elif self._over(rows, deep, now):
                    if self.stopper.proof is not None and not self.stopper.proof["processes"]:
                        break
                    # It died by itself: what a stop would have proven is looked at all the same.
                    self.stopper.witness()
            if self.child is not None and self.stopper.gpu_before is None and now - self.began < 4.0:
                # Read right after the start, long before an engine has imported what allocates: no thread may
                # be there while we fork.
                self._gpu_before()
            if now >= sample_at:
                sample_at = now + SAMPLE_EVERY_S
                self.samples.add(**self.sampler.take(rows))
        self.samples.add(**self.sampler.take([]))
        told = {} if self.stopper.proof is self.stopper.told else {"proof": self.stopper.proof}
        self.events.add(event="ended", removed=folders.remove_secrets(self.folder), **told)

    def _gpu_before(self) -> None:
        self.gpu.poke()
        level = gpuhold.levels(self.gpu.fresh())
        if level:
            self.stopper.gpu_before = level
            self.events.add(event="gpu_before", level_mib=level)

    def _over(self, rows: List[Dict[str, Any]], deep: bool, now: float) -> bool:
        """After the launcher's end: is nothing left (a deep look says so, and no stop is under way)?"""
        left = living(rows)
        if not left and not self.stopper.active and (deep or self.stopper.proof is not None):
            return True
        waited = now - (self.exited_at or now) > float(self.run.get("leftovers_after_s") or LEFTOVERS_AFTER_S)
        if left and waited and not self.told_leftovers and not self.stopper.active:
            self.told_leftovers = True
            self.events.add(
                event="leftovers",
                processes=[name(row) for row in left],
                sentence="The launcher is gone but %d of its processes live on." % len(left),
                step="Clean them up: stop this run.",
            )
        return False

    def _reap(self) -> None:
        """Collect the engine's exit, and orphans that were handed to us. Never a reader's own child."""
        if self.child is not None and self.exited_at is None:
            pid, status = os.waitpid(self.child, os.WNOHANG)
            if pid:
                self._exited(status)
        if self.child is None and not self.subreaper:
            return
        me, mine = os.getpid(), os.getsid(0)
        for pid in _children(me):
            row = procs.stat(pid)
            if row and row["state"] == "Z" and row["sid"] != mine and pid != self.child:
                try:
                    os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    continue

    def _exited(self, status: Optional[int]) -> None:
        code: Optional[int] = None
        number: Optional[int] = None
        if status is not None and os.WIFEXITED(status):
            code = os.WEXITSTATUS(status)
        elif status is not None:
            number = os.WTERMSIG(status)
        record = self.events.add(
            event="exited",
            pid=self.kin.root,
            code=code,
            signal=number,
            core=bool(status is not None and os.WIFSIGNALED(status) and os.WCOREDUMP(status)),
            ready=self.readiness.ready,
            stop_asked=bool(self.stopper.asked),
        )
        self._write_exit(record)
        self.exited_at, self.next_deep = time.monotonic(), 0.0

    def _see_root(self, rows: List[Dict[str, Any]]) -> None:
        """When we are not its parent: its end shows in the process table only."""
        if self.child is None and not any(
            row["pid"] == self.kin.root and row["start"] == self.kin.start and row["state"] not in "ZX"
            for row in rows
        ):
            self._exited(None)

    def _write_exit(self, record: Dict[str, Any]) -> None:
        try:
            journal.save(folders.path(self.folder, folders.EXIT), record)
        except OSError:
            pass  # no room: events.jsonl keeps the record in memory and tries again

    def command(self, question: Dict[str, Any], who: Dict[str, int]) -> Dict[str, Any]:
        word = question.get("cmd")
        if word == "status":
            return {
                "ok": True,
                "id": self.id,
                "pid": self.kin.root,
                "ready": self.readiness.ready,
                "exited": self.exited_at is not None,
                "stopping": self.stopper.active,
                "proof": self.stopper.proof,
            }
        if word == "stop":
            return self.stopper.ask(question)
        if word == "ready" and self.readiness.rank > 0 and self.exited_at is None:
            self.readiness.serves_by(str(question.get("rank0") or ""))
            return {"ok": True}
        if word == "abort":
            return self.stopper.abort(str(question.get("by") or ""))
        return {"ok": False, "sentence": "The supervisor does not know the command %r." % (word,)}


def _children(pid: int) -> List[int]:
    raw = procs.read_bytes("/proc/%d/task/%d/children" % (pid, pid), 65536)
    if raw is not None:
        return [int(word) for word in raw.split()]
    return [row["pid"] for row in procs.snapshot().values() if row["ppid"] == pid]


def supervise(folder: str, mode: str) -> int:
    umask = os.umask(0o077)
    run = journal.load(folders.path(folder, folders.RUN))
    if not isinstance(run, dict):
        return 2
    lock = folders.hold("run", folders.run_lock(folder))
    if lock is None:
        return 3
    os.set_inheritable(lock.fileno(), False)
    wake = wakeup()
    supervisor = Supervisor(folder, run, lock, umask)
    supervisor.subreaper = spawn.become_subreaper()
    if mode == "attach" and folders.headline(folder).get("pid") is None and not run.get("attach"):
        return 2
    if supervisor.start() if mode == "run" else supervisor.attach():
        supervisor.loop(wake)
    return 0


def main(argv: Optional[List[str]] = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) != 2 or arguments[0] not in ("run", "attach", "switch"):
        sys.stderr.write("usage: supervisor.pyz run|attach|switch FOLDER\n")
        return 2
    mode, folder = arguments[0], os.path.abspath(arguments[1])
    detach()
    try:
        if mode == "switch":
            from specdash.host.remote import switcher

            return switcher.main(folder)
        return supervise(folder, mode)
    except Exception as error:
        journal.Journal(folders.path(folder, "supervisor.err")).add(error=repr(error), trace=_trace())
        return 1


def _trace() -> str:
    import traceback

    return traceback.format_exc()[-8000:]


if __name__ == "__main__":
    sys.exit(main())
