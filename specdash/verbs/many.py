"""What launch, preflight, stop and `profile command` do where a profile names several hosts."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specdash.errors import LinkError, Refused, RemoteError, UsageError
from specdash.exits import Exit

if TYPE_CHECKING:
    from specdash.control.pd import PairLayout
    from specdash.control.plans import Check, Plan
    from specdash.control.ranks import Layout, Network, Ranks
    from specdash.control.ranks_party import Party
    from specdash.control.ranks_store import Member
    from specdash.verbs.context import Context


def hosts_in(context: Context, text: str | None) -> tuple[str, ...]:
    """The hosts that `--host` names: several with commas, or a group of the config; none or one: empty."""
    if not text:
        return ()
    names = context.settings.expand(tuple(word.strip() for word in text.split(",") if word.strip()))
    return names if len(names) > 1 else ()


def layout_of(context: Context, profile: str, host: str | None) -> Layout | None:
    """What the profile says of several hosts; None: it is for one host, or `--host` names one. Raises ConfigError."""
    from specdash.control import profiles, ranks

    hosts = hosts_in(context, host)
    if host and not hosts:
        return None
    found = profiles.load(profile, context.settings)
    return ranks.layout(found.merged, found.spec, context.settings, hosts)


def parts_of(context: Context, profile: str, host: str | None) -> Layout | PairLayout | None:
    """The same, or a prefill/decode pair with its router; None: one server on one host."""
    from specdash.control import pd, profiles

    found = layout_of(context, profile, host)
    if found is not None:
        return found
    resolved = profiles.load(profile, context.settings)
    pair = pd.layout(resolved.merged, resolved.spec)
    if pair is not None and host:
        raise UsageError(
            f"{profile} is a pair with a router; --host names one host.", "Write host under [pd.*]."
        )
    return pair


def party_of(context: Context, hosts: Sequence[str]) -> Party:
    from specdash.control.ranks_party import Party

    return Party(context.open_link, hosts)


async def check(
    party: Party, layout: Layout | PairLayout, *, fresh: bool = False
) -> tuple[Ranks, tuple[Check, ...]]:
    """The parts as they would be launched, and their checks."""
    from specdash.control import pd, ranks_check

    if isinstance(layout, pd.PairLayout):
        return await pd.check(party, layout)
    return await ranks_check.check(party, layout, use_cache=not fresh)


async def preflight(args: argparse.Namespace, context: Context, layout: Layout | PairLayout) -> Exit:
    from specdash.control import preflight as preflight_
    from specdash.verbs.preflight import as_json, lines

    party = party_of(context, layout.hosts)
    try:
        await party.open()
        ranks, checks = await check(party, layout, fresh=args.fresh)
    finally:
        await party.close()
    verdict = preflight_.worst(checks)
    if context.json:
        data = as_json(layout.spec.profile, ranks.hosts[0], checks, verdict)
        context.print_json({**data, "hosts": list(ranks.hosts), "init": ranks.init.text})
    else:
        context.print(*lines(checks))
    return {"block": Exit.REFUSED, "warn": Exit.WARNING}.get(verdict, Exit.OK)


async def launch(args: argparse.Namespace, context: Context, layout: Layout | PairLayout) -> Exit:
    from specdash.control import ranks_launch
    from specdash.verbs.follow import follow

    party = party_of(context, layout.hosts)
    try:
        await party.open()
        ranks, checks = await check(party, layout)
        plan = ranks_launch.plan(party, ranks, checks)
        if args.dry_run:
            return show(context, plan)
        writable(context, ranks.hosts)
        await context.confirm(unblocked(plan) if args.force else plan)
        events = ranks_launch.run(
            party, plan, wait=args.wait, force=args.force, lost=args.lost, lost_s=args.lost_after
        )
        return await follow(context, plan, events, _extra(plan))
    finally:
        await party.close()


def _extra(plan: Plan) -> dict[str, Any]:
    return {"run": plan.spec["run_id"], "together": plan.spec["together"], "ranks": plan.spec["members"]}


def writable(context: Context, hosts: Sequence[str]) -> None:
    for host in hosts:
        context.require_writable(host)


def unblocked(plan: Plan) -> Plan:
    """With --force a block is shown as the warning that it then is."""
    return replace(plan, checks=tuple(_as_warning(one) for one in plan.checks))


def _as_warning(one: Check) -> Check:
    return replace(one, status="warn") if one.status == "block" else one


def show(context: Context, plan: Plan) -> Exit:
    from specdash.verbs.context import plan_json, plan_lines

    if context.json:
        runs = plan.spec.get("runs") or ()
        ranks = [
            {**member, "argv": run["argv"], "cwd": run["cwd"]}
            for member, run in zip(plan.spec["members"], runs, strict=False)
        ]
        context.print_json({**plan_json(plan), "ranks": ranks})
    else:
        context.print(*plan_lines(plan))
    return Exit.REFUSED if plan.blocked else Exit.OK


async def command(context: Context, layout: Layout | PairLayout, *, continued: bool) -> Exit:
    """Each rank's exact line. The first host is asked where its address or interface is needed; else a stand-in."""
    import os

    from specdash.control.ranks import UNKNOWN
    from specdash.sglang.shell_line import format_line

    found = _planned(layout, {})
    words = " ".join(word for one in found.ranks for word in one.spec.argv())
    if UNKNOWN in words or layout.interface or any(one.interface for one in found.ranks):
        found = await _asked(context, layout) or found
    rows = [
        {
            "rank": r.rank,
            "host": r.host,
            "line": format_line(r.spec, continued=continued),
            "argv": r.spec.argv(),
        }
        for r in found.ranks
    ]
    if context.json:
        context.print_json(
            {"schema": "specdash.commands/1", "init": found.init.text, "rule": found.init.rule, "ranks": rows}
        )
        return Exit.OK
    for row, rank in zip(rows, found.ranks, strict=True):
        context.print(f"# {rank.role or f'rank {rank.rank}'} on {rank.host}")
        context.print_bytes(os.fsencode(str(row["line"])) + b"\n")
    meet = "Clients use" if found.ranks[0].role else "The ranks meet at"
    context.say(f"{meet} {found.init.text}: {found.init.rule}.")
    return Exit.OK


