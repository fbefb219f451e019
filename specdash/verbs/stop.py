"""Stop a run, with proof: no process of it is left, no GPU memory is held by it, its port is free.

The server is asked first (INT while it loads, TERM when it serves), and what is left after the deadline is
killed. What specdash did not start is never touched, unless it was adopted by name.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from specdash.exits import Exit

if TYPE_CHECKING:
    from specdash.verbs.context import Context

EXAMPLES = """\
examples:
  specdash stop kimi-k2.5-eagle3                 the newest running run of that profile
  specdash stop kimi-k2.5-eagle3 --drain 120     let running requests end, 2 minutes at most
  specdash stop kimi-k2.5-eagle3-20261129-120315-9f2c --host gpu1 --yes"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="run id, its beginning, or a profile's name")
    parser.add_argument("--host", metavar="HOST", help="where it runs; default: the profile's host")
    parser.add_argument(
        "--drain", metavar="S", type=float, default=0.0, help="wait so many seconds for running requests"
    )
    parser.add_argument(
        "--deadline", metavar="S", type=float, default=60.0, help="seconds until what is left is killed"
    )


async def run(args: argparse.Namespace, context: Context) -> Exit:
    from specdash.control import stop
    from specdash.verbs.follow import find_run, follow, host_of

    link = await context.open_link(host_of(context, args.run, args.host))
    try:
        run_id = await find_run(link, args.run)
        plan = await stop.plan(link, run_id, drain_s=args.drain, deadline_s=args.deadline)
        await context.confirm(plan)
        return await follow(context, plan, stop.run(link, plan), {"run": run_id})
    finally:
        await link.close()
