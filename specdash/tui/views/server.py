"""The server in the middle: a load with its timeline and verdict, or what a ready server does now."""

from __future__ import annotations

from specdash.monitor import foreign
from specdash.monitor.state import HostState, Numbers, Reading, ServerState
from specdash.tui.cells import clip, cut, cut_line, fit, heading, spread, thin_bar, width_of, wrap
from specdash.tui.plot import big, chart, nice_top, resample, spark
from specdash.tui.views.link import is_stale, link_age, run_name, server_spans, server_word
from specdash.tui.views.load import load_rows
from specdash.tui.words import (
    DASH,
    Line,
    Span,
    age,
    millis,
    number,
    one_line,
    share,
    signed_share,
    stale,
)

TOLD_ELSEWHERE = frozenset({"dead", "stalled", "below-break-even", "scheduler-dead"})
"""Alarms whose sentence the verdict, the health or the break-even row already is."""
PLOT_SECONDS = 300.0
VERDICT_WORDS = {
    "pays": ("pays", "ok-strong"),
    "does_not_pay": ("does not pay", "bad-strong"),
    "unknown": ("unknown", "dim"),
    "not_speculating": ("base, no speculation", "dim"),
}


def server_rows(
    host: HostState | None,
    server: ServerState | None,
    now: float,
    width: int,
    height: int,
    focused: bool = False,
    plain: bool = False,
) -> list[Line]:
    """The panel in at most `height` rows, heading included. `plain`: no digits drawn from lines."""
    if server is None or host is None:
        return _empty(host, now, width, height, focused)
    dull = is_stale(host, now)
    word = server_word(server)
    title: Line = [("SERVER ", "title"), (run_name(server), "strong")]
    drafter = server.drafter.algorithm or server.run.algorithm
    title.append((f" {one_line(drafter) if drafter else 'base'}", ""))
    if server.run.http_port is not None and width >= 56:
        title.append((f" :{server.run.http_port}", "dim"))
    if server.run.adopted:
        title.append((" adopted", "warn"))
    if server.run.managed_by:
        title.append((f" by {one_line(server.run.managed_by)}", "warn"))
    right: Line = server_spans(server, dull)
    if dull:
        right.append((f" {age(link_age(host, now))} old", "stale"))
    head = heading(title, right, width, focused)
    room = height - 1
    if word in ("ready", "idle", "busy", "hung?", "down"):
        body = ready_rows(server, now, width, room, dull, plain)
    else:
        body = load_rows(host, server, now, width, room, dull)
    return [head, *body][:height]


def _empty(host: HostState | None, now: float, width: int, height: int, focused: bool) -> list[Line]:
    rows = [heading([("SERVER", "title")], [], width, focused)]
    if host is None:
        words = "No host is configured."
    elif host.link.status in ("refused", "failed", "lost") and host.link.sentence:
        rows += [[(" " + row, "bad")] for row in wrap(one_line(host.link.sentence), width - 2)]
        return rows[:height]
    elif host.link.status == "connecting":
        words = f"Connecting to {one_line(host.name)}…"
    else:
        words = "No server of ours runs here. Choose a profile at the left and press l to launch it."
        rows += _others(host, now, width)
    return [*rows, *([(" " + row, "dim")] for row in wrap(words, width - 2))][:height]


def _others(host: HostState, now: float, width: int) -> list[Line]:
    """Servers that others started, as last seen: whoever looks for one must not be told that there is none."""
    out: list[Line] = []
    for one in foreign.found(host, now):
        what = " ".join(
            word
            for word in (
                one.model.rsplit("/", 1)[-1] or "SGLang",
                one.algorithm,
                f"port {one.port}" if one.port else "",
                f"pid {one.pid} of {one.user}",
                f"by {one.managed_by}" if one.managed_by else "",
            )
            if word
        )
        out.append([(" others run ", "dim"), (cut(one_line(what), max(10, width - 12)), "strong")])
    return [*out, [(" A adopts one of them by name; until then it is only looked at.", "")]] if out else []


