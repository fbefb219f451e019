"""From state to findings: pure, one rule after the other, each with the code that it alone would give."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from specdash.check.states import Finding, State
from specdash.config.thresholds import CheckSettings, Rule, rule
from specdash.monitor.alarms import NO_GPUS
from specdash.monitor.state import HostState, Reading, ServerState
from specdash.monitor.untrusted import number

LEAST_MEMORY = (0.05, 0.02)
LEAST_DISK = (5 << 30, 1 << 30)
MOST_CLOCK_SKEW_S = 60.0


def of_host(host: HostState, wall_now: float | None) -> Iterator[Finding]:
    """GPUs, memory, disk and clock of a host. `wall_now`: our own clock when the host's was read."""
    board = host.gpus
    if board is not None:
        lost = [gpu for gpu in board.gpus if gpu.problem]
        for gpu in lost:
            yield Finding(State.CRITICAL, "gpu", gpu.problem)
        if not board.gpus and board.category not in NO_GPUS:
            state = State.WARNING if board.category == "denied" else State.CRITICAL
            yield Finding(state, "gpu", board.problem)
        elif not board.gpus:
            yield Finding(State.OK, "gpu", "no NVIDIA GPU", (board.problem,))
        else:
            yield Finding(
                State.OK, "gpu", f"{len(board.gpus) - len(lost)} GPU{'s' if len(board.gpus) > 1 else ''}"
            )
        for gpu in board.gpus:
            if gpu.ecc_uncorrected:
                yield Finding(
                    State.WARNING, "gpu", f"GPU {gpu.index}: {gpu.ecc_uncorrected} uncorrected ECC errors"
                )
            hot = [why for why in gpu.throttle or () if "hot" in why or "hardware" in why or "brake" in why]
            if hot:
                yield Finding(State.WARNING, "gpu", f"GPU {gpu.index} is slowed down: {', '.join(hot)}")
    for alarm in host.alarms:
        if alarm.key in ("gpu-fewer", "orphans"):
            state = State.CRITICAL if alarm.severity == "critical" else State.WARNING
            name = "gpu" if alarm.key == "gpu-fewer" else "leftovers"
            yield Finding(state, name, alarm.sentence, step=alarm.step)
    yield from _room(host)
    told = number(host.sample.get("now_unix"))
    if told is not None and wall_now is not None and abs(told - wall_now) > MOST_CLOCK_SKEW_S:
        ahead = "ahead of" if told > wall_now else "behind"
        yield Finding(State.WARNING, "clock", f"its clock is {abs(told - wall_now):.0f} s {ahead} ours")


def _room(host: HostState) -> Iterator[Finding]:
    total, free = number(host.sample.get("mem_total_kb")), number(host.sample.get("mem_available_kb"))
    if total and free is not None:
        share = free / total
        state = (
            State.CRITICAL
            if share < LEAST_MEMORY[1]
            else State.WARNING
            if share < LEAST_MEMORY[0]
            else State.OK
        )
        if state:
            yield Finding(
                state, "memory", f"{share * 100:.0f} % of memory is left ({free / 1048576:.1f} GiB)"
            )
    disk = number(host.sample.get("disk_free_bytes"))
    if disk is not None:
        state = (
            State.CRITICAL if disk < LEAST_DISK[1] else State.WARNING if disk < LEAST_DISK[0] else State.OK
        )
        if state:
            yield Finding(state, "disk", f"{disk / (1 << 30):.1f} GiB of disk is left where runs are kept")


HEALTH = {
    "ready": State.OK,
    "idle": State.OK,
    "busy": State.OK,
    "starting": State.WARNING,
    "warmup": State.WARNING,
    "hung_suspected": State.CRITICAL,
    "down": State.CRITICAL,
    "unknown": State.UNKNOWN,
}


