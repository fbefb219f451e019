"""What `status` and `show` share: a hub over the wanted hosts, and waiting until the picture is whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.monitor.hub import Hub
from specdash.monitor.sources import lives_now
from specdash.monitor.state import FleetState, HostState, ServerState

if TYPE_CHECKING:
    from specdash.verbs.context import Context


def make_hub(context: Context, names: list[str]) -> Hub:
    """A hub that is not started. Without names: every configured host, else this machine."""
    settings = context.settings
    wanted = list(settings.expand(names)) if names else [*settings.hosts] or ["local"]
    ask = context._ask_host_key if context.interactive else None
    return Hub([settings.host(name) for name in wanted], ask, read_only=context.read_only)


def settled(state: FleetState) -> bool:
    """Every host was seen whole once, or cannot be reached."""
    return all(_host_settled(host) for host in state.hosts.values())


def _host_settled(host: HostState) -> bool:
    if host.link.status in ("refused", "failed", "lost"):
        return True
    if host.link.status != "up" or host.gpus is None or not host.sample or host.runs_at is None:
        return False
    living = [server for server in host.servers.values() if lives_now(server)]
    if host.bases_at is None and any(server.breakeven.verdict != "not_speculating" for server in living):
        return False  # break-even would say *not known yet* of what only was not read yet
    return all(_server_settled(server) for server in living)


def _server_settled(server: ServerState) -> bool:
    if server.log.missing or not server.run.log_path:
        return True
    if not server.samples or server.log.behind or not server.log.read:
        return False
    if server.status.ready_boot_s is None or server.run.http_port is None or server.run.node_rank:
        return True  # a rank above 0 answers no request: nothing of its port is waited for
    return server.health.state in ("idle", "busy", "hung_suspected", "down")


def unreached(state: FleetState) -> list[HostState]:
    return [host for host in state.hosts.values() if host.link.status != "up"]
