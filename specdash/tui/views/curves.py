"""A server's last minutes as curves: sparklines, and plots with the break-even line. Pure."""

from __future__ import annotations

from specdash.monitor.state import ServerState
from specdash.tui.cells import cut_line, fit, spread
from specdash.tui.plot import chart, nice_top, resample, spark
from specdash.tui.words import DASH, Line, number

PLOT_SECONDS = 300.0


def covered_s(server: ServerState, now: float) -> float:
    """Seconds that the plots cover: what there is, a minute at least, five at most."""
    starts = [
        history[0][0] for history in (server.numbers.accept_history, server.numbers.decode_history) if history
    ]
    return min(PLOT_SECONDS, max(60.0, now - min(starts))) if starts else PLOT_SECONDS


def columns_of(
    history: tuple[tuple[float, float | None], ...], now: float, columns: int, span_s: float
) -> list[float | None]:
    return resample(history, now - span_s + 1e-6, now + 1e-6, columns)


def spark_rows(server: ServerState, now: float, width: int, dull: bool) -> list[Line]:
    """tok/s and accept length, accept first: it is what the hunt is about."""
    n = server.numbers
    rows: list[Line] = []
    for label, history, digits in (
        ("accept", n.accept_history, 2),
        ("tok/s", n.decode_history, 0),
    ):
        if not any(value is not None for _, value in history):
            continue
        known = [value for _, value in history if value is not None]
        low, high = min(known), max(known)
        tail = f" {number(low, digits)} to {number(high, digits)}"
        room = width - 9 - len(tail)
        if room < 8:
            continue
        values = columns_of(history, now, room, covered_s(server, now))
        # From a little under the smallest: a curve that moves by 10 % must be seen to move.
        floor = max(0.0, low - (high - low) / 6) if high > low else low - 1
        rows.append(
            [
                (f" {label:<7}", "dim"),
                (fit(spark(values, floor, high), room), "stale" if dull else "plot"),
                (tail, "dim"),
            ]
        )
    return rows


def plot_rows(
    server: ServerState, now: float, width: int, height: int, dull: bool, *, accept: bool
) -> list[Line]:
    """A title row and `height - 1` rows of braille with a left axis; the break-even line where it belongs."""
    n, even = server.numbers, server.breakeven
    history = n.accept_history if accept else n.decode_history
    rule = even.break_even if accept else None
    name = "accept length" if accept else "tok/s"
    title: Line = [(f" {name}", "dim"), (f" {max(1, round(covered_s(server, now) / 60))} min", "dim")]
    if rule is not None:
        title += [("  ╌╌ ", "rule-mark"), (f"break-even {number(rule, 2)}", "dim")]
    known = [value for _, value in history if value is not None]
    rows = height - 1
    if not known:
        blank = [[(" " + DASH + " no samples yet", "dim")], *[[("", "")] for _ in range(rows - 1)]]
        return [title, *blank]
    low = 1.0 if accept else 0.0
    high = nice_top([*known, rule], 2.0 if accept else 1.0)
    axis = 6
    room = max(4, width - axis - 2)
    values = columns_of(history, now, room * 2, covered_s(server, now))
    drawn = chart(values, room, rows, low, high, rule)
    out: list[Line] = [title]
    for y, spans in enumerate(drawn):
        mark = (
            number(high, 1 if accept else 0)
            if y == 0
            else number(low, 1 if accept else 0)
            if y == rows - 1
            else ""
        )
        line: Line = [(f"{mark:>{axis}}", "dim"), ("│", "rule")]
        line += [(text, "stale" if dull and role == "plot" else role) for text, role in spans]
        out.append(line)
    return out


def plots_rows(server: ServerState, now: float, width: int, height: int, dull: bool) -> list[Line]:
    each = (width - 2) // 2
    left = plot_rows(server, now, each, height, dull, accept=True)
    right = plot_rows(server, now, each, height, dull, accept=False)
    return [
        spread(cut_line(a, each), [], each + 2)[:] + cut_line(b, each)
        for a, b in zip(left, right, strict=True)
    ]
