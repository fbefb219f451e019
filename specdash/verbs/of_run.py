"""The head that verbs about one run of a host share: RUN, --host, --no-keep; and the way to that run."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdash.host.link import Link
    from specdash.verbs.context import Context


@dataclass(frozen=True, slots=True)
class OfRun:
    """`keep`: whether a result may be written into the run's folder."""

    host: str
    link: Link
    run_id: str
    keep: bool


def add_arguments(parser: argparse.ArgumentParser, what: str) -> None:
    """`what`: "it" or "them", as in *do not write it into the run's folder*."""
    parser.add_argument("run", metavar="RUN", help="run id, its beginning, or a profile's name")
    parser.add_argument("--host", metavar="HOST", help="where it runs; default: the profile's host")
    parser.add_argument("--no-keep", action="store_true", help=f"do not write {what} into the run's folder")


@asynccontextmanager
async def open_run(args: argparse.Namespace, context: Context) -> AsyncIterator[OfRun]:
    """A link to the run's host, closed at the end. Raises LinkError's family, UsageError where no run is meant."""
    from specdash.verbs.follow import find_run, host_of

    name = host_of(context, args.run, args.host)
    read_only = context.read_only or context.settings.read_only or context.host(name).read_only
    link = await context.open_link(name)
    try:
        yield OfRun(name, link, await find_run(link, args.run), not (args.no_keep or read_only))
    finally:
        await link.close()
