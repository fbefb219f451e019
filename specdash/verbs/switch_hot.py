"""`specdash switch --hot`: new draft weights in a server that goes on serving."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specdash.exits import Exit

if TYPE_CHECKING:
    from specdash.host.link import Link
    from specdash.verbs.context import Context


async def run(args: argparse.Namespace, context: Context) -> Exit:
    from specdash.control import hot_switch
    from specdash.control.plans import Danger, Plan, Step
    from specdash.control.profiles import resolve
    from specdash.errors import Refused, UsageError
    from specdash.verbs.context import plan_json, plan_lines
    from specdash.verbs.follow import find_run, follow, host_of

    if not args.old:
        raise UsageError(
            "switch --hot needs the run or profile that serves.", "specdash switch --hot A DRAFTER"
        )
    link = await context.open_link(host_of(context, args.old, args.host))
    try:
        run_id = await find_run(link, args.old)
        if args.list:
            return await _list(context, link, run_id)
        if args.attach or args.abort:
            context.require_writable(link.name)
            ident = args.attach or args.abort
            if args.abort:
                await hot_switch.abort(link, run_id, ident)
            steps = tuple(Step(step, title) for step, title in hot_switch.STEP_TITLES.items())
            plan = Plan(ident, "hot_switch", link.name, f"Hot switch {ident}", Danger.CHANGES, steps)
            return await follow(context, plan, hot_switch.attach(link, run_id, ident), {"run": run_id})
        if not args.new:
            raise UsageError("switch --hot needs a drafter: its folder on the host, or a profile with it.")
        drafter, profile = await hot_switch.drafter_named(
            link, run_id, args.new, lambda name: resolve(name, context.settings)
        )
        plan = await hot_switch.plan(
            link,
            run_id,
            drafter,
            at_least=args.at_least,
            measure=not args.no_measure,
            pulse=not args.no_pulse,
            flush=args.flush,
        )
        if args.dry_run:
            if context.json:
                context.print_json(plan_json(plan))
            else:
                context.print(*plan_lines(plan))
        if plan.blocked:
            step = f"The ordinary switch: specdash switch {args.old} {profile or 'PROFILE'}."
            if args.dry_run:
                context.say(step)
                return Exit.REFUSED
            context.say(*plan_lines(plan))
            raise Refused(f"Not done: {plan.blocked[0].sentence}", step)
        if args.dry_run:
            return Exit.OK
        await context.confirm(plan)
        return await follow(context, plan, hot_switch.run(link, plan), {"run": run_id})
    finally:
        await link.close()


async def _list(context: Context, link: Link, run_id: str) -> Exit:
    from specdash.control import hot_switch

    found = await hot_switch.listing(link, run_id)
    if context.json:
        context.print_json({"schema": "specdash/hot-switches/1", "run": run_id, "hot_switches": found})
    for one in () if context.json else found:
        context.print(f"{one['id']}  {one['plan'].get('title', '')}  {_stands(one)}")
    return Exit.OK


def _stands(one: Mapping[str, Any]) -> str:
    if one.get("end"):
        return f"{one['end'].get('final')}: {one['end'].get('sentence')}"
    return (
        "runs" if one.get("alive") else "was killed: --hot --attach it, it closes what is open and goes back"
    )
