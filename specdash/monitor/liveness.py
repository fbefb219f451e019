"""Is a server alive? HTTP, processes and token counters together, since each of them alone lies.

`/health` of old versions answers 200 with a dead scheduler; of new ones it answers 503 under a long
prefill; gauges keep their last value for ever. So a verdict is made of all three, and says which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specdash.monitor.state import Health

FROZEN_S = 20.0
"""Requests run and no token moves for this long: the engine's own health limit is 20 s."""
GAUGE_LAG_S = 36.0
"""An engine that went idle writes its gauges again only 30 s after it last did (0.4.6 scheduler.py to 0.5.23
metrics_reporter.py `_maybe_log_idle_metrics`): until then `num_running_reqs` tells of requests that are finished."""
QUEUE_FROZEN_S = 30.0
DEAF_S = 20.0
ENGINE_PROBE_LIMIT_S = 20.0
"""SGLANG_HEALTH_CHECK_TIMEOUT: how long the engine itself works on one generation probe."""
GENERATES = frozenset({"health", "health_generate", "generate"})


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer; `status` None: `problem` is refused, timeout, closed, …"""

    at: float
    endpoint: str
    status: int | None
    problem: str = ""
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Count:
    """Counters at one time. `tokens`: any counter that grows with tokens; None where not told."""

    at: float
    running: float | None = None
    queued: float | None = None
    tokens: float | None = None


@dataclass(frozen=True, slots=True)
class Processes:
    """Role → living processes: "main", "scheduler", "detokenizer". `titled`: whether titles are set here,
    so that a missing title means a missing process."""

    roles: dict[str, int]
    titled: bool
    at: float


@dataclass(frozen=True, slots=True)
class Evidence:
    now: float
    alive: bool | None = None
    """The launcher's process; None when not known."""
    was_ready: bool = False
    answers: Sequence[Answer] = ()
    counts: Sequence[Count] = ()
    processes: Processes | None = None
    schedulers_seen: int = 0
    """Most schedulers that this run ever had."""
    detokenizers_seen: int = 0
    """The same of detokenizers; 0: none was ever seen, so that a missing one says nothing."""
    last_decode: float | None = None
    last_prefill: float | None = None
    log_read: bool = False
    """Whether the log is followed and up to date: then silence of it means something."""
    log_says: str = ""
    """"starting", "warmup" or "ready", from the phases; empty when not told."""


def judge(e: Evidence) -> Health:
    """One state with its sentence and evidence. Never moves by time alone unless `now` does."""
    if e.alive is False:
        return Health("down", "The launcher's process is gone.", ("no process",), e.now, "process_gone")
    if (gone := _scheduler_gone(e)) is not None:
        return gone
    if e.processes is not None and e.processes.roles.get("detokenizer", 0) < e.detokenizers_seen:
        what = "no sglang::detokenizer process"
        sentence = f"Down: {what}. The server stays for a minute or more, and nothing comes back from it."
        return Health("down", sentence, (what,), e.now, "detokenizer_dead")
    last = e.answers[-1] if e.answers else None
    if not e.was_ready and not _ever_ready(e):
        return _before_ready(e, last)
    if (frozen := _frozen(e)) is not None:
        return frozen
    if (deaf := _deaf(e, last)) is not None:
        return deaf
    return _serving(e)


def _ever_ready(e: Evidence) -> bool:
    if e.log_says == "ready":
        return True
    return any(a.status == 200 and a.endpoint != "model_info" for a in e.answers) or _moves(e.counts) is True


