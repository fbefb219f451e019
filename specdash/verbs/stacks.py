"""Where a run that hangs is stuck: the stacks of all its processes, kept in its folder too.

By py-spy, where it is installed beside the server's interpreter, without pausing anything; and by /proc what each
thread waits for. Nothing is signalled or ended.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from specdash.exits import Exit
from specdash.verbs import of_run

if TYPE_CHECKING:
    from specdash.verbs.context import Context

EXAMPLES = """\
examples:
  specdash stacks kimi-k2.5-eagle3                 the newest running run of that profile
  specdash stacks kimi-k2.5-eagle3 --json | jq .processes"""
SCHEMA = "specdash.stacks/1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    of_run.add_arguments(parser, "them")


async def run(args: argparse.Namespace, context: Context) -> Exit:
    from specdash.control import stacks
    from specdash.verbs.status import clean

    async with of_run.open_run(args, context) as on:
        found = await stacks.take(on.link, on.run_id, keep=on.keep)
    if context.json:
        context.print_json({"schema": SCHEMA, "host": on.host, **asdict(found)})
        return Exit.OK
    context.print(*(clean(line) for line in found.text.rstrip("\n").split("\n")))
    if found.path:
        context.say(clean(f"Kept in {found.path}."))
    if found.step:
        context.say(found.step)
    return Exit.OK