def of_server(server: ServerState, now: float, rules: CheckSettings, name: str) -> Iterator[Finding]:
    """One server: alive, loading or hung; its thresholds, its break-even and its warnings.

    `name` is said before each sentence; empty where the target itself says which server it is.
    """
    verdict, health = server.verdict, server.health
    said = f"{name}: " if name else ""
    if verdict.kind in ("dead", "stopped", "stalled"):
        yield Finding(State.CRITICAL, "verdict", f"{said}{verdict.sentence}", verdict.evidence)
    else:
        sentence = f"{said}{health.state}. {health.sentence}"
        yield Finding(HEALTH[health.state], "health", sentence, health.evidence)
    yield from _limits(server, rules, said)
    for alarm in server.alarms:
        if alarm.severity == "info" or alarm.key in ("dead", "stalled", "scheduler-dead"):
            continue
        state = State.CRITICAL if alarm.severity == "critical" else State.WARNING
        yield Finding(state, alarm.key, f"{said}{alarm.sentence}", step=alarm.step)
    even = server.breakeven
    if even.verdict == "does_not_pay":
        yield Finding(State.WARNING, "break-even", f"{said}{even.sentence}")


def _limits(server: ServerState, rules: CheckSettings, said: str) -> Iterator[Finding]:
    numbers = values(server)
    for text in (*rules.crit, *rules.warn):
        found = rule(text)
        state = State.CRITICAL if text in rules.crit else State.WARNING
        reading = numbers.get(found.name)
        if reading is None:
            why = f'"{found.name}" is no value of a server.'
            yield Finding(State.UNKNOWN, "threshold", why, step=f"Known: {', '.join(numbers)}")
        elif reading.value is None:
            if _should_be_told(server, found.name, reading):
                why = f"{said}{found.name} is not told, so that {text} is not known"
                yield Finding(
                    State.UNKNOWN, "threshold", why, step="Metrics (--enable-metrics) or a log tell it."
                )
        elif not reading.note.startswith("idle") and found.holds(reading.value):
            sentence = f"{said}{found.name} {reading.value:.4g} {found.operator} {found.limit:g}"
            evidence = (f"{reading.source}, window {reading.window_s or 0:.0f} s",)
            yield Finding(state, "threshold", sentence, evidence)


def _should_be_told(server: ServerState, name: str, reading: Reading[float]) -> bool:
    """Whether a value that is missing hides what a rule asks for: requests run, and a drafter where it is about one.

    That nothing moved yet (a long prefill) is no silence.
    """
    if not server.numbers.running.value or "moved" in reading.note:
        return False
    drafts = bool(server.drafter.algorithm or server.run.algorithm)
    return drafts if name.startswith("accept") else name in ("tok/s", "queue", "kv")


def pending(server: ServerState, rules: CheckSettings) -> bool:
    """Whether a rule is about a rate that needs a longer look: requests run and nothing moved for long enough yet."""
    known = values(server)
    for text in (*rules.crit, *rules.warn):
        reading = known.get(rule(text).name)
        if reading is not None and reading.value is None and "moved" in reading.note:
            return True
    return False


def values(server: ServerState) -> Mapping[str, Reading[float]]:
    """Values that thresholds may name, and that go into perfdata and JSON. Missing ones have value None."""
    n = server.numbers
    return {
        "accept": n.accept_length,
        "accept_start": n.accept_length_start,
        "accept_rate": n.accept_rate,
        "tok/s": n.decode_tok_s,
        "running": _as_float(n.running),
        "queue": _as_float(n.queued),
        "cap": _as_float(n.running_cap),
        "kv": n.kv_used,
        "cache_hit": n.cache_hit,
    }


def _as_float(reading: Reading[int]) -> Reading[float]:
    return Reading(
        None if reading.value is None else float(reading.value),
        reading.unit,
        reading.source,
        reading.at,
        note=reading.note,
    )


def limit_of(rules: tuple[str, ...], name: str) -> str:
    """The first rule about `name` as a Monitoring Plugins range: what is inside does not alert."""
    for text in rules:
        found: Rule = rule(text)
        if found.name == name:
            limit = plain(found.limit)
            return f"{limit}:" if found.operator.startswith("<") else f"~:{limit}"
    return ""


def plain(value: float) -> str:
    """As perfdata takes it: no exponent, no trailing zeros; empty where it is no number."""
    return f"{value:.6f}".rstrip("0").rstrip(".") if math.isfinite(value) else ""
