"""Where a run that hangs is stuck: the stacks of all its processes, kept in its folder too.

By py-spy, where it is installed beside the server's interpreter, without pausing anything; and by /proc what each
thread waits for. Nothing is signalled or ended.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from specdash.exits import Exit

if TYPE_CHECKING:
    from specdash.verbs.context import Context

EXAMPLES = """\
examples:
  specdash stacks kimi-k2.5-eagle3                 the newest running run of that profile
  specdash stacks kimi-k2.5-eagle3 --json | jq .processes"""
SCHEMA = "specdash.stacks/1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="run id, its beginning, or a profile's name")
    parser.add_argument("--host", metavar="HOST", help="where it runs; default: the profile's host")
    parser.add_argument("--no-keep", action="store_true", help="do not write them into the run's folder")


async def run(args: argparse.Namespace, context: Context) -> Exit:
    from specdash.control import stacks
    from specdash.verbs.follow import find_run, host_of
    from specdash.verbs.status import clean

    name = host_of(context, args.run, args.host)
    read_only = context.read_only or context.settings.read_only or context.host(name).read_only
    link = await context.open_link(name)
    try:
        run_id = await find_run(link, args.run)
        found = await stacks.take(link, run_id, keep=not (args.no_keep or read_only))
    finally:
        await link.close()
    if context.json:
        context.print_json({"schema": SCHEMA, "host": name, **asdict(found)})
        return Exit.OK
    context.print(*(clean(line) for line in found.text.rstrip("\n").split("\n")))
    if found.path:
        context.say(clean(f"Kept in {found.path}."))
    if found.step:
        context.say(found.step)
    return Exit.OK
