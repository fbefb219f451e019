"""Watch a run become ready: the log's marks, whose port it is, and one real generation at a time.

What a mark or an answer means comes from a rules module that run.json names (`specdash.sglang.ready`), packed
beside this one; here is only when to look.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
from typing import Any, Dict, List, Optional, Set

from specdash.host.remote import httpask, procs, sockets
from specdash.host.remote.folder import path
from specdash.host.remote.journal import Journal

READ_PER_LOOK = 4 << 20


class Readiness:
    """`look` is called often and never blocks; `ready` goes True once, by a generation that came back."""

    def __init__(self, folder: str, run: Dict[str, Any], events: Journal) -> None:
        self.rules: Any = importlib.import_module(str(run["rules"])) if run.get("rules") else None
        self.http: Dict[str, Any] = dict(run.get("http") or {})
        self.rank = int(run.get("node_rank") or 0) or int(bool(run.get("follows")))
        self.together = bool(run.get("together"))
        self.zero: Dict[str, Any] = dict((run.get("together") or {}).get("zero") or {})
        self.loaded = False
        self.log = path(folder, "server.log")
        self.auth = (procs.read_bytes(path(folder, "auth"), 65536) or b"").decode("utf-8", "replace").strip()
        self.events = events
        self.offset, self.carry = 0, b""
        self.marks: Set[str] = set()
        self.ready = False
        self.bind_failed = False
        self.port_since: Optional[float] = None
        self.probing = False
        self.probed_at = -1e9
        self.told = ""

    def look(self, rows: List[Dict[str, Any]]) -> None:
        """`rows`: the run's processes. Writes "listening", "bind_failed", "probe_failed" and "ready" events."""
        if self.ready or self.rules is None or not self.http.get("port"):
            return
        self._read_log()
        if self.rank > 0:
            if self.marks & {"rank_ready", "fired_up"}:
                self._rank_loaded()
            return
        inodes = sockets.listen_inodes(int(self.http["port"])).get(int(self.http["port"]), set())
        ours = sockets.owners(inodes, [row["pid"] for row in rows]) if inodes else []
        if not ours:
            self.port_since = None
            if "bind_failed" in self.marks and not self.bind_failed:
                self._bind_failed(bool(inodes))
            return
        if self.port_since is None:
            self.port_since = time.monotonic()
            self.events.add(event="listening", port=self.http["port"], pid=ours[0])
        quiet = time.monotonic() - self.port_since
        due = "fired_up" in self.marks or quiet >= self.rules.QUIET_BEFORE_PROBE_S
        if due and not self.probing and time.monotonic() - self.probed_at >= self.rules.PROBE_INTERVAL_S:
            self.probing, self.probed_at = True, time.monotonic()
            threading.Thread(target=self._probe, args=(ours[0],), daemon=True).start()

    def _read_log(self) -> None:
        try:
            with open(self.log, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < self.offset:
                    self.offset, self.carry = 0, b""
                if size - self.offset > 4 * READ_PER_LOOK:  # a log that floods: marks are in its newest part
                    self.offset, self.carry = size - READ_PER_LOOK, b""
                file.seek(self.offset)
                data = file.read(READ_PER_LOOK)
        except OSError:
            return
        if data:
            found, self.carry = self.rules.scan(data, self.carry)
            self.marks.update(found)
            self.offset += len(data)

    def _bind_failed(self, held: bool) -> None:
        self.bind_failed = True
        who = sockets.holder(int(self.http["port"]))
        names = ["pid %d (%s)" % (row["pid"], row["user"]) for row in who["processes"]]
        by = (
            ", ".join(names)
            if names
            else ("a process that this user cannot see" if held else "nobody any more")
        )
        sentence = "The server could not bind port %s: it is held by %s." % (self.http["port"], by)
        if "fired_up" in self.marks:
            sentence += " Its line that it is ready is false: the other server answered its warm-up."
        self.events.add(
            event="bind_failed",
            sentence=sentence,
            step="Stop this run (it may never exit by itself) and launch it on a free port.",
            port=self.http["port"],
            holders=[{k: row[k] for k in ("pid", "start", "user")} for row in who["processes"]],
        )

    def _probe(self, pid: int) -> None:
        try:
            answer = httpask.ask(self.http, self.rules.probe(self.auth), self.rules.PROBE_TIMEOUT_S)
            good, sentence = self.rules.judge(answer["status"], answer["body"])
            if good:
                self._is_ready({"pid": pid, "took_s": answer["took_s"], "status": answer["status"]})
            elif sentence != self.told:  # once per kind of answer, not every 20 s
                self.told = sentence
                self.events.add(
                    event="probe_failed",
                    sentence=sentence,
                    status=answer["status"],
                    problem=answer["problem"],
                )
        finally:
            self.probing = False

    def _rank_loaded(self) -> None:
        """A rank above 0 only answers a dummy /health: that it is loaded does not say that the server serves.

        Where specdash started all ranks, whoever saw rank 0 generate tells this one (`serves_by`), or it asks rank 0
        itself, where that listens on more than loopback; a rank that was started by hand knows no rank 0, and its
        being loaded is all there is to know.
        """
        if not self.together:
            self._is_ready({"mark": "rank_ready"})
        elif not self.loaded:
            self.loaded = True
            self.events.add(event="rank_loaded", rank=self.rank, marks=sorted(self.marks))
            return
        due = time.monotonic() - self.probed_at >= self.rules.PROBE_INTERVAL_S
        if self.together and self.zero.get("port") and due and not self.probing:
            self.probing, self.probed_at = True, time.monotonic()
            threading.Thread(target=self._probe_zero, daemon=True).start()

    def _probe_zero(self) -> None:
        try:
            answer = httpask.ask(self.zero, self.rules.probe(self.auth), self.rules.PROBE_TIMEOUT_S)
            if self.rules.judge(answer["status"], answer["body"])[0]:
                self._is_ready({"rank0": "%s:%s" % (self.zero.get("host"), self.zero.get("port"))})
        finally:
            self.probing = False

    def serves_by(self, run: str) -> None:
        """Rank 0, which is that run, generated: now this rank is ready too."""
        self._is_ready({"rank0": run})

    def _is_ready(self, evidence: Dict[str, Any]) -> None:
        if not self.ready:
            self.ready = True
            self.events.add(
                event="ready", port=self.http.get("port"), evidence=evidence, marks=sorted(self.marks)
            )

    def work(self) -> Optional[int]:
        """Requests in the engine now (running and waiting), or None when it does not tell. Blocks up to 6 s."""
        if self.rules is None or not self.http.get("port"):
            return None
        for request in self.rules.loads(self.auth):
            answer = httpask.ask(self.http, request, 6.0)
            if answer["problem"] in ("refused", "timeout"):
                return None
            count: Optional[int] = self.rules.running(request["path"], answer["status"], answer["body"])
            if count is not None:
                return count
        return None
