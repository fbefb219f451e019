"""What is known of a host itself: its link, its facts, its memory and load, its actions, its base runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from specdash.monitor.events import (
    ActionChanged,
    BaseMeasured,
    BasesRead,
    Event,
    HostSampled,
    HostSeen,
    LinkChanged,
)
from specdash.monitor.state import ActionState, HostState

MOST_ACTIONS = 50
MOST_BASES = 200


def frozen(data: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(dict(data))


def seen(host: HostState, event: Event) -> HostState:
    """Something came over the link just now."""
    return replace(host, link=replace(host.link, last_up=event.at))


def link_changed(host: HostState, event: Event, body: LinkChanged) -> HostState:
    link = host.link
    changed = body.status != link.status or not link.since
    return replace(
        host,
        link=replace(
            link,
            status=body.status,
            sentence=body.sentence,
            since=event.at if changed else link.since,
            attempt=body.attempt,
            retry_at=None if body.retry_in_s is None else event.at + body.retry_in_s,
            rtt_ms=body.rtt_ms if body.rtt_ms is not None else (link.rtt_ms if body.status == "up" else None),
            last_up=event.at if body.status == "up" else link.last_up,
        ),
    )


def host_seen(host: HostState, event: Event, body: HostSeen) -> HostState:
    """Facts of the agent's hello, with the local time at which `now_boot` was true, under "seen_at"."""
    facts = dict(body.facts)
    facts["seen_at"] = event.at
    host = seen(replace(host, facts=frozen(facts)), event)
    if host.gpus is not None and facts.get("boot_id") != host.facts.get("boot_id"):
        host = replace(host, gpus=replace(host.gpus, expected=None))
    return host


def boot_to_local(host: HostState, boot_s: float | None) -> float | None:
    """Local monotonic time of a host's boot-time clock reading; None when the host was never seen."""
    seen_at, now_boot = host.facts.get("seen_at"), host.facts.get("now_boot")
    if boot_s is None or not isinstance(seen_at, float) or not isinstance(now_boot, (int, float)):
        return None
    return seen_at + (boot_s - float(now_boot))


def boot_now(host: HostState, now: float) -> float | None:
    """The host's boot-time clock at the local time `now`."""
    seen_at, now_boot = host.facts.get("seen_at"), host.facts.get("now_boot")
    if not isinstance(seen_at, float) or not isinstance(now_boot, (int, float)):
        return None
    return float(now_boot) + (now - seen_at)


def host_sampled(host: HostState, event: Event, body: HostSampled) -> HostState:
    table = dict(body.table)
    table["seen_at"] = event.at
    return seen(replace(host, sample=frozen(table)), event)


def action_changed(host: HostState, event: Event, body: ActionChanged) -> HostState:
    old = next((a for a in host.actions if a.id == body.action_id), None)
    new = ActionState(
        body.action_id,
        body.kind,
        body.title,
        body.status,
        body.step,
        body.sentence,
        tuple(body.steps) or (old.steps if old else ()),
        since=old.since if old else event.at,
        changed=event.at,
        final=body.final,
    )
    rest = tuple(new if a.id == new.id else a for a in host.actions) if old else (*host.actions, new)
    return replace(host, actions=rest[-MOST_ACTIONS:])


def base_measured(host: HostState, event: Event, body: BaseMeasured) -> HostState:
    record = frozen(body.record)
    rest = tuple(base for base in host.bases if base != record)
    return replace(host, bases=(*rest, record)[-MOST_BASES:])


def bases_read(host: HostState, event: Event, body: BasesRead) -> HostState:
    return replace(host, bases_at=event.at)
