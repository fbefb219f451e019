# ruff: noqa: PTH118, PTH123
"""How fast the simulated engine decodes: one cycle time and one accept length that wanders.

Numbers from the field (8 GPUs, one stream): base 63.6 tok/s (15.7 ms a token); with a drafter one cycle of
draft and verify takes 28.8 ms, so the break-even accept length is 1.83; NGRAM 41 tok/s.
A drafter folder's `simulate.json` sets `accept_length`, `cycle_ms` and `fail`; `<home>/.sim/accept_length`
(a number in a file) overrides the accept length while the engine runs. SPECDASH_DEMO_PACE divides all cycle times, for
tests that need relations, not seconds.
"""

from __future__ import annotations

import json
import math
import os
import random
from dataclasses import dataclass, field
from typing import Any

BASE_MS = 1000 / 63.6
SPEC_MS = 28.8
NGRAM_MS = 29.0
MORE_MS = 0.06
"""Share that each further running request adds to a cycle."""


@dataclass
class Drafting:
    algorithm: str = ""
    draft_tokens: int = 0
    """Most tokens per verify step, bonus token included."""
    accept_length: float = 1.0
    cycle_ms: float = BASE_MS
    fail: str = ""
    override: str = ""
    rng: random.Random = field(default_factory=lambda: random.Random(7))

    def mean(self, now: float) -> float:
        """The accept length wanted at this time: slow waves around its own level."""
        if not self.algorithm:
            return 1.0
        level = self._override() or self.accept_length
        wave = 0.11 * math.sin(now / 17) + 0.07 * math.sin(now / 5.3 + 1)
        return max(1.0, min(float(self.draft_tokens), 1 + (level - 1) * (1 + wave)))

    def step(self, now: float) -> int:
        """Tokens that one request gets from one cycle: 1 + accepted drafts, each further one as likely."""
        if not self.algorithm:
            return 1
        likely = chance(self.mean(now), self.draft_tokens - 1)
        tokens = 1
        while tokens < self.draft_tokens and self.rng.random() < likely:
            tokens += 1
        return tokens

    def cycle_s(self, running: int) -> float:
        jitter = 1 + 0.015 * (self.rng.random() - 0.5)
        return self.cycle_ms / 1000 * (1 + MORE_MS * max(0, running - 1)) * jitter

    def _override(self) -> float:
        try:
            with open(self.override) as f:
                return float(f.read(32))
        except (OSError, ValueError):
            return 0.0


def chance(length: float, drafts: int) -> float:
    """p with 1 + p + p² + … + p^drafts = length."""
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**i for i in range(drafts + 1)) < length else (low, middle)
    return high


def choose(args: Any, sim: str) -> Drafting:
    """The drafting that a command line means. `sim`: the demo host's `.sim` folder."""
    fail = os.environ.get("SPECDASH_DEMO_FAIL", "")
    pace = float(os.environ.get("SPECDASH_DEMO_PACE") or 1)
    name = (args.speculative_algorithm or "").upper()
    if not name or name == "NONE":
        return Drafting(cycle_ms=BASE_MS / pace, fail=fail)
    told: dict[str, Any] = {}
    if args.speculative_draft_model_path and name != "NGRAM":
        try:
            with open(os.path.join(args.speculative_draft_model_path, "simulate.json")) as f:
                told = json.load(f)
        except (OSError, ValueError):
            told = {}
    ngram = name == "NGRAM"
    return Drafting(
        algorithm=name,
        draft_tokens=args.speculative_num_draft_tokens or (12 if ngram else 4),
        accept_length=float(
            os.environ.get("SPECDASH_DEMO_ACCEPT_LENGTH") or told.get("accept_length", 1.19 if ngram else 2.0)
        ),
        cycle_ms=float(told.get("cycle_ms", NGRAM_MS if ngram else SPEC_MS)) / pace,
        fail=fail or str(told.get("fail", "")),
        override=os.path.join(sim, "accept_length"),
    )
