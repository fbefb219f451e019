"""Which HTTP question to put to an engine next, by what it can answer. Pure: no I/O, no clock.

Cheap and harmless first: one question in flight, never one that generates, never a deprecated one (each
call of those writes a WARNING into the server's log), and one that failed with 500 is never put again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

METRICS_EVERY_S = 1.0
LOADS_EVERY_S = 2.0
INFO_EVERY_S = 60.0
ALIVE_EVERY_S = 5.0
SLOWEST_S = 30.0
PATHS = {
    "metrics": ("/metrics",),
    "loads": ("/v1/loads", "/get_load"),
    "server_info": ("/server_info", "/get_server_info"),
    "model_info": ("/model_info", "/get_model_info"),
}
"""Newest spelling first; the next one only after a 404, and then it is not deprecated in that version."""
TIMEOUT_S = {"metrics": 5.0, "loads": 5.0, "server_info": 10.0, "model_info": 5.0}


@dataclass(frozen=True, slots=True)
class Plan:
    """What is known of a server's answers. `spelling`: index into `PATHS`; beyond the end: not there."""

    wants_metrics: bool | None = None
    """--enable-metrics, by command line or server info; None is not known."""
    spelling: tuple[tuple[str, int], ...] = ()
    due: tuple[tuple[str, float], ...] = ()
    slow: float = 1.0
    """Factor on all paces: grows while answers do not come."""


@dataclass(frozen=True, slots=True)
class Question:
    endpoint: str
    path: str
    timeout_s: float


def _get(pairs: tuple[tuple[str, float], ...] | tuple[tuple[str, int], ...], key: str) -> float:
    return next((value for name, value in pairs if name == key), 0)


def spelled(plan: Plan, endpoint: str) -> str:
    """The path to use, empty when this server has none."""
    index = int(_get(plan.spelling, endpoint))
    return PATHS[endpoint][index] if index < len(PATHS[endpoint]) else ""


def next_question(plan: Plan, now: float, *, ready: bool, supervised: bool) -> tuple[Question | None, float]:
    """(question that is due, or None; time of the next one). Before ready nothing is asked of a supervised run."""
    wanted: list[str] = []
    if ready:
        if spelled(plan, "server_info"):
            wanted.append("server_info")
        if plan.wants_metrics and spelled(plan, "metrics"):
            wanted.append("metrics")
        elif spelled(plan, "loads"):
            wanted.append("loads")
        if "metrics" not in wanted and "loads" not in wanted:
            wanted.append("model_info")
    elif not supervised:
        wanted.append("model_info")
    best = min(wanted, key=lambda name: _get(plan.due, name), default=None)
    if best is None:
        return None, now + 1.0
    due = _get(plan.due, best)
    if due > now:
        return None, due
    path = spelled(plan, best)
    return (Question(best, path, TIMEOUT_S[best]) if path else None), now + (0.0 if path else SLOWEST_S)


PACE = {
    "metrics": METRICS_EVERY_S,
    "loads": LOADS_EVERY_S,
    "server_info": INFO_EVERY_S,
    "model_info": ALIVE_EVERY_S,
}


def answered(plan: Plan, question: Question, status: int | None, now: float, size: int = 0) -> Plan:
    """The plan after an answer (status None: none came)."""
    name = question.endpoint
    slow = min(plan.slow * 2, 16.0) if status is None else 1.0
    pace = PACE[name]
    if name == "metrics" and size > 1_000_000:
        pace *= 5
    index = int(_get(plan.spelling, name))
    retry_now = False
    if status == 404:
        index += 1
        retry_now = index < len(PATHS[name])
    elif status in (401, 403) or (status is not None and status >= 500 and status != 503):
        index = len(PATHS[name])  # would fail each time, and each time leave a traceback in the server's log
    due = now if retry_now else now + min(pace * slow, max(pace, SLOWEST_S))
    return replace(
        plan,
        slow=slow,
        spelling=(*((n, i) for n, i in plan.spelling if n != name), (name, index)),
        due=(*((n, d) for n, d in plan.due if n != name), (name, due)),
    )
