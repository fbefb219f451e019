"""Try several drafters over a base, one after the other, for a night if need be.

Each is tried by the ordinary switch, from whatever serves then: preflight, drain, stop with proof, launch, pulse
on fixed prompts, and back to what served before when it fails. A failure is recorded and passed over. At the end
the fastest serves (--leave best: the base counts too), what served at first, or the base; then comes a table.

The plan and its expected downtime are shown once, before the first step. A lost link is opened again, and the
running switch is taken up by its id. ^C leaves the host as it is: the running switch ends healthy by itself, and
--resume goes on with the rest.

Exit codes: 0 all served and the one asked for is left; 1 some failed, the one asked for is left; 6 another one
is left serving; 2 nothing serves; 4 refused; 5 the host cannot be reached; 130 ^C.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from specdash.exits import Exit

if TYPE_CHECKING:
    from specdash.config.settings import Settings
    from specdash.control.plans import Check, Plan
    from specdash.control.queue import Queue, Row
    from specdash.host.link import Link
    from specdash.sglang.commandline import LaunchSpec
    from specdash.verbs.context import Context

EXAMPLES = """\
examples:
  specdash try eagle3-a eagle3-b ngram --over kimi-k2.5-base           show the plan, ask, run, table
  specdash try eagle3-a eagle3-b --over kimi-k2.5-base --leave base --yes   leave the base at the end
  specdash try eagle3-a eagle3-b --over kimi-k2.5-base --dry-run       only the plan
  specdash try --resume try-20261129-220315-9f2c                       go on after ^C or a restart"""
SCHEMA = "specdash.try/1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("profiles", metavar="PROFILE", nargs="*", help="drafters to try, in this order")
    parser.add_argument("--over", metavar="BASE", help="the profile to compare with and to fall back to")
    parser.add_argument(
        "--leave", choices=("best", "first", "base"), default="best", help="what serves at the end (best)"
    )
    parser.add_argument("--host", metavar="HOST", help="another host than the base's")
    parser.add_argument("--from", dest="start", metavar="RUN", help="what to replace: run id or profile")
    parser.add_argument(
        "--drain", metavar="S", type=float, help="what was accepted may take so long to end (60)"
    )
    parser.add_argument("--deadline", metavar="S", type=float, help="then kill what does not end in S (60)")
    parser.add_argument("--ready", metavar="S", type=float, help="give a load no longer than S (3600)")
    parser.add_argument("--settle", metavar="S", type=float, help="each has to live so long (120)")
    parser.add_argument("--dry-run", action="store_true", help="show the plan and change nothing")
    parser.add_argument("--force", action="store_true", help="try those too that a check blocks")
    parser.add_argument("--resume", metavar="ID", help="go on with an interrupted queue")


async def run(args: argparse.Namespace, context: Context) -> Exit:
    from specdash.control import queue_store
    from specdash.control.queue import Queue
    from specdash.errors import UsageError

    if args.resume:
        if args.profiles or args.over:
            raise UsageError("--resume goes on with the profiles that it had.", "Name no others.")
        queue = queue_store.load(args.resume)
        context.require_writable(queue.host)
        return await _carry_out(context, queue)
    if not args.profiles or not args.over:
        raise UsageError("try needs drafters and a base.", "specdash try A B --over BASE")
    plan = await _plan(args, context)
    if args.dry_run:
        return _show(context, plan)
    await context.confirm(plan)
    return await _carry_out(context, Queue.from_json(plan.spec["queue"]))


async def _plan(args: argparse.Namespace, context: Context) -> Plan:
    from specdash.control import queue
    from specdash.control.preflight import preflight

    base, specs, host = _specs(args, context.settings)
    link = await context.open_link(host)
    try:
        runs = (await link.call("runs.list", {"base": link.hello["base"]}, timeout=30))["runs"]
        now = queue.serving_now(runs, base, specs, args.start or "")
        checks: dict[str, tuple[Check, ...]] = {}
        for spec in (base, *specs):
            if spec.profile not in checks:
                context.say(f"Checking {spec.profile} …")
                checks[spec.profile] = await preflight(link, spec, leaving=str(now["id"]) if now else "")
        options = {
            "drain_s": args.drain,
            "deadline_s": args.deadline,
            "ready_s": args.ready,
            "settle_s": args.settle,
        }
        return await queue.plan(
            link,
            base,
            specs,
            leave=args.leave,
            start=args.start or "",
            checks=checks,
            force=args.force,
            options=options,
        )
    finally:
        await link.close()


def _specs(args: argparse.Namespace, settings: Settings) -> tuple[LaunchSpec, list[LaunchSpec], str]:
    from dataclasses import replace

    from specdash.control.profiles import resolve

    base = resolve(args.over, settings)
    host = args.host or base.host
    specs = [resolve(name, settings) for name in args.profiles]
    return replace(base, host=host), [replace(spec, host=host) for spec in specs], host


def _show(context: Context, plan: Plan) -> Exit:
    from specdash.verbs.context import plan_json, plan_lines

    if context.json:
        context.print_json(plan_json(plan))
    else:
        context.print(*plan_lines(plan))
    return Exit.REFUSED if plan.blocked else Exit.OK


async def _carry_out(context: Context, queue: Queue) -> Exit:
    import asyncio

    from specdash.control import queue_store
    from specdash.control.preflight import preflight
    from specdash.control.queue_run import Runner
    from specdash.errors import SpecdashError

    async def checks(link: Link, spec: LaunchSpec, leaving: str) -> tuple[Check, ...]:
        return await preflight(link, spec, leaving=leaving)

    def tell(profile: str, text: str) -> None:
        context.say(_clean(f"{time.strftime('%H:%M:%S')} {profile + ': ' if profile else ''}{text}"))

    runner = Runner(
        queue,
        lambda: context.open_link(queue.host),
        tell=tell,
        save=queue_store.save,
        preflight=checks,
        explain=_explain,
        read_only=context.read_only,
    )
    context.say(f"Queue {queue.id}. After an interruption: specdash try --resume {queue.id}")
    try:
        await runner.run()
    except (asyncio.CancelledError, SpecdashError):
        _say_how_to_go_on(context, queue)
        raise
    _report(context, queue)
    return exit_of(queue)


def _say_how_to_go_on(context: Context, queue: Queue) -> None:
    _report(context, queue)
    current = queue.current or {}
    if current.get("switch"):
        context.say(
            f"The switch {current['switch']} goes on on {queue.host} and ends with a healthy server: "
            f"specdash switch --attach {current['switch']} --host {queue.host}"
        )
    elif queue.serving:
        context.say(
            f"{queue.serving.profile} (run {queue.serving.run}) was the last to serve on {queue.host}."
        )
    else:
        context.say(f"Nothing serves, as far as is known: specdash status {queue.host}")
    context.say(f"Go on with the rest: specdash try --resume {queue.id}")


def _report(context: Context, queue: Queue) -> None:
    if context.json:
        context.print_json(document(queue))
        return
    context.print(*table(queue))
    serves = f"{queue.serving.profile} serves (run {queue.serving.run})." if queue.serving else ""
    said = f"{queue.ended} {serves}".strip()
    if said:
        context.print(_clean(said))


def document(queue: Queue) -> dict[str, Any]:
    """The data of `--json`: schema `specdash.try/1`. Numbers that were not measured are null."""
    base = queue.base.tok_s
    return {
        "schema": SCHEMA,
        "id": queue.id,
        "host": queue.host,
        "leave": queue.leave,
        "ended": queue.ended,
        "exit": int(exit_of(queue)) if queue.ended else None,
        "serving": {"profile": queue.serving.profile, "run": queue.serving.run} if queue.serving else None,
        "best": queue.best.profile if queue.best else None,
        "rows": [
            {
                "profile": row.profile,
                "base": row.base,
                "outcome": row.outcome or "not_tried",
                "tok_s": row.tok_s,
                "tok_s_over_base": _ratio(row, base),
                "accept_length": row.accept_length,
                "load_s": row.load_s,
                "why": row.why,
                "run": row.run,
                "switch": row.switch,
            }
            for row in queue.rows
        ],
    }


def table(queue: Queue) -> list[str]:
    """tok/s: one stream, fixed prompts, warm-up left out. A dash: not measured."""
    base = queue.base.tok_s
    rows = [("PROFILE", "OUTCOME", "TOK/S", "OVER BASE", "ACCEPT LEN", "LOAD S", "WHY")]
    for row in queue.rows:
        best = " (best)" if row is queue.best else ""
        rows.append(
            (
                _clean(row.profile) + (" (base)" if row.base else ""),
                (row.outcome or "not tried").replace("_", " ") + best,
                _number(row.tok_s, 1),
                _number(_ratio(row, base), 2),
                _number(row.accept_length, 2),
                _number(row.load_s, 0),
                # Of one that served, the columns say it all.
                "" if row.outcome == "served" else _clean(row.why),
            )
        )
    widths = [max(len(row[at]) for row in rows) for at in range(6)]
    return [
        "  ".join(
            [
                *(
                    cell.ljust(width) if at < 2 else cell.rjust(width)
                    for at, (cell, width) in enumerate(zip(row, widths, strict=False))
                ),
                row[6],
            ]
        ).rstrip()
        for row in rows
    ]


def exit_of(queue: Queue) -> Exit:
    """The exit code that the docstring tells, of a queue that has ended."""
    from specdash.control.queue import same

    if queue.serving is None:
        return Exit.CRITICAL
    wanted = queue.wanted()
    tried = all(row.outcome != "not_tried" for row in queue.rows)
    if wanted is None or not same(queue.serving.spec, wanted[1]) or not tried:
        return Exit.ROLLED_BACK
    return Exit.OK if all(row.outcome == "served" for row in queue.rows) else Exit.WARNING


async def _explain(link: Link, run_id: str) -> str:
    from specdash.control import why

    return (await why.of_ended(link, run_id))[0]


def _ratio(row: Row, base: float | None) -> float | None:
    return row.tok_s / base if row.tok_s is not None and base else None


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _clean(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)
