"""Slow or hung while a server loads: evidence gathered here, the rule is `sglang.stall`'s."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from specdash.monitor import memory, story_view
from specdash.monitor.memory import Memory
from specdash.monitor.reduce_link import boot_now
from specdash.monitor.state import Health, HostState, ServerState, Verdict
from specdash.monitor.untrusted import mapping, number, whole
from specdash.sglang import stall
from specdash.sglang.phases import TITLES

LOADED = ("ready", "serving", "exited")
Loads = list[list[stall.PhaseTime]]


def judge(
    host: HostState,
    server: ServerState,
    health: Health,
    now: float,
    floors: Mapping[str, float] = stall.FLOORS,
) -> Verdict:
    """The verdict of a run that has not ended. `floors`: seconds of stillness allowed, by phase."""
    m = memory.of(server)
    deadly = next((cause for cause in m.causes if cause.crashed), None)
    if deadly is not None:
        return Verdict("stalled", deadly.sentence, tuple(deadly.evidence))
    if server.status.stop_asked:
        return Verdict("progressing", "It is being stopped: its processes are still there.")
    if health.state in ("ready", "idle", "busy"):
        return Verdict("ready", health.sentence, health.evidence)
    if server.status.phase_hint == "created":
        return Verdict("starting", "It is prepared; its process has not been started yet.")
    # A closed port, with no category, is no more than what every load looks like from outside.
    if health.state in ("hung_suspected", "down") and (m.was_ready or health.category):
        return Verdict("stalled", health.sentence, health.evidence)
    if server.status.started_boot_s is None and server.status.alive is None and not server.log.read:
        return Verdict("unknown", "Nothing has been seen of it yet.")
    found = _stall(host, server, m, now, floors)
    if found.kind == "unknown" or (found.kind == "progressing" and server.story.phase == "unknown"):
        title = TITLES.get(server.story.phase, server.story.phase)
        said = "its log tells no phase yet" if title == "unknown" else title
        return Verdict("starting", f"It starts: {said}.", found.evidence)
    kinds: Mapping[str, Any] = {
        "progressing": "progressing",
        "slow": "slow",
        "stalled": "stalled",
        "dead": "dead",
    }
    return Verdict(kinds[found.kind], found.sentence, found.evidence)


def _stall(
    host: HostState, server: ServerState, m: Memory, now: float, floors: Mapping[str, float]
) -> stall.Stall:
    story = server.story
    quiet = quiet_s(server, now)
    since = in_phase_s(server, now)
    samples = tuple(_samples(host, server, now))
    return stall.judge(
        story.phase,
        quiet,
        in_phase_s=since,
        samples=samples,
        history_s=tuple(_history(loads_of(host, server), story.phase, story.sub_phase)),
        progress=story.progress,
        checkpoint_bytes=server.run.weights_bytes,
        read_in_phase=_read_since(samples, since),
        alive=server.status.alive,
        gone=_gone(m),
        floors=floors,
    )


def quiet_s(server: ServerState, now: float) -> float | None:
    """Seconds since the log's last byte; None when it has none yet or has not been read to its end."""
    log = server.log
    if log.last_growth is None or log.missing:
        return None
    return max(0.0, now - log.last_growth)


def in_phase_s(server: ServerState, now: float) -> float | None:
    """How long the current phase takes already: by the log's own times, since a log may be read late."""
    story = server.story
    if not story.phases:
        return None
    began = story.phases[-1].began
    if began is not None and story.last_time is not None:
        return max(0.0, story.last_time - began) + (quiet_s(server, now) or 0.0)
    at = story.phases[-1].began_at
    return None if at is None else max(0.0, now - at)


