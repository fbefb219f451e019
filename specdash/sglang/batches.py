"""Decode and prefill batches of a story: the newest lines, the whole log's history, idle per data-parallel rank.

These lines are most of a busy server's log, so what grows here is mutable for the time of one feed: `thaw` takes it
out of a story and `frozen` puts it back.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

from specdash.sglang import prefix
from specdash.sglang.decode import (
    FLOATS,
    INTS,
    DecodeLine,
    PrefillLine,
    Shape,
    broken,
    decode_line,
    prefill_line,
    whole,
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


class Head(NamedTuple):
    """A head that was read."""

    rank: str
    stamp: bytes
    time: Optional[float]


Pending = Tuple[Head, bytes, Optional[Shape], int]
"""A batch line that was found, to be read with its neighbours: message, where its numbers stand if known, offset."""
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

    def batches_seen(self, pending: List[Pending]) -> None:
        """Decode and prefill lines in their order. Long, since a call for each line would cost as much as its work."""
        decodes, prefills, told, at, new = self.decodes, self.prefills, self.told, self.at, _new
        width, point, serving = self.history_width, self.point, self.phase == "serving"
        had, rank, dp, state = len(decodes), "?", None, []  # type: Tuple[int, str, Optional[int], List[Any]]
        for place in pending:
            (name, _, time), body, shape, here = place
            if name != rank:
                rank = name
                dp = prefix.rank_number(rank, "DP") if "DP" in rank else None
                state = self.dps.get(dp) or self._dp(dp)
            if not (shape.decode if shape is not None else body.startswith(b"Decode")):
                line = self._prefill(place, dp)
                if not state[IDLE]:
                    state[IDLE] = not line.running and _was_idle(time, state)
                state[LAST] = time
                prefills.append(line)
                told.append(line)
                if not serving and self.phase != "exited" and (line.new_tokens or 0) > 1:
                    serving = self._serve(place, line.running, line.queued)
                continue
            first = state[IDLE]
            if shape is None:
                values = decode_line(body, time, at, rank, dp, here, first)
                running, queued, usage, length, rate, tok_s, graph = values[4:11]
            else:
                r, q, u, a, b, t = shape.cut(body)
                graph = shape.graph
                tok_s = float(t) if t else None
                try:
                    running, queued, usage, length, rate = INTS[r], INTS[q], FLOATS[u], FLOATS[a], FLOATS[b]
                except KeyError:
                    (running, queued), (usage, length, rate) = whole((r, q)), broken((u, a, b))
            before = state[TIME]
            gap = None if before is None or time is None else time - before
            if not first and gap is not None and gap > 3.0:
                first = _pause(gap, state, tok_s)
            if not first:
                state[GAP] = gap
            state[IDLE], state[TIME], state[TOK_S], state[LAST] = False, time, tok_s, time
            fields = (time, at, rank, dp, running, queued, usage, length, rate, tok_s, graph, first, here)
            decode = new(DecodeLine, fields)
            decodes.append(decode)
            told.append(decode)
            speed = None if first else tok_s
            if point is None or point[2] >= width:
                self._next_point(time, speed, length, running)
                width, point = self.history_width, self.point
            else:  # into the history's newest point
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
            if not serving:
                serving = self._serve(place, running, queued)
        self.decode_count += len(decodes) - had
        self._at(pending[-1])

    def _prefill(self, place: Pending, dp: Optional[int]) -> PrefillLine:
        (rank, _, time), body, shape, here = place
        self.prefill_count += 1
        if shape is None:
            line = prefill_line(body, time, self.at, rank, dp, here)
            new_tokens, cached = line.new_tokens, line.cached_tokens
        else:
            s, n, c, r, q, u, t = shape.cut(body)
            new_tokens, cached = int(n) if n else None, int(c) if c else None
            tok_s = float(t) if t else None
            try:
                seqs, running, queued, usage = INTS[s], INTS[r], INTS[q], FLOATS[u]
            except KeyError:
                (seqs, running, queued), (usage,) = whole((s, r, q)), broken((u,))
            fields = (time, self.at, rank, dp, seqs, new_tokens, cached, running, queued, usage, tok_s, here)
            line = _new(PrefillLine, fields)
        self.prompt_new += new_tokens or 0
        self.prompt_cached += cached or 0
        return line

    def _serve(self, place: Pending, running: Optional[int], queued: Optional[int]) -> bool:
        self._at(place)
        self.serve(running, queued)
        return self.phase == "serving"

    def _at(self, place: Pending) -> None:
        """The story is as far as this line."""
        (_, stamp, time), _, _, here = place
        self.stamp = self.settled_stamp = stamp
        self.settled_time, self.here = time, here

    def serve(self, running: Optional[int], queued: Optional[int]) -> None:
        raise NotImplementedError

    def _dp(self, dp: Optional[int]) -> List[Any]:
        first = self.ready_seen or self.phase not in ("unknown", "starting", "serving")
        if len(self.dps) >= KEEP_RANKS:
            self.dps.popitem()
        state = self.dps[dp] = list(DpState(dp, first, None, None, None))
        return state

    def _next_point(
        self, time: Optional[float], speed: Optional[float], length: Optional[float], running: Optional[int]
    ) -> None:
        """Begin another point of the whole log's history: neighbours are joined when it gets long."""
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