def _reading(
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
    line = _reading(numbers.accept_length, now, dull, number(numbers.accept_length.value, 2))
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


def _facts(server: ServerState, now: float, dull: bool) -> list[tuple[str, Line]]:
    n = server.numbers
    running = _reading(n.running, now, dull, number(n.running.value, 0))
    cap: Line = [(f" / {number(n.running_cap.value, 0)}", "stale" if dull else "dim")]
    if n.running_cap.note and n.running_cap.value is not None:
        cap.append((f" {cut(one_line(n.running_cap.note).partition(':')[0], 28)}", "dim"))
    queued = n.queued.value or 0
    full = (n.kv_used.value or 0) > 0.9
    rows = [
        ("running", [*running, *cap]),
        ("queued", _reading(n.queued, now, dull, number(n.queued.value, 0), "warn" if queued else "strong")),
        ("KV", _reading(n.kv_used, now, dull, share(n.kv_used.value), "warn" if full else "strong")),
    ]
    # These three are told by some versions and loads only: their dashes are on the sources page (i).
    for name, reading, text, unit in (
        ("cache hit", n.cache_hit, share(n.cache_hit.value), ""),
        ("accept rate", n.accept_rate, share(n.accept_rate.value), ""),
        ("prefill", n.prefill_tok_s, number(n.prefill_tok_s.value, 0), " tok/s"),
    ):
        if reading.value is not None:
            rows.append((name, [*_reading(reading, now, dull, text), (unit, "dim")]))
    return rows


def _flow(items: list[tuple[str, Line]], width: int, most: int) -> list[Line]:
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


def _verdict_rows(server: ServerState, width: int, dull: bool, most: int) -> list[Line]:
    """What health and break-even say in words, the worst first."""
    rows: list[Line] = []
    health, even = server.health, server.breakeven
    if health.state in ("hung_suspected", "down") and health.sentence:
        rows += [
            [(" " + row, "bad-strong")] for row in wrap("⚠ " + one_line(health.sentence), width - 2, "  ")
        ]
        rows += [[(" · " + cut(one_line(item), width - 4), "dim")] for item in health.evidence]
    for alarm in server.alarms:
        if alarm.key not in TOLD_ELSEWHERE and alarm.severity != "info":
            role = "bad-strong" if alarm.severity == "critical" else "warn"
            words = one_line(f"⚠ {alarm.sentence} {alarm.step}".strip())
            rows += [[(" " + row, "stale" if dull else role)] for row in wrap(words, width - 2, "  ")]
    sentence = even.sentence if even.verdict != "not_speculating" else ""
    if even.verdict == "unknown" and even.missing:
        sentence = f"Break-even unknown: {even.missing}"
    if sentence:
        role = {"pays": "", "does_not_pay": "bad"}.get(even.verdict, "dim")
        rows += [[(" " + row, "stale" if dull else role)] for row in wrap(one_line(sentence), width - 2)]
    return clip(rows, most, width)


def ready_rows(
    server: ServerState, now: float, width: int, height: int, dull: bool, plain: bool = False
) -> list[Line]:
    """Denser with fewer rows; with more, big digits, two plots, latencies and acceptance by position."""
    numbers = server.numbers
    if height <= 3 or width < 30:
        return _tiny(server, now, width, dull)[:height]
    tall = height >= 12 and width >= 64 and not plain
    rows = _headline_big(server, now, width, dull) if tall else _headline(server, now, width, dull)
    rows += _flow(_facts(server, now, dull), width, 1 if height < 6 else 2 if height < 20 else 3)
    sparks = _sparks(server, now, width, dull)
    bad = (
        server.breakeven.verdict == "does_not_pay"
        or server.health.state in ("hung_suspected", "down")
        or any(alarm.severity != "info" for alarm in server.alarms)
    )
    # A good verdict is already in the headline; its sentence may give way to the curves, a bad one never does.
    spare = height - len(rows) - (0 if bad else len(sparks))
    rows += _verdict_rows(
        server, width, dull, 5 if tall else max(1 if bad else 0, min(3 if bad else 2, spare))
    )
    left = height - len(rows)
    details = _details(server, now, width, dull) if left >= 12 else []
    left -= len(details)
    speculates = bool(numbers.accept_history)
    if left >= 6 and width >= 90 and speculates:
        rows += _plots_beside(server, now, width, min(left, 14), dull)
    elif left >= 6 and not speculates:
        rows += _plot(server, now, width, min(left, 14), dull, accept=False)
    elif left >= 10:
        rows += _plot(server, now, width, min(left // 2, 10), dull, accept=True)
        rows += _plot(server, now, width, min(left // 2, 10), dull, accept=False)
    elif left >= 5 and numbers.accept_history:
        rows += _plot(server, now, width, left, dull, accept=True)
    else:
        rows += sparks[: max(0, left)]
    return [*rows, *details][:height]


def _tiny(server: ServerState, now: float, width: int, dull: bool) -> list[Line]:
    return [*_headline(server, now, width, dull), *_flow(_facts(server, now, dull), width, 1)]


def _unit(server: ServerState) -> str:
    return "" if server.numbers.idle else " tok/s"


def _headline(server: ServerState, now: float, width: int, dull: bool) -> list[Line]:
    n = server.numbers
    rate = _reading(n.decode_tok_s, now, dull, rate_text(n), "big")
    if n.idle:
        rate = [("idle", "stale" if dull else "big")]
    left: Line = [(" ", ""), *rate, (_unit(server), "dim")]
    spans = accept_spans(server, now, dull)
    accept: Line = spans if spans[0][0].startswith("base") else [("accept ", "dim"), *spans]
    if width_of(left) + width_of(accept) + 3 <= width:
        return [[*left, ("   ", ""), *accept]]
    return [cut_line(left, width), cut_line([(" ", ""), *accept], width)]


def _headline_big(server: ServerState, now: float, width: int, dull: bool) -> list[Line]:
    """Three rows of digits: tok/s, accept length, break-even, and the words beside them."""
    n, even = server.numbers, server.breakeven
    speculating = bool(server.drafter.algorithm or server.run.algorithm) or n.accept_length.value is not None
    old = "stale" if dull else ""
    blocks: list[tuple[str, list[str], str]] = []
    if n.idle:
        blocks.append(("", ["    ", "idle", "    "], old or "big"))
    else:
        role = old or ("stale" if stale(n.decode_tok_s, now) else "big")
        blocks.append(("tok/s", big(number(n.decode_tok_s.value)), role))
    if speculating:
        role = old or ("stale" if stale(n.accept_length, now) else "big")
        blocks.append(("accept length", big(number(n.accept_length.value, 2)), role))
        blocks.append(("break-even", big(number(even.break_even, 2)), old or "dim"))
    rows: list[Line] = [[(" ", "")], [(" ", "")], [(" ", "")]]
    for label, digits, role in blocks:
        for y in range(3):
            rows[y] += [(digits[y], role), (f" {label if y == 1 else '':<{len(label)}}   ", "dim")]
    words, role = VERDICT_WORDS[even.verdict]
    side: list[Line] = [[], [], []]
    if speculating:
        if even.margin is not None:
            side[0] = [(signed_share(even.margin), old or role)]
        side[1] = [(words, old or role)]
        if even.running is not None:
            side[2] = [(f"at {number(even.running, 0)} running", "dim")]
        if not dull and stale(n.accept_length, now):
            side[2] = [(f"{age(n.accept_length.age(now))} old", "stale")]
    else:
        side[1] = [("base, no speculation", "dim")]
    return [cut_line([*row, *extra], width) for row, extra in zip(rows, side, strict=True)]


def _span(server: ServerState, now: float) -> float:
    """Seconds that the plots cover: what there is, a minute at least, five at most."""
    starts = [
        history[0][0] for history in (server.numbers.accept_history, server.numbers.decode_history) if history
    ]
    return min(PLOT_SECONDS, max(60.0, now - min(starts))) if starts else PLOT_SECONDS


def _columns(
    history: tuple[tuple[float, float | None], ...], now: float, columns: int, span_s: float
) -> list[float | None]:
    return resample(history, now - span_s + 1e-6, now + 1e-6, columns)


def _sparks(server: ServerState, now: float, width: int, dull: bool) -> list[Line]:
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
        values = _columns(history, now, room, _span(server, now))
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


def _plot(
    server: ServerState, now: float, width: int, height: int, dull: bool, *, accept: bool
) -> list[Line]:
    """A title row and `height - 1` rows of braille with a left axis; the break-even line where it belongs."""
    n, even = server.numbers, server.breakeven
    history = n.accept_history if accept else n.decode_history
    rule = even.break_even if accept else None
    name = "accept length" if accept else "tok/s"
    title: Line = [(f" {name}", "dim"), (f" {max(1, round(_span(server, now) / 60))} min", "dim")]
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
    values = _columns(history, now, room * 2, _span(server, now))
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


def _plots_beside(server: ServerState, now: float, width: int, height: int, dull: bool) -> list[Line]:
    each = (width - 2) // 2
    left = _plot(server, now, each, height, dull, accept=True)
    right = _plot(server, now, each, height, dull, accept=False)
    return [
        spread(cut_line(a, each), [], each + 2)[:] + cut_line(b, each)
        for a, b in zip(left, right, strict=True)
    ]


def _details(server: ServerState, now: float, width: int, dull: bool) -> list[Line]:
    """Latency percentiles, acceptance by position, and where the numbers come from."""
    n = server.numbers
    old = "stale" if dull else ""
    rows: list[Line] = []
    for label, table in (("first token", n.ttft_s), ("between tokens", n.itl_s), ("whole request", n.e2e_s)):
        cells: list[Span] = [(f" {label:<15}", "dim")]
        for key in ("p50", "p90", "p99"):
            reading = table.get(key)
            cells += [(f"{key} ", "dim"), (f"{millis(reading.value if reading else None):<9}", old)]
        rows.append(cells)
    if n.position_acceptance:
        rows.append([(" acceptance by draft position (last pulse)", "dim")])
        for index, value in enumerate(n.position_acceptance, 1):
            rows.append(
                [
                    (f" {index:>3} ", "dim"),
                    *_thin(value, min(30, width - 16), old or "bar"),
                    (f" {share(value)}", old),
                ]
            )
    if n.source:
        rows.append([(f" numbers: {cut(one_line(n.source), width - 12)}", "dim")])
    return rows


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
        if reading.value is None and not reading.source:
            rows.append([(f" {name:<20}", "dim"), (DASH, "dim"), (f"  {one_line(reading.note)}", "dim")])
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


def _thin(value: float, width: int, role: str) -> Line:
    filled, rest = thin_bar(value, width)
    return [(filled, role), (rest, "rule")]
