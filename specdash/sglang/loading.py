"""What the known lines mean for a story: the load's phases, batches, the end. Base of `telling.Teller`."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import List, Match, Optional, Set, Tuple

from specdash.sglang import argsline, phases, prefix
from specdash.sglang.decode import DecodeLine, PrefillLine, decode_line, prefill_line
from specdash.sglang.phases import Phase, Progress, Rule
from specdash.sglang.storytypes import (
    KEEP_DECODES,
    KEEP_HISTORY,
    KEEP_PHASES,
    KEEP_PREFILLS,
    KEEP_RANKS,
    DpState,
    HistoryPoint,
    Note,
    RankState,
    Story,
)
from specdash.sglang.trace import Traces

VERSION = re.compile(
    rb"(?i)\bsglang(?:[ _-]version| version)?\s*[:=v ]{1,3}\s*v?(\d+\.\d+\.\d+(?:[.\w+-]*\w)?)"
)
RETRACT = re.compile(rb"[Rr]etract.*?#retracted_reqs: (?P<n>\d+)")
RESET = re.compile(rb"Max running requests is reset to (?P<n>\d+) for speculative decoding")
DRAFT_TYPE = re.compile(rb"(?i)eagle|nextn|mtp|dflash|dspark|draft|medusa")
SUB_ORDER = {"": 0, "prefill": 1, "target": 1, "draft": 2}


class Loading(Traces):
    """Meanings of known lines. The fields are those of `Story`, lists in place of tuples."""

    at: Optional[float]
    here: int
    line: int
    phase: str
    sub_phase: str
    notes: List[Note]
    phases: List[Phase]
    ranks: List[str]
    rank_states: List[RankState]
    measured: List[Tuple[str, float]]
    decodes: List[DecodeLine]
    prefills: List[PrefillLine]
    history: List[HistoryPoint]
    dp_states: List[DpState]
    known_ranks: Set[bytes]

    # Phases.

    def enter(self, name: str, sub: str, inferred: bool = False) -> None:
        """Begin a phase now, and end the one before."""
        self.settle_time()
        now, at = self.settled_time, self.at
        if self.phases:
            last = self.phases[-1]
            if last.inferred and last.name == "kv_alloc" and name == "loading_weights":
                self.phases.pop()
            if self.phases:
                self.phases[-1] = _ended(self.phases[-1], now, at)
        offset = self.here if self.phases else 0
        self.phases.append(Phase(name, sub, now, at, None, None, offset, inferred))
        if len(self.phases) > KEEP_PHASES:
            del self.phases[1]
        self.phase, self.sub_phase = name, sub
        bar = self.bar
        if bar is not None and bar.phase == "" and bar.done == 0 and name in ("graph_capture", "jit_compile"):
            # A bar without a label came first, glued in front of the line that says what it counts.
            self.bar = bar._replace(
                phase=name, sub=sub, unit="graphs" if name == "graph_capture" else bar.unit
            )

    def goto(self, name: str, sub: str, rank: str, inferred: bool = False) -> None:
        """Move the load to a phase as far as one rank's word goes.

        Any rank moves it forward; back moves only the first rank, whose order is the load's order (others
        lag). What is told once serves is no load.
        """
        if self.phase in ("ready", "serving") or self.exit_told == "strong":
            return
        here, there = phases.position(self.phase), phases.position(name)
        if self.phase == "exited":
            self.revive()
            here = phases.position(self.phase) if self.phase != "exited" else 0
        if name == self.phase and self.phases and self.phases[-1].inferred and not inferred:
            last = self.phases[-1]
            self.phases[-1] = Phase(name, sub, last.began, last.began_at, None, None, last.offset, False)
            self.sub_phase = sub
            return
        if name == self.phase and sub == self.sub_phase:
            return
        back = there < here or (there == here and SUB_ORDER.get(sub, 0) < SUB_ORDER.get(self.sub_phase, 0))
        if back and not self.leads(rank):
            return
        self.enter(name, sub, inferred)

    def revive(self) -> None:
        """It goes on after an exception that looked like its end: take that end back."""
        self.exit_told = ""
        self.evidence = [replace(e, fatal=0) if e.fatal == 1 else e for e in self.evidence]
        if len(self.phases) > 1 and self.phases[-1].name == "exited":
            self.phases.pop()
            last = self.phases[-1]
            self.phases[-1] = Phase(
                last.name, last.sub, last.began, last.began_at, None, None, last.offset, last.inferred
            )
            self.phase, self.sub_phase = last.name, last.sub

    def leads(self, rank: str) -> bool:
        """Whether no lower rank has spoken of its load."""
        mine = prefix.order(rank)
        return all(prefix.order(state.rank) >= mine for state in self.rank_states)

    def state_of(self, rank: str) -> Tuple[int, RankState]:
        for i, state in enumerate(self.rank_states):
            if state.rank == rank:
                return i, state
        state = RankState(rank, "", 0, 0, None)
        if len(self.rank_states) < KEEP_RANKS:
            self.rank_states.append(state)
            return len(self.rank_states) - 1, state
        return len(self.rank_states) - 1, state

    def measure(self, name: str, value: Optional[float], how: str = "max") -> None:
        """Keep a number: the largest over ranks, the last, or the sum."""
        if value is None:
            return
        for i, (key, old) in enumerate(self.measured):
            if key == name:
                new = max(old, value) if how == "max" else old + value if how == "sum" else value
                self.measured[i] = (name, new)
                return
        self.measured.append((name, value))

    def meant(self, rule: Rule, body: bytes, rank: str) -> bool:
        """Do what a line of known meaning says. False when it is not that line."""
        found = rule.pattern.match(body)
        if found is None:
            return False
        getattr(self, "on_" + rule.meaning)(found, body, rank)
        if rule.phase in phases.LOADING:
            i, state = self.state_of(rank)
            self.rank_states[i] = state._replace(phase=rule.phase)
        return True

    def on_args(self, found: Match[bytes], body: bytes, rank: str) -> None:
        if self.phase not in ("unknown", "starting", "starting_http_or_warmup"):
            self.begin_again()
        if self.phase == "unknown":
            self.enter("starting", "")
        self.arguments = argsline.parse(body.decode("utf-8", "replace"))
        fraction = dict(self.arguments).get("mem_fraction_static")
        if isinstance(fraction, (int, float)):
            self.measure("mem_fraction_static", float(fraction), "last")
        running = dict(self.arguments).get("max_running_requests")
        if isinstance(running, int) and self.max_running_requests is None:
            self.max_running_requests = running

    def on_dist_begin(self, found: Match[bytes], body: bytes, rank: str) -> None:
        if self.state_of(rank)[1].loads == 0:
            self.goto("init_distributed", "", rank)

    on_dist_end = on_dist_begin

    def on_load_begin(self, found: Match[bytes], body: bytes, rank: str) -> None:
        i, state = self.state_of(rank)
        self.rank_states[i] = state._replace(loads=state.loads + 1, load_began=self.settled_time)
        sub = "draft" if state.loads else "target"
        if sub == "target":
            self.measure("avail_begin_gb", _number(found, "avail"))
        self.goto("loading_weights", sub, rank)

    def on_load_end(self, found: Match[bytes], body: bytes, rank: str) -> None:
        state = self.state_of(rank)[1]
        kind = found.group("type") or b""
        draft = state.loads > 1 or (state.loads == 0 and DRAFT_TYPE.search(kind) is not None)
        head = "draft_" if draft else ""
        usage = _number(found, "usage")
        self.measure(head + "weights_gb", usage if usage is None or usage > 0 else 0.0)
        seconds = _number(found, "secs")
        if seconds is None and state.load_began is not None and self.settled_time is not None:
            seconds = max(0.0, self.settled_time - state.load_began)
        self.measure(head + "load_weight_s", seconds)
        self.measure("avail_gb", _number(found, "avail"), "last")
        self.goto("kv_alloc", "draft" if draft else "target", rank, inferred=True)

    def on_kv(self, found: Match[bytes], body: bytes, rank: str) -> None:
        state = self.state_of(rank)[1]
        if state.pools == 0:
            self.measure("kv_tokens", _number(found, "tokens"))
            both = [_number(found, "k"), _number(found, "v")]
            size = _number(found, "kv") if None in both else sum(part or 0.0 for part in both)
            self.measure("kv_gb", size)
        self.goto("kv_alloc", "draft" if state.pools else "target", rank)

    def on_kv_none(self, found: Match[bytes], body: bytes, rank: str) -> None:
        self.goto("kv_alloc", "draft" if self.state_of(rank)[1].pools else "target", rank)

    def on_pool_end(self, found: Match[bytes], body: bytes, rank: str) -> None:
        i, state = self.state_of(rank)
        self.measure("avail_gb", _number(found, "avail"), "last")
        self.goto("kv_alloc", "draft" if state.pools else "target", rank)
        self.rank_states[i] = state._replace(pools=state.pools + 1)

    def on_capture_begin(self, found: Match[bytes], body: bytes, rank: str) -> None:
        self.goto("graph_capture", phases.capture_sub(found.group("what")), rank)

    def on_capture_end(self, found: Match[bytes], body: bytes, rank: str) -> None:
        sub = phases.capture_sub(found.group("what"))
        if self.leads(rank):
            self.measure(sub + "_capture_s", _number(found, "secs"), "sum")
        self.goto("graph_capture", sub, rank)

    def on_jit(self, found: Match[bytes], body: bytes, rank: str) -> None:
        self.goto("jit_compile", self.sub_phase, rank)

    def on_summary(self, found: Match[bytes], body: bytes, rank: str) -> None:
        running = found.group("running")
        if running is not None:
            self.max_running_requests = int(running[:12])
        self.measure("kv_tokens", _number(found, "tokens"))
        self.measure("context_len", _number(found, "ctx"), "last")
        self.measure("avail_gb", _number(found, "avail"), "last")
        self.goto("starting_http_or_warmup", "", rank)

    def on_http_start(self, found: Match[bytes], body: bytes, rank: str) -> None:
        self.goto("starting_http_or_warmup", "", rank)

    on_http_up = on_http_start
    on_warmup = on_http_start

    def on_fired_up(self, found: Match[bytes], body: bytes, rank: str) -> None:
        if self.bind_failed:
            self.false_ready = True
            return
        self.ready_seen = True
        self.ready_time, self.ready_at = self.settled_time, self.at
        if self.phase != "serving":
            if self.exit_told == "weak":
                self.revive()
            if not self.exit_told and self.phase != "serving":
                self.enter("ready", "")

    def on_worker_up(self, found: Match[bytes], body: bytes, rank: str) -> None:
        self.worker_node = True
        self.goto("ready", "worker", rank)

    def bar_seen(self, bar: Tuple[bytes, int, int]) -> None:
        """A progress bar; it carries no time and no rank."""
        label, done, total = bar
        phase, unit = phases.bar_meaning(label)
        if self.phase in ("ready", "serving") or self.exit_told:
            return
        self.settle_time()
        lagging = phase and phases.position(phase) < phases.position(self.phase)
        if phase and phase != self.phase and not lagging:
            self.goto(phase, self.sub_phase or "target", "")
        owner = phase or ("" if self.phase in ("unknown", "starting", "init_distributed") else self.phase)
        if not phase and owner == "graph_capture":
            unit = "graphs"
        self.bar = Progress(done, total, unit, label.decode("utf-8", "replace"), owner, self.sub_phase)

    # Batches.

    def decode_seen(self, body: bytes, rank: str) -> bool:
        dp = prefix.rank_number(rank, "DP")
        i, state = self.dp_of(dp)
        line = decode_line(body, self.settled_time, self.at, rank, dp, self.here, state.idle)
        gap = None if state.time is None or line.time is None else line.time - state.time
        idle = state.idle or (gap is not None and gap > 3.0 and _pause(gap, state, line.tok_s))
        if idle and not state.idle:
            line = line._replace(first_after_idle=True)
        self.dp_states[i] = DpState(
            dp, False, line.time, gap if not idle else state.gap, line.tok_s, line.time
        )
        self.decodes.append(line)
        if len(self.decodes) > KEEP_DECODES + 64:
            del self.decodes[:64]
        self.decode_count += 1
        self.remember(line)
        if self.phase != "serving":
            self.serve(line.running, line.queued)
        return True

    def prefill_seen(self, body: bytes, rank: str) -> bool:
        dp = prefix.rank_number(rank, "DP")
        line = prefill_line(body, self.settled_time, self.at, rank, dp, self.here)
        i, state = self.dp_of(dp)
        idle = state.idle or (not line.running and _was_idle(line.time, state))
        self.dp_states[i] = state._replace(idle=idle, batch=line.time)
        self.prefills.append(line)
        if len(self.prefills) > KEEP_PREFILLS + 16:
            del self.prefills[:16]
        self.prefill_count += 1
        self.prompt_new += line.new_tokens or 0
        self.prompt_cached += line.cached_tokens or 0
        if self.phase not in ("serving", "exited") and (line.new_tokens or 0) > 1:
            self.serve(line.running, line.queued)
        return True

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

    def dp_of(self, dp: Optional[int]) -> Tuple[int, DpState]:
        for i, state in enumerate(self.dp_states):
            if state.dp == dp:
                return i, state
        first = self.ready_seen or self.phase not in ("unknown", "starting", "serving")
        state = DpState(dp, first, None, None, None)
        if len(self.dp_states) >= KEEP_RANKS:
            self.dp_states.pop()
        self.dp_states.append(state)
        return len(self.dp_states) - 1, state

    def remember(self, line: DecodeLine) -> None:
        """Into the history of the whole log: neighbours are joined when it gets long."""
        speed, length, running = None if line.first_after_idle else line.tok_s, line.accept_len, line.running
        if self.history and self.history[-1].lines < self.history_width:
            time, at, lines, total, count, low, high, accepted, told, most = self.history[-1]
            if speed is not None:
                total, count = total + speed, count + 1
                low = speed if low is None or speed < low else low
                high = speed if high is None or speed > high else high
            if length is not None:
                accepted, told = accepted + length, told + 1
            if running is not None and (most is None or running > most):
                most = running
            self.history[-1] = HistoryPoint(
                time, at, lines + 1, total, count, low, high, accepted, told, most
            )
            return
        one, told = int(speed is not None), int(length is not None)
        self.history.append(
            HistoryPoint(line.time, line.at, 1, speed or 0.0, one, speed, speed, length or 0.0, told, running)
        )
        if len(self.history) > KEEP_HISTORY:
            whole = self.history
            self.history = [_joined(a, b) for a, b in zip(whole[::2], whole[1::2])] + whole[
                len(whole) // 2 * 2 :
            ]
            self.history_width *= 2

    # A living server's states, and its end.

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
        keep = (
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
        fresh = vars(Story())
        for name, value in fresh.items():
            if name not in keep:
                self.__dict__[name] = list(value) if isinstance(self.__dict__[name], list) else value
        self.attempts += 1
        self.attempt_offset = self.here
        self.first_time = self.settled_time
        self.known_ranks.clear()
        self.forget_notes()

    def forget_notes(self) -> None:
        raise NotImplementedError

    def settle_time(self) -> None:
        raise NotImplementedError


def _ended(phase: Phase, now: Optional[float], at: Optional[float]) -> Phase:
    return Phase(phase.name, phase.sub, phase.began, phase.began_at, now, at, phase.offset, phase.inferred)


def _number(found: Match[bytes], group: str) -> Optional[float]:
    value = found.groupdict().get(group)
    if value is None:
        return None
    try:
        return float(value)
    except ValueError:
        return None


def _was_idle(time: Optional[float], state: DpState) -> bool:
    """Nothing ran when this prefill began, and not only between two requests of one stream.

    Up to a decode interval goes by without a line at the end of each request, and log times are whole seconds.
    """
    if time is None or state.batch is None:
        return True
    return not 0 <= time - state.batch <= max(2.0, 2 * (state.gap or 0.0))


def _pause(gap: Optional[float], state: DpState, tok_s: Optional[float]) -> bool:
    """Idle without a prefill line (a decode-only instance): a gap far over the last one, and slower for it."""
    if gap is None or state.gap is None or tok_s is None or not state.tok_s:
        return False
    return gap > max(3.0, 4 * state.gap) and tok_s < 0.5 * state.tok_s


def _joined(a: HistoryPoint, b: HistoryPoint) -> HistoryPoint:
    lows = [v for v in (a.tok_s_min, b.tok_s_min) if v is not None]
    highs = [v for v in (a.tok_s_max, b.tok_s_max) if v is not None]
    runs = [v for v in (a.running_max, b.running_max) if v is not None]
    return HistoryPoint(
        a.time,
        a.at,
        a.lines + b.lines,
        a.tok_s_sum + b.tok_s_sum,
        a.tok_s_lines + b.tok_s_lines,
        min(lows) if lows else None,
        max(highs) if highs else None,
        a.accept_sum + b.accept_sum,
        a.accept_lines + b.accept_lines,
        max(runs) if runs else None,
    )