def _planned(layout: Layout | PairLayout, networks: Mapping[str, Network]) -> Ranks:
    from specdash.control import pd, ranks

    return pd.plan(layout, networks) if isinstance(layout, pd.PairLayout) else ranks.plan(layout, networks)


async def _asked(context: Context, layout: Layout | PairLayout) -> Ranks | None:
    from specdash.control import ranks_check

    party = party_of(context, layout.hosts)
    try:
        await party.open()
        return _planned(layout, await ranks_check.networks(party))
    except (LinkError, RemoteError) as error:
        context.say(f"{error.sentence} So the address of rank 0 is left open in these lines.")
        return None
    finally:
        await party.close()


async def stop(args: argparse.Namespace, context: Context) -> Exit | None:
    """Stops the server over several hosts that RUN means. None: it means none; one host's run is meant."""
    from specdash.control import ranks_store

    if getattr(args, "unproven", False):
        return await _finish_unproven(args, context)
    if not args.run:
        raise UsageError("Stop what?", "Name a run or a profile; or --unproven for what is left to finish.")
    layout = None if args.host else _layout_or_none(context, args.run)
    if layout is not None:
        found = await _running(context, layout)
        if found is not None:
            return await stop_members(args, context, *found)
    server = ranks_store.find(args.run)
    if server is not None and (not args.host or server.member(args.host)):
        return await stop_members(args, context, server.id, server.profile, server.members)
    if layout is not None:
        raise UsageError(f'No run of "{args.run}" is on {", ".join(layout.hosts)}.', "See: specdash status")
    return None


def _layout_or_none(context: Context, name: str) -> Layout | None:
    from specdash.errors import ConfigError

    try:
        return layout_of(context, name, None)
    except ConfigError:
        return None


async def _running(context: Context, layout: Layout) -> tuple[str, str, tuple[Member, ...]] | None:
    """The newest server of this profile that any of its hosts knows and that has not ended there."""
    from specdash.control import hostruns
    from specdash.control.ranks_store import members_of

    party = party_of(context, layout.hosts)
    try:
        await party.open(all_needed=False)
        if not party.links:
            raise LinkError(
                f"None of {', '.join(layout.hosts)} can be reached: {next(iter(party.away.values()), '')}", ""
            )
        runs: list[Mapping[str, Any]] = []
        for host, link in list(party.links.items()):
            answer = await party.call(host, "runs.list", {"base": hostruns.base(link)})
            runs += [
                one
                for one in answer["runs"]
                if one.get("profile") == layout.spec.profile and one.get("together") and not one.get("ended")
            ]
    finally:
        await party.close()
    runs = [one for one in runs if one.get("phase") != "failed"]
    if not runs:
        return None
    newest = max(runs, key=lambda one: float(one.get("created_unix") or 0.0))
    return str(newest["run_id_all"]), layout.spec.profile, members_of(newest["together"])


async def stop_members(
    args: argparse.Namespace, context: Context, ident: str, profile: str, members: Sequence[Member]
) -> Exit:
    from specdash.control import ranks_stop
    from specdash.verbs.follow import follow

    party = party_of(context, [member.host for member in members])
    try:
        await party.open(all_needed=False)
        try:
            plan = await ranks_stop.plan(
                party, ident, profile, members, drain_s=args.drain, deadline_s=args.deadline
            )
        except Refused as over:
            if context.json:
                context.print_json({"run": ident, "outcome": "ended", "sentence": over.sentence})
            else:
                context.print(over.words)
            return Exit.OK
        writable(context, [member.host for member in members])
        await context.confirm(plan)
        extra = {"together": ident, "ranks": [member.as_json() for member in members]}
        return await follow(context, plan, ranks_stop.run(party, plan), extra)
    finally:
        await party.close()


async def _finish_unproven(args: argparse.Namespace, context: Context) -> Exit:
    """Every stop of this operator that is not proven yet, one after the other. The worst exit code."""
    from specdash.control import ranks_store

    worst = Exit.OK
    open_ = ranks_store.unproven()
    if not open_:
        context.print("No stop is unproven.")
    for server in open_:
        code = await stop_members(args, context, server.id, server.profile, server.members)
        worst = max(worst, code)
    return worst
