"""All targets at once, each within its own time, whatever hangs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from specdash.check.findings import Finding, State, of_host, of_server, values, worst
from specdash.check.gather import Gatherer
from specdash.check.targets import NO_RULES, Target
from specdash.config.thresholds import CheckSettings
from specdash.errors import LinkError, SpecdashError
from specdash.host.link import Link
from specdash.monitor.sources import DEFAULT, OpenLink
from specdash.monitor.state import Reading, ServerState

WINDOW_S = 2.0
AT_ONCE = 64

INJECTED: dict[str, Callable[[], AbstractAsyncContextManager[Target]]] = {}
"""Targets that another room brings (the command line puts the demo here): word → what starts it and gives
the target to check."""


@dataclass(frozen=True, slots=True)
class Options:
    timeout_s: float = 10.0
    window_s: float | None = None
    generate: bool = False
    warn: tuple[str, ...] = ()
    crit: tuple[str, ...] = ()


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
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(target: Target) -> Result:
        async with gate:
            return await _one(target, options, open_link)

    return list(await asyncio.gather(*(one(target) for target in targets)))


async def _one(target: Target, options: Options, opener: OpenLink | None) -> Result:
    began = time.monotonic()
    rules = CheckSettings(
        warn=(*options.warn, *target.settings.warn), crit=(*options.crit, *target.settings.crit)
    )
    window = next((w for w in (options.window_s, target.settings.window_s) if w is not None), WINDOW_S)
    generate = options.generate or bool(target.settings.generate)
    gatherer = Gatherer(target, generate=generate, window_s=window, budget_s=options.timeout_s)
    failure: Finding | None = None
    try:
        async with asyncio.timeout(options.timeout_s):
            await _look(gatherer, options, opener)
    except TimeoutError:
        sentence = f"no answer within {options.timeout_s:g} s while {gatherer.doing}"
        failure = Finding(State.CRITICAL, "timeout", sentence, step="Raise --timeout if it is only slow.")
    except LinkError as problem:
        failure = Finding(State.CRITICAL, "link", problem.sentence, step=problem.step)
    except SpecdashError as problem:
        failure = Finding(State.UNKNOWN, "error", problem.sentence, step=problem.step)
    except Exception as problem:  # a check must end with a state, not with a trace
        inner = problem.exceptions[0] if isinstance(problem, ExceptionGroup) else problem
        failure = Finding(State.UNKNOWN, "internal", f"internal error: {type(inner).__name__}: {inner}"[:300])
    findings = list(_findings(target, gatherer, rules))
    if failure is not None:
        findings = [failure, *(f for f in findings if f.state is not State.OK)]
    servers = {_name(target, s): values(s) for s in gatherer.host.servers.values() if gatherer.looked_at(s)}
    return Result(
        target.name,
        target.kind,
        tuple(findings),
        servers,
        _host_values(gatherer),
        gatherer.state.now,
        time.monotonic() - began,
        rules,
    )


async def _look(gatherer: Gatherer, options: Options, opener: OpenLink | None) -> None:
    target = gatherer.target
    if target.host is None:
        await gatherer.straight()
        return
    gatherer.doing = f"connecting to {target.host.name}"
    link: Link = await (opener or DEFAULT)(target.host, ask=None, timeout_s=options.timeout_s)
    try:
        if target.host.ssh:
            gatherer.rtt_ms = await link.ping()
        await gatherer.over_link(link)
    finally:
        closing = asyncio.ensure_future(link.close())
        try:
            await asyncio.wait_for(asyncio.shield(closing), 1.0)
        except Exception:  # closing is a courtesy; what was found stands
            closing.cancel()


def _name(target: Target, server: ServerState) -> str:
    if target.kind in ("port", "url", "profile"):
        return target.name
    return server.run.profile or server.run.id


def _findings(target: Target, gatherer: Gatherer, rules: CheckSettings) -> Iterator[Finding]:
    host, now = gatherer.host, gatherer.state.now
    if target.kind in ("host", "profile") and host.facts:
        yield from of_host(host, gatherer.wall_skew_at)
    looked = [server for server in host.servers.values() if gatherer.looked_at(server)]
    live = [s for s in looked if s.verdict.kind not in ("dead", "stopped")]
    if target.kind == "host":
        for server in looked:
            for finding in of_server(server, now, rules, _name(target, server)):
                # A host without a server is a healthy host; that its last run crashed is worth a warning.
                if server not in live and finding.name == "verdict":
                    state = State.WARNING if server.verdict.kind == "dead" else State.OK
                    finding = Finding(state, "last-run", finding.sentence, finding.evidence)
                yield finding
        if host.facts and not live:
            yield Finding(State.OK, "servers", "no server runs")
    elif live:
        if target.kind == "profile" and gatherer.stranger:
            sentence = f"port {target.port} is served by {gatherer.stranger}, not by a run of {target.name}"
            yield Finding(State.WARNING, "stranger", sentence, step="Adopt it, or launch the profile.")
        for server in live:
            yield from of_server(server, now, rules, _name(target, server))
    elif target.kind == "profile" and target.settings.expect_running is False:
        yield Finding(State.OK, "servers", f"{target.name} does not run, and need not")
    elif host.link.status == "up":
        dead = next((s for s in looked if s.verdict.kind == "dead"), None)
        why = f" Its last run: {dead.verdict.sentence}" if dead else ""
        yield Finding(State.CRITICAL, "absent", f"no server of {target.name} on port {target.port}.{why}")
    for sentence in gatherer.failed:
        yield Finding(State.CRITICAL, "generate", sentence)
    for problem in gatherer.problems:
        yield Finding(State.WARNING, "incomplete", problem)


def _host_values(gatherer: Gatherer) -> dict[str, Any]:
    host = gatherer.host
    board = host.gpus
    used = [gpu.memory_used_mib for gpu in board.gpus if gpu.memory_used_mib is not None] if board else []
    total = [gpu.memory_total_mib for gpu in board.gpus if gpu.memory_total_mib is not None] if board else []
    return {
        "rtt_ms": gatherer.rtt_ms,
        "gpus": len(board.gpus) if board and board.gpus else None,
        "gpu_memory_used_mib": sum(used) if used else None,
        "gpu_memory_total_mib": sum(total) if total else None,
        "mem_available_kb": host.sample.get("mem_available_kb"),
        "disk_free_bytes": host.sample.get("disk_free_bytes"),
    }
