"""The simulated scheduler: one running batch, SGLang's Prefill and Decode lines, its counters and histograms."""

from __future__ import annotations

import bisect
import random
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from . import templates
from .drafting import Drafting

TTFT = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
ITL = (
    0.002,
    0.004,
    0.006,
    0.008,
    0.01,
    0.015,
    0.02,
    0.025,
    0.03,
    0.035,
    0.04,
    0.06,
    0.08,
    0.1,
    0.2,
    0.4,
    0.6,
    0.8,
    1,
    2,
    4,
    6,
    8,
)
E2E = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400, 600, 1200, 1800, 2400)
TICK_S = 0.05


class Histogram:
    """Prometheus buckets: `counts[i]` observations at or under `bounds[i]`."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += times
        self.sum += value * times


@dataclass
class Request:
    prompt: int
    wanted: int
    outside: bool = True
    """From a client over HTTP, not of the built-in traffic."""
    rid: str = field(default_factory=lambda: uuid.uuid4().hex)
    born: float = field(default_factory=time.time)
    got: int = 0
    verifies: int = 0
    histogram: list[int] = field(default_factory=list)
    first_at: float = 0.0
    last_at: float = 0.0
    ended: float = 0.0
    aborted: bool = False


class Batch:
    """All fields are guarded by `changed`."""

    def __init__(
        self, drafting: Drafting, say: Callable[..., None], cap: int, kv_tokens: int, every: int, streams: int
    ) -> None:
        self.drafting, self.say, self.cap = drafting, say, cap
        self.kv_tokens, self.every, self.streams = kv_tokens, max(1, every), streams
        self.changed = threading.Condition()
        self.running: list[Request] = []
        self.queue: list[Request] = []
        self.draining = False
        self.rng = random.Random(11)
        self.total: dict[str, float] = {
            "prompt": 0,
            "cached": 0,
            "generation": 0,
            "verifies": 0,
            "requests": 0,
            "decode": 0,
            "prefill": 0,
        }
        self.ttft, self.itl, self.e2e = Histogram(TTFT), Histogram(ITL), Histogram(E2E)
        self.gauge = {"rate": 0.0, "length": 0.0, "share": 0.0, "cache": 0.0}
        self.window = [0, 0, 0.0, 0]  # cycles, tokens, seconds, request-cycles
        self.spec_tokens, self.spec_cycles = 0, 0
        self.debt = 0.0
        self.prefilled_at = time.monotonic()

    def submit(self, request: Request) -> None:
        with self.changed:
            self.queue.append(request)
            self.changed.notify_all()

    def wait(self, request: Request, seen: int, timeout: float = 600.0) -> int:
        """Waits until the request has more tokens than `seen`, or ended; tokens now."""
        with self.changed:
            self.changed.wait_for(lambda: request.got > seen or request.ended or request.aborted, timeout)
            return request.got

    def outside(self) -> int:
        with self.changed:
            return sum(r.outside for r in self.running + self.queue)

    def busy(self) -> float:
        return 0.0 if not self.running else min(1.0, 0.82 + 0.05 * len(self.running))

    def used(self) -> int:
        return sum(r.prompt + r.got for r in self.running)

    def tick(self, dt: float) -> None:
        """Advance by `dt` seconds of real time."""
        now = time.monotonic()
        with self.changed:
            self._traffic()
            self._admit(now)
            self.debt += dt
            while self.running:
                cycle = self.drafting.cycle_s(len(self.running))
                if self.debt < cycle:
                    break
                self.debt -= cycle
                self._cycle(now, cycle)
            if not self.running:
                self.debt = 0.0
            self.changed.notify_all()

    def _traffic(self) -> None:
        ours = sum(not r.outside for r in self.running + self.queue)
        if not self.draining and ours < self.streams:
            self.queue.append(Request(self.rng.randint(180, 1400), self.rng.randint(250, 700), outside=False))

    def _admit(self, now: float) -> None:
        while self.queue and len(self.running) < self.cap:
            request = self.queue.pop(0)
            cached = 0 if request.outside else min(64, request.prompt // 3)
            new = max(1, request.prompt - cached)
            span = max(0.05, now - self.prefilled_at)
            self.prefilled_at = now
            self.total["prefill"] += new
            self.total["cached"] += cached
            self.gauge["cache"] = cached / request.prompt
            self.say(
                templates.PREFILL, seqs=1, new=new, cached=cached, usage=self.used() / self.kv_tokens,
                running=len(self.running), queued=len(self.queue), rate=new / span,
            )  # fmt: skip
            request.first_at = request.last_at = time.time()
            request.got = 1
            self.ttft.add(max(0.03, request.first_at - request.born))
            self.running.append(request)
            if request.got >= request.wanted:
                self._end(request)

    def _cycle(self, now: float, cycle: float) -> None:
        window = self.window
        for request in self.running:
            tokens = min(self.drafting.step(now), request.wanted - request.got) or 1
            request.got += tokens
            if self.drafting.algorithm:
                request.verifies += 1
                request.histogram += [0] * (tokens - len(request.histogram))
                request.histogram[tokens - 1] += 1
                self.spec_tokens += tokens
                self.spec_cycles += 1
            window[1] += tokens
            window[3] += 1
            self.total["decode"] += tokens
            self.itl.add(cycle / tokens, tokens)
        window[0] += 1
        window[2] += cycle
        for request in [r for r in self.running if r.got >= r.wanted or r.aborted]:
            self._end(request)
        if window[0] >= self.every:
            self._report()

    def _end(self, request: Request) -> None:
        self.running.remove(request)
        request.ended = time.time()
        self.total["prompt"] += request.prompt
        self.total["generation"] += request.got
        self.total["verifies"] += request.verifies
        self.total["requests"] += 1
        self.e2e.add(request.ended - request.born)

    def _report(self) -> None:
        _, tokens, seconds, requests = self.window
        self.gauge["rate"] = tokens / seconds
        spec = ""
        if self.drafting.algorithm:
            self.gauge["length"] = tokens / requests
            self.gauge["share"] = (tokens / requests - 1) / max(1, self.drafting.draft_tokens - 1)
            spec = templates.DECODE_SPEC.format(length=self.gauge["length"], share=self.gauge["share"])
        used = self.used()
        self.say(
            templates.DECODE, running=len(self.running) or 1, tokens=used, usage=used / self.kv_tokens, spec=spec,
            rate=self.gauge["rate"], queued=len(self.queue),
        )  # fmt: skip
        self.window[:] = [0, 0, 0.0, 0]

    def average(self) -> float | None:
        """Accept length since start; None without speculation or before the first verify."""
        return self.spec_tokens / self.spec_cycles if self.spec_cycles else None

    def meta(self, request: Request) -> dict[str, Any]:
        """`meta_info` of a request, as /generate answers it."""
        over = bool(request.ended)
        found: dict[str, Any] = {
            "id": request.rid,
            "finish_reason": {"type": "length", "length": request.wanted} if over else None,
            "prompt_tokens": request.prompt,
            "weight_version": "default",
            "completion_tokens": request.got,
            "cached_tokens": 0,
            "dp_rank": None,
            "e2e_latency": (request.ended or time.time()) - request.born,
        }
        if self.drafting.algorithm and request.verifies:
            correct = sum(i * n for i, n in enumerate(request.histogram))
            proposed = request.verifies * (self.drafting.draft_tokens - 1)
            found.update(
                spec_accept_rate=correct / proposed if proposed else 0.0,
                spec_accept_length=request.got / request.verifies,
                spec_num_correct_drafts=correct,
                spec_num_proposed_drafts=proposed,
                spec_verify_ct=request.verifies,
                spec_correct_drafts_histogram=list(request.histogram),
            )
        return found
