"""A switch that runs on the host to its end, whatever becomes of the operator: stop A, launch B, keep or go back.

FOLDER/plan.json says what to do, FOLDER/state.jsonl how far it is. Every step is safe to repeat, so that a
switcher that was killed is followed by another one that goes on (`supervisor.pyz switch FOLDER` again).
It holds one lock per base folder: two switches at once on a host are not possible, and the second one learns
who and since when. Nothing loops: forward once, back at most once, and then everything is left to be seen.
"""

from __future__ import annotations

import os
import shutil
import threading
from typing import Any, Dict, Optional

from specdash.host.remote import folder as folders
from specdash.host.remote import journal, runstore
from specdash.host.remote.detached import wakeup
from specdash.host.remote.switchstate import PLAN, lock_id, progress
from specdash.host.remote.switchsteps import Aborted, StepFailed, Steps
from specdash.host.remote.wire import CallError
from specdash.host.remote.worker import numbers


class Switcher(Steps):
    def run(self) -> str:
        """To the end, from wherever state.jsonl says. Returns the word of the end."""
        said = progress(self.folder)
        self.state.add(
            event="begun" if not said.get("began") else "resumed", pid=os.getpid(), by=self.plan.get("by")
        )
        try:
            other = self.other_there()
            if other:
                return self.end("failed", other)
            if said["direction"] == "forward":
                try:
                    return self.forward(said)
                except Aborted:
                    raise
                except Exception as failure:  # whatever it is: who stands still here leaves nobody serving
                    why = words(failure)
                    self.say(self.step_name or "stop", "failed", why)
                    if self.a_untouched() and not self.beside:
                        return self.end("failed", "Nothing was changed: %s" % why)
                    self.state.add(event="back", why=why)
                    said = progress(self.folder)
            return self.back(str(said.get("why") or ""))
        except Aborted as word:
            return self.end("aborted", str(word))
        except Exception as failure:
            sentence = words(failure)
            self.say(self.step_name or "rollback", "failed", sentence)
            return self.end("failed", self.neither(sentence))

    def neither(self, why: str) -> str:
        said = "NEITHER SERVER SERVES. %s Nothing more is tried; logs and run folders are kept." % why
        for run_id in (self.a, self.b, self.restore):
            found = self.record(run_id) or {}
            if found.get("alive"):
                said += " Still there: %s, run %s, pid %s." % (self.title(run_id), run_id, found.get("pid"))
        return said

    def other_there(self) -> str:
        """Who took its place while this switch stood still (or waited), in a sentence; "": nobody.

        Where none of its own servers lives and another run has their port, whatever were launched now could only
        fail, and take memory from the one that serves.
        """
        mine = (self.a, self.b, self.restore)
        if any((self.record(run_id) or {}).get("alive") for run_id in mine):
            return ""
        ports = {((self.record(run_id) or {}).get("http") or {}).get("port") for run_id in mine} - {None}
        for found in runstore.listing(self.base):
            if found["id"] not in mine and found["alive"] and (found.get("http") or {}).get("port") in ports:
                said = "Nothing was done: %s (run %s) has the port %s by now. It is left alone."
                return said % (found.get("profile") or found["id"], found["id"], found["http"]["port"])
        return ""

    def a_untouched(self) -> bool:
        found = self.record(self.a)
        if found is None or found["phase"] == "created":
            return self.hidden(self.a)
        return bool(found["alive"] and not found.get("stop_asked"))

    def forward(self, said: Dict[str, Any]) -> str:
        before = said.get("before") or self.plan.get("before")
        if self.plan.get("warm") and not {"warm", "stop", "launch"} & set(said["done"]):
            self.warm(dict(self.plan["warm"]))
        if self.beside:
            return self.forward_beside(said, before)
        if "stop" not in said["done"]:
            if "measure" not in said["done"] and self.plan.get("measure"):
                before = self.measure() or before
            self.stop(self.a, "stop", self.plan.get("drain_s", 0), abortable=True)
        self.launch(self.b, "launch")
        self.ready(self.b, "ready", back_on_abort=True)
        verdict = self.pulse(self.b, "pulse", before)
        self.decide(verdict)
        self.watch()
        return self.end(
            "done", "The switch is done: %s serves. %s" % (self.title(self.b), verdict["sentence"])
        )

    def forward_beside(self, said: Dict[str, Any], before: Optional[Dict[str, Any]]) -> str:
        """B beside A: whatever becomes of B, A is not touched before B has proven itself."""
        if "measure" not in said["done"] and self.plan.get("measure"):
            before = self.measure() or before
        self.launch(self.b, "launch")
        self.ready(self.b, "ready", back_on_abort=True)
        verdict = self.pulse(self.b, "pulse", before)
        self.decide(verdict)
        self.watch()
        try:
            self.stop(self.a, "stop", self.plan.get("drain_s", 0), abortable=False)
        except (StepFailed, CallError) as failure:
            why = getattr(failure, "sentence", str(failure))
            self.say("stop", "failed", why)
            return self.end(
                "failed",
                "%s serves, but %s is not proven to be gone: %s"
                % (self.title(self.b), self.title(self.a), why),
            )
        return self.end(
            "done", "The switch is done: %s serves. %s" % (self.title(self.b), verdict["sentence"])
        )

    def drop(self, why: str) -> str:
        """B goes, A was never touched."""
        self.stop(self.b, "rollback_stop", 0, abortable=False)
        self.say("rollback", "done", "%s serves on." % self.title(self.a))
        return self.end(
            "rolled_back", "%s serves on, it was never stopped. Why: %s" % (self.title(self.a), why)
        )

    def back(self, why: str) -> str:
        """A again, exactly as it was: command, environment, working directory, port."""
        if self.beside and self.a_untouched():
            return self.drop(why)
        self.say("rollback", "running", "Going back to %s." % self.title(self.a))
        self.stop(self.b, "rollback_stop", 0, abortable=False)
        found = self.record(self.a) or {}
        if found.get("alive"):  # a second one could not have its port
            raise StepFailed(
                "%s was told to end and lives on, so that it is not started again. %s"
                % (self.title(self.a), why)
            )
        self.launch(self.restore, "rollback_launch")
        self.ready(self.restore, "rollback_ready", back_on_abort=False)
        found = self.record(self.restore) or {}
        if int(found.get("node_rank") or 0) == 0:
            self.say("rollback_pulse", "running", "Pulse on fixed prompts.")
            result = self.rules.together(self.passes(found, lambda: False))
            self.state.add(event="pulse", run=self.restore, passes=[result])
            if not result["ok"]:
                raise StepFailed("It came back but does not answer the pulse: %s." % result["problem"])
            self.say("rollback_pulse", "done", numbers(result), pulse=result)
        self.say("rollback", "done", "%s serves again." % self.title(self.a))
        return self.end(
            "rolled_back", "%s serves again as run %s. Why: %s" % (self.title(self.a), self.restore, why)
        )

    def end(self, word: str, sentence: str) -> str:
        for run_id in (self.b, self.restore):  # what was prepared and never started holds secrets
            folder = runstore.folder_of(self.base, run_id)
            if folders.headline(folder)["phase"] == "created" and not folders.headline(folder).get("pid"):
                shutil.rmtree(folder, ignore_errors=True)
        serves = {"done": self.b, "rolled_back": self.restore, "aborted": self.a}.get(word, "")
        if word in ("failed", "rolled_back") and self.a_untouched():
            serves = self.a
        elif word == "failed" and self.beside and (self.record(self.b) or {}).get("alive"):
            serves = self.b
        self.state.add(event="end", final=word, sentence=sentence, serves=serves)
        return word


def words(failure: Exception) -> str:
    if isinstance(failure, CallError):
        return failure.sentence
    return str(failure) if isinstance(failure, StepFailed) else "An error of the switcher: %r." % (failure,)


def main(folder: str) -> int:
    os.umask(0o077)
    plan = journal.load(folders.path(folder, PLAN))
    if not isinstance(plan, dict):
        return 2
    lock = folders.hold("switch", lock_id(str(plan["base"])))
    if lock is None:
        return 3
    wakeup()
    if progress(folder)["end"] is not None:
        return 0
    switcher = Switcher(folder, plan)
    threading.Thread(target=switcher.serve, args=(lock,), daemon=True).start()
    switcher.run()
    return 0
