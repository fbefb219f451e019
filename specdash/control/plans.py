"""A plan: what an operator's action will do, shown before it runs, followed while it runs.

Every action (launch, stop, adopt, switch, hot switch, tune) makes a `Plan` first, without changing
anything. The screen and the verbs show it and ask; `run(plan)` then yields `StepEvent`s. A plan that is
run twice, or resumed, repeats no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal


class Danger(Enum):
    """What an action may do. `--read-only` refuses all but `NONE`, below the screen too."""

    NONE = "reads only"
    CHANGES = "changes the host"
    DESTROYS = "ends a server or deletes"


@dataclass(frozen=True, slots=True)
class Check:
    """One preflight check. `remedy` is the next step when it is not ok."""

    name: str
    status: Literal["ok", "warn", "block", "not_checked"]
    sentence: str
    evidence: tuple[str, ...] = ()
    remedy: str = ""
    category: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One visible step. `effect` is the exact remote effect in words, or the exact command."""

    name: str
    title: str
    effect: str = ""
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    id: str
    kind: Literal["launch", "stop", "switch", "hot_switch", "adopt", "tune", "cleanup", "queue"]
    host: str
    title: str
    danger: Danger
    steps: tuple[Step, ...]
    checks: tuple[Check, ...] = ()
    notes: tuple[str, ...] = ()
    """What dies, expected downtime, requests in flight, the rollback rule: sentences to show."""
    typed_name: str = ""
    """When not empty, the operator must type this to confirm."""
    typed_also: tuple[str, ...] = ()
    """Other names of the same thing that are as good, like a run's id beside its profile."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    """All that running it needs; JSON-able; secrets as references."""

    def confirmed_by(self, typed: str) -> bool:
        """Is that the name that is asked for? True where none is."""
        return not self.typed_name or typed == self.typed_name or typed in self.typed_also

    @property
    def blocked(self) -> tuple[Check, ...]:
        return tuple(c for c in self.checks if c.status == "block")


@dataclass(frozen=True, slots=True)
class StepEvent:
    """Progress of a running plan. The last one has `final` set."""

    plan_id: str
    step: str
    status: Literal["running", "done", "failed", "skipped"]
    sentence: str = ""
    at_boot_s: float | None = None
    final: Literal["", "done", "failed", "rolled_back", "aborted"] = ""
    data: Mapping[str, Any] = field(default_factory=dict)