def _before_ready(e: Evidence, last: Answer | None) -> Health:
    if not e.answers and not e.counts and not e.log_says:
        return Health("unknown", "Nothing has been seen of it yet.", (), e.now)
    if e.log_says == "warmup" or (last is not None and last.status == 503):
        seen: tuple[str, ...] = ("port answers 503",) if last is not None and last.status == 503 else ("log",)
        return Health("warmup", "HTTP is up, the warm-up is not over.", seen, e.now)
    if last is not None and last.status is not None and last.status < 500:
        return Health(
            "warmup", "HTTP answers, ready is not proven yet.", (f"{last.endpoint} {last.status}",), e.now
        )
    if e.log_says == "starting" or e.alive:
        seen = (f"port {last.problem or 'closed'}",) if last is not None else ()
        return Health("starting", "It starts: the port opens only after the load.", seen, e.now)
    if not e.answers and e.counts:
        return _serving(e) if (frozen := _frozen(e)) is None else frozen
    if last is not None and last.status is None:
        return Health(
            "down", f"Nothing serves at the port ({last.problem}).", (f"port {last.problem}",), e.now
        )
    return Health("unknown", "Not enough evidence.", (), e.now)


def _scheduler_gone(e: Evidence) -> Health | None:
    p = e.processes
    if p is None or (p.roles.get("scheduler", 0) > 0 and p.roles["scheduler"] >= e.schedulers_seen):
        return None
    left = p.roles.get("scheduler", 0)
    if e.schedulers_seen == 0 and not (p.titled and (e.was_ready or _ever_ready(e) or _running(e.counts))):
        return None
    what = "no sglang::scheduler process" if left == 0 else f"{left} of {e.schedulers_seen} schedulers left"
    evidence = [what]
    lies = [a for a in e.answers if a.status == 200]
    if (still := _still(e.counts)) is not None and still[1]:
        evidence.append(f"token counter frozen with {still[1]:.0f} running")
    category = "scheduler_dead_health_lies" if lies else "scheduler_dead"
    still_ok = f", though /{lies[-1].endpoint.lstrip('/')} answers 200." if lies else "."
    sentence = f"Down: {what}{still_ok}"
    return Health("down", sentence, tuple(evidence), e.now, category)


def _running(counts: Sequence[Count]) -> float:
    return next((c.running for c in reversed(counts) if c.running is not None), 0.0) or 0.0


def _still(counts: Sequence[Count]) -> tuple[float, float, float] | None:
    """(seconds, running, queued) for which the newest counts have not changed; None with nothing told."""
    if not counts:
        return None
    newest = counts[-1]
    since = newest.at
    for count in reversed(counts[:-1]):
        if count.tokens != newest.tokens or bool(count.running) != bool(newest.running):
            break
        if not newest.running and bool(count.queued) != bool(newest.queued):
            break
        since = count.at
    return newest.at - since, newest.running or 0.0, newest.queued or 0.0


def _moves(counts: Sequence[Count]) -> bool | None:
    """Whether tokens moved between the last two counts that tell them."""
    told = [c for c in counts if c.tokens is not None]
    if len(told) < 2:
        return None
    return (told[-1].tokens or 0) > (told[-2].tokens or 0)


def _frozen(e: Evidence) -> Health | None:
    still = _still(e.counts)
    if still is None:
        return None
    seconds, running, queued = still
    batches = [at for at in (e.last_decode, e.last_prefill) if at is not None]
    quiet = e.now - max(batches) if batches and e.log_read else None
    if quiet is not None and quiet < FROZEN_S:
        return None
    told = e.counts[-1].tokens is not None
    if quiet is not None and len(e.counts) > 1:
        seconds = max(seconds, quiet)  # the log says more of the past than two looks at the counters
    # What tells tokens comes from the metrics page, and so does the gauge beside them; /v1/loads is live.
    limit = GAUGE_LAG_S if told else FROZEN_S
    if running > 0 and seconds >= limit and (told or quiet is not None):
        what = f"token counter frozen with {running:.0f} running"
        return Health(
            "hung_suspected",
            f"{_requests(running, 'run')} and no token has moved for {seconds:.0f} s.",
            (what,) + ((f"no batch in the log for {quiet:.0f} s",) if quiet is not None else ()),
            e.now,
            "tokens_frozen",
        )
    if running == 0 and queued > 0 and seconds >= QUEUE_FROZEN_S:
        return Health(
            "hung_suspected",
            f"Queue {queued:.0f} with nothing running for {seconds:.0f} s.",
            (f"queue {queued:.0f} with nothing running for {seconds:.0f} s",),
            e.now,
            "queue_stuck",
        )
    return None


