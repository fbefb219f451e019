"""Carries out one change of weights in a living server, and sees to it that none is ever left half open.

    python -I supervisor.pyz hot FOLDER     FOLDER is RUN/hot/ID with plan.json; state.jsonl says how far it is

It prepares everything first (shared files, a payload that the engine's own code has read), so that an update is
open only for the moment of three requests. The first process forks the one that works and stays: when the
worker is killed, it starts another one, which closes what is open and goes back to the weights that were there.
When both are killed, the next word from an operator (`hot.resume`) does that. It knows no engine: requests,
answers and the rule come from the module that the plan names.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional

from specdash.host.remote import folder as folders
from specdash.host.remote import hotkeys, hotweights, journal, runstore
from specdash.host.remote.detached import detach, wakeup
from specdash.host.remote.hotsend import Failed, Sender
from specdash.host.remote.hotstate import BUNDLE, PLAN, progress
from specdash.host.remote.wire import CallError
from specdash.host.remote.worker import numbers, passes

SETTLE_S = 1.0
WORKERS = 3


class Keeper(Sender):
    def run(self) -> str:
        said = progress(self.folder)
        resumed = bool(said["began"])
        self.state.add(event="resumed" if resumed else "begun", pid=os.getpid(), by=self.plan.get("by"))
        try:
            if resumed:
                return self.resume(said)
            return self.forward()
        except (Failed, CallError, OSError) as failure:
            why = _first_line(failure)
            self.say(self.step_name, "failed", why)
            return self.retreat(why)

    def forward(self) -> str:
        self.must_live()
        hotweights.sweep(self.run_folder)
        if self.plan.get("measure"):
            self.measure()
        self.send("new", "send")
        return self.judge(progress(self.folder))

    def resume(self, said: Dict[str, Any]) -> str:
        """A worker was killed: close what may be open, then go on (all was sent) or back (it may be in pieces)."""
        self.say(
            "close", "running", "The program that did it was killed; closing what it may have left open."
        )
        self.close()
        time.sleep(SETTLE_S)  # a request that was on its way may open one after our first end
        self.close()
        hotweights.sweep(self.run_folder)
        self.before_sum = said["checksum"]
        if said["back"]:
            return self.retreat(str(said["back"].get("why") or ""))
        if said["sent"]:
            return self.judge(said)
        return self.retreat("The sender was killed.")

    def measure(self) -> None:
        self.say("before", "running", "Pulse with the present weights.")
        result = self.pulses.together(self.passes(lambda: self.aborted()))
        if self.aborted():
            raise Failed("Taken back before anything was sent.")
        if not result["ok"]:
            raise Failed("The server does not answer the pulse (%s)." % result["problem"])
        self.state.add(event="before", pulse=result)
        self.say("before", "done", numbers(result), pulse=result)

    def passes(self, give_up: Callable[[], bool]) -> List[Dict[str, Any]]:
        algorithm = str(self.plan.get("algorithm") or "")
        return passes(self.pulses, self.plan["http"], algorithm, hotkeys.client(self.run_folder), give_up)

    def judge(self, said: Dict[str, Any]) -> str:
        new = self.plan["new"]["path"]
        if not self.plan.get("pulse"):
            answer = self.ask(self.rules.generate(hotkeys.client(self.run_folder)))
            if self.rules.outcome(answer) != "done":
                raise Failed("It does not generate any more: %s." % self.rules.said(answer))
            self.say("pulse", "skipped", "Not judged, as asked; it generates.")
            return self.end("done", "%s serves now." % new, "new")
        self.say("pulse", "running", "Pulse on fixed prompts.")
        passes = self.passes(lambda: self.aborted() or not self.record().get("alive"))
        self.must_live()
        if self.aborted():
            raise Failed("Taken back by the operator.")
        verdict = self.rules.judge(passes, self.plan.get("at_least"), said.get("before"))
        self.state.add(event="pulse", passes=passes, verdict=verdict)
        if verdict["decision"] != "keep":
            raise Failed(str(verdict["sentence"]))
        self.say("pulse", "done", str(verdict["sentence"]), pulse=verdict["pulse"])
        return self.end("done", "%s serves now. %s" % (new, verdict["sentence"]), "new")

    def retreat(self, why: str) -> str:
        """After a failure: nothing was sent, or the old weights go in again."""
        said = progress(self.folder)
        found = self.record()
        if not found.get("alive") or found.get("stop_asked"):
            return self.end(
                "failed", "%s The server does not run: launch or switch it the ordinary way." % why, ""
            )
        try:
            if said["open"]:
                self.close()
            if not said["opened"]:
                hotweights.sweep(self.run_folder)
                word = "aborted" if self.aborted() else "failed"
                return self.end(word, "Nothing was changed: %s" % why, "old")
            now = self.checksum("now")
            if now is not None and now == (self.before_sum or said["checksum"]) and not said["sent"]:
                hotweights.sweep(self.run_folder)
                return self.end("failed", "Nothing was changed (checksums are as before): %s" % why, "old")
            self.state.add(event="back", why=why)
            self.say("back", "running", "The old weights go in again.")
            self.send("old", "back")
            last = progress(self.folder)
            after, wanted = self.checksum("now"), self.before_sum or last["checksum"]
            if after != wanted:
                raise Failed("The old weights are in, but checksums are not what they were before.")
            answer = self.ask(self.rules.generate(hotkeys.client(self.run_folder)))
            if self.rules.outcome(answer) != "done":
                raise Failed("It does not generate: %s." % self.rules.said(answer))
            return self.end(
                "rolled_back",
                "%s serves again, checksums as before. Why: %s" % (self.plan["old"]["path"], why),
                "old",
            )
        except (Failed, CallError, OSError) as failure:
            sentence = _first_line(failure)
            self.say("back", "failed", sentence)
            return self.end(
                "failed",
                "WHICH DRAFT WEIGHTS SERVE IS NOT KNOWN. %s First: %s Answers stay right, the target checks each; "
                "restart it by an ordinary switch." % (sentence, why),
                "",
            )

    def end(self, word: str, sentence: str, serves: str) -> str:
        drafter = self.plan[serves]["path"] if serves else ""
        self.state.add(event="end", final=word, sentence=sentence, serves=drafter)
        return word


def _first_line(failure: BaseException) -> str:
    """A C++ trace may follow; it is in the records of whoever raised it."""
    lines = (getattr(failure, "sentence", None) or str(failure)).strip().splitlines() or [
        type(failure).__name__
    ]
    return lines[0][:400]


def work(folder: str, plan: Dict[str, Any], lock: socket.socket) -> None:
    if progress(folder)["end"] is not None:
        return
    keeper = Keeper(folder, plan)
    threading.Thread(target=keeper.serve, args=(lock,), daemon=True).start()
    keeper.run()


def main(argv: Optional[List[str]] = None) -> int:
    """Detaches; a watcher, and the worker that it starts again when it is killed."""
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) != 2 or arguments[0] != "hot":
        sys.stderr.write("usage: supervisor.pyz hot FOLDER\n")
        return 2
    folder = os.path.abspath(arguments[1])
    detach()
    os.umask(0o077)
    try:
        plan = journal.load(folders.path(folder, PLAN))
        if not isinstance(plan, dict):
            return 2
        run_folder = runstore.folder_of(str(plan["base"]), str(plan["run"]))
        lock = folders.hold("hot", folders.run_lock(run_folder))
        if lock is None:
            return 3
        os.set_inheritable(lock.fileno(), False)
        wakeup()
        for _ in range(WORKERS):
            worker = os.fork()
            if worker == 0:
                code = 1
                try:
                    work(folder, plan, lock)
                    code = 0
                except BaseException:
                    _broken(folder)
                finally:
                    os._exit(code)
            while True:
                try:
                    os.waitpid(worker, 0)
                    break
                except InterruptedError:
                    continue
            if progress(folder)["end"] is not None:
                _tidy(folder)
                return 0
    except Exception:
        _broken(folder)
    return 1


def _tidy(folder: str) -> None:
    """The programs are not needed any more; the records stay."""
    for name in (folders.PYZ, BUNDLE):
        try:
            os.unlink(folders.path(folder, name))
        except OSError:
            continue


def _broken(folder: str) -> None:
    import traceback

    journal.Journal(folders.path(folder, "supervisor.err")).add(error=traceback.format_exc()[-8000:])


if __name__ == "__main__":
    sys.exit(main())
