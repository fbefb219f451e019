"""Tracebacks kept whole, and lines that speak of failure: how evidence is gathered. Base of `loading.Loading`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, List, Optional

from specdash.sglang import signs
from specdash.sglang.phases import Phase
from specdash.sglang.storytypes import KEEP_EVIDENCE, Evidence, folded, same

HEAD_LINES = 60
TAIL_LINES = 120
LINE_CHARS = 500
ERRORS = 8
ERROR_CHARS = 3000
CHAIN = (b"During handling of the above", b"The above exception was")


class Traces:
    """Gathers evidence. The fields are those of `Story`."""

    open: Optional[Evidence]
    evidence: List[Evidence]
    phases: List[Phase]
    here: int
    line: int
    at: Optional[float]
    settled_time: Optional[float]
    settled_stamp: bytes
    stamp: bytes
    phase: str
    sub_phase: str
    was_serving: bool
    ready_seen: bool
    exit_told: str

    # Shared fields of the story that the bases below name (mypy: set from `vars(story)`).
    bar: Any
    arguments: Any
    max_running_requests: Optional[int]
    capped_by_speculation: Optional[int]
    bind_failed: bool
    false_ready: bool
    ready_time: Optional[float]
    ready_at: Optional[float]
    worker_node: bool
    decode_count: int
    prefill_count: int
    prompt_new: int
    prompt_cached: int
    history_width: int
    retractions: int
    retracted: int
    retract_offset: Optional[int]
    retract_line: str
    health_failures: int
    stop_asked: str
    draining: bool
    drain_remaining: Optional[int]
    finished_cleanly: bool
    evidence_dropped: int
    attempts: int
    attempt_offset: int
    first_time: Optional[float]
    last_at: Optional[float]
    version: str
    stamped: bool
    size: int
    rest: bytes
    skipped: int
    after_cr: bool
    lines: int
    records: int
    errors: int
    warnings: int

    def end(self, told: str) -> None:
        raise NotImplementedError

    def note(self, kind: str, body: bytes, rank: str) -> None:
        raise NotImplementedError

    def settle_time(self) -> None:
        raise NotImplementedError

    def _evidence(self, kind: str, head: str, rank: str, **more: Any) -> Evidence:
        self.settle_time()
        return Evidence(
            kind,
            head[:2000],
            rank=rank,
            time=self.settled_time,
            at=self.at,
            offset=self.here,
            line=self.line,
            phase=next((p.name for p in reversed(self.phases) if p.name != "exited"), ""),
            sub=self.sub_phase,
            serving=self.was_serving or self.phase == "serving",
            ranks=(rank,),
            **more,
        )

    def begin_trace(self, head: str, first: bytes, rank: str, fatal: int) -> None:
        """A traceback (or a bare exception line) begins. `fatal` -1: judge by its head."""
        if self.open is not None:
            self.close()
        if fatal < 0:
            fatal = 2 if signs.FATAL_HEAD.search(head) and not signs.SURVIVED_HEAD.search(head) else 0
        elif self.ready_seen or self.was_serving:
            fatal = 0
        self.open = self._evidence("exception", head, rank, fatal=fatal)
        if fatal == 2:
            self.end("weak")
        self.continued(first)

    def begin_plain(self, body: bytes, rank: str) -> None:
        """An ERROR record that no rule knows: keep it open, a traceback may follow."""
        self.open = self._evidence("line", body[:2000].decode("utf-8", "replace"), rank)

    def evidence_line(self, body: bytes, rank: str, level: str) -> bool:
        """A record that a sign knows. What follows without a head belongs to it."""
        head = body[:4000].decode("utf-8", "replace")
        said = level in ("ERROR", "CRITICAL", "FATAL") or signs.EXCEPTION_LINE.match(body) is not None
        found = signs.match(head, plain=self.stamped and not said)
        if found is None:
            return False
        sign, numbers = found
        survived = signs.SURVIVED_HEAD.search(head) is not None and sign.category != "oom_kv_pool"
        if survived or (sign.category == "launcher_missing" and self.stamped):
            return False
        self.open = self._evidence("line", head, rank, category=sign.category, numbers=tuple(numbers.items()))
        if sign.category in ("http_port_in_use", "bind_failed"):
            self.bind_failed = True
        refused = sign.category in signs.COMMAND_LINE and "error: " in head[:80] and not self.stamped
        if refused or sign.category in ("child_died", "child_exited", "killed_by_signal", "init_failed"):
            self.end("strong")
        elif signs.FATAL_HEAD.search(head):
            self.open = replace(self.open, fatal=2)
            self.end("weak")
        return True

    def continued(self, part: bytes) -> bool:
        """Add a line without a head to what is open. False when it does not belong there."""
        now = self.open
        if now is None:
            return False
        if now.kind == "line" and not now.lines and not part.strip():
            return True
        begins = part.startswith(b"Traceback (most recent call last)")
        bare = part.lstrip()
        if now.kind == "line" and part[:7] == b"usage: ":
            return False
        text = part[: LINE_CHARS * 4].decode("utf-8", "replace")[:LINE_CHARS]
        kind, errors = now.kind, now.errors
        if begins:
            kind = "exception"
        frame = part[:1] in b" \t" and part[:1] != b""
        if not frame and not begins and bare and not part.startswith(CHAIN):
            named = signs.EXCEPTION_LINE.match(part)
            if named and not named.group("type").endswith(b"Warning"):
                whole = part[:ERROR_CHARS].decode("utf-8", "replace")
                errors = errors + (whole,) if len(errors) < ERRORS else errors[:-1] + (whole,)
                kind = "exception"
            elif errors:
                errors = errors[:-1] + ((errors[-1] + "\n" + text)[:ERROR_CHARS],)
        lines, dropped = now.lines + (text,), now.dropped
        if len(lines) > HEAD_LINES + TAIL_LINES:
            lines, dropped = lines[:HEAD_LINES] + lines[HEAD_LINES + 1 :], dropped + 1
        fatal = now.fatal
        if begins and now.kind == "line" and not now.category:
            fatal = 0
        self.open = replace(now, kind=kind, lines=lines, errors=errors, dropped=dropped, fatal=fatal)
        if errors != now.errors and fatal == 1 and not self.exit_told:
            self.end("weak")
        return True

    def close(self) -> None:
        """What was open is whole. The same from another rank is folded."""
        now = self.open
        self.open = None
        if now is None or (now.kind == "line" and not now.category and not now.errors):
            return
        for i, old in enumerate(self.evidence):
            if same(old, now):
                self.evidence[i] = folded(old, now)
                return
        if len(self.evidence) >= KEEP_EVIDENCE:
            # Keep the first ones (causes) and the newest (the end).
            self.evidence_dropped += 1
            del self.evidence[KEEP_EVIDENCE - 8]
        self.evidence.append(now)
