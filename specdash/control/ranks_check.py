"""Would this profile start on these hosts together? Each host's own preflight, and what only holds between them.

`gather` asks all hosts at once, with real connections between them; `judge` concludes, purely.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from specdash.control import preflight, ranks_compare, ranks_wires
from specdash.control.plans import Check
from specdash.control.preflight_facts import Facts, draft_path, gather, target_path
from specdash.control.preflight_leaving import without
from specdash.control.ranks import Layout, Network, Ranks, plan
from specdash.control.ranks_party import Party
from specdash.errors import LinkError, RemoteError
from specdash.host.link import Link
from specdash.sglang.commandline import LaunchSpec


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything that the checks of several hosts look at. By host name throughout."""

    ranks: Ranks
    networks: Mapping[str, Network]
    facts: Mapping[str, Facts]
    files: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """host → "target" or "drafter" → file → size and hash."""
    wires: tuple[ranks_wires.Wire, ...] = ()
    problems: tuple[str, ...] = ()


async def networks(party: Party) -> dict[str, Network]:
    """What each host says of its network. Raises LinkError; an older agent's refusal is a RemoteError."""

    async def one(host: str) -> Network:
        return Network.from_call(await party.call(host, "network.look", {}))

    found = await asyncio.gather(*(one(host) for host in party.hosts))
    return dict(zip(party.hosts, found, strict=True))


async def check(
    party: Party, layout: Layout, *, leaving: Mapping[str, str] | None = None, use_cache: bool = True
) -> tuple[Ranks, tuple[Check, ...]]:
    """The ranks as they would be launched, and all checks. `leaving`: host → run that will be gone (a switch)."""
    nets = await networks(party)
    ranks = plan(layout, nets)
    seen = await look(party, ranks, nets, leaving or {}, use_cache=use_cache)
    return ranks, judge(seen)


async def look(
    party: Party,
    ranks: Ranks,
    nets: Mapping[str, Network],
    leaving: Mapping[str, str],
    *,
    use_cache: bool = True,
) -> Seen:
    """Asks all hosts, in the order that their answers need: each alone, then files, then the wires between them."""
    facts = await asyncio.gather(
        *(_facts(party, one.host, one.spec, leaving.get(one.host, ""), use_cache) for one in ranks.ranks)
    )
    by_host = dict(zip(ranks.hosts, facts, strict=True))
    files, problems = await _files(party, by_host)
    wires = await ranks_wires.measure(party, ranks, nets, secrets.token_hex(8), leaves=bool(leaving))
    return Seen(ranks, nets, by_host, files, wires, tuple(problems))


async def _facts(party: Party, host: str, spec: LaunchSpec, leaving: str, use_cache: bool) -> Facts:
    link: Link = party.links[host]
    found = await gather(link, spec, use_cache=use_cache)
    return without(found, leaving) if leaving else found


async def _files(
    party: Party, facts: Mapping[str, Facts]
) -> tuple[dict[str, dict[str, Mapping[str, Any]]], list[str]]:
    problems: list[str] = []

    async def one(host: str, found: Facts) -> dict[str, Mapping[str, Any]]:
        wanted = {}
        for who, path in (("target", target_path(found.spec)), ("drafter", draft_path(found.spec))):
            model = found.model(path) if path else None
            if model is not None and model.get("full") and model.get("kind") not in ("missing", "hub_id"):
                wanted[who] = str(model["full"])
        if not wanted:
            return {}
        try:
            answer = await party.call(host, "ranks.files", {"paths": list(wanted.values())}, timeout=60)
        except (RemoteError, LinkError) as error:
            problems.append(f"{host}: {error.sentence}")
            return {}
        return {who: answer["folders"].get(path, {}) for who, path in wanted.items()}

    answers = await asyncio.gather(*(one(host, found) for host, found in facts.items()))
    return dict(zip(facts, answers, strict=True)), problems


def judge(seen: Seen) -> tuple[Check, ...]:
    """All checks, what holds between the hosts first. Pure."""
    return (
        *ranks_compare.layout(seen.ranks),
        *ranks_compare.sglang(seen.facts),
        *ranks_compare.models(seen.files, seen.facts),
        *ranks_compare.gpus(seen.facts),
        *ranks_compare.clocks(seen.facts),
        *ranks_wires.interfaces(seen.ranks, seen.networks),
        *ranks_wires.judge(seen.ranks, seen.wires),
        *each(seen.ranks, {host: preflight.judge(found) for host, found in seen.facts.items()}),
    )


def each(ranks: Ranks, found: Mapping[str, tuple[Check, ...]]) -> list[Check]:
    """Every host's own checks: what is the same on all is said once, what is not, by host."""
    by_text: dict[tuple[str, str, str], list[tuple[str, Check]]] = {}
    for host in ranks.hosts:
        for one in found.get(host, ()):
            by_text.setdefault((one.name, one.status, one.sentence), []).append((host, one))
    out: list[Check] = []
    for told in by_text.values():
        hosts = [host for host, _ in told]
        one = told[0][1]
        if len(set(hosts)) == len(set(ranks.hosts)):
            out.append(one)
        else:
            out.extend(
                replace(c, name=f"{host}: {c.name}", sentence=f"{host}: {c.sentence}") for host, c in told
            )
    return out
