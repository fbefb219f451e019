"""States of a living server, its end, and another launch in the same log. Base of `oneline.OneLine`."""

from __future__ import annotations

import re
from typing import Optional

from specdash.sglang.batches import Batches
from specdash.sglang.loading import Loading
from specdash.sglang.storytypes import Story

VERSION = re.compile(
    rb"(?i)\bsglang(?:[ _-]version| version)?\s*[:=v ]{1,3}\s*v?(\d+\.\d+\.\d+(?:[.\w+-]*\w)?)"
)
RETRACT = re.compile(rb"[Rr]etract.*?#retracted_reqs: (?P<n>\d+)")
RESET = re.compile(rb"Max running requests is reset to (?P<n>\d+) for speculative decoding")
PLACE = (
    "size",
    "rest",
    "skipped",
    "after_cr",
    "lines",
    "records",
    "errors",
    "warnings",
    "settled_time",
    "settled_stamp",
    "stamp",
    "last_at",
    "attempts",
    "version",
)
"""What another launch in the same log leaves as it is."""


class Ending(Loading, Batches):
    def serve(self, running: Optional[int], queued: Optional[int]) -> None:
        """A batch ran: a server that is ready serves; before that it is a warm-up, which is one request."""
        if self.exit_told == "strong":
            return
        if self.exit_told:
            self.revive()
        loaded = self.phase in ("unknown", "starting", "ready", "exited")
        if self.phase != "serving" and (loaded or (running or 0) > 1 or (queued or 0) > 1):
            self.enter("serving", "")
            self.was_serving = True

    def state_line(self, body: bytes, rank: str) -> bool:
        if b"etract" in body:
            found = RETRACT.search(body)
            if found:
                self.retractions += 1
                self.retracted += int(found.group("n")[:9])
                self.retract_offset, self.retract_line = self.here, body[:400].decode("utf-8", "replace")
                return True
        if b"reset to " in body:
            found = RESET.search(body)
            if found:
                self.capped_by_speculation = int(found.group("n")[:9])
                if self.max_running_requests is None:
                    self.max_running_requests = self.capped_by_speculation
                return True
        if b"SIGTERM received" in body:
            self.stop_asked, self.draining = "SIGTERM", True
            return True
        if body.startswith(b"Gracefully exiting"):
            found = re.search(rb"number of requests (\d+)", body)
            if found:
                self.drain_remaining = int(found.group(1)[:9])
                self.stop_asked, self.draining = self.stop_asked or "SIGTERM", True
                if self.drain_remaining == 0:
                    self.end("strong")
            return True
        if b"kill_process_tree called" in body:
            if b"include_parent=True" in body or self.drain_remaining == 0 or self.stop_asked:
                self.end("strong")
            return True
        if body.startswith((b"Shutting down", b"Finished server process")):
            if not self.bind_failed:
                self.stop_asked = self.stop_asked or "shutdown"
                if body.startswith(b"Finished"):
                    self.finished_cleanly = True
                    self.end("strong")
            return True
        if b"Health check failed" in body:
            self.health_failures += 1
            self.note("warning", body, rank)
            return True
        if b"ersion" in body and not self.version:
            found = VERSION.search(body[:600])
            if found:
                self.version = found.group(1).decode("ascii", "replace")
                return True
        return False

    def end(self, told: str) -> None:
        """The process ends: "weak" from an exception it cannot survive, "strong" when its end is told."""
        if self.exit_told == "strong":
            return
        self.exit_told = told
        if self.phase != "exited":
            self.was_serving = self.was_serving or self.phase == "serving"
            self.enter("exited", "")

    def begin_again(self) -> None:
        """Another launch in the same log: forget all but the place in it."""
        self.thaw(Story(**{name: getattr(self, name) for name in PLACE}))
        self.attempts += 1
        self.attempt_offset = self.here
        self.first_time = self.settled_time
