"""Does speculation pay? The arithmetic of the break-even accept length, in one place.

With t_b = R / base tok/s (decode time per token of one request) and t_c = R x accept length / tok/s (one
draft-and-verify cycle), both under the same number R of running requests, speculation pays when
accept length > t_c / t_b. Numbers of other loads, targets, hosts or tensor-parallel sizes never mix.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from specdash.monitor.state import BreakEven


@dataclass(frozen=True, slots=True)
class Base:
    """A measured base run. `running` requests on average, over `window_s`, at `tok_s` in all."""

    target: str
    host: str
    tp: int | None
    running: float
    tok_s: float
    source: str = ""
    window_s: float | None = None


@dataclass(frozen=True, slots=True)
class Now:
    """What the speculating server does now; None where not known."""

    speculating: bool | None
    target: str = ""
    host: str = ""
    tp: int | None = None
    running: float | None = None
    accept_length: float | None = None
    tok_s: float | None = None


MOST = 1e9


def bucket(running: float) -> tuple[int, int]:
    """The concurrency bucket of a mean of running requests, as (lowest, highest): 1, 2, 3-4, 5-8, …"""
    high = 1
    while running > high + 0.5:
        high *= 2
    return (high // 2 + 1 if high > 2 else high, high)


def say_bucket(running: float) -> str:
    low, high = bucket(running)
    if low == high:
        return f"{high} running request{'s' if high > 1 else ''}"
    return f"{low} to {high} running requests"


def judge(now: Now, bases: Iterable[Base]) -> BreakEven:
    """The verdict with its arithmetic as a sentence; `missing` says what to run when it is not known."""
    if now.speculating is False:
        return BreakEven("not_speculating", "This server does not speculate.", running=now.running)
    if now.speculating is None:
        return BreakEven("unknown", "Not known yet whether this server speculates.")
    length, tok_s, running = now.accept_length, now.tok_s, now.running
    if length is None or tok_s is None or running is None or not _usable(running, length, tok_s):
        return BreakEven(
            "unknown",
            "Not known yet: no decode window with accept length, tok/s and running requests.",
            accept_length=length,
            running=running,
            missing="Send requests, so that decode lines appear.",
        )
    cycle_s = running * length / tok_s
    known = [b for b in bases if _usable(b.running, 1.0, b.tok_s)]
    base = _fitting(now, running, known)
    if base is None:
        return BreakEven(
            "unknown",
            f"Not known yet: no base measurement of this target under {say_bucket(running)}. {_nearest(now, known)}".strip(),
            accept_length=length,
            cycle_ms=cycle_s * 1e3,
            running=running,
            missing=f"Launch the base profile of the same target and tp here and run {say_bucket(running)}.",
        )
    base_s = base.running / base.tok_s
    even = cycle_s / base_s
    margin = length / even - 1.0
    pays = length > even
    needed = f"needs accept length above {even:.2f}" if not pays else f"break-even is {even:.2f}"
    sentence = (
        f"{'Pays' if pays else 'Does not pay'}: cycle {cycle_s * 1e3:.1f} ms / base {base_s * 1e3:.1f} ms per token "
        f"= {even:.2f}; accept length {length:.2f} is {abs(margin) * 100:.0f} % {'above' if margin >= 0 else 'below'}"
        f" ({needed}; {say_bucket(running)})."
    )
    if not pays:
        sentence += f" Or a cycle under {base_s * length * 1e3:.1f} ms."
    return BreakEven(
        "pays" if pays else "does_not_pay",
        sentence,
        accept_length=length,
        break_even=even,
        margin=margin,
        base_ms_per_token=base_s * 1e3,
        cycle_ms=cycle_s * 1e3,
        running=running,
        base_source=base.source,
    )


def _usable(running: float, length: float, tok_s: float) -> bool:
    """Numbers of something that really decodes: finite, with a request, a token a step, and tokens."""
    return 0.5 <= running < MOST and 1.0 <= length < MOST and 1.0 / MOST < tok_s < MOST


def _same(now: Now, base: Base) -> bool:
    """What is not known of both is not the same."""
    told = bool(now.target) and bool(now.host) and now.tp is not None
    return told and base.target == now.target and base.host == now.host and base.tp == now.tp


def _fitting(now: Now, running: float, bases: list[Base]) -> Base | None:
    fits = [b for b in bases if _same(now, b) and bucket(b.running) == bucket(running)]
    # Nearest load first, then the longest window, so that the order of measurements does not matter.
    return min(fits, key=lambda b: (abs(b.running - running), -(b.window_s or 0.0), b.tok_s), default=None)


def _nearest(now: Now, bases: list[Base]) -> str:
    """Why what there is cannot be compared."""
    if not bases:
        return ""
    same = [b for b in bases if _same(now, b)]
    if same:
        loads = sorted({say_bucket(b.running) for b in same})
        return f"The base was measured under {', '.join(loads)} only."
    other = bases[0]
    if other.target != now.target:
        return "There are base measurements of other targets only."
    if other.host != now.host:
        return "The base was measured on another host only."
    if now.tp is None or other.tp is None:
        return f"The tp of {'this server' if now.tp is None else 'the base'} is not known."
    return f"The base was measured at tp {other.tp}, not {now.tp}." if other.tp != now.tp else ""


@dataclass(frozen=True, slots=True)
class Measured:
    """One measured run. `terms`: all that must be equal to be compared (target, host, tp, load), as one word."""

    terms: str
    algorithm: str
    """Empty is base."""
    tok_s: float


@dataclass(frozen=True, slots=True)
class Compared:
    best: str
    """Algorithm that beats the base; empty: none does, or there is no base."""
    speedup: float | None
    """Of the fastest speculating run against the base; None where one of them was not measured."""


def against_base(runs: Iterable[Measured]) -> dict[str, Compared]:
    """The fastest speculating run against the base on the same terms, for each terms. Others never mix."""
    every = [run for run in runs if run.tok_s > 0]
    out = {}
    for terms in dict.fromkeys(run.terms for run in every):
        base = max((r.tok_s for r in every if r.terms == terms and not r.algorithm), default=None)
        drafted = [r for r in every if r.terms == terms and r.algorithm]
        best = max(drafted, key=lambda r: r.tok_s, default=None)
        speedup = None if base is None or best is None else best.tok_s / base
        wins = best is not None and speedup is not None and speedup > 1.0
        out[terms] = Compared(best.algorithm if wins and best is not None else "", speedup)
    return out
