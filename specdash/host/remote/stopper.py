"""Stop a run and prove it: drain, a signal to the launcher alone, a deadline, KILL for the rest, then the proof.

Stopped means: no process of the run lives, none holds GPU memory, and its port is free. Each step is written
to the run's events, so that whoever comes back reads how it went.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any, Callable, Dict, List, Optional

from specdash.host.remote import gpuhold, procs, sockets
from specdash.host.remote.journal import Journal
from specdash.host.remote.kin import Kin, living, name

SETTLE_S = 15.0
"""How long the proof waits for the driver to give memory back and for the port to close."""


class Stopper:
    """One stop of one run, in a thread of its own. A second call only hurries the first."""

    def __init__(self, kin: Kin, boot: str, port: Optional[int], events: Journal) -> None:
        self.kin = kin
        self.boot = boot
        self.port = port
        self.events = events
        self.work: Callable[[], Optional[int]] = lambda: None
        self.number: Callable[[], int] = lambda: int(signal.SIGTERM)
        self.settled: Callable[[], bool] = lambda: True
        """Has the launcher's end been written down? The proof comes after it."""
        self.gpu_before: Optional[List[Optional[float]]] = None
        self.thread: Optional[threading.Thread] = None
        self.hurry = threading.Event()
        self.give_up = threading.Event()
        self.signalled = False
        self.deciding = threading.Lock()
        self.asked: Dict[str, Any] = {}
        self.proof: Optional[Dict[str, Any]] = None
        self.told: Optional[Dict[str, Any]] = None
        """The proof that a "stopped" record has; a later look makes another `proof`."""

    @property
    def active(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    def ask(self, order: Dict[str, Any]) -> Dict[str, Any]:
        """{drain_s (0: none), deadline_s (30), by, now} → {"accepted", "already", "asked"}."""
        if self.active:
            if order.get("now") or not order.get("drain_s"):
                self.hurry.set()
            return {"ok": True, "accepted": False, "already": True, "asked": self.asked}
        self.hurry.clear()
        self.give_up = threading.Event()  # of this stop alone: one that was taken back may still be ending
        self.signalled = False
        self.asked = self.events.add(
            event="stop_asked",
            by=str(order.get("by") or ""),
            drain_s=float(order.get("drain_s") or 0),
            deadline_s=float(order.get("deadline_s") or 30),
        )
        self.thread = threading.Thread(
            target=self._guarded, args=(dict(self.asked, now=order.get("now")), self.give_up)
        )
        self.thread.daemon = True
        self.thread.start()
        return {"ok": True, "accepted": True, "already": False, "asked": self.asked}

    def witness(self) -> None:
        """The proof alone, nothing signalled: for a run that ended without us. `proof` has it when not `active`."""

        def look() -> None:
            self.proof = self._prove()

        self.thread = threading.Thread(target=look, daemon=True)
        self.thread.start()

    def abort(self, by: str) -> Dict[str, Any]:
        """Take a stop back: only while it drains, nothing has been signalled yet."""
        if not self.active:
            return {"ok": False, "sentence": "No stop is under way."}
        with self.deciding:
            if self.signalled:
                return {"ok": False, "sentence": "The launcher has been signalled already; the stop goes on."}
            self.give_up.set()
        self.thread = None
        self.events.add(event="stop_aborted", by=by)
        return {"ok": True, "sentence": "The stop was taken back; the server goes on serving."}

    def _guarded(self, order: Dict[str, Any], give_up: threading.Event) -> None:
        try:
            self._run(order, give_up)
        except Exception as error:  # a stop that fails must be seen, not end in silence
            self.events.add(event="stop_failed", sentence="The stop failed: %r." % (error,))

    def _root(self) -> Optional[Dict[str, Any]]:
        """The launcher, if it lives and is still the one that was started."""
        row = procs.stat(self.kin.root)
        alive = row is not None and row["start"] == self.kin.start and row["state"] not in "ZX"
        return row if alive else None

    def _run(self, order: Dict[str, Any], give_up: threading.Event) -> None:
        if order["drain_s"] <= 0:
            self.signalled = True
        if order["drain_s"] > 0 and self._root() and not self._drain(order["drain_s"], give_up):
            return
        grace_s = 0.0  # what a dead launcher left has had its time
        if self._root():
            self._signal_launcher(0.0 if order.get("now") else order["deadline_s"])
            grace_s = 5.0
        self._kill_rest(grace_s)
        until = time.monotonic() + 3.0
        while not self._root() and not self.settled() and time.monotonic() < until:
            time.sleep(0.05)
        self.proof = self.told = self._prove()
        self.events.add(event="stopped", proof=self.proof)

    def _drain(self, seconds: float, give_up: threading.Event) -> bool:
        """Wait until nothing runs. True: go on (drained, deadline, or told to hurry); False: taken back."""
        until, told = time.monotonic() + seconds, object()  # type: float, Any
        while time.monotonic() < until and not self.hurry.is_set() and self._root():
            count = self.work()
            if give_up.is_set():
                return False
            if count != told:
                told = count
                left = max(0.0, until - time.monotonic())
                self.events.add(event="draining", requests=count, left_s=round(left, 1))
            if count == 0 or count is None:
                break  # None: the engine does not tell; its own drain on TERM is all there is
            self.hurry.wait(0.5)
        with self.deciding:  # from here on the stop cannot be taken back
            if give_up.is_set():
                return False
            self.signalled = True
            return True

    def _signal_launcher(self, deadline_s: float) -> None:
        number = self.number()
        if number in procs.signal_sets(self.kin.root)["ignored"]:
            # A launch under `nohup … &` has INT ignored: a signal that does nothing is not a stop.
            other = signal.SIGTERM if number != signal.SIGTERM else signal.SIGINT
            self.events.add(event="signal_ignored", signal=_word(number), instead=_word(other))
            number = int(other)
        self.signalled = True
        try:
            sent = procs.send(self.kin.root, self.kin.start, self.boot, number)
        except PermissionError:
            owner = procs.user_of(self.kin.root)["user"]
            self.events.add(event="signal_denied", pid=self.kin.root, user=owner)
            return
        self.events.add(
            event="signal", signal=_word(number), pid=self.kin.root, sent=sent, deadline_s=deadline_s
        )
        until = time.monotonic() + deadline_s
        while self._root() and time.monotonic() < until and not self.hurry.is_set():
            self.hurry.wait(0.1)
        if self._root() and not self.hurry.is_set():
            self.events.add(
                event="deadline", sentence="The launcher did not exit within %.0f s." % deadline_s
            )

    def _kill_rest(self, grace_s: float) -> None:
        """KILL all that is left, children first seen or not, until none is: forks race with us."""
        until = time.monotonic() + grace_s  # the launcher's children may be on their own way out
        while not self._root() and living(self.kin.members(deep=True)) and time.monotonic() < until:
            if self.hurry.wait(0.2):
                break
        until = time.monotonic() + 10.0
        killed: Dict[int, Dict[str, Any]] = {}
        denied: Dict[int, str] = {}
        while time.monotonic() < until:
            left = [row for row in living(self.kin.members(deep=True)) if row["pid"] not in denied]
            if not left:
                break
            for row in left:
                who = killed.get(row["pid"]) or name(row)
                try:
                    if procs.send(row["pid"], row["start"], self.boot, signal.SIGKILL):
                        killed[row["pid"]] = who
                except PermissionError:
                    denied[row["pid"]] = str(who["user"])
            time.sleep(0.1)
        if killed or denied:
            self.events.add(event="killed", processes=list(killed.values()), denied=sorted(denied))

    def _prove(self) -> Dict[str, Any]:
        """{"proven", "sentence", "processes", "zombies", "port", "gpu", "took_s"}: waits SETTLE_S at most."""
        began = time.monotonic()
        while True:
            proof = self._look()
            if proof["proven"] or time.monotonic() - began > SETTLE_S:
                return dict(proof, took_s=round(time.monotonic() - began, 1))
            time.sleep(0.5)

    def _look(self) -> Dict[str, Any]:
        members = self.kin.members(deep=True)
        left = [name(row) for row in living(members)]
        zombies = [name(row) for row in members if row["state"] == "Z" and row["ppid"] != os.getpid()]
        ever = {pid for pid, _ in self.kin.ever}
        gpu = gpuhold.verdict(gpuhold.table(), ever, self.gpu_before)
        port: Dict[str, Any] = {"port": self.port, "free": True, "holders": []}
        if self.port:
            who = sockets.holder(self.port)
            port["free"] = not who["listening"]
            port["holders"] = [
                {k: row[k] for k in ("pid", "start", "user", "comm")} for row in who["processes"]
            ]
            port["ours"] = any(row["pid"] in {one["pid"] for one in left} for row in who["processes"])
        said = []
        if left:
            said.append(
                "still there: "
                + ", ".join("pid %(pid)d %(title)s (%(user)s, state %(state)s)" % p for p in left[:8])
            )
        if not port["free"]:
            names = ["pid %(pid)d (%(user)s)" % one for one in port["holders"]] or [
                "a process that is hidden from us"
            ]
            said.append("port %s is held by %s" % (self.port, ", ".join(names)))
        if gpu["state"] in ("held", "unproven", "free"):
            said.append(gpu["sentence"].rstrip("."))
        for one in zombies:
            said.append(
                "zombie pid %d waits for its parent %d (%s) and holds nothing"
                % (one["pid"], one["parent"]["pid"], one["parent"]["comm"])
            )
        # Another program on the port is not a process of the run that is left: it is named, and the stop is proven.
        proven = (
            not left and gpu["state"] in ("free", "none") and (port["free"] or not port.get("ours", False))
        )
        head = "Nothing of the run is left" if proven else "The stop is not proven"
        return {
            "proven": proven,
            "sentence": head + (": " + "; ".join(said) if said else "") + ".",
            "processes": left,
            "zombies": zombies,
            "port": port,
            "gpu": gpu,
        }


def _word(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
