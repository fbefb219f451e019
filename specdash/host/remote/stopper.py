"""Stop a run and prove it: close its door, let what it accepted end, a deadline, KILL for the rest, then the proof.

The door is closed by a signal to the launcher alone (INT: its HTTP server stops to listen at once and ends when
the last answer is out). A signal that only asks for an end (TERM) leaves the door open: then requests that come
between our last look and the end are cut, and under steady traffic there is no end. So the order is: close, wait,
and only at the deadline give up what is left.

Stopped means: no process of the run lives, none holds GPU memory, and its port is free. Each step is written
to the run's events, so that whoever comes back reads how it went.
"""

from __future__ import annotations

import signal
import threading
import time
from typing import Any, Callable, Dict, List, Optional

from specdash.host.remote import procs, sockets
from specdash.host.remote import proof as proofs
from specdash.host.remote.journal import Journal
from specdash.host.remote.kin import Kin, living, name


class Stopper:
    """One stop of one run, in a thread of its own. A second call only hurries the first."""

    def __init__(self, kin: Kin, boot: str, port: Optional[int], events: Journal) -> None:
        self.kin = kin
        self.boot = boot
        self.port = port
        self.events = events
        self.work: Callable[[], Optional[int]] = lambda: None
        self.number: Callable[[], int] = lambda: int(signal.SIGTERM)
        self.serves: Callable[[], bool] = lambda: False
        """Does it serve, and does `number` close its door? Then a drain is to close it and to wait."""
        self.settled: Callable[[], bool] = lambda: True
        """Has the launcher's end been written down? The proof comes after it."""
        self.gpu_seen: Callable[[], bool] = lambda: False
        """Was a pid of the run ever in the GPU table?"""
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
        """{drain_s, idle_s, deadline_s (30), by, now} → {"accepted", "already", "asked"}.

        `idle_s`: wait so long for a moment without requests, with the door open (0: close it at once; until then it
        can be taken back). `drain_s`: how long what was accepted may take to end (0: until `deadline_s`).
        `deadline_s`: how long the launcher may take after that, before KILL.
        """
        if self.active:
            if order.get("now") or not (order.get("drain_s") or order.get("idle_s")):
                self.hurry.set()
            return {"ok": True, "accepted": False, "already": True, "asked": self.asked}
        self.hurry.clear()
        self.give_up = threading.Event()  # of this stop alone: one that was taken back may still be ending
        self.signalled = False
        self.asked = self.events.add(
            event="stop_asked",
            by=str(order.get("by") or ""),
            drain_s=float(order.get("drain_s") or 0),
            idle_s=float(order.get("idle_s") or 0),
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
            self.proof = proofs.prove(self.kin, self.port, self.gpu_before, self.gpu_seen())

        self.thread = threading.Thread(target=look, daemon=True)
        self.thread.start()

    def abort(self, by: str) -> Dict[str, Any]:
        """Take a stop back: only while it waits for a quiet moment, nothing has been signalled yet."""
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
        number = self._number()
        closes = self.serves() and number == self.number()
        # Where no signal closes the door, a quiet moment is the best there is.
        idle_s = order["idle_s"] if closes else max(order["idle_s"], order["drain_s"])
        if idle_s <= 0:
            self.signalled = True
        elif self._root() and not self._wait_idle(idle_s, give_up):
            return
        grace_s = 0.0  # what a dead launcher left has had its time
        if self._root():
            deadline_s = 0.0 if order.get("now") else order["deadline_s"]
            drain_s = order["drain_s"] if closes and not order.get("now") else 0.0
            if closes and self._closed():
                # A stop was under way when its supervisor was killed: a second INT would cut what it answers.
                self.events.add(event="closed_already", sentence="Its port is closed already.")
                signalled = True
            else:
                signalled = self._signal_launcher(number, drain_s or deadline_s, closes)
            if signalled:
                if drain_s and not self._ended_within(drain_s):
                    self._give_up(drain_s)
                    self._signal_launcher(number, deadline_s, False)  # once more: end now
                    self._ended_within(deadline_s)
                elif not drain_s:
                    self._ended_within(deadline_s)
                if self._root() and not self.hurry.is_set():
                    said = "The launcher did not exit within %.0f s." % deadline_s
                    self.events.add(event="deadline", sentence=said)
            grace_s = 5.0
        self._kill_rest(grace_s)
        until = time.monotonic() + 3.0
        while not self._root() and not self.settled() and time.monotonic() < until:
            time.sleep(0.05)
        self.proof = self.told = proofs.prove(self.kin, self.port, self.gpu_before, self.gpu_seen())
        self.events.add(event="stopped", proof=self.proof)

    def _wait_idle(self, seconds: float, give_up: threading.Event) -> bool:
        """Wait until nothing runs, the door open. True: go on (idle, deadline, hurry); False: taken back."""
        until, told = time.monotonic() + seconds, object()  # type: float, Any
        while time.monotonic() < until and not self.hurry.is_set() and self._root():
            count = self.work()
            if give_up.is_set():
                return False
            if count != told:
                told = count
                left = max(0.0, until - time.monotonic())
                said = (
                    "The engine does not tell its requests."
                    if count is None
                    else (
                        "%s in the engine, %.0f s left; its port is open." % (_many(count, "request"), left)
                    )
                )
                self.events.add(
                    event="draining", requests=count, left_s=round(left, 1), door="open", sentence=said
                )
            if count == 0 or count is None:
                break  # None: the engine does not tell
            self.hurry.wait(0.5)
        with self.deciding:  # from here on the stop cannot be taken back
            if give_up.is_set():
                return False
            self.signalled = True
            return True

    def _number(self) -> int:
        """The signal to send: the wanted one, unless this launcher ignores it or has no handler of its own for it."""
        number, sets = self.number(), procs.signal_sets(self.kin.root)
        # A launch under `nohup … &` has INT ignored, until the engine's HTTP server installs its handler: a signal
        # that does nothing is not a stop, and one without a handler cuts what runs.
        if number in sets["ignored"] or (self.serves() and number not in sets["caught"]):
            other = signal.SIGTERM if number != signal.SIGTERM else signal.SIGINT
            if other not in sets["ignored"]:
                self.events.add(event="signal_ignored", signal=_word(number), instead=_word(other))
                return int(other)
        return number

    def _signal_launcher(self, number: int, deadline_s: float, closes: bool) -> bool:
        """False: it is another user's."""
        self.signalled = True
        try:
            sent = procs.send(self.kin.root, self.kin.start, self.boot, number)
        except PermissionError:
            owner = procs.user_of(self.kin.root)["user"]
            self.events.add(event="signal_denied", pid=self.kin.root, user=owner)
            return False
        self.events.add(
            event="signal",
            signal=_word(number),
            pid=self.kin.root,
            sent=sent,
            deadline_s=deadline_s,
            closes=closes,
        )
        return True

    def _ended_within(self, seconds: float) -> bool:
        """Wait for the launcher's end, and tell how many connections it still answers."""
        until, told = time.monotonic() + seconds, None  # type: float, Optional[int]
        look_at = time.monotonic() + 0.5  # its HTTP server needs a moment to close the door
        while self._root() and time.monotonic() < until and not self.hurry.is_set():
            if self.port and time.monotonic() >= look_at:
                look_at = time.monotonic() + 1.0
                count = self._open()
                if count != told:
                    told = count
                    left = max(0.0, until - time.monotonic())
                    said = "Its port is closed; %s still answered, %.0f s left." % (
                        _many(count, "connection"),
                        left,
                    )
                    self.events.add(
                        event="draining",
                        connections=count,
                        left_s=round(left, 1),
                        door="closed",
                        sentence=said,
                    )
            self.hurry.wait(0.1)
        return self._root() is None

    def _closed(self) -> bool:
        return bool(self.port) and not sockets.listen_inodes(self.port).get(int(self.port or 0))

    def _open(self) -> int:
        return sockets.connections(int(self.port or 0), [row["pid"] for row in living(self.kin.members())])

    def _give_up(self, drain_s: float) -> None:
        count = self._open() if self.port and self._root() else 0
        if self._root() and not self.hurry.is_set():
            said = "%s not answered within %.0f s: given up." % (_many(count, "connection"), drain_s)
            self.events.add(event="given_up", connections=count, drain_s=drain_s, sentence=said)

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


def _many(count: int, what: str) -> str:
    return "%d %s%s" % (count, what, "" if count == 1 else "s")


def _word(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