def _deaf(e: Evidence, last: Answer | None) -> Health | None:
    """Ready once, and HTTP does not answer as it should now."""
    if last is None or (last.status is not None and last.status < 500):
        return None
    since = last.at
    for answer in reversed(e.answers):
        if answer.status is not None and answer.status < 500:
            break
        since = answer.at
    said = (
        f"/{last.endpoint} {last.status}" if last.status is not None else f"/{last.endpoint} {last.problem}"
    )
    if last.endpoint == "ready" and last.status == 503:
        sentence = "The engine itself says that it is not ready (503): paused, unhealthy or shutting down."
        return Health("down", sentence, (said,), e.now, "not_ready")
    if e.last_prefill is not None and e.now - e.last_prefill < FROZEN_S:
        return Health(
            "busy",
            "A long prefill runs; the health probe had to wait. Not down.",
            (said, f"prefill batch {e.now - e.last_prefill:.0f} s ago"),
            e.now,
            "long_prefill",
        )
    if e.last_decode is not None and e.now - e.last_decode < FROZEN_S:
        return Health(
            "busy", "It decodes; the probe had to wait.", (said, "decode lines"), e.now, "slow_answer"
        )
    if last.status is None and last.problem == "refused":
        return Health("down", "The port is closed though it was ready before.", (said,), e.now, "port_closed")
    if e.now - since + last.took_s >= DEAF_S:
        state = "hung_suspected" if e.alive else "down"
        return Health(
            state,  # type: ignore[arg-type]
            f"HTTP has not answered for {e.now - since + last.took_s:.0f} s and the log shows no batch.",
            (said,),
            e.now,
            "deaf",
        )
    return None


def _serving(e: Evidence) -> Health:
    newest = e.counts[-1] if e.counts else None
    if newest is not None and newest.running is not None:
        if newest.running > 0:
            return Health(
                "busy", f"{_requests(newest.running, 'run')}.", (f"running {newest.running:.0f}",), e.now
            )
        if not newest.queued and _moves(e.counts[-2:]):
            return Health("busy", "Tokens move.", ("token counter moves",), e.now)
        if not newest.queued:
            return Health("idle", "Ready; nothing runs and nothing waits.", ("running 0", "queue 0"), e.now)
        return Health("busy", f"{_requests(newest.queued, 'wait')}.", (f"queue {newest.queued:.0f}",), e.now)
    if e.last_decode is not None and e.log_read and e.now - e.last_decode < FROZEN_S:
        return Health("busy", "It decodes.", ("decode lines",), e.now)
    return Health("ready", "Ready.", tuple(f"{a.endpoint} {a.status}" for a in e.answers[-1:]), e.now)


def _requests(count: float, verb: str) -> str:
    return f"1 request {verb}s" if f"{count:.0f}" == "1" else f"{count:.0f} requests {verb}"


def poll_plan_problem(
    path: str, interval_s: float, client_timeout_s: float, *, skips_when_running: bool = False
) -> str:
    """Why a plan to poll an endpoint again and again is harmful; empty when it is not.

    Each generation probe that times out at the client stays in the scheduler, so they pile up.
    """
    if path.strip("/").split("/")[-1] not in GENERATES:
        return ""
    if interval_s < ENGINE_PROBE_LIMIT_S:
        return (
            f"{path} costs a generation; with a {ENGINE_PROBE_LIMIT_S:.0f} s server limit and {interval_s:g} s polling "
            "they pile up: at most one in flight, interval >= server limit, skip while requests run."
        )
    if client_timeout_s < ENGINE_PROBE_LIMIT_S:
        return f"A client that gives up after {client_timeout_s:g} s leaves its request in the scheduler."
    if not skips_when_running:
        return "Skip the probe while requests run: tokens that move are proof enough."
    return ""
