"""SGLang on a host that is no run of ours: servers that others started, and workers whose launcher is gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from specdash.monitor import reduce_gpu
from specdash.monitor.state import HostState
from specdash.monitor.untrusted import rows, text, texts, whole
from specdash.sglang import servers as rules


class Foreign(NamedTuple):
    """A server that no run folder of ours is about. Adopting it by its pid is `specdash adopt`."""

    pid: int
    start: int
    user: str
    port: int | None
    model: str
    algorithm: str
    managed_by: str
    """ "", "docker", "systemd", "user NAME": who else has to stop it."""
    workers: int
    age_s: float


class Orphan(NamedTuple):
    """A worker (scheduler, detokenizer, …) with no launcher above it."""

    pid: int
    user: str
    title: str
    age_s: float


def found(host: HostState, now: float) -> list[Foreign]:
    """By the last process table; empty before there is one."""
    table = _rows(host)
    ours = _ours(host)
    age = _age(host, now)
    out = []
    for one in rules.find(table, text(host.facts.get("user"))):
        if one["pid"] in ours:
            continue
        start = whole(one["start"]) or 0
        out.append(
            Foreign(
                one["pid"],
                start,
                one["user"],
                one["port"],
                one["model"],
                one["algorithm"],
                one["managed_by"],
                len(one["workers"]),
                age,
            )
        )
    return out


def orphans(host: HostState, now: float = 0.0) -> list[Orphan]:
    """Workers of ours, or of our user, that outlived their launcher, in two tables one after the other.

    One table may show a run that just ends. Zombies hold nothing and are left out.
    """
    table = _rows(host)
    before = host.processes.get("seen_before") or ()
    launched = [{"root_pid": s.status.pid} for s in host.servers.values() if s.status.pid]
    left = set(rules.orphans(table, text(host.facts.get("user")), launched)) - _ours(host)
    return [
        Orphan(row["pid"], row["user"], " ".join(row["cmdline"])[:120], _age(host, now))
        for row in table
        if row["pid"] in left and row["state"][:1] not in ("Z", "X") and (row["pid"], row["start"]) in before
    ]


def _age(host: HostState, now: float) -> float:
    at = host.processes.get("seen_at")
    return max(0.0, now - at) if isinstance(at, float) else 0.0


def _rows(host: HostState) -> list[dict[str, Any]]:
    return [_row(row) for row in rows(host.processes.get("processes")) if whole(row.get("pid"))]


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    container = row.get("container")
    return {
        "pid": whole(row.get("pid")) or 0,
        "ppid": whole(row.get("ppid")) or 0,
        "pgid": whole(row.get("pgid")) or 0,
        "sid": whole(row.get("sid")) or 0,
        "start": whole(row.get("start")),
        "user": text(row.get("user")),
        "state": text(row.get("state")),
        "cmdline": list(texts(row.get("cmdline"))),
        "container": container if isinstance(container, Mapping) else {},
    }


def _ours(host: HostState) -> set[int]:
    """Launchers of living runs, and the processes that their supervisors see."""
    out: set[int] = set()
    for server in host.servers.values():
        if server.status.alive:
            out.update(reduce_gpu.pids(server))
            if server.status.pid:
                out.add(server.status.pid)
    return out
