"""A server's numbers in a few words: each with its own age, idle as "idle", unknown as a dash."""

from __future__ import annotations

from specdash.monitor.state import Numbers, Reading, ServerState
from specdash.tui.cells import cut, width_of
from specdash.tui.words import DASH, Line, age, number, one_line, share, signed_share, stale

VERDICT_WORDS = {
    "pays": ("pays", "ok-strong"),
    "does_not_pay": ("does not pay", "bad-strong"),
    "unknown": ("unknown", "dim"),
    "not_speculating": ("base, no speculation", "dim"),
}


def reading_spans(
    reading: Reading[float] | Reading[int], now: float, dull: bool, text: str, role: str = "strong"
) -> Line:
    """A number with its own staleness: a value that aged says so beside itself."""
    if reading.value is None:
        return [(DASH, "dim")]
    if dull:
        return [(text, "stale")]
    if stale(reading, now):
        return [(text, "stale"), (f" {age(reading.age(now))} old", "stale")]
    return [(text, role)]


def rate_text(numbers: Numbers) -> str:
    """tok/s in words: idle is "idle", unknown is a dash, never 0."""
    if numbers.idle:
        return "idle"
    return number(numbers.decode_tok_s.value)


def accept_spans(server: ServerState, now: float, dull: bool) -> Line:
    """`2.31 accept length  break-even 1.83  +26 % pays`."""
    numbers, even = server.numbers, server.breakeven
    line = reading_spans(numbers.accept_length, now, dull, number(numbers.accept_length.value, 2))
    if not (server.drafter.algorithm or server.run.algorithm) and numbers.accept_length.value is None:
        return [("base, no speculation", "stale" if dull else "dim")]
    words, role = VERDICT_WORDS[even.verdict]
    line += [
        (" against ", "dim"),
        (number(even.break_even, 2), "stale" if dull else "strong"),
        (" break-even", "dim"),
    ]
    if even.margin is not None:
        line.append((f"  {signed_share(even.margin)}", "stale" if dull else role))
    if even.verdict in ("pays", "does_not_pay"):
        line.append((f" {words}", "stale" if dull else role))
    return line


def facts(server: ServerState, now: float, dull: bool) -> list[tuple[str, Line]]:
    n = server.numbers
    running = reading_spans(n.running, now, dull, number(n.running.value, 0))
    cap: Line = [(f" / {number(n.running_cap.value, 0)}", "stale" if dull else "dim")]
    if n.running_cap.note and n.running_cap.value is not None:
        cap.append((f" {cut(one_line(n.running_cap.note).partition(':')[0], 28)}", "dim"))
    queued = n.queued.value or 0
    full = (n.kv_used.value or 0) > 0.9
    rows = [
        ("running", [*running, *cap]),
        (
            "queued",
            reading_spans(n.queued, now, dull, number(n.queued.value, 0), "warn" if queued else "strong"),
        ),
        ("KV", reading_spans(n.kv_used, now, dull, share(n.kv_used.value), "warn" if full else "strong")),
    ]
    # These three are told by some versions and loads only: their dashes are on the sources page (i).
    for name, reading, text, unit in (
        ("cache hit", n.cache_hit, share(n.cache_hit.value), ""),
        ("accept rate", n.accept_rate, share(n.accept_rate.value), ""),
        ("prefill", n.prefill_tok_s, number(n.prefill_tok_s.value, 0), " tok/s"),
    ):
        if reading.value is not None:
            rows.append((name, [*reading_spans(reading, now, dull, text), (unit, "dim")]))
    return rows


def flow(items: list[tuple[str, Line]], width: int, most: int) -> list[Line]:
    """`name value   name value` in rows; at most `most` rows."""
    rows: list[Line] = []
    row: Line = [(" ", "")]
    for name, value in items:
        piece: Line = [(f"{name} ", "dim"), *value]
        if len(row) > 1 and width_of(row) + width_of(piece) + 3 > width:
            rows.append(row)
            row = [(" ", "")]
        if len(row) > 1:
            row.append(("   ", ""))
        row += piece
    rows.append(row)
    return rows[:most]
