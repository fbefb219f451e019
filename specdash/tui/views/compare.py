"""Two or more runs side by side: what each measured, how long each phase of its load took, and curves on one scale.

What is not known is a dash, what was measured under another load says so. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specdash.monitor.state import HostState, ServerState
from specdash.tui.cells import cut_line, cut_middle, fit, wrap
from specdash.tui.loghistory import History
from specdash.tui.plot import chart, nice_top, resample
from specdash.tui.views.link import run_name, server_spans
from specdash.tui.views.load import PHASE_WORDS, USUAL
from specdash.tui.views.story import cause_of, elapsed_of, phases_of
from specdash.tui.words import DASH, Line, age, clock, number, one_line, share, signed_share

SAME_LOAD = 0.15
"""Mean requests that differ by less than this share are the same load."""
LABEL = 17
COLUMN = 15


@dataclass(frozen=True)
class Compared:
    """One side. `read`: share 0..1 of its log that has been read, None when nothing is known of it yet."""

    letter: str
    server: ServerState
    history: History
    read: float | None = None


def compare_rows(host: HostState, sides: Sequence[Compared], now: float, width: int) -> list[Line]:
    rows = _heads(sides, width)
    rows += [[("", "")], *_numbers(sides), *_remarks(sides, width)]
    rows += [[("", "")], *_loads(host, sides, now)]
    even = break_even(sides)
    for accept in (False, True):
        rows += [[("", "")], *_plots(sides, width, accept, even if accept else None)]
    return [cut_line(row, width) for row in rows]


def break_even(sides: Sequence[Compared]) -> float | None:
    """Accept length at which the drafting side is as fast as the base side under the same load; None when not told."""
    base = next((s for s in sides if not s.server.run.algorithm and s.history.tok_s), None)
    draft = next((s for s in sides if s.server.run.algorithm and s.history.tok_s), None)
    if base is None or draft is None or not _same([base.history.running, draft.history.running]):
        return None
    length, slow, fast = draft.history.accept_length, base.history.tok_s, draft.history.tok_s
    return None if not length or not slow or not fast else length * slow / fast


def _same(loads: Sequence[float | None]) -> bool:
    known = [load for load in loads if load]
    return len(known) == len(loads) and max(known) <= min(known) * (1 + SAME_LOAD)


def _heads(sides: Sequence[Compared], width: int) -> list[Line]:
    rows: list[Line] = []
    for side in sides:
        server = side.server
        line: Line = [(f" {side.letter} ", side.letter if side.letter in "ABC" else "A")]
        line += [(fit(run_name(server), min(24, width // 3)) + " ", "strong")]
        word, state_role = server_spans(server)[0]
        line += [(fit(one_line(server.run.algorithm) or "base", 11), ""), (fit(word, 12), state_role)]
        line.append((one_line(server.run.id), "dim"))
        rows.append(line)
        cause = cause_of(server)
        if cause is not None:
            rows += [[("   " + row, "bad")] for row in wrap(cause.sentence, width - 4)[:2]]
    return rows


def _row(name: str, cells: Sequence[str], extra: str = "", role: str = "") -> Line:
    line: Line = [(f" {name:<{LABEL - 1}}", "dim")]
    line += [(fit(cell, COLUMN, "right"), "dim" if cell == DASH else role) for cell in cells]
    return [*line, (f"  {extra}", "strong")] if extra else line


def _numbers(sides: Sequence[Compared]) -> list[Line]:
    told = [side.history for side in sides]
    head: Line = [(" " * LABEL, "")]
    for side in sides:
        name = fit(f"{side.letter} {cut_middle(run_name(side.server), COLUMN - 3)}", COLUMN, "right")
        head.append((name, side.letter if side.letter in "ABC" else "A"))
    rates = [one.tok_s for one in told]
    accepts = [one.accept_length for one in told]
    change = ""
    if len(sides) == 2 and rates[0] and rates[1] and _same([one.running for one in told]):
        change = signed_share(rates[1] / rates[0] - 1)
    return [
        head,
        _row("tok/s", [number(rate) for rate in rates], change, "strong"),
        _row("accept length", [number(length, 2) for length in accepts], role="strong"),
        _row("requests at once", [number(one.running) for one in told]),
        _row("seen over", [age(one.ended) if one.lines else DASH for one in told]),
        _row("decode lines", [f"{one.lines:,}" if one.lines else DASH for one in told]),
    ]


def _remarks(sides: Sequence[Compared], width: int) -> list[Line]:
    words: list[str] = []
    for side in sides:
        if side.read is None:
            words.append(f"{side.letter}: its log has not been read yet.")
        elif side.read < 0.999:
            words.append(
                f"{side.letter}: {share(side.read)} of its log has been read; the numbers still move."
            )
        elif not side.history.lines:
            words.append(f"{side.letter} has no decode line in its log: it never served, or logs none.")
    loads = [load for side in sides if (load := side.history.running)]
    if len(loads) > 1 and not _same(loads):
        words.append(
            "They ran under different loads: tok/s and accept length of one say little about the other."
        )
    even = break_even(sides)
    if even is not None:
        words.append(f"Break-even accept length by these two, under the same mean load: {number(even, 2)}.")
    return [
        [(" " + row, "warn" if "different loads" in text else "dim")]
        for text in words
        for row in wrap(text, width - 2)
    ]


def _loads(host: HostState, sides: Sequence[Compared], now: float) -> list[Line]:
    """Seconds of each phase of the load, in the order they come."""
    tables: list[dict[str, str]] = []
    for side in sides:
        table: dict[str, str] = {}
        for phase in phases_of(side.server, now):
            if phase.status == "next" or phase.name == "ready":
                continue
            took = clock(phase.seconds) if phase.seconds is not None else DASH
            table[phase.name] = {"failed": f"✗ {took}", "now": f"{took}…"}.get(phase.status, took)
        tables.append(table if side.server.story.size else {})
    names = [name for name in USUAL if any(name in table for table in tables)]
    names += [name for table in tables for name in table if name not in names and name not in USUAL]
    rows: list[Line] = [[(" Load", "title"), ("  minutes:seconds of each phase", "dim")]]
    for name in dict.fromkeys(names):
        rows.append(
            _row(PHASE_WORDS.get(name, name.replace("_", " ")), [table.get(name, DASH) for table in tables])
        )
    whole = []
    for side in sides:
        ready = side.server.status.ready_boot_s is not None
        started, at = side.server.status.started_boot_s, side.server.status.ready_boot_s
        waited = at - started if ready and started is not None and at is not None else None
        whole.append(clock(waited) if waited is not None else "never ready" if _over(side) else DASH)
    rows.append(_row("start to ready", whole, role="strong"))
    lived = [elapsed_to_end(host, side.server, now) for side in sides]
    return [*rows, _row("start to end", [clock(one) for one in lived])]


def _over(side: Compared) -> bool:
    return side.server.status.ended_boot_s is not None


def elapsed_to_end(host: HostState, server: ServerState, now: float) -> float | None:
    status = server.status
    if status.ended_boot_s is not None and status.started_boot_s is not None:
        return max(0.0, status.ended_boot_s - status.started_boot_s)
    return None if status.ready_boot_s is not None else elapsed_of(host, server, now)


def _plots(sides: Sequence[Compared], width: int, accept: bool, rule: float | None) -> list[Line]:
    """One curve a run, all on the same two scales: told apart by place, not by colour."""
    what = "accept length" if accept else "tok/s"
    curves = [side.history.points(accept) for side in sides]
    known = [value for points in curves for _, value in points if value is not None]
    title: Line = [(f" {what}", "title"), ("  from the first decode line on", "dim")]
    if rule is not None:
        title += [("   ╌╌ ", "rule-mark"), (f"break-even {number(rule, 2)}", "dim")]
    if not known:
        return [title, [(f" {DASH} no decode line tells it", "dim")]]
    span = max(10.0, *(side.history.ended + side.history.width_s for side in sides))
    low = 1.0 if accept else 0.0
    high = nice_top([*known, rule], 2.0 if accept else 1.0)
    rows: list[Line] = [title]
    axis, high_rows = 7, 4
    room = max(8, width - axis - 4)
    for side, points in zip(sides, curves, strict=True):
        role = side.letter if side.letter in "ABC" else "A"
        if not points:
            base = accept and not side.server.run.algorithm
            words = "base, no speculation" if base else f"{DASH} nothing known"
            rows.append([(f" {side.letter} ", role), (words, "dim")])
            continue
        drawn = chart(resample(points, 0.0, span, room * 2), room, high_rows, low, high, rule)
        for y, spans in enumerate(drawn):
            mark = number(high, 1 if accept else 0) if y == 0 else ""
            mark = number(low, 1 if accept else 0) if y == high_rows - 1 else mark
            lead: Line = [
                (f" {side.letter if y == 0 else ' '} ", role),
                (f"{mark:>{axis - 3}}", "dim"),
                ("│", "rule"),
            ]
            rows.append([*lead, *spans])
    end = age(span)
    rows.append([(" " * axis + " 0", "dim"), (" " * max(1, room - len(end) - 1) + end, "dim")])
    return rows
