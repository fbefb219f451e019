"""Slow or hung while a server loads: evidence gathered here, the rule is `sglang.stall`'s."""

from __future__ import annotations

from specdash.monitor import story_view
from specdash.monitor.state import Health, HostState, ServerState, Verdict


def judge(host: HostState, server: ServerState, health: Health, now: float) -> Verdict:
    """The verdict of a run that has not ended."""
    if health.state in ("ready", "idle", "busy"):
        return Verdict("ready", health.sentence, health.evidence)
    if health.state in ("hung_suspected", "down"):
        return Verdict("stalled", health.sentence, health.evidence)
    if server.status.started_boot_s is None and server.status.alive is None and not server.log.read:
        return Verdict("unknown", "Nothing has been seen of it yet.")
    stage = story_view.stage(server.story) or "starting"
    return Verdict("starting", f"It loads ({stage}).")
