"""Every number with its source, window, age and unit: what `i` shows."""

from __future__ import annotations

from specdash.monitor.state import Reading, ServerState
from specdash.tui.cells import cut, wrap
from specdash.tui.words import DASH, Line, age, number, one_line, stale


def source_rows(server: ServerState, now: float, width: int) -> list[Line]:
    """Every number with its source, window, age and unit, for `i`."""
    n = server.numbers
    table: list[tuple[str, Reading[float] | Reading[int], int]] = [
        ("decode", n.decode_tok_s, 1),
        ("prefill", n.prefill_tok_s, 1),
        ("running", n.running, 0),
        ("queued", n.queued, 0),
        ("cap", n.running_cap, 0),
        ("KV used (0..1)", n.kv_used, 3),
        ("cache hit (0..1)", n.cache_hit, 3),
        ("accept length", n.accept_length, 3),
        ("… since start", n.accept_length_start, 3),
        ("accept rate (0..1)", n.accept_rate, 3),
    ]
    for key in ("p50", "p90", "p99"):
        for name, latency in (("first token", n.ttft_s), ("between tokens", n.itl_s), ("request", n.e2e_s)):
            if key in latency:
                table.append((f"{name} {key}", latency[key], 4))
    rows: list[Line] = []
    for name, reading, digits in table:
        if reading.value is None:
            why = reading.note or (f"not told by {reading.source}" if reading.source else "")
            rows.append(
                [(f" {name:<20}", "dim"), (DASH, "dim"), (cut(f"  {one_line(why)}", width - 23), "dim")]
            )
            continue
        parts = [
            f"{number(reading.value, digits)} {reading.unit}".strip(),
            f"from {reading.source or 'unknown'}",
        ]
        if reading.window_s is not None:
            parts.append(f"over {age(reading.window_s)}")
        if reading.load is not None:
            parts.append(f"at {reading.load} running")
        if reading.includes_bonus is not None:
            parts.append("bonus token counts" if reading.includes_bonus else "bonus token does not count")
        parts.append(f"{age(reading.age(now))} old")
        if reading.note:
            parts.append(reading.note)
        text = wrap(one_line(", ".join(parts)), width - 22)
        rows.append([(f" {name:<20}", "dim"), (text[0], "stale" if stale(reading, now) else "")])
        rows += [[(" " * 21, ""), (more, "dim")] for more in text[1:]]
    even = server.breakeven
    rows.append([("", "")])
    rows.append([(" break-even", "title")])
    for name, value in (
        ("base ms per token", number(even.base_ms_per_token, 2)),
        ("cycle ms", number(even.cycle_ms, 2)),
        ("running", number(even.running, 0)),
        ("base from", one_line(even.base_source) or DASH),
    ):
        rows.append([(f" {name:<20}", "dim"), (cut(value, width - 22), "")])
    for row in wrap(one_line(even.sentence or even.missing), width - 2):
        rows.append([(" " + row, "")])
    return rows
