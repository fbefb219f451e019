"""Stop a run, with proof: no process of it is left, no GPU memory is held by it, its port is free.

The server is asked first (INT to its launcher alone: its port closes at once, what it accepted is answered), and
what is left after the deadline is killed. What specdash did not start is never touched, unless it was adopted by name.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from specdash.errors import UsageError
from specdash.exits import Exit

if TYPE_CHECKING:
    from specdash.host.link import Link
    from specdash.verbs.context import Context

EXAMPLES = """\
examples:
  specdash stop kimi-k2.5-eagle3                 the newest running run of that profile
  specdash stop kimi-k2.5-eagle3 --drain 120     let what it accepted end, 2 minutes at most
  specdash stop kimi-k2.5-eagle3-20261129-120315-9f2c --host gpu1 --yes"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", nargs="?", help="run id, its beginning, or a profile's name")
    parser.add_argument("--host", metavar="HOST", help="where it runs; default: the profile's host")
    parser.add_argument(
        "--drain",
        metavar="S",
        type=float,
        default=0.0,
        help="its port closes, and what it accepted may take so long to end; then it is given up",
    )
    parser.add_argument(
        "--wait-idle",
        metavar="S",
        type=float,
        default=0.0,
        help="before that, wait so long for a moment without requests",
    )
    parser.add_argument(
        "--deadline", metavar="S", type=float, default=60.0, help="seconds until what is left is killed"
    )
    parser.add_argument(
        "--unproven",
        action="store_true",
        help="finish every stop over several hosts that a host out of reach left unproven",
    )


async def run(args: argparse.Namespace, context: Context) -> Exit:
    from specdash.control import hostruns, ranks_store, stop
    from specdash.verbs import many
    from specdash.verbs.follow import follow, host_of

    over_hosts = await many.stop(args, context)
    if over_hosts is not None:
        return over_hosts
    link = await context.open_link(host_of(context, args.run, args.host))
    try:
        run_id = await _named(link, args.run)
        record = await hostruns.record(link, run_id)
        members = ranks_store.members_of(record.get("together") or {})
        if len(members) > 1:  # a rank of a server over several hosts: without it the others serve nobody
            ident, profile = str(record["run_id_all"]), str(record.get("profile") or "")
            return await many.stop_members(args, context, ident, profile, members)
        proof = record.get("proof") or {}
        if record.get("ended") and proof.get("proven", True):
            said = f"{run_id} has ended already. {proof.get('sentence') or 'No process of it is left.'}"
            if context.json:
                context.print_json({"run": run_id, "outcome": "ended", "sentence": said, "proof": proof})
            else:
                context.print(said)
            return Exit.OK
        plan = await stop.plan(
            link, run_id, drain_s=args.drain, idle_s=args.wait_idle, deadline_s=args.deadline
        )
        await context.confirm(plan)
        return await follow(context, plan, stop.run(link, plan), {"run": run_id})
    finally:
        await link.close()


async def _named(link: Link, name: str) -> str:
    """The running run that is meant; one that has ended only by its full id: a stop is safe to repeat."""
    from specdash.verbs.follow import find_run

    try:
        return await find_run(link, name)
    except UsageError:
        ended = await find_run(link, name, live=False)
        if ended != name:
            raise
        return ended
