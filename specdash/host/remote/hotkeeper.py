"""Carries out one change of weights in a living server, and sees to it that none is ever left half open.

    python -I supervisor.pyz hot FOLDER     FOLDER is RUN/hot/ID with plan.json; state.jsonl says how far it is

It prepares everything first (shared files, a payload that the engine's own code has read), so that an update is
open only for the moment of three requests. The first process forks the one that works and stays: when the
worker is killed, it starts another one, which closes what is open and goes back to the weights that were there.
When both are killed, the next word from an operator (`hot.resume`) does that. It knows no engine: requests,
answers and the rule come from the module that the plan names.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional

from specdash.host.remote import folder as folders
from specdash.host.remote import hotkeys, hotweights, httpask, journal, procs, runstore
from specdash.host.remote.wire import CallError

PLAN, STATE, ABORT, BUNDLE = "plan.json", "state.jsonl", "abort", "proof.zip"
HISTORY = "hot.jsonl"
"""In the run folder: one record for each time that weights were sent."""
POLL_S = 0.2
TRY_END_S = 180.0
SETTLE_S = 1.0
BUSY_TRIES = 20
WORKERS = 3


class Failed(Exception):
    """Why it did not work, as a sentence."""


def progress(folder: str) -> Dict[str, Any]:
    """state.jsonl folded: {began, open, sent, back, steps, before, checksum, end}. `open`: an update may be open."""
    out: Dict[str, Any] = {"began": None, "open": False, "sent": None, "back": None, "steps": [], "end": None}
    out.update(before=None, checksum=None, opened=False)
    for record in journal.parse(procs.read_bytes(folders.path(folder, STATE), 8 << 20) or b""):
        kind = record.get("event")
        if kind in ("begun", "sent", "back", "end"):
            out["began" if kind == "begun" else kind] = record
        elif kind == "opening":
            out.update(open=True, opened=True)
        elif kind == "closed":
            out["open"] = False
        elif kind == "step":
            out["steps"] = [one for one in out["steps"] if one["step"] != record["step"]] + [record]
        elif kind == "before":
            out["before"] = record.get("pulse")
        elif kind == "checksum" and out["checksum"] is None:
            out["checksum"] = record.get("checksum")
    return out


class Keeper:
    def __init__(self, folder: str, plan: Dict[str, Any]) -> None:
        self.folder = folder
        self.plan = plan
        self.run_folder = runstore.folder_of(str(plan["base"]), str(plan["run"]))
        self.rules: Any = importlib.import_module(str(plan["rules"]))
        self.pulses: Any = importlib.import_module(str(plan["pulse_rules"]))
        self.state = journal.Journal(folders.path(folder, STATE), 64 << 20, sync=True)
        self.step_name = "prove"
        self.before_sum: Optional[str] = None

    # -- what it writes, hears and asks

    def say(self, step: str, status: str, sentence: str, **more: Any) -> None:
        self.step_name = step
        self.state.add(event="step", step=step, status=status, sentence=sentence, **more)

    def aborted(self) -> bool:
        return os.path.exists(folders.path(self.folder, ABORT))

    def serve(self, lock: socket.socket) -> None:
        while True:
            try:
                folders.answer(lock.accept()[0], self.command)
            except OSError:
                return

    def command(self, question: Dict[str, Any], who: Dict[str, int]) -> Dict[str, Any]:
        plan = self.plan
        return {
            "ok": True,
            "id": plan["id"],
            "by": plan.get("by"),
            "title": plan.get("title"),
            "since_unix": plan.get("created_unix"),
            "step": self.step_name,
            "pid": os.getpid(),
        }

    def record(self) -> Dict[str, Any]:
        return runstore.record(self.run_folder) or {}

    def must_live(self) -> Dict[str, Any]:
        found = self.record()
        if not found.get("alive") or found.get("stop_asked"):
            raise Failed("The server does not run any more.")
        return found

    def ask(self, request: Dict[str, Any]) -> Dict[str, Any]:
        return httpask.ask(self.plan["http"], request, float(request.get("timeout_s") or 60))

    def key(self) -> str:
        return hotkeys.admin(self.run_folder, self.plan.get("argv") or [])

    # -- the work

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
        self.say("before", "done", _numbers(result), pulse=result)

    def checksum(self, name: str) -> Optional[str]:
        found = self.rules.checksum(self.ask(self.rules.check(self.key())))
        self.state.add(event="checksum", which=name, checksum=found)
        return found  # type: ignore[no-any-return]

    def send(self, which: str, step: str) -> None:
        """Weights `which` (new | old) into the server. Raises Failed; an update is never left open."""
        one = self.plan[which]
        self.say(step, "running", "Preparing the weights of %s." % one["path"])
        found = self.must_live()
        self.state.add(event="prepared_by", pid=os.getpid())
        began = time.monotonic()
        placed = hotweights.place(self.run_folder, one["tensors"], one["stamps"])
        try:
            data, proven = hotweights.payload(
                self.run_folder,
                placed,
                [found.get("boot_id"), found.get("pid"), found.get("start")],
                self.plan["proof"],
                procs.read_bytes(folders.path(self.folder, BUNDLE), 64 << 20) or b"",
                hotkeys.environment(self.run_folder, int(found.get("pid") or 0)),
            )
            before = self.checksum("before " + which)
            if before is None:
                raise Failed("The server tells no checksums of its draft weights.")
            self.before_sum = self.before_sum or before
            if which == "new" and self.aborted():
                raise Failed("Taken back before anything was sent.")
            prepared = time.monotonic() - began
            self.say(
                step,
                "running",
                "Sending (the engine's own code has read it: %s)." % ("now" if proven else "before"),
            )
            took = self.exchange(data, placed)
            after = self.checksum("after " + which)
        finally:
            if not progress(self.folder)["open"]:
                hotweights.sweep(self.run_folder)
        self.must_live()
        if (
            which == "new"
            and after == before
            and placed["sha256"] != hotweights.digest(self.plan["old"]["tensors"])
        ):
            raise Failed("The server took the weights, but their checksums are as before.")
        facts = {"before": before, "after": after, "drafter": one["path"], "swap_s": took}
        facts.update(prepare_s=round(prepared, 3), proven_now=proven, sha256=placed["sha256"])
        journal.Journal(folders.path(self.run_folder, HISTORY), 64 << 20).add(
            event="sent", which=which, hot=self.plan["id"], by=self.plan.get("by"), **facts
        )
        self.state.add(event="sent" if which == "new" else "restored", **facts)
        self.serves_now(which, after)
        self.say(
            step, "done", "New weights in %.2f s (prepared in %.1f s before)." % (took, prepared), **facts
        )

    def exchange(self, data: bytes, placed: Dict[str, Any]) -> float:
        """begin, update, end. Seconds from the first to the last answer."""
        key, rules = self.key(), self.rules
        began = time.monotonic()
        self.state.add(event="opening")
        try:
            self.begin(key)
            hotweights.there(placed)
            answer = self.ask(rules.update(data, int(self.plan["ranks"]), bool(self.plan.get("flush")), key))
            self.state.add(event="update", outcome=rules.outcome(answer), said=rules.said(answer))
        finally:
            # Whatever happened, also when it was refused: nothing stays open.
            self.close()
        if rules.outcome(answer) != "done":
            raise Failed("The server did not take the weights: %s." % rules.said(answer))
        return round(time.monotonic() - began, 3)

    def begin(self, key: str) -> None:
        """Open an update. One that others left open is ended first, once they had time to end it themselves."""
        for attempt in range(BUSY_TRIES):
            answer = self.ask(self.rules.begin(key))
            if self.rules.outcome(answer) == "done":
                return
            if not self.rules.is_open(answer):
                raise Failed("The server refused to open an update: %s." % self.rules.said(answer))
            if attempt == BUSY_TRIES - 2:
                self.say(self.step_name, "running", "An update that others left open is ended.")
                self.ask(self.rules.end(key))
            time.sleep(POLL_S)
        raise Failed("Somebody else keeps an update open on this server.")

    def close(self) -> None:
        """End the update until the server says that none is open, or does not run any more."""
        until = time.monotonic() + TRY_END_S
        told = "nothing"
        while time.monotonic() < until:
            answer = self.ask(self.rules.end(self.key()))
            told = self.rules.said(answer)
            if self.rules.closed(answer):
                self.state.add(event="closed", said=told)
                return
            if not self.record().get("alive"):
                self.state.add(event="closed", said="the server does not run")
                raise Failed("The server does not run any more.")
            time.sleep(POLL_S)
        raise Failed("An update may still be open: the server does not answer its end (%s)." % told)

    def serves_now(self, which: str, checksum: Optional[str]) -> None:
        """What everybody who follows the run is told, since the command line does not tell any longer."""
        one = self.plan[which]
        journal.Journal(folders.path(self.run_folder, folders.EVENTS), 1 << 62, sync=True).add(
            event="hot_switched",
            algorithm=self.plan.get("algorithm"),
            drafter=one["path"],
            full=one.get("full"),
            by=self.plan.get("by"),
            hot=self.plan["id"],
            checksum=checksum,
            stamps=one["stamps"],
            back=which == "old",
        )

    def passes(self, give_up: Callable[[], bool]) -> List[Dict[str, Any]]:
        key = hotkeys.client(self.run_folder)
        done: List[Dict[str, Any]] = []
        while self.pulses.more(done, str(self.plan.get("algorithm") or "")):
            answers = []
            for request in self.pulses.requests(key):
                if give_up():
                    break
                answers.append(httpask.ask(self.plan["http"], request, self.pulses.TIMEOUT_S))
            done.append(self.pulses.read(answers))
            if not done[-1]["ok"]:
                break
        return done

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
            self.say("back", "running", "The old weights go in again: %s" % why)
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


def _numbers(result: Dict[str, Any]) -> str:
    speed, length = result.get("tok_s"), result.get("accept_length")
    said = "%s tok/s, one stream" % ("-" if speed is None else "%.1f" % speed)
    return said + ("" if length is None else ", accept length %.2f" % length) + "."


def work(folder: str, plan: Dict[str, Any], lock: socket.socket) -> None:
    if progress(folder)["end"] is not None:
        return
    keeper = Keeper(folder, plan)
    threading.Thread(target=keeper.serve, args=(lock,), daemon=True).start()
    keeper.run()


def main(argv: Optional[List[str]] = None) -> int:
    """Detaches; a watcher, and the worker that it starts again when it is killed."""
    from specdash.host.remote.supervisor import detach, wakeup

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
