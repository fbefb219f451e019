"""Settings that a running server lets be changed without a restart: list them, or change one.

What is listed is what the installed SGLang's files show, and only what can be undone. Each change says how.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from specdash.exits import Exit

if TYPE_CHECKING:
    from specdash.verbs.context import Context

EXAMPLES = """\
examples:
  specdash tune kimi-k2.5-eagle3                                          what can be changed, and its value now
  specdash tune kimi-k2.5-eagle3 speculative_accept_threshold_single 0.9
  specdash tune kimi-k2.5-eagle3 pp_max_micro_batch_size 8 --dry-run"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="run id or profile")
    parser.add_argument("key", metavar="KEY", nargs="?", help="setting to change")
    parser.add_argument("value", metavar="VALUE", nargs="?", help="its new value, a number")
    parser.add_argument("--host", metavar="HOST", help="where the run is")
    parser.add_argument("--dry-run", action="store_true", help="show the plan and change nothing")


async def run(args: argparse.Namespace, context: Context) -> Exit:
    from specdash.control import tune
    from specdash.errors import UsageError
    from specdash.verbs.context import plan_json, plan_lines
    from specdash.verbs.follow import find_run, follow, host_of

    if args.key and args.value is None:
        raise UsageError(f"tune {args.run} {args.key} needs a value.")
    link = await context.open_link(host_of(context, args.run, args.host))
    try:
        run_id = await find_run(link, args.run)
        if args.key:
            plan = await tune.plan(link, run_id, args.key, args.value)
            if args.dry_run:
                if context.json:
                    context.print_json(plan_json(plan))
                else:
                    context.print(*plan_lines(plan))
                return Exit.OK
            await context.confirm(plan)
            return await follow(context, plan, tune.run(link, plan), {"run": run_id})
        there = await tune.offered(link, run_id)
        if context.json:
            context.print_json({"schema": "specdash/tune/1", "run": run_id, "host": link.name, **there})
            return Exit.OK
        for row in there["keys"]:
            context.print(f"{row['key']}  {row['value']:g}")
        if not there["keys"]:
            context.print(f"SGLang {there['version']} on {link.name} offers nothing that could be undone.")
        if there["corpora"]:
            context.say(
                "It also takes n-gram corpora at run time: /add_external_corpus, /remove_external_corpus."
            )
        return Exit.OK
    finally:
        await link.close()
