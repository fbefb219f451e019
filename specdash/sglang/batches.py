"""Decode and prefill batches of a story: the newest lines, the whole log's history, idle per data-parallel rank.

These lines are most of a busy server's log, so what grows here is mutable for the time of one feed: `thaw` takes it
out of a story and `frozen` puts it back.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple, Union

from specdash.sglang import prefix
from specdash.sglang.decode import (
    FLOATS,
    INTS,
    DecodeLine,
    PrefillLine,
    Shape,
    decode_line,
    prefill_line,
)
from specdash.sglang.storytypes import (
    KEEP_DECODES,
    KEEP_HISTORY,
    KEEP_PREFILLS,
    KEEP_RANKS,
    DpState,
    HistoryPoint,
    Story,
)
from specdash.sglang.trace import Traces

Batch = Union[DecodeLine, PrefillLine]
_new: Any = tuple.__new__
"""Makes a named tuple without looking at its defaults: half of the time of a line goes there otherwise."""
IDLE, TIME, GAP, TOK_S, LAST = range(1, 6)
"""Places in a `DpState`."""


class Batches(Traces):
    decodes: List[DecodeLine]
    prefills: List[PrefillLine]
    told: List[Batch]
    """All batch lines of this feed, in order."""

    def thaw(self, story: Story) -> None:
        self.points: List[HistoryPoint] = list(story.history[:-1])
        self.point: Optional[List[Any]] = list(story.history[-1]) if story.history else None
        self.dps: Dict[Optional[int], List[Any]] = {state.dp: list(state) for state in story.dp_states}

    def frozen(self) -> Dict[str, Any]:
        """What this part of a story is now. Which of the newest lines stay depends on their number alone."""
        return {
            "decodes": _newest(self.decodes, KEEP_DECODES, 64),
            "prefills": _newest(self.prefills, KEEP_PREFILLS, 16),
            "history": (*self.points, *([] if self.point is None else [HistoryPoint(*self.point)])),
            "dp_states": tuple(DpState(*state) for state in self.dps.values()),
        }

    def decode_seen(self, body: bytes, rank: str, shape: Optional[Shape] = None) -> None:
        """A `Decode batch` message; `shape` when it is known."""
        dp = prefix.rank_number(rank, "DP") if "DP" in rank else None
        state = self.dps.get(dp) or self._dp(dp)
        time = self.settled_time
        first = state[IDLE]
        if shape is None:
            line = decode_line(body, time, self.at, rank, dp, self.here, first)
            running, queued, usage, length, rate, tok_s, graph = line[4:11]
        else:
            r, q, u, a, b, t = shape.cut(body)
            running, queued, usage, graph = INTS[r], INTS[q], FLOATS[u], shape.graph
            length, rate, tok_s = FLOATS[a], FLOATS[b], FLOATS[t]
        gap = None if state[TIME] is None or time is None else time - state[TIME]
        if not first:
            first = gap is not None and gap > 3.0 and _pause(gap, state, tok_s)
        if not first:
            state[GAP] = gap
        state[IDLE], state[TIME], state[TOK_S], state[LAST] = False, time, tok_s, time
        line = _new(
            DecodeLine,
            (time, self.at, rank, dp, running, queued, usage, length, rate, tok_s, graph, first, self.here),
        )
        self.decodes.append(line)
        self.told.append(line)
        self.decode_count += 1
        self._remember(time, None if first else tok_s, length, running)
        if self.phase != "serving":
            self.serve(running, queued)

    def prefill_seen(self, body: bytes, rank: str, shape: Optional[Shape] = None) -> None:
        """A `Prefill batch` message; `shape` when it is known."""
        dp = prefix.rank_number(rank, "DP") if "DP" in rank else None
        time = self.settled_time
        if shape is None:
            line = prefill_line(body, time, self.at, rank, dp, self.here)
        else:
            s, n, c, r, q, u, t = shape.cut(body)
            numbers = (INTS[s], INTS[n], INTS[c], INTS[r], INTS[q], FLOATS[u], FLOATS[t])
            line = _new(PrefillLine, (time, self.at, rank, dp, *numbers, self.here))
        state = self.dps.get(dp) or self._dp(dp)
        if not state[IDLE]:
            state[IDLE] = not line.running and _was_idle(time, state)
        state[LAST] = time
        self.prefills.append(line)
        self.told.append(line)
        self.prefill_count += 1
        self.prompt_new += line.new_tokens or 0
        self.prompt_cached += line.cached_tokens or 0
        if self.phase != "serving" and self.phase != "exited" and (line.new_tokens or 0) > 1:
            self.serve(line.running, line.queued)

    def serve(self, running: Optional[int], queued: Optional[int]) -> None:
        raise NotImplementedError

    def _dp(self, dp: Optional[int]) -> List[Any]:
        first = self.ready_seen or self.phase not in ("unknown", "starting", "serving")
        if len(self.dps) >= KEEP_RANKS:
            self.dps.popitem()
        state = self.dps[dp] = list(DpState(dp, first, None, None, None))
        return state

    def _remember(
        self, time: Optional[float], speed: Optional[float], length: Optional[float], running: Optional[int]
    ) -> None:
        """Into the history of the whole log: neighbours are joined when it gets long. `speed` without waiting time."""
        point = self.point
        if point is None or point[2] >= self.history_width:
            self._next_point(time, speed, length, running)
            return
        point[2] += 1
        if speed is not None:
            point[3] += speed
            point[4] += 1
            if point[5] is None or speed < point[5]:
                point[5] = speed
            if point[6] is None or speed > point[6]:
                point[6] = speed
        if length is not None:
            point[7] += length
            point[8] += 1
        if running is not None and (point[9] is None or running > point[9]):
            point[9] = running

    def _next_point(
        self, time: Optional[float], speed: Optional[float], length: Optional[float], running: Optional[int]
    ) -> None:
        if self.point is not None:
            self.points.append(HistoryPoint(*self.point))
        one, told = int(speed is not None), int(length is not None)
        self.point = [time, self.at, 1, speed or 0.0, one, speed, speed, length or 0.0, told, running]
        if len(self.points) < KEEP_HISTORY:
            return
        whole = [*self.points, HistoryPoint(*self.point)]
        joined = [_joined(a, b) for a, b in zip(whole[::2], whole[1::2])] + whole[len(whole) // 2 * 2 :]
        self.points, self.point = joined[:-1], list(joined[-1])
        self.history_width *= 2


def _newest(lines: List[Any], keep: int, slack: int) -> Tuple[Any, ...]:
    """The last ones, dropped `slack` at a time."""
    over = len(lines) - keep - slack
    return tuple(lines[-(-over // slack) * slack :] if over > 0 else lines)


def _was_idle(time: Optional[float], state: List[Any]) -> bool:
    """Nothing ran when this prefill began, and not only between two requests of one stream.

    Up to a decode interval goes by without a line at the end of each request, and log times are whole seconds.
    """
    if time is None or state[LAST] is None:
        return True
    return not 0 <= time - state[LAST] <= max(2.0, 2 * (state[GAP] or 0.0))


def _pause(gap: float, state: List[Any], tok_s: Optional[float]) -> bool:
    """Idle without a prefill line (a decode-only instance): a gap far over the last one, and slower for it."""
    if state[GAP] is None or tok_s is None or not state[TOK_S]:
        return False
    return bool(gap > max(3.0, 4 * state[GAP]) and tok_s < 0.5 * state[TOK_S])


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
