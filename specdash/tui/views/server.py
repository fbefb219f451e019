"""The server in the middle: a load with its timeline and verdict, or what a ready server does now."""

from __future__ import annotations

from specdash.monitor import foreign
from specdash.monitor.state import HostState, ServerState
from specdash.tui.cells import clip, cut, cut_line, heading, thin_bar, width_of, wrap
from specdash.tui.plot import big
from specdash.tui.views.curves import plot_rows, plots_rows, spark_rows
from specdash.tui.views.link import is_stale, link_age, run_name, server_spans, server_word
from specdash.tui.views.load import load_rows
from specdash.tui.views.numbers import VERDICT_WORDS, accept_spans, facts, flow, rate_text, reading_spans
from specdash.tui.words import (
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
    return [*out, [(" A adopts one of them; until then they are only watched.", "")]] if out else []


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
    rows += flow(facts(server, now, dull), width, 1 if height < 6 else 2 if height < 20 else 3)
    sparks = spark_rows(server, now, width, dull)
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
        rows += plots_rows(server, now, width, min(left, 14), dull)
    elif left >= 6 and not speculates:
        rows += plot_rows(server, now, width, min(left, 14), dull, accept=False)
    elif left >= 10:
        rows += plot_rows(server, now, width, min(left // 2, 10), dull, accept=True)
        rows += plot_rows(server, now, width, min(left // 2, 10), dull, accept=False)
    elif left >= 5 and numbers.accept_history:
        rows += plot_rows(server, now, width, left, dull, accept=True)
    else:
        rows += sparks[: max(0, left)]
    return [*rows, *details][:height]


def _tiny(server: ServerState, now: float, width: int, dull: bool) -> list[Line]:
    return [*_headline(server, now, width, dull), *flow(facts(server, now, dull), width, 1)]


def _unit(server: ServerState) -> str:
    return "" if server.numbers.idle else " tok/s"


def _headline(server: ServerState, now: float, width: int, dull: bool) -> list[Line]:
    n = server.numbers
    rate = reading_spans(n.decode_tok_s, now, dull, rate_text(n), "big")
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


def _thin(value: float, width: int, role: str) -> Line:
    filled, rest = thin_bar(value, width)
    return [(filled, role), (rest, "rule")]
