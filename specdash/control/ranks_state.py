"""Servers over several hosts in what the monitor sees: their ranks, wherever they are, as one story. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specdash.control import ranks_story
from specdash.control.ranks_follow import how
from specdash.control.ranks_story import RankView, Together
from specdash.monitor.state import FleetState, HostState, ServerState
from specdash.sglang.causes import first_cause


@dataclass(frozen=True, slots=True)
class Group:
    """One server over several hosts. `missing`: ranks that no host in sight has."""

    id: str
    profile: str
    views: tuple[RankView, ...]
    missing: tuple[int, ...]
    together: Together
    over: bool
    """All of its ranks have ended, or were stopped."""

    @property
    def sentence(self) -> str:
        """What it is and how it is, host and rank of the first failure named."""
        hosts = ", ".join(view.host for view in self.views)
        lost = [view for view in self.views if view.away and not view.ended]
        rest = [view.name for view in self.views if not view.ended and not view.away]
        parts = [
            f"{self.profile} is one server over {hosts}: {self.together.sentence}",
            *self.together.folded,
        ]
        parts += [
            f"{view.host} is out of reach ({view.away})." for view in lost if view is not self.together.first
        ]
        if self.missing:
            parts.append(f"Rank {', '.join(map(str, self.missing))} is on no host that is looked at.")
        if (lost or self.together.first) and rest:
            parts.append(f"The rest: {', '.join(rest)}. Stop it: specdash stop {self.id}")
        return " ".join(parts)

    def as_json(self) -> dict[str, Any]:
        first = self.together.first
        return {
            "id": self.id,
            "profile": self.profile,
            "phase": self.together.phase,
            "sentence": self.sentence,
            "first_failure": {"host": first.host, "rank": first.rank} if first else None,
            "missing_ranks": list(self.missing),
            **self.together.data,
        }


def groups(state: FleetState) -> tuple[Group, ...]:
    """Every server over several hosts, in the order of their rank 0's hosts."""
    found: dict[str, list[tuple[HostState, ServerState]]] = {}
    for host in state.hosts.values():
        for server in host.servers.values():
            if server.run.nnodes > 1 and server.run.run_id_all != server.run.id:
                found.setdefault(server.run.run_id_all, []).append((host, server))
    out = []
    for ident, rows in found.items():
        rows.sort(key=lambda row: row[1].run.node_rank)
        views = tuple(view(host, server) for host, server in rows)
        there = {one.rank for one in views}
        missing = tuple(rank for rank in range(rows[0][1].run.nnodes) if rank not in there)
        over = all(one.ended for one in views)
        out.append(Group(ident, rows[0][1].run.profile, views, missing, ranks_story.merge(views), over))
    return tuple(out)


def view(host: HostState, server: ServerState) -> RankView:
    """One rank from the monitor's state."""
    status, run = server.status, server.run
    ended = server.verdict.kind in ("dead", "stopped") or status.ended_boot_s is not None
    record = {
        "phase": "exited" if ended else "",
        "exit_code": status.exit_code,
        "exit_signal": status.exit_signal,
    }
    cause = None
    if ended and not status.stop_asked:
        cause = first_cause(server.story, exit_code=status.exit_code, signal=status.exit_signal, gone=True)
    phase = server.story.phase
    if phase in ("ready", "serving", "exited", "unknown"):
        phase = "starting_http_or_warmup" if phase in ("ready", "serving") else "starting"
    return RankView(
        run.node_rank,
        host.name,
        run.id,
        phase,
        ready=status.ready_boot_s is not None and not ended,
        ended=ended,
        ended_unix=wall_of(host, status.ended_boot_s),
        how=how(record),
        cause=cause,
        stop_asked=status.stop_asked,
        away="" if host.link.status == "up" else host.link.sentence or host.link.status,
    )


def wall_of(host: HostState, boot_s: float | None) -> float | None:
    """A time since the host's boot as its wall clock had it; hosts of one server should agree on that."""
    unix, boot = host.facts.get("now_unix"), host.facts.get("now_boot")
    if boot_s is None or not isinstance(unix, (int, float)) or not isinstance(boot, (int, float)):
        return None
    return float(unix) - float(boot) + boot_s
