"""The state as JSON: the one typed snapshot that `status --json`, `show --json` and scripts read.

Each number is an object with value, unit, source, window_s, age_s, load and note; missing is null, never 0.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from specdash.monitor import foreign, memory, story_view
from specdash.monitor.state import FleetState, HostState, Reading, ServerState
from specdash.sglang import redact
from specdash.sglang.phases import TITLES, Phase
from specdash.sglang.story import Story

SCHEMA = "specdash.status/1"
HISTORY = 60


def of_fleet(state: FleetState) -> dict[str, Any]:
    """All hosts. `now` is local monotonic seconds: every `at` and `since` counts on the same clock."""
    return {
        "schema": SCHEMA,
        "now": state.now,
        "hosts": {name: of_host(host, state.now) for name, host in state.hosts.items()},
    }


def of_host(host: HostState, now: float) -> dict[str, Any]:
    """One host, with its servers by run id."""
    facts = {k: v for k, v in host.facts.items() if k != "seen_at"}
    return {
        "label": host.label,
        "link": plain(host.link, now),
        "facts": facts,
        "gpus": plain(dataclasses.replace(host.gpus, memory_history=()), now) if host.gpus else None,
        "sample": {k: v for k, v in host.sample.items() if k != "seen_at"},
        "alarms": plain(host.alarms, now),
        "actions": plain(host.actions, now),
        "runs_listed": host.runs_at is not None,
        "foreign": [one._asdict() for one in foreign.found(host, now)],
        "orphans": [one._asdict() for one in foreign.orphans(host, now)],
        "bases": [dict(base) for base in host.bases],
        "servers": {ident: of_server(server, now) for ident, server in host.servers.items()},
    }


def of_server(server: ServerState, now: float) -> dict[str, Any]:
    """One run: what it is, how it is, its numbers. Secrets in the command line are replaced."""
    numbers = dataclasses.replace(
        server.numbers,
        decode_history=server.numbers.decode_history[-HISTORY:],
        accept_history=server.numbers.accept_history[-HISTORY:],
    )
    run = plain(server.run, now)
    run["argv"] = redact.argv(server.run.argv)
    m = memory.of(server)
    return {
        "run": run,
        "status": plain(server.status, now),
        "phase": of_story(server.story, story_view.phases(server)),
        "log": plain(server.log, now),
        "verdict": plain(server.verdict, now),
        "health": plain(server.health, now),
        "numbers": plain(numbers, now),
        "break_even": plain(server.breakeven, now),
        "drafter": plain(server.drafter, now),
        "causes": [_cause(cause) for cause in m.causes],
        "alarms": plain(server.alarms, now),
        "eta_s": server.eta_s,
        "eta_source": server.eta_source,
        "metrics_unavailable": {"why": m.metrics_why, "hint": list(m.metrics_hint)}
        if m.metrics_why
        else None,
    }


def of_story(story: Story, phases: Sequence[Phase]) -> dict[str, Any]:
    """Where the load is, by its log."""
    bar = story.progress
    return {
        "name": story.phase,
        "title": TITLES.get(story.phase, story.phase),
        "sub": story.sub_phase,
        "progress": {"done": bar.done, "total": bar.total, "unit": bar.unit} if bar else None,
        "version": story.version,
        "phases": [
            {"name": p.name, "sub": p.sub, "seconds": p.seconds, "inferred": p.inferred} for p in phases
        ],
        "measured": dict(story.measured),
    }


def _cause(cause: Any) -> dict[str, Any]:
    out = dict(vars(cause))
    out["evidence"] = [redact.text(line) for line in cause.evidence]
    out["traceback"] = [redact.text(line) for line in cause.traceback]
    return {key: plain(value, 0.0) for key, value in out.items()}


def plain(value: Any, now: float) -> Any:
    """JSON-able: dataclasses to objects, readings with their age, no NaN or infinity."""
    if isinstance(value, Reading):
        age = value.age(now)
        return {
            "value": plain(value.value, now),
            "unit": value.unit,
            "source": value.source,
            "window_s": value.window_s,
            "age_s": None if age is None else round(age, 3),
            "load": value.load,
            "includes_bonus": value.includes_bonus,
            "note": value.note,
        }
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name), now) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v, now) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item, now) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value
