"""What the screen needs from below, as protocols: tests and screenshots give their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from specdash.control.plans import Check, Plan, StepEvent
from specdash.monitor.state import FleetState
from specdash.tui.logrows import Source

if TYPE_CHECKING:
    from specdash.control.profile_text import Known


class HubLike(Protocol):
    """`monitor.hub.Hub` as the screen sees it."""

    @property
    def state(self) -> FleetState: ...

    def subscribe(self, callback: Callable[[FleetState], None], /) -> Any: ...

    def log(self, host: str, run_id: str, /) -> Source | None: ...

    def want(self, host: str, run: str, /) -> None:
        """Read an ended run too: its records and log."""
        ...

    def retry(self, host: str, /) -> None:
        """Connect now instead of waiting."""
        ...


@dataclass(frozen=True)
class ProfileRow:
    """One launch profile for the list. `problem` is a sentence when it cannot be read."""

    name: str
    algorithm: str = ""
    """Empty is base: no speculation."""
    drafter: str = ""
    target: str = ""
    host: str = ""
    extends: tuple[str, ...] = ()
    path: str = ""
    description: str = ""
    problem: str = ""


@dataclass(frozen=True)
class AlgorithmRow:
    """One algorithm that the installed SGLang has, with our notes (or "no notes")."""

    name: str
    aliases: tuple[str, ...] = ()
    needs_drafter: str = ""
    what: str = ""
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProbeView:
    """What the profile's interpreter would import, and the algorithms in it."""

    version: str = ""
    path: str = ""
    python: str = ""
    algorithms: tuple[AlgorithmRow, ...] = ()
    theory: tuple[tuple[str, str, str], ...] = ()
    """(technique, "in_build" | "not_in_build" | "unknown", sentence)."""
    problem: str = ""
    step: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class StacksView:
    """Stacks of all processes of a run, secrets out. `step`: what would show more; `path`: where they are kept."""

    text: str = ""
    processes: int = 0
    path: str = ""
    step: str = ""
    problem: str = ""


class Operator(Protocol):
    """What an operator does, from `control` and `config`. Every effect is a `Plan` first."""

    def profiles(self) -> Sequence[ProfileRow]: ...

    def command(self, profile: str) -> str:
        """The exact shell command, secrets as references. Raises SpecdashError."""
        ...

    def profile_lines(self, profile: str) -> list[str]:
        """The resolved profile, one `--flag value` or `ENV=value` a row, for reading and for the diff."""
        ...

    def can_change(self, host: str) -> str:
        """Empty, or why nothing may be changed on this host (read-only)."""
        ...

    async def plan_launch(self, host: str, profile: str) -> Plan: ...

    async def plan_stop(self, host: str, run: str) -> Plan: ...

    async def plan_switch(self, host: str, run: str, profile: str) -> Plan: ...

    async def plan_hot(self, host: str, run: str, profile: str) -> Plan:
        """Other draft weights into a run that goes on. Raises Refused when the profile differs in more than that."""
        ...

    def attach(self, plan: Plan) -> AsyncIterator[StepEvent]:
        """Go on with a switch whose program on the host was killed."""
        ...

    async def check_profile(self, host: str, profile: str) -> Sequence[Check]:
        """Flags and environment of a profile against the SGLang installed on the host. Changes nothing."""
        ...

    async def flags_of(self, host: str, profile: str) -> Known:
        """The SGLang that the profile would launch, on its own host, else on this one; never raises for a lost one."""
        ...

    def perform(self, plan: Plan, typed: str = "") -> AsyncIterator[StepEvent]: ...

    async def unfinished(self, host: str) -> list[tuple[Plan, AsyncIterator[StepEvent]]]: ...

    def follow(self, plan: Plan, events: AsyncIterator[StepEvent]) -> AsyncIterator[StepEvent]: ...

    def again(self, plan: Plan) -> AsyncIterator[StepEvent]: ...

    async def abort(self, host: str, kind: str, ident: str) -> str: ...

    async def answer(self, host: str, switch_id: str, word: str) -> None: ...

    async def adoptable(self, host: str) -> list[tuple[str, str]]: ...

    async def plan_adopt(self, host: str, name: str) -> Plan: ...

    async def probe(self, host: str, profile: str) -> ProbeView: ...

    async def stacks(self, host: str, run: str) -> StacksView:
        """A look at where its processes are. Kept on the host unless that is read-only."""
        ...

    async def pulse(self, host: str, run: str) -> str:
        """Fixed prompts now; what they told, in a sentence. The numbers come by the state."""
        ...

    def redact(self, line: bytes) -> bytes: ...
