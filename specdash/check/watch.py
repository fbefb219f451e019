"""What changed since the last look: one line for each target whose state, or whose problems, are others now."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

from specdash.check import render
from specdash.check.run import Result
from specdash.check.states import State

Seen = dict[tuple[str, str, int], tuple[State, frozenset[tuple[State, str]]]]
"""Target (name, kind, and which of those that are called the same) → its state and what is not OK, by name. Numbers in a sentence that move are no change."""


def changes(seen: Seen, results: list[Result]) -> Iterator[Result]:
    """The results that are news; `seen` is brought up to date. The first look is news altogether."""
    called: Counter[tuple[str, str]] = Counter()
    for result in results:
        key = (result.target, result.kind, called[result.target, result.kind])
        called[result.target, result.kind] += 1
        bad = frozenset((f.state, f.name) for f in result.findings if f.state is not State.OK)
        now = (result.state, bad)
        if seen.get(key) != now:
            seen[key] = now
            yield result


def line(result: Result, at_unix: float) -> str:
    """`2026-11-29T03:04:05+0000 CRITICAL gpu1: …`"""
    when = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(at_unix))
    return f"{when} {result.state.name} {render.summary(result)}"
