"""Replace what serves by another profile, with a way back.

The switch runs on the host: A is measured, closed and stopped with proof (what it accepted is answered), B is launched and judged by a pulse
on fixed prompts, and A comes back when B does not get ready, dies, or accepts nothing. It goes on when this
command, the link or the login ends; `--attach` takes it up again.

With `--hot`, only the drafter's weights are replaced, in a server that goes on serving: seconds, no reload, no
request lost. It is refused where the two drafters are not proven alike, or the installed SGLang cannot do it.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specdash.exits import Exit

if TYPE_CHECKING:
    from specdash.control.plans import Plan
    from specdash.verbs.context import Context

EXAMPLES = """\
examples:
  specdash switch kimi-k2.5-base kimi-k2.5-eagle3            show the plan, ask, run, follow
  specdash switch kimi-k2.5-base kimi-k2.5-eagle3 --dry-run
  specdash switch --list --host gpu1                         switches of a host, and where they stand
  specdash switch --attach to-kimi-k2.5-eagle3-… --host gpu1   follow it; goes on where a killed one stopped
  specdash switch --abort to-kimi-k2.5-eagle3-… --host gpu1    take it back
  specdash switch --side-by-side A B                           B first, on its own port; A is stopped last
  specdash switch --hot kimi-k2.5-eagle3 /models/other-eagle3  new draft weights, no reload"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("old", metavar="A", nargs="?", help="what serves: run id or profile")
    parser.add_argument("new", metavar="B", nargs="?", help="profile to switch to")
    parser.add_argument("--host", metavar="HOST", help="where A runs; default: B's host")
    parser.add_argument(
        "--drain",
        metavar="S",
        type=float,
        default=60.0,
        help="A's port closes, and what it accepted may take so long to end (60)",
    )
    parser.add_argument(
        "--wait-idle",
        metavar="S",
        type=float,
        default=0.0,
        help="before that, wait so long for a moment without requests (0)",
    )
    parser.add_argument(
        "--deadline", metavar="S", type=float, default=60.0, help="then kill what does not end in S (60)"
    )
    parser.add_argument("--ready", metavar="S", type=float, help="give B no longer than S to get ready")
    parser.add_argument("--settle", metavar="S", type=float, help="B has to live so long before it is kept")
    parser.add_argument(
        "--slower", choices=("ask", "keep", "roll-back"), default="ask", help="when B is slower than A (ask)"
    )
    parser.add_argument("--no-measure", action="store_true", help="do not pulse A before it stops")
    parser.add_argument(
        "--side-by-side", action="store_true", help="launch B beside A and stop A when B has proven itself"
    )
    parser.add_argument(
        "--warm",
        metavar="MB/S",
        type=float,
        nargs="?",
        const=200.0,
        help="read B's files into the page cache while A serves, at most so fast (200)",
    )
    hot = parser.add_argument_group("only the drafter's weights, without a reload")
    hot.add_argument(
        "--hot", action="store_true", help="B is a drafter's folder on the host, or a profile with it"
    )
    hot.add_argument(
        "--at-least",
        metavar="N",
        type=float,
        help="the old weights come back below this accept length (1.05)",
    )
    hot.add_argument("--no-pulse", action="store_true", help="do not judge the new weights")
    hot.add_argument("--flush", action="store_true", help="empty the prefix cache with it")
    parser.add_argument("--dry-run", action="store_true", help="show the plan and change nothing")
    parser.add_argument("--force", action="store_true", help="go on although a check of B blocks")
    parser.add_argument("--attach", metavar="SWITCH", help="follow a switch that runs or stands still")
    parser.add_argument("--abort", metavar="SWITCH", help="take a switch back")
    parser.add_argument("--answer", nargs=2, metavar=("SWITCH", "WORD"), help="keep or roll-back")
    parser.add_argument("--list", action="store_true", help="switches of the host")


