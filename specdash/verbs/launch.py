"""Start a profile on its host, detached: it outlives this command, the link and the login.

The plan is shown first: the exact command, the run folder, and what was checked. With --wait it is followed
until a real generation comes back (exit 0) or it dies (exit 2, with the cause as its log tells it).
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from specdash.exits import Exit

if TYPE_CHECKING:
    from specdash.control.plans import Check, Plan, StepEvent
    from specdash.host.link import Link
    from specdash.verbs.context import Context

EXAMPLES = """\
examples:
  specdash launch kimi-k2.5-eagle3              show the plan, ask, start
  specdash launch kimi-k2.5-eagle3 --wait --yes   for scripts: 0 when it serves, 2 when it died
  specdash launch kimi-k2.5-base --dry-run      only the plan
  specdash launch kimi-k2.5-16gpu --host gpu1,gpu2 --wait   one server over two hosts"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("profile", metavar="PROFILE", help="name of a profile, or its file")
    parser.add_argument("--host", metavar="HOST", help="another host than the profile's; several with commas")
    parser.add_argument("--wait", action="store_true", help="follow it until it serves or dies")
    parser.add_argument("--dry-run", action="store_true", help="show the plan and change nothing")
    parser.add_argument("--force", action="store_true", help="start although a check blocks it")
    parser.add_argument(
        "--lost",
        choices=("leave", "stop"),
        default="leave",
        help="with --wait, over several hosts: what to do with the rest when a host is lost (leave)",
    )
    parser.add_argument(
        "--lost-after", metavar="S", type=float, default=60.0, help="a host counts as lost after S (60)"
    )


async def run(args: argparse.Namespace, context: Context) -> Exit:
    from dataclasses import replace

    from specdash.control import launch
    from specdash.control.preflight import preflight
    from specdash.control.profiles import resolve
    from specdash.verbs import many, progress
    from specdash.verbs.context import plan_json, plan_lines
    from specdash.verbs.follow import follow

    layout = many.parts_of(context, args.profile, args.host)
    if layout is not None:
        return await many.launch(args, context, layout)
    spec = resolve(args.profile, context.settings)
    if args.host:
        spec = replace(spec, host=args.host, hosts=())
    link = await context.open_link(spec.host)
    try:
        checks = await preflight(link, spec)
        plan = await launch.plan(link, spec, checks=checks, precheck=False)
        if args.dry_run:
            if context.json:
                context.print_json(plan_json(plan))
            else:
                context.print(*plan_lines(plan))
            return Exit.REFUSED if plan.blocked else Exit.OK
        await context.confirm(replace(plan, checks=_unblocked(plan)) if args.force else plan)
        run_id = str(plan.spec["run_id"])
        events = launch.run(link, plan, wait=args.wait, force=args.force)
        events = progress.shown(context, link, run_id, _with_cause(link, events, run_id))
        return await follow(context, plan, events, {"run": run_id})
    finally:
        await link.close()


def _unblocked(plan: Plan) -> tuple[Check, ...]:
    """With --force a block is shown as the warning that it then is."""
    from dataclasses import replace

    return tuple(replace(c, status="warn") if c.status == "block" else c for c in plan.checks)


async def _with_cause(link: Link, events: AsyncIterator[StepEvent], run_id: str) -> AsyncIterator[StepEvent]:
    """A launch that failed says why: the first cause that its log tells, beside how it ended."""
    from dataclasses import replace

    from specdash.control.why import cause_of, said
    from specdash.sglang import redact
    from specdash.sglang.explain import cause_json

    async for event in events:
        if event.final == "failed" and event.step == "ready":
            cause = await cause_of(link, run_id, event.data)
            if cause is not None:
                data = {**event.data, "cause": redact.json_value(cause_json(cause))}
                event = replace(event, sentence=f"{event.sentence} {said(cause)}", data=data)
        yield event
