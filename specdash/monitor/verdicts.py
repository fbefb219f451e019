"""Verdicts of a server: slow or hung, alive or not, its numbers, and whether its speculation pays.

`judge` follows facts (an exit, an answer) and takes the clock of the last tick; `tick` moves time. While
the link is down nothing is judged anew: absence of our eyes is no evidence of stillness.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from types import MappingProxyType

from specdash.monitor import (
    backfill,
    bases,
    breakeven,
    liveness,
    memory,
    numbers,
    numbers_metrics,
    stalls,
    story_view,
)
from specdash.monitor.memory import Memory
from specdash.monitor.state import BreakEven, Health, HostState, Numbers, ServerState, Verdict


def tick(host: HostState, now: float) -> HostState:
    """All servers of a host at the time `now`. Only over a living link."""
    if host.link.status != "up":
        return host
    return judge_all(host, now, moved=True)


def judge_all(host: HostState, now: float, moved: bool = False) -> HostState:
    servers = {ident: judge(host, server, now, moved) for ident, server in host.servers.items()}
    host = replace(host, servers=MappingProxyType(servers))
    return bases.measured(host, now) if moved else host


def judge(host: HostState, server: ServerState, now: float, moved: bool = True) -> ServerState:
    m = memory.of(server)
    source = numbers.choose(server, m, now)
    if source != m.source:
        switched = f"Live numbers now come from {source} instead of {m.source}." if m.source else ""
        m = replace(m, source=source, switched=switched)
        server = memory.keep(server, m)
    ended = over(server)
    judged_from = (server.story.size, server.status, ended)
    if m.causes_for != judged_from:
        m = replace(m, causes=story_view.causes(server, ended), causes_for=judged_from)
        server = memory.keep(server, m)
    elif ended and server.verdict.kind in ("dead", "stopped"):
        return server  # nothing more can happen to it
    if ended:
        return _ended(server, m, now)
    health = liveness.judge(evidence(server, m, now))
    verdict = _since(server.verdict, stalls.judge(host, server, health, now), now)
    server = replace(server, verdict=verdict, health=health)
    if moved:
        if m.past and m.source == numbers.LOG:
            before, m = backfill.fill(m, server.numbers, now, numbers.from_log)
            server = memory.keep(replace(server, numbers=before), m)
        server = replace(server, numbers=numbers.make(server, m, now))
        left, source = stalls.eta(host, server, now)
        server = replace(server, breakeven=pays(host, server, m, now), eta_s=left, eta_source=source)
    return server


def over(server: ServerState) -> bool:
    """The run has ended: its supervisor recorded an exit, or its process is known to be gone."""
    status = server.status
    return status.alive is False or status.exit_code is not None or status.exit_signal is not None


def _since(old: Verdict, new: Verdict, now: float) -> Verdict:
    return replace(new, since=old.since if old.kind == new.kind and old.since is not None else now)


def _ended(server: ServerState, m: Memory, now: float) -> ServerState:
    status = server.status
    cause = m.causes[0] if m.causes else None
    asked = status.stop_asked or (cause is not None and not cause.crashed)
    if status.exit_signal is not None:
        how = _by_signal(status.exit_signal, asked)
    elif status.exit_code is not None:
        how = f"exit code {status.exit_code}"
    else:
        how = "its process is gone; nobody recorded how it ended"
    evidence = (how, *(cause.evidence if cause else ()))
    if asked or (status.exit_code == 0 and status.ready_boot_s is not None):
        verdict = Verdict("stopped", f"Stopped ({how}).", (how,))
    else:
        why = f"Died: {cause.sentence.rstrip('.')} ({how})." if cause and cause.sentence else f"Died: {how}."
        verdict = Verdict("dead", why, evidence)
    health = Health("down", f"Ended: {how}.", (how,), now, cause.category if cause else "process_gone")
    was = server.numbers
    ended = replace(was, idle=None) if was.idle is not None else was
    blank = Numbers(decode_history=ended.decode_history, accept_history=ended.accept_history)
    return replace(
        server,
        verdict=_since(server.verdict, verdict, now),
        health=health,
        numbers=blank,
        breakeven=BreakEven(),
    )


def _by_signal(number: int, asked: bool) -> str:
    """INT and TERM ask a server to end; the others take its life."""
    if number in (signal.SIGINT, signal.SIGTERM):
        name = signal.Signals(number).name[3:]
        return (
            f"ended by a stop, signal {name}" if asked else f"ended by signal {name}, which asks it to stop"
        )
    return f"killed by signal {number}"


def evidence(server: ServerState, m: Memory, now: float) -> liveness.Evidence:
    return liveness.Evidence(
        now=now,
        alive=server.status.alive,
        was_ready=m.was_ready,
        answers=m.answers,
        counts=m.counts,
        processes=m.processes,
        schedulers_seen=m.roles_seen.get("scheduler", 0),
        detokenizers_seen=m.roles_seen.get("detokenizer", 0),
        last_decode=m.last_decode,
        last_prefill=m.last_prefill,
        log_read=server.log.size > 0 and server.log.behind == 0 and not server.log.missing,
        # "Fired up" can be another server's answer, so ready is the supervisor's word where there is one.
        log_says=_log_says(server),
    )


def _log_says(server: ServerState) -> str:
    said = story_view.stage(server.story)
    if said == "ready" and server.status.supervisor_alive and server.status.ready_boot_s is None:
        return "warmup"
    return said


RESTED_S = 60.0
"""Nothing decoded for so long ends a time below the line: nobody knows where it was meanwhile."""


def _decoded(told: Numbers, now: float) -> bool:
    last = next((at for at, value in reversed(told.decode_history) if value), None)
    return last is not None and now - last <= RESTED_S


def pays(host: HostState, server: ServerState, m: Memory, now: float) -> BreakEven:
    """By the one source of the live numbers: values of two sources are never put into one sum."""
    told = server.numbers
    algorithm = server.drafter.algorithm or (m.info.algorithm if m.info else "")
    speculating: bool | None = True if algorithm or m.speculates else None
    if speculating is None and (m.speculates is False or m.info is not None or server.run.argv):
        speculating = False
    running = length = tok_s = None
    if told.accept_length.source == told.decode_tok_s.source == numbers.LOG:
        load = told.decode_tok_s.load
        running, length, tok_s = (
            None if load is None else float(load),
            told.accept_length.value,
            told.decode_tok_s.value,
        )
    elif m.source == numbers.METRICS and (steady := numbers_metrics.steady(m, now)) is not None:
        running, length, tok_s = steady.running, steady.accept_length, steady.tok_s
    place = (speculating, bases.target_of(server, m), host.name, bases.tp_of(server, m))
    judged = breakeven.judge(breakeven.Now(*place, running, length, tok_s), bases.known(host))
    below = server.breakeven.below_since
    if judged.verdict == "does_not_pay":
        below = now if below is None else below
    elif judged.verdict == "pays" or not _decoded(told, now):
        below = None
    return replace(judged, below_since=below)
