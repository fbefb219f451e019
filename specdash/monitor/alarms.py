"""What wants the operator: derived from the state, kept until it is over or read. `key` makes repeats one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import MappingProxyType

from specdash.monitor import foreign, memory
from specdash.monitor.state import Alarm, HostState, ServerState
from specdash.monitor.untrusted import text
from specdash.sglang import pulse
from specdash.sglang.conditions import USELESS_LENGTH

NO_GPUS = ("no_tool", "amd", "no_driver", "")
"""Categories of a GPU board that mean no NVIDIA GPU, not a broken one."""
BELOW_LINE_S = 120.0
MOST = 50
FRESH_S = 15.0
KV_FULL = 0.97
USELESS_S = 60.0
USELESS_STEP = "Likely: an EAGLE3 drafter under EAGLE, wrong layer ids for its hidden states, or a drafter of another target."


def update(before: HostState, host: HostState, now: float) -> HostState:
    """Alarms of the host and of each of its servers; one that was there keeps its time."""
    servers = {}
    for ident, server in host.servers.items():
        found = _keep(server.alarms, server_alarms(host, server, now))
        servers[ident] = server if found == server.alarms else replace(server, alarms=found)
    alarms = _keep(host.alarms, host_alarms(host, now))
    if alarms == host.alarms and all(servers[i] is host.servers[i] for i in servers):
        return host
    return replace(host, alarms=alarms, servers=MappingProxyType(servers))


def _keep(old: tuple[Alarm, ...], new: Iterable[Alarm]) -> tuple[Alarm, ...]:
    known = {alarm.key: alarm for alarm in old}
    fresh: dict[str, Alarm] = {}
    for alarm in new:
        fresh.setdefault(alarm.key, alarm)
    return tuple(replace(a, at=known[a.key].at) if a.key in known else a for a in fresh.values())[:MOST]


def host_alarms(host: HostState, now: float) -> Iterable[Alarm]:
    board = host.gpus
    if board is not None:
        if board.category not in NO_GPUS and not any(gpu.problem for gpu in board.gpus):
            yield Alarm("gpu-problem", "critical", board.problem, now)
        for gpu in board.gpus:
            if gpu.problem:
                yield Alarm(f"gpu-lost-{gpu.index}", "critical", gpu.problem, now)
            if gpu.ecc_uncorrected:
                sentence = f"GPU {gpu.index} has {gpu.ecc_uncorrected} uncorrected ECC errors."
                yield Alarm(f"gpu-ecc-{gpu.index}", "warning", sentence, now)
        if (
            board.expected is not None
            and board.at is not None
            and board.gpus
            and len(board.gpus) < board.expected
        ):
            yield Alarm(
                "gpu-fewer",
                "critical",
                f"{len(board.gpus)} GPUs, but there were {board.expected} since this host booted.",
                now,
                "Look for Xid in the kernel log.",
            )

    left = foreign.orphans(host)
    if left:
        pids = ", ".join(str(one.pid) for one in left[:8])
        verb = "process has" if len(left) == 1 else "processes have"
        yield Alarm(
            "orphans",
            "warning",
            f"{len(left)} SGLang {verb} no launcher any more (pid {pids}): GPU memory and ports may be held.",
            now,
            "Stop the run it came from again, or end it by its pid if you know it.",
        )


def server_alarms(host: HostState, server: ServerState, now: float) -> Iterable[Alarm]:
    m = memory.of(server)
    verdict, health = server.verdict, server.health
    if verdict.kind == "dead":
        yield Alarm(
            "dead", "critical", verdict.sentence, now, " ".join(m.causes[0].advice[:1]) if m.causes else ""
        )
        return
    if verdict.kind == "stopped":
        if server.status.stopped_proof.get("proven") is False:
            said = str(server.status.stopped_proof.get("sentence") or "Not everything is proven gone.")
            yield Alarm("leftovers", "warning", "Stopped. " + text(said), now)
        return
    if verdict.kind == "stalled":
        yield Alarm("stalled", "critical", verdict.sentence, now, "Ask for stacks, or stop it.")
    if health.category in ("scheduler_dead_health_lies", "scheduler_dead"):
        yield Alarm("scheduler-dead", "critical", health.sentence, now)
    bind = server.inner.get("bind_failed")
    if bind:
        yield Alarm("bind-failed", "critical", text(bind.get("sentence")), now, text(bind.get("step")))
    numbers = server.numbers
    running, cap = numbers.running.value, numbers.running_cap.value
    if numbers.queued.value and cap and running is not None and running >= cap:
        why = f" ({numbers.running_cap.note})" if numbers.running_cap.note else ""
        yield Alarm(
            "capped_by_speculation" if "speculation" in numbers.running_cap.note else "capped",
            "warning",
            f"{numbers.queued.value} requests wait: at most {numbers.running_cap.value} run at once{why}.",
            now,
            "Set --max-running-requests in the profile if memory allows.",
        )
    yield from _by_numbers(server, now)
    for cause in m.causes:
        severity = "critical" if cause.crashed else "warning" if cause.severity == "warning" else "info"
        yield Alarm(cause.category, severity, cause.sentence, now, " ".join(cause.advice[:1]))  # type: ignore[arg-type]
    even = server.breakeven
    if (
        even.verdict == "does_not_pay"
        and even.below_since is not None
        and now - even.below_since >= BELOW_LINE_S
    ):
        minutes = (now - even.below_since) / 60
        yield Alarm(
            "below-break-even", "warning", f"Below break-even for {minutes:.0f} min: {even.sentence}", now
        )
    if m.switched:
        yield Alarm("source-switched", "info", m.switched, now)


def _by_numbers(server: ServerState, now: float) -> Iterable[Alarm]:
    """What a log's conditions say too, for servers whose log is not followed or says nothing of it."""
    numbers = server.numbers
    used, queued = numbers.kv_used, numbers.queued
    fresh = (used.age(now) or 0.0) <= FRESH_S and (queued.age(now) or 0.0) <= FRESH_S
    if used.value is not None and used.value >= KV_FULL and queued.value and fresh:
        sentence = f"The KV pool is {used.value * 100:.0f} % full and {queued.value} requests wait."
        step = (
            "Lower the number of running requests, or give the KV pool more memory (--mem-fraction-static)."
        )
        yield Alarm("kv_pressure", "warning", sentence, now, step)
    recent = [value for at, value in numbers.accept_history if at > now - USELESS_S]
    drafts = pulse.kind(server.drafter.algorithm or server.run.algorithm) == "drafter"
    told = [value for value in recent if value is not None]
    if drafts and len(told) >= USELESS_S / 2 and len(told) == len(recent) and max(told) <= USELESS_LENGTH:
        rate = numbers.accept_rate.value
        said = f"Accept length is {told[-1]:.2f}" + (f", accept rate {rate:.2f}" if rate is not None else "")
        sentence = f"{said} for {USELESS_S:.0f} s: the drafter gives nothing and only costs."
        yield Alarm("drafter_useless", "warning", sentence, now, USELESS_STEP)
