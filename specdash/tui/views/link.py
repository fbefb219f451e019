"""How the way to a host, its age and its server are said in a few cells."""

from __future__ import annotations

from specdash.monitor.state import FleetState, HostState, LinkState, ServerState
from specdash.tui.words import STALE_AFTER_S, Span, age, one_line

LINK_GLYPH: dict[str, tuple[str, str, str]] = {
    # status: glyph, word, role
    "connecting": ("◌", "connecting", "warn"),
    "up": ("●", "up", "ok"),
    "lost": ("↻", "reconnecting", "warn"),
    "refused": ("✗", "refused", "bad"),
    "failed": ("✗", "failed", "bad"),
    "closed": ("○", "closed", "dim"),
}
SERVER_WORD: dict[str, tuple[str, str]] = {
    "starting": ("◌", "warn"),
    "loading": ("▶", "warn"),
    "slow": ("▶", "warn"),
    "stalled": ("⚠", "bad-strong"),
    "warmup": ("▶", "warn"),
    "ready": ("●", "ok"),
    "idle": ("●", "ok"),
    "busy": ("●", "ok"),
    "hung?": ("⚠", "bad-strong"),
    "down": ("✗", "bad"),
    "failed": ("✗", "bad-strong"),
    "stopped": ("○", "dim"),
    "ended": ("○", "dim"),
    "prepared": ("○", "dim"),
    "unknown": ("?", "dim"),
}


def link_age(host: HostState, now: float) -> float | None:
    """Seconds since the last observation came over the link; None when never."""
    return None if host.link.last_up is None else max(0.0, now - host.link.last_up)


def is_stale(host: HostState, now: float) -> bool:
    """Everything shown of this host is old: the link is not up, or nothing came for a while."""
    old = link_age(host, now)
    return host.link.status != "up" or old is None or old > STALE_AFTER_S


def link_word(link: LinkState) -> str:
    return LINK_GLYPH.get(link.status, ("?", link.status, "dim"))[1]


def link_spans(host: HostState, now: float, *, short: bool = False) -> list[Span]:
    """`● up · 0.4 s old · 12 ms`, or `↻ reconnecting · data 12 s old · again in 4 s`."""
    link = host.link
    glyph, word, role = LINK_GLYPH.get(link.status, ("?", link.status, "dim"))
    spans: list[Span] = [(f"{glyph} {word}", role)]
    old = link_age(host, now)
    if link.status == "up":
        if old is not None:
            # One decimal jitters all night for nothing: below the limit the age is simply "live".
            note = f" {age(old)} old" if old > STALE_AFTER_S else " live"
            spans.append((note, "stale" if old > STALE_AFTER_S else "dim"))
        if link.rtt_ms is not None and not short:
            spans.append((f" {link.rtt_ms:.0f} ms", "dim"))
        return spans
    if old is not None:
        spans.append((f" data {age(old)} old", "stale"))
    if link.retry_at is not None and not short:
        spans.append((f" again in {age(round(max(0.0, link.retry_at - now)))}", "dim"))
    return spans


def server_word(server: ServerState) -> str:
    """One word for what a server does, from verdict and health."""
    verdict, health = server.verdict.kind, server.health.state
    status = server.status
    if (
        status.pid is None
        and status.started_boot_s is None
        and status.alive is not True
        and not server.log.size
    ):
        # A switch writes the run folders of the next server, and of the way back, before it stops the old one.
        return "prepared"
    if verdict == "dead":
        return "failed"
    if verdict == "stopped":
        return "stopped"
    if verdict == "stalled":
        return "stalled"
    if server.status.ended_boot_s is not None or server.status.exit_code is not None:
        return "stopped" if server.status.stop_asked else "failed"
    if health in ("hung_suspected",):
        return "hung?"
    if health == "down":
        return "down"
    if health in ("ready", "idle", "busy"):
        return health
    if verdict == "ready":
        return "idle" if server.numbers.idle else "ready"
    if verdict == "slow":
        return "slow"
    if health == "warmup":
        return "warmup"
    if verdict in ("starting", "progressing"):
        return "loading"
    return "unknown"


def is_living(server: ServerState) -> bool:
    return (
        server_word(server) not in ("failed", "stopped", "unknown", "prepared") or server.status.alive is True
    )


def server_spans(server: ServerState, stale: bool = False) -> list[Span]:
    word = server_word(server)
    glyph, role = SERVER_WORD.get(word, ("?", "dim"))
    return [(f"{glyph} {word}", "stale" if stale else role)]


def run_name(server: ServerState) -> str:
    return one_line(server.run.profile or server.run.target.rsplit("/", 1)[-1] or server.run.id)


def newest_server(host: HostState) -> ServerState | None:
    """The server to show first: a living one, else the newest."""
    first = None
    for server in host.servers.values():
        if is_living(server):
            return server
        if server_word(server) != "prepared":
            first = first or server
    return first


def letters(host: HostState) -> dict[str, str]:
    """Run id → A, B, C…: living runs that hold or may hold GPUs, oldest first, so letters keep still."""
    runs = [run for run, server in host.servers.items() if is_living(server)]
    return {run: chr(ord("A") + i % 26) for i, run in enumerate(reversed(runs))}


def host_of(fleet: FleetState, name: str) -> HostState | None:
    return fleet.hosts.get(name)
