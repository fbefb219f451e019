"""What switch does where one server runs over several hosts: between profiles, and taking one up again."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specdash.errors import Refused, UsageError
from specdash.exits import Exit
from specdash.verbs import many

if TYPE_CHECKING:
    from specdash.control.ranks import Layout
    from specdash.control.ranks_store import Member
    from specdash.verbs.context import Context

HOT = (
    "A hot switch over several hosts is refused: the new weights travel through a host's own shared memory, "
    "so the ranks on the other hosts would keep the old ones and the server would answer from two drafters."
)


async def switch(args: argparse.Namespace, context: Context) -> Exit | None:
    """The switch over several hosts that is meant. None: one host is meant. Raises Refused where it cannot be."""
    if args.list or args.answer:
        return None
    if args.attach or args.abort:
        return await _existing(args, context)
    if not (args.old and args.new):
        return None
    found = await _old(args, context)
    if args.hot:
        if found is None or len(found[2]) < 2:
            return None
        raise Refused(HOT, f"Switch with a reload: specdash switch {args.old} PROFILE")
    layout = many.layout_of(context, args.new, args.host)
    if layout is None:
        if found is None:
            return None
        hosts = ", ".join(member.host for member in found[2])
        raise Refused(
            f"{args.old} runs over {hosts}, and {args.new} is for one host.",
            "Give it hosts, or stop the one and launch the other.",
        )
    if found is None:
        hosts = ", ".join(layout.hosts)
        raise Refused(
            f"No server over several hosts is known as {args.old}, and {args.new} is for {hosts}.",
            "Stop the one and launch the other.",
        )
    if args.side_by_side or args.warm:
        raise Refused("--side-by-side and --warm work on one host only.", "Leave them out.")
    return await _go(args, context, layout, *found)


async def _old(args: argparse.Namespace, context: Context) -> tuple[str, str, Sequence[Member]] | None:
    """(id, profile, members) of what serves, if that is over several hosts."""
    from specdash.control import ranks_store

    layout = many._layout_or_none(context, args.old)
    if layout is not None:
        running = await many._running(context, layout)
        if running is not None:
            return running
    server = ranks_store.find(args.old)
    if server is not None and server.state != "stopped":
        return server.id, server.profile, server.members
    if layout is not None:
        raise UsageError(
            f'No run of "{args.old}" serves on {", ".join(layout.hosts)}.', "See: specdash status"
        )
    return None


async def _go(
    args: argparse.Namespace,
    context: Context,
    layout: Layout,
    ident: str,
    profile: str,
    members: Sequence[Member],
) -> Exit:
    from specdash.control import ranks_check, ranks_switch
    from specdash.verbs.follow import follow

    hosts = [*(member.host for member in members), *layout.hosts]
    party = many.party_of(context, hosts)
    try:
        await party.open()
        old = await ranks_switch.old_server(party, ident, profile, members)
        leaving = {member.host: member.run for member in members}
        ranks, checks = await ranks_check.check(party, layout, leaving=leaving)
        settle: dict[str, Any] = {"settle_s": args.settle} if args.settle is not None else {}
        plan = ranks_switch.plan(
            party,
            old,
            ranks,
            checks,
            drain_s=args.drain,
            deadline_s=args.deadline,
            ready_s=args.ready,
            on_slower=args.slower.replace("-", "_"),
            measure=not args.no_measure,
            **settle,
        )
        if args.dry_run:
            return many.show(context, plan)
        many.writable(context, hosts)
        await context.confirm(many.unblocked(plan) if args.force else plan)
        extra = {"run": plan.spec["run"]["id"], "together": plan.spec["state"]["b"]["id"]}
        return await follow(context, plan, ranks_switch.run(party, plan, force=args.force), extra)
    finally:
        await party.close()


async def _existing(args: argparse.Namespace, context: Context) -> Exit | None:
    from specdash.control import ranks_switch
    from specdash.control.plans import Danger, Plan
    from specdash.control.ranks_party import Party
    from specdash.verbs.follow import follow

    ident = args.attach or args.abort
    host = args.host or (next(iter(context.settings.hosts)) if len(context.settings.hosts) == 1 else "")
    if not host:
        return None  # the verb itself asks for one
    first = many.party_of(context, [host])
    try:
        await first.open()
        state = await ranks_switch.journal(first, host, ident)
    finally:
        await first.close()
    if state is None:
        return None
    hosts = [m["host"] for server in ("a", "b", "back") for m in state[server]["members"]]
    many.writable(context, hosts)
    party = Party(context.open_link, [host, *hosts])
    try:
        await party.open(all_needed=False)
        if host not in party.links:
            await party.open()
        plan = Plan(ident, "switch", host, str(state["title"]), Danger.DESTROYS, ())
        return await follow(
            context, plan, ranks_switch.attach(party, host, ident, back=bool(args.abort)), {"switch": ident}
        )
    finally:
        await party.close()


async def listed(context: Context, host: str) -> list[dict[str, Any]]:
    """Switches over several hosts whose journal is on this host, newest first."""
    from specdash.control import ranks_switch

    party = many.party_of(context, [host])
    try:
        await party.open()
        return await ranks_switch.listing(party, host)
    finally:
        await party.close()


def listed_line(one: dict[str, Any]) -> str:
    """One of `listed` for people."""
    from specdash.verbs.status import clean

    end = one.get("end")
    if end:
        stands = f"{str(end.get('final')).replace('_', ' ')}: {end.get('sentence')}"
    elif one.get("driven"):
        stands = f"runs, step {str(one.get('step')).replace('_', ' ')}, driven by {one.get('driver')}"
    else:
        stands = f"stands still at {str(one.get('step')).replace('_', ' ')}: --attach {one['id']} goes on, --abort takes it back"
    return clean(f"{one['id']}  {one.get('title') or ''}  {stands}")
