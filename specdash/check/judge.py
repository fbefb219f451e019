"""One target's findings: what the state of its host and servers means for what was asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from specdash.check.findings import of_host, of_server, values
from specdash.check.gather import Gatherer
from specdash.check.states import Finding, State
from specdash.check.targets import Target
from specdash.config.thresholds import CheckSettings
from specdash.monitor.state import Reading, ServerState


def servers(target: Target, gatherer: Gatherer) -> Mapping[str, Mapping[str, Reading[float]]]:
    """Server name → what thresholds can name, and the new errors of its log."""
    out: dict[str, Mapping[str, Reading[float]]] = {}
    for server in gatherer.host.servers.values():
        if gatherer.looked_at(server):
            errors = gatherer.log_errors.get(server.run.id)
            more = {} if errors is None else {"log_errors": errors}
            out[_name(target, server)] = {**values(server), **more}
    return out


def _name(target: Target, server: ServerState) -> str:
    if target.kind in ("port", "url", "profile"):
        return target.name
    return server.run.profile or server.run.id


def findings(target: Target, gatherer: Gatherer, rules: CheckSettings) -> Iterator[Finding]:
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
            yield from of_server(server, now, rules, "" if len(live) == 1 else _name(target, server))
    elif target.kind == "profile" and target.settings.expect_running is False:
        yield Finding(State.OK, "servers", f"{target.name} does not run, and need not")
    elif host.link.status == "up":
        dead = next((s for s in looked if s.verdict.kind == "dead"), None)
        why = f" Its last run: {dead.verdict.sentence}" if dead else ""
        yield Finding(State.CRITICAL, "absent", f"no server of {target.name} on port {target.port}.{why}")
    yield from gatherer.found


def host_values(gatherer: Gatherer) -> dict[str, Any]:
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
