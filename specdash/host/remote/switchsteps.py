"""The steps of a switch, each safe to repeat: warm, measure, stop, launch, ready, pulse, decide, watch.

Which come after which, and when it goes back, is switcher.py's.
"""

from __future__ import annotations

import importlib
import os
import time
from typing import Any, Callable, Dict, List, Optional

from specdash.host.remote import folder as folders
from specdash.host.remote import journal, procs, runstore, warm
from specdash.host.remote.switchstate import ABORT, ANSWER, STATE, TITLES
from specdash.host.remote.wire import CallError
from specdash.host.remote.worker import Worker, numbers, passes

POLL_S = 0.3
BACK_AT_LEAST_S = 600.0
"""What came back is given so long to get ready, however short the limit for the next server is."""


class Aborted(Exception):
    """The operator took it back before anything was stopped."""


class StepFailed(Exception):
    """`sentence` says why; the switch goes back (or ends, when it is going back already)."""


class Steps(Worker):
    titles = TITLES

    def __init__(self, folder: str, plan: Dict[str, Any]) -> None:
        super().__init__(folder, plan, STATE)
        self.base = str(plan["base"])
        self.a, self.b, self.restore = str(plan["a"]), str(plan["b"]), str(plan["restore"])
        self.rules: Any = importlib.import_module(str(plan["pulse_rules"]))
        self.beside = bool(plan.get("side_by_side"))
        """B is launched and judged first, A is stopped last."""

    def record(self, run_id: str) -> Optional[Dict[str, Any]]:
        return runstore.record(runstore.folder_of(self.base, run_id))

    def hidden(self, run_id: str) -> bool:
        """Does a supervisor say that the run lives and serves? For one whose folder does not tell any longer."""
        lock = folders.run_lock(runstore.folder_of(self.base, run_id))
        said = folders.ask("run", lock, {"cmd": "status"})
        return bool(said and not said.get("exited") and not said.get("stopping"))

    def title(self, run_id: str) -> str:
        return str(self.plan.get("names", {}).get(run_id) or run_id)

    def warm(self, what: Dict[str, Any]) -> None:
        """B's files into the page cache while A serves. It can only help: what goes wrong is told and passed over."""
        rate = float(what.get("bytes_s") or 200e6)
        self.say(
            "warm",
            "running",
            "Reading the next server's files into the page cache, at most %.0f MB/s." % (rate / 1e6),
        )
        room, weight = warm.available(), warm.weigh(what["folders"])
        if room is not None and weight["bytes"] + warm.SPARE > room:
            said = "%.1f GB are to be read and %.1f GB of memory are available: left out."
            self.say("warm", "skipped", said % (weight["bytes"] / 1e9, room / 1e9))
            return
        done, why = warm.read(
            what["folders"],
            rate,
            lambda: self.told(ABORT) is not None,
            lambda n: self.say("warm", "running", "%.1f of %.1f GB." % (n / 1e9, weight["bytes"] / 1e9)),
        )
        if self.told(ABORT) is not None:
            raise Aborted("Taken back before anything was stopped.")
        self.say(
            "warm",
            "skipped" if why else "done",
            "%.1f GB read%s." % (done / 1e9, ", then " + why if why else ""),
        )

    def measure(self) -> Optional[Dict[str, Any]]:
        """A pulse of A while it still serves, when nobody uses it: the fair thing to compare B with."""
        found = self.record(self.a)
        if not found or found["phase"] != "ready":
            self.say("measure", "skipped", "The present server is not ready; it is not measured.")
            return None
        self.say("measure", "running", "Pulse of the present server, to compare with.")
        passes = self.passes(found, lambda: self.told(ABORT) is not None)
        if self.told(ABORT) is not None:
            raise Aborted("Taken back before anything was stopped.")
        result = self.rules.together(passes)
        if not result["ok"]:
            self.say(
                "measure", "skipped", "The present server does not answer the pulse: %s." % result["problem"]
            )
            return None
        self.state.add(event="before", pulse=result, run=self.a)
        self.say("measure", "done", numbers(result), pulse=result)
        return dict(result)

    def stop(self, run_id: str, step: str, drain_s: float, abortable: bool) -> None:
        found = self.record(run_id)
        if (found is None or found["phase"] == "created") and self.hidden(run_id):
            raise StepFailed("%s runs, but its run folder cannot be read." % self.title(run_id))
        if found is None or found["phase"] in ("created", "failed") or found.get("ended"):
            self.say(step, "done", "It had ended already.")
            return
        if abortable and self.told(ABORT) is not None and found["alive"] and not found.get("stop_asked"):
            raise Aborted("Taken back before anything was stopped.")
        began = procs.boot_now()
        self.say(step, "running", "Stopping %s." % self.title(run_id))
        order = {
            "cmd": "stop",
            "drain_s": drain_s,
            "idle_s": self.plan.get("idle_s", 0) if abortable else 0,
            "deadline_s": self.plan.get("deadline_s", 60),
            "by": self.plan.get("by"),
        }
        reply = runstore.command(self.base, run_id, order)
        if reply.get("ended"):
            self.say(step, "done", str(reply.get("sentence")))
            return
        if reply.get("already"):
            began = float((reply.get("asked") or {}).get("boot_s") or 0.0)
        tried_abort, heard, given_up = False, "", ""
        while True:
            proof, said = None, ""
            for event in self._events_since(run_id, began):
                kind = event.get("event")
                if kind in ("draining", "given_up"):
                    said = str(event.get("sentence") or "")
                    given_up = said if kind == "given_up" else given_up
                elif kind in ("stopped", "stop_failed"):
                    unknown = {"proven": False, "processes": ["?"], "sentence": event.get("sentence")}
                    proof = event.get("proof") or unknown
            if said and said != heard:
                heard = said
                self.say(step, "running", said)
            if proof is not None:
                break
            found = self.record(run_id)
            if found is None or found.get("ended"):
                proof = {"proven": True, "sentence": "No process of it is left.", "processes": []}
                break
            if not found["supervisor_alive"]:  # killed in the middle: a new one goes on with the same order
                reply = runstore.command(self.base, run_id, order)
                if reply.get("ended"):  # nothing was left for a new one: nobody will write the proof
                    proof = {"proven": True, "sentence": str(reply.get("sentence")), "processes": []}
                    break
            if abortable and not tried_abort and self.told(ABORT) is not None:
                tried_abort = True
                if runstore.command(self.base, run_id, {"cmd": "abort", "by": self.plan.get("by")}).get("ok"):
                    raise Aborted("Taken back before its port was closed: %s serves on." % self.title(run_id))
            time.sleep(POLL_S)
        if proof["processes"]:
            raise StepFailed("The stop of %s is not proven: %s" % (self.title(run_id), proof["sentence"]))
        self.say(step, "done", (given_up + " " + str(proof["sentence"])).strip(), proof=proof)

    def _events_since(self, run_id: str, boot_s: float) -> List[Dict[str, Any]]:
        path = os.path.join(runstore.folder_of(self.base, run_id), folders.EVENTS)
        found = journal.parse(procs.read_bytes(path, 4 << 20) or b"")
        return [event for event in found if float(event.get("boot_s") or 0.0) >= boot_s]

    def launch(self, run_id: str, step: str) -> None:
        if self.told(ABORT) is not None and step == "launch":
            raise StepFailed("Taken back by the operator%s." % ("" if self.beside else " after the stop"))
        self.say(step, "running", "Starting %s." % self.title(run_id))
        try:
            found = runstore.begin(runstore.folder_of(self.base, run_id))
        except CallError as error:
            raise StepFailed(error.sentence) from None
        if found["phase"] == "failed":
            raise StepFailed(str(found.get("sentence")))
        self.say(step, "done", "Started as pid %s." % found.get("pid"), run=run_id)

    def ready(self, run_id: str, step: str, back_on_abort: bool) -> None:
        self.say(step, "running", "%s is loading." % self.title(run_id), run=run_id)
        limit = self.ready_limit(run_id)
        until = None if limit is None else time.monotonic() + limit
        while True:
            found = self.record(run_id) or {}
            if found.get("phase") == "ready":
                took = float(found["ready_boot_s"]) - float(found["started_boot_s"])
                self.say(
                    step,
                    "done",
                    "Ready after %.0f s: a real generation came back." % took,
                    took_s=round(took, 1),
                )
                return
            self.must_live(found, "before it was ready")
            if found.get("bind_failed"):
                raise StepFailed(str(found.get("sentence")))
            if back_on_abort and self.told(ABORT) is not None:
                raise StepFailed("Taken back by the operator while it loaded.")
            if until is not None and time.monotonic() > until:
                raise StepFailed("It was not ready within %.0f s." % (limit or 0))
            time.sleep(POLL_S)

    def ready_limit(self, run_id: str) -> Optional[float]:
        """The operator's limit is the next server's. The previous one has nothing to come after it: it gets its time."""
        limit = self.plan.get("ready_s")
        if not limit or run_id == self.b:
            return float(limit) if limit else None
        a = self.record(self.a) or {}
        if a.get("adopted") or not a.get("ready_boot_s"):
            return None  # how long it loads is not known
        return max(float(limit), BACK_AT_LEAST_S, 3 * (float(a["ready_boot_s"]) - float(a["started_boot_s"])))

    def must_live(self, found: Dict[str, Any], when: str) -> None:
        if found.get("phase") in ("exited", "failed", None) or found.get("alive") is False:
            until = time.monotonic() + 3.0
            while found.get("phase") not in ("exited", "failed") and time.monotonic() < until:
                time.sleep(0.1)  # dead a moment ago: its supervisor is about to write how it ended
                found = self.record(str(found.get("id") or self.b)) or found
            if found.get("exit_signal") is not None:
                how = "was ended by signal %s" % found["exit_signal"]
            elif found.get("exit_code") is None:
                how = "ended, how is not known,"
            else:
                how = "exited with code %s" % found.get("exit_code")
            raise StepFailed("%s %s %s." % (self.title(str(found.get("id") or self.b)), how, when))

    def passes(self, found: Dict[str, Any], give_up: Callable[[], bool]) -> List[Dict[str, Any]]:
        auth = (
            (procs.read_bytes(os.path.join(str(found["folder"]), "auth"), 65536) or b"")
            .decode("utf-8", "replace")
            .strip()
        )
        return passes(self.rules, found["http"], str(found.get("algorithm") or ""), auth, give_up)

    def pulse(self, run_id: str, step: str, before: Optional[Dict[str, Any]]) -> Dict[str, Any]:
        found = self.record(run_id) or {}
        self.say(step, "running", "Pulse on fixed prompts.")
        if int(found.get("node_rank") or 0) > 0:
            self.say(step, "skipped", "This rank does not answer requests; rank 0 is judged.")
            return {"decision": "keep", "sentence": ""}
        gone = lambda: self.told(ABORT) is not None or not (self.record(run_id) or {}).get("alive")  # noqa: E731
        passes = self.passes(found, gone)
        if self.told(ABORT) is not None:
            raise StepFailed("Taken back by the operator during the pulse.")
        self.must_live(self.record(run_id) or {}, "during the pulse")
        verdict: Dict[str, Any] = self.rules.judge(passes, str(found.get("algorithm") or ""), before)
        self.state.add(event="pulse", run=run_id, passes=passes, verdict=verdict)
        if verdict["decision"] == "roll_back":
            raise StepFailed(str(verdict["sentence"]))
        self.say(step, "done", str(verdict["sentence"]), pulse=verdict["pulse"], decision=verdict["decision"])
        return verdict

    def decide(self, verdict: Dict[str, Any]) -> None:
        """Slower than A: the operator's rule, or the operator. Nobody there: it stays, for it works."""
        if verdict["decision"] != "ask":
            return
        rule = str(self.plan.get("on_slower") or "ask")
        if rule == "ask":
            hold = float(self.plan.get("hold_s") or 600)
            self.state.add(
                event="question", sentence="%s Keep it or roll back?" % verdict["sentence"], hold_s=hold
            )
            until = time.monotonic() + hold
            while time.monotonic() < until:
                word = self.told(ANSWER)
                if word in ("keep", "roll_back"):
                    rule = word
                    break
                if self.told(ABORT) is not None:
                    rule = "roll_back"
                    break
                self.must_live(self.record(self.b) or {}, "while it waited for an answer")
                time.sleep(POLL_S)
            self.state.add(event="answer", answer=rule)
        if rule == "roll_back":
            raise StepFailed("Rolled back as asked: %s" % verdict["sentence"])

    def watch(self) -> None:
        """B has to live through its first minutes."""
        seconds = float(self.plan.get("settle_s") or 0)
        found = self.record(self.b) or {}
        left = float(found.get("ready_boot_s") or 0) + seconds - procs.boot_now()
        self.say("watch", "running", "It has to live through its first %.0f s." % seconds)
        until = time.monotonic() + left
        while time.monotonic() < until:
            self.must_live(self.record(self.b) or {}, "within its first minutes")
            if self.told(ABORT) is not None:
                raise StepFailed("Taken back by the operator.")
            time.sleep(POLL_S)
        self.must_live(self.record(self.b) or {}, "within its first minutes")
        self.say("watch", "done", "It lives.")
