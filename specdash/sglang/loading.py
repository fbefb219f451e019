"""What the known lines of a load mean for a story: its phases. Base of `ending.Ending`."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import List, Match, Optional, Tuple

from specdash.sglang import argsline, phases, prefix
from specdash.sglang.phases import Phase, Progress, Rule
from specdash.sglang.storytypes import KEEP_PHASES, KEEP_RANKS, Note, RankState
from specdash.sglang.trace import Traces

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

    def begin_again(self) -> None:
        raise NotImplementedError

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
