"""What the live numbers were while nobody looked: decode lines that arrive late fill the gap in the histories.

The log goes on while specdash is away. Its lines are dated when they come (`reduce_log`), and what the numbers
would have been second by second follows from them by the very rule of the live ones.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import replace

from specdash.monitor.memory import KEEP_S, MOST_LINES, Memory
from specdash.monitor.state import Numbers
from specdash.sglang.decode import DecodeLine

LATE_S = 3.0
"""A line that was written longer ago than this did not come live."""
REACH_S = 900.0
"""As far back as the histories go: a point a second."""
MOST_PAST = 16384
STEP_S = 1.0

Series = tuple[tuple[float, float | None], ...]
Rule = Callable[[Numbers, Memory, float, bool | None], Numbers]


def remember(was: Memory, fresh: list[DecodeLine], now: float) -> Memory:
    """Keeps late lines until the histories are filled from them; drops them when they are no news any more."""
    late = [line for line in fresh if line.at is not None and line.at < now - LATE_S]
    if late:
        past = (*was.past, *late)[-MOST_PAST:]
        gone = bisect_right(past, now - REACH_S - KEEP_S, key=lambda line: line.at or 0.0)
        return replace(was, past=past[gone:])
    if was.past and was.filled is not None and was.filled < now - KEEP_S:
        return replace(was, past=())
    return was


def fill(m: Memory, old: Numbers, now: float, rule: Rule) -> tuple[Numbers, Memory]:
    """`old` with its histories filled in from `m.past`, as far as nothing is there yet. `rule`: live numbers of a log."""
    times = [line.at or 0.0 for line in m.past]
    if not times or (m.filled is not None and m.filled >= times[-1]):
        return old, m
    after = max(now - REACH_S, times[0] - STEP_S if m.filled is None else m.filled)
    there = [at for at, _ in old.decode_history]
    decode: list[tuple[float, float | None]] = []
    accept: list[tuple[float, float | None]] = []
    at = after + STEP_S
    while at <= min(times[-1] + STEP_S, now - STEP_S):
        if not _near(there, at):
            told = rule(Numbers(), _then(m, times, at), at, None)
            decode.append((at, told.decode_tok_s.value))
            accept.append((at, told.accept_length.value))
        at += STEP_S
    filled = replace(
        old,
        decode_history=_merged(old.decode_history, decode),
        accept_history=_merged(old.accept_history, accept),
    )
    return filled, replace(m, filled=times[-1])


def _then(m: Memory, times: list[float], at: float) -> Memory:
    """What the reducer would have remembered of the log at that time."""
    lines = m.past[bisect_right(times, at - KEEP_S) : bisect_right(times, at)][-MOST_LINES:]
    return Memory(lines=lines, last_decode=lines[-1].at if lines else None)


def _near(there: list[float], at: float) -> bool:
    index = bisect_left(there, at - STEP_S / 2)
    return index < len(there) and there[index] < at + STEP_S / 2


def _merged(old: Series, new: list[tuple[float, float | None]]) -> Series:
    if not new:
        return old
    return tuple(sorted([*old, *new], key=lambda point: point[0]))[-int(REACH_S / STEP_S) :]