def _samples(host: HostState, server: ServerState, now: float) -> Iterator[stall.Sample]:
    clock = boot_now(host, now)
    if clock is None:
        return
    for sample in server.samples:
        at = number(sample.get("boot_s"))
        if at is None:
            continue
        states = "".join(
            str(letter)[:1] * min(whole(count) or 0, 256)
            for letter, count in mapping(sample.get("states")).items()
        )
        yield stall.Sample(
            min(0.0, at - clock),
            number(sample.get("log_size")),
            number(sample.get("read_bytes")),
            number(sample.get("cpu_s")),
            _gpu_mib(sample),
            states,
            number(sample.get("rchar")),
        )


def _gpu_mib(sample: Mapping[str, Any]) -> float | None:
    """GPU memory of the run, else the level of all GPUs (pids hidden); both show whether it moves."""
    for key in ("gpu_mib", "gpu_level_mib"):
        told = sample.get(key)
        values = (
            list(told.values())
            if isinstance(told, Mapping)
            else told
            if isinstance(told, (list, tuple))
            else []
        )
        known = [value for value in (number(item) for item in values) if value is not None]
        if known:
            return sum(known)
    return None


def _read_since(samples: tuple[stall.Sample, ...], since: float | None) -> float | None:
    """Bytes read from disk since the phase began; None when no sample is that old."""
    if since is None or len(samples) < 2:
        return None
    before = [s for s in samples if s.t <= -since]
    return stall.read_between(before[-1] if before else samples[0], samples[-1])


def _gone(m: Memory) -> list[str]:
    """Engine processes that this run once had and has no more."""
    if m.processes is None:
        return []
    return [
        f"sglang::{role}"
        for role, most in sorted(m.roles_seen.items())
        if role != "main" and m.processes.roles.get(role, 0) < most
    ]


def loads_of(host: HostState, server: ServerState) -> Loads:
    """Finished loads of the same profile, else of the same target with the same algorithm, phase by phase."""
    done = [
        s for s in host.servers.values() if s.run.id != server.run.id and s.status.ready_boot_s is not None
    ]
    same = [s for s in done if s.run.profile and s.run.profile == server.run.profile]
    key = (server.run.target, server.run.algorithm)
    near = [s for s in done if s.run.target and (s.run.target, s.run.algorithm) == key]
    for group in (same, near):
        found = [phases_of(s) for s in group]
        found = [load for load in found if load]
        if found:
            return found
    return []


def phases_of(server: ServerState) -> list[stall.PhaseTime]:
    out = []
    for phase in story_view.phases(server):
        if phase.name in LOADED:
            break
        if phase.seconds is not None:
            out.append((phase.name, phase.sub, phase.seconds))
    return out


def _history(loads: Loads, phase: str, sub: str) -> Iterator[float]:
    for load in loads:
        yield from (seconds for name, part, seconds in load if (name, part) == (phase, sub))


def eta(host: HostState, server: ServerState, now: float) -> tuple[float | None, str]:
    """(seconds to ready, where that comes from); (None, "") without history or once loaded."""
    if server.story.phase in LOADED or server.status.ready_boot_s is not None:
        return None, ""
    loads = loads_of(host, server)
    if loads:
        left = stall.eta(server.story.phase, server.story.sub_phase, in_phase_s(server, now), loads)
        if left is not None:
            return left, f"{len(loads)} finished load{'s' if len(loads) > 1 else ''}, phase by phase"
    return _eta_of_totals(host, server, now)


def _eta_of_totals(host: HostState, server: ServerState, now: float) -> tuple[float | None, str]:
    """From start to ready of earlier runs of the profile, where their logs were not read."""
    clock, began = boot_now(host, now), server.status.started_boot_s
    totals = [
        s.status.ready_boot_s - s.status.started_boot_s
        for s in host.servers.values()
        if s.run.id != server.run.id
        and s.run.profile
        and s.run.profile == server.run.profile
        and s.status.ready_boot_s is not None
        and s.status.started_boot_s is not None
    ]
    usual = stall.median(totals)
    if usual is None or clock is None or began is None:
        return None, ""
    return max(
        0.0, usual - (clock - began)
    ), f"start to ready of {len(totals)} earlier run{'s' if len(totals) > 1 else ''}"
