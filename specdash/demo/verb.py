"""Open the dashboard on a simulated GPU host: eight GPUs, an engine that behaves like SGLang, nothing real.

The host runs on this machine and is reached over SSH like any other. Quitting ends it and all its processes.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from specdash.errors import UsageError
from specdash.exits import Exit

if TYPE_CHECKING:
    from specdash.verbs.context import Context

EXAMPLES = """examples:
  specdash demo              loads take about 35 s
  specdash demo --speed 10   loads take about 4 s
  specdash demo --keep       leave it running when you quit; the next `specdash demo` finds it
                             again, and ends it when that one is quit without --keep
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--speed", type=_speed, default=1.0, metavar="N", help="load N times faster")
    parser.add_argument("--keep", action="store_true", help="leave the simulated host running")


def run(args: argparse.Namespace, context: Context) -> int:
    """Blocks until the dashboard is closed. Exit code of the dashboard."""
    if not context.interactive:
        raise UsageError("the demo dashboard needs a terminal.", "Without one, use: specdash --check demo")
    if find_spec("specdash.tui.start") is None:
        raise UsageError("this build has no dashboard.", "Use: specdash --check demo")
    from specdash.demo.session import start

    with start(args.speed, args.keep) as session, session.inside():
        # Its config is a config like any other: one host, its profiles beside it.
        context.config = str(session.config_file)
        return int(import_module("specdash.tui.start").run(context) or Exit.OK)


def _speed(text: str) -> float:
    value = float(text)
    if not 0.01 <= value <= 1000:
        raise argparse.ArgumentTypeError("must be between 0.01 and 1000")
    return value