async def run(args: argparse.Namespace, context: Context) -> Exit:
    from specdash.control import switch
    from specdash.control.preflight import preflight
    from specdash.control.profiles import resolve
    from specdash.errors import UsageError
    from specdash.verbs import many_switch
    from specdash.verbs.follow import find_run, follow, host_of

    over_hosts = await many_switch.switch(args, context)
    if over_hosts is not None:
        return over_hosts
    if args.hot:
        from specdash.verbs import switch_hot

        return await switch_hot.run(args, context)
    if args.list or args.attach or args.abort or args.answer:
        return await _existing(args, context)
    if not (args.old and args.new):
        raise UsageError("switch needs two names: what serves, and the profile to switch to.")
    spec = resolve(args.new, context.settings)
    host = args.host or spec.host or host_of(context, args.old, None)
    spec = replace(spec, host=host)
    link = await context.open_link(host)
    try:
        run_id = await find_run(link, args.old)
        if args.side_by_side:
            spec = await switch.beside(link, spec, run_id)
        plan = await switch.plan(
            link,
            run_id,
            spec,
            # Side by side, B must fit on the host as it is; else on the host as it will be without A.
            checks=await preflight(link, spec, leaving="" if args.side_by_side else run_id),
            side_by_side=args.side_by_side,
            warm_mb_s=args.warm,
            drain_s=args.drain,
            idle_s=args.wait_idle,
            deadline_s=args.deadline,
            ready_s=args.ready,
            on_slower=args.slower.replace("-", "_"),
            measure=not args.no_measure,
            **({"settle_s": args.settle} if args.settle is not None else {}),
        )
        if args.dry_run:
            return _show(context, plan)
        await context.confirm(_forced(plan) if args.force else plan)
        return await follow(
            context, plan, switch.run(link, plan, force=args.force), {"run": plan.spec["run"]["id"]}
        )
    finally:
        await link.close()


def _forced(plan: Plan) -> Plan:
    """With --force a block is shown as the warning that it then is."""
    return replace(
        plan, checks=tuple(replace(c, status="warn") if c.status == "block" else c for c in plan.checks)
    )


def _show(context: Context, plan: Plan) -> Exit:
    from specdash.verbs.context import plan_json, plan_lines

    if context.json:
        context.print_json(plan_json(plan))
    else:
        context.print(*plan_lines(plan))
    return Exit.REFUSED if plan.blocked else Exit.OK


def listed_line(one: dict[str, Any]) -> str:
    """One switch of `control.switch.listing` for people: which, between what, and where it stands."""
    from specdash.verbs.status import clean

    end, plan, steps = one.get("end"), one.get("plan") or {}, one.get("steps") or []
    if end:
        stands = f"{str(end.get('final') or 'ended').replace('_', ' ')}: {end.get('sentence') or ''}"
    elif one.get("alive"):
        at = [str(step.get("step")) for step in steps if step.get("status") == "running"]
        stands = f"runs, step {at[-1].replace('_', ' ')}" if at else "runs"
        if one.get("question"):
            stands = f"waits for an answer: --answer {one['id']} keep, or roll-back"
    else:
        stands = f"stands still: --attach {one['id']} goes on, --abort {one['id']} takes it back"
    return clean("  ".join(word for word in (str(one["id"]), str(plan.get("title") or ""), stands) if word))


async def _existing(args: argparse.Namespace, context: Context) -> Exit:
    from specdash.control import switch
    from specdash.control.plans import Danger, Plan, Step
    from specdash.errors import UsageError
    from specdash.verbs.follow import follow

    if not args.host:
        hosts = list(context.settings.hosts)
        if len(hosts) != 1:
            raise UsageError("Which host?", "Add --host.")
        args.host = hosts[0]
    link = await context.open_link(args.host)
    try:
        if args.list:
            from specdash.verbs import many_switch

            found = await switch.listing(link)
            over = await many_switch.listed(context, args.host)
            if context.json:
                data = {"schema": "specdash/switches/1", "switches": found, "over_hosts": over}
                context.print_json(data)
            if not context.json:
                context.print(*(listed_line(one) for one in found))
                context.print(*(many_switch.listed_line(one) for one in over))
            return Exit.OK
        context.require_writable(args.host)
        if args.answer:
            ident, word = args.answer
            if word.replace("-", "_") not in ("keep", "roll_back"):
                raise UsageError("The answer is keep or roll-back.")
            await switch.answer(link, ident, word.replace("-", "_"))
            context.print(f"Answered {word}.")
            return Exit.OK
        ident = args.attach or args.abort
        if args.abort:
            await switch.abort(link, ident)
        steps = tuple(Step(name, title) for name, title in switch.STEP_TITLES.items())
        plan = Plan(ident, "switch", args.host, f"Switch {ident}", Danger.DESTROYS, steps)
        return await follow(context, plan, switch.attach(link, ident))
    finally:
        await link.close()
