"""All targets at once, each within its own time, whatever hangs.

What judges (monitor, findings) is imported while the hosts start their agents: see `_judges`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash.check.states import Finding, State, worst
from specdash.check.targets import NO_RULES, Target
from specdash.config.thresholds import CheckSettings
from specdash.errors import LinkError, SpecdashError

if TYPE_CHECKING:
    from specdash.check.gather import Gatherer
    from specdash.host.link import Link
    from specdash.monitor.sources import OpenLink
    from specdash.monitor.state import Reading

WINDOW_S = 2.0
TIMEOUT_S = 10.0
AT_ONCE = 64
CLOSING_S = 1.0
TELLING_S = 0.3
"""Of a timeout, for judging and printing, so that the command as a whole holds it."""

INJECTED: dict[str, Callable[[], AbstractAsyncContextManager[Target]]] = {}
"""Targets that another room brings (the command line puts the demo here): word → what starts it and gives
the target to check."""


@dataclass(frozen=True, slots=True)
class Options:
    timeout_s: float | None = None
    """For each target; None: what the target's own settings say, else `TIMEOUT_S`."""
    lead_s: float = 0.0
    """What the command had used of that time before the first look: whoever waits for it counts from its start."""
    window_s: float | None = None
    generate: bool = False
    warn: tuple[str, ...] = ()
    crit: tuple[str, ...] = ()
    insecure: bool = False
    """Take any certificate of an https URL."""
    api_key: str = field(default="", repr=False)
    memory: Path | None = None
    """Folder for what this check saw, so that the next one knows what is new. None: no memory."""
    tag: str = ""
    """Whose memory it is: one command line does not take news away from another."""


@dataclass(frozen=True, slots=True)
class Result:
    """One target. `values` by server name: what thresholds can name, with source, window and age."""

    target: str
    kind: str
    findings: tuple[Finding, ...]
    values: Mapping[str, Mapping[str, Reading[float]]] = field(default_factory=dict)
    host: Mapping[str, Any] = field(default_factory=dict)
    now: float = 0.0
    took_s: float = 0.0
    rules: CheckSettings = NO_RULES

    @property
    def state(self) -> State:
        return worst(finding.state for finding in self.findings)


async def check(
    targets: list[Target], options: Options | None = None, *, open_link: OpenLink | None = None
) -> list[Result]:
    """Results in the order of the targets. Never raises for what a host does."""
    options = options or Options()
    if open_link is None and any(target.host is not None and target.host.ssh for target in targets):
        from specdash.host import open as ways

        ways.warm_up()
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(target: Target) -> Result:
        async with gate:
            return await _one(target, options, open_link)

    return list(await asyncio.gather(*(one(target) for target in targets)))


def _judges() -> None:
    """Imports what is needed once a host answers: in a thread, while hosts are waited for."""
    import specdash.check.gather
    import specdash.check.judge
    import specdash.check.render
    import specdash.host.streams  # noqa: F401  what host.http imports when it first asks a port


async def _one(target: Target, options: Options, opener: OpenLink | None) -> Result:
    began = time.monotonic()
    rules = CheckSettings.model_construct(
        warn=(*options.warn, *target.settings.warn), crit=(*options.crit, *target.settings.crit)
    )
    timeout_s = options.timeout_s or target.settings.timeout_s or TIMEOUT_S
    budget_s = max(timeout_s / 2, timeout_s - options.lead_s - min(TELLING_S, timeout_s / 10))
    window = next((w for w in (options.window_s, target.settings.window_s) if w is not None), WINDOW_S)
    generate = options.generate or bool(target.settings.generate)
    if options.insecure or options.api_key:
        target = replace(
            target, verify=target.verify and not options.insecure, api_key=options.api_key or target.api_key
        )
    opening = asyncio.ensure_future(_open(target, budget_s, opener))
    await asyncio.to_thread(_judges)
    from specdash.check import judge
    from specdash.check.gather import Gatherer
    from specdash.check.marks import Marks

    gatherer = Gatherer(
        target,
        rules,
        generate=generate,
        window_s=window,
        ends_at=began + budget_s,
        marks=Marks(options.memory, options.tag),
    )
    failure: Finding | None = None
    try:
        async with asyncio.timeout(began + budget_s - time.monotonic()):
            await _look(gatherer, opening)
    except TimeoutError:
        sentence = f"no answer within {timeout_s:g} s while {gatherer.doing}"
        failure = Finding(State.CRITICAL, "timeout", sentence, step="Raise --timeout if it is only slow.")
    except LinkError as problem:
        failure = Finding(State.CRITICAL, "link", problem.sentence, step=problem.step)
    except SpecdashError as problem:
        failure = Finding(State.UNKNOWN, "error", problem.sentence, step=problem.step)
    except Exception as problem:  # a check must end with a state, not with a trace
        inner = problem.exceptions[0] if isinstance(problem, ExceptionGroup) else problem
        failure = Finding(State.UNKNOWN, "internal", f"internal error: {type(inner).__name__}: {inner}"[:300])
    findings = list(judge.findings(target, gatherer, rules))
    if failure is not None:
        findings = [failure, *(f for f in findings if f.state is not State.OK)]
    return Result(
        target.name,
        target.kind,
        tuple(findings),
        judge.servers(target, gatherer),
        judge.host_values(gatherer),
        gatherer.state.now,
        time.monotonic() - began,
        rules,
    )


async def _open(target: Target, timeout_s: float, opener: OpenLink | None) -> Link | None:
    """A link to the target's host. It gives up a little before the target's time is over: its error says more."""
    if target.host is None:
        return None
    if opener is None:
        from specdash.host.open import open_link

        opener = open_link
    return await opener(target.host, ask=None, timeout_s=round(max(timeout_s * 0.9, timeout_s - 0.5), 2))


async def _look(gatherer: Gatherer, opening: asyncio.Future[Link | None]) -> None:
    target = gatherer.target
    if target.host is not None:
        gatherer.doing = f"connecting to {target.host.name}"
    link = await opening
    if link is None:
        await gatherer.straight()
        return
    try:
        if target.host is not None and target.host.ssh:
            gatherer.rtt_ms = await link.ping()
        await gatherer.over_link(link)
    finally:
        closing = asyncio.ensure_future(link.close())
        try:
            await asyncio.wait_for(asyncio.shield(closing), CLOSING_S)
        except Exception:  # closing is a courtesy; what was found stands
            closing.cancel()
