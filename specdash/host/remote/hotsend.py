"""Sends draft weights into a living server: begin, update, end, and never an update left open.

Everything is prepared first (shared files, a payload that the engine's own code has read), so that an update is
open only for the moment of three requests. It knows no engine: requests and answers are the rules module's.
"""

from __future__ import annotations

import importlib
import os
import time
from typing import Any, Dict, Optional

from specdash.host.remote import folder as folders
from specdash.host.remote import hotkeys, hotweights, httpask, journal, procs, runstore
from specdash.host.remote.hotstate import ABORT, BUNDLE, HISTORY, STATE, TITLES, progress
from specdash.host.remote.worker import Worker

POLL_S = 0.2
TRY_END_S = 180.0
BUSY_TRIES = 20


class Failed(Exception):
    """Why it did not work, as a sentence."""


class Sender(Worker):
    titles = TITLES

    def __init__(self, folder: str, plan: Dict[str, Any]) -> None:
        super().__init__(folder, plan, STATE, "prove")
        self.run_folder = runstore.folder_of(str(plan["base"]), str(plan["run"]))
        self.rules: Any = importlib.import_module(str(plan["rules"]))
        self.pulses: Any = importlib.import_module(str(plan["pulse_rules"]))
        self.before_sum: Optional[str] = None

    def aborted(self) -> bool:
        return os.path.exists(folders.path(self.folder, ABORT))

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
