"""One run: its command, its phases with times, its numbers, how it ended and why."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from specdash.errors import LinkError
from specdash.exits import Exit

if TYPE_CHECKING:
    from specdash.monitor.state import ServerState
    from specdash.verbs.context import Context

EXAMPLES = """examples:
  specdash show kimi-k2.5-eagle3            the newest run of that profile
  specdash show kimi-k2.5-eagle3-20261129-120315-9f2c --host gpu1 --json"""
SCHEMA = "specdash.run/1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="run id, its beginning, or a profile's name")
    parser.add_argument("--host", metavar="HOST", help="where it is; default: the profile's host")
    parser.add_argument(
        "--timeout", type=float, default=60.0, metavar="S", help="longest wait for its log (60)"
    )


async def run(args: argparse.Namespace, context: Context) -> Exit:
    from specdash.monitor import snapshot
    from specdash.verbs.follow import find_run, host_of
    from specdash.verbs.watching import make_hub

    name = host_of(context, args.run, args.host)
    async with make_hub(context, [name]) as hub:
        await hub.until(lambda s: s.hosts[name].link.status not in ("connecting",), args.timeout)
        if hub.state.hosts[name].link.status != "up":
            raise LinkError(f"{name}: {hub.state.hosts[name].link.sentence}")
        run_id = await find_run(hub.link(name), args.run, live=False)
        hub.want(name, run_id)
        whole = await hub.until(
            lambda s: run_id in s.hosts[name].servers and hub.whole(name, run_id), args.timeout
        )
        hub.settle()
        server = hub.state.hosts[name].servers[run_id]
        if not whole:
            context.say("Its log has not been read to the end in time; what follows is what was read.")
        if context.json:
            data = snapshot.of_server(server, hub.state.now)
            context.print_json({"schema": SCHEMA, "host": name, **data})
        else:
            context.print(*lines(server, hub.state.now))
    return Exit.OK


def lines(server: ServerState, now: float) -> Iterator[str]:
    from specdash.monitor import memory, story_view
    from specdash.sglang import redact
    from specdash.sglang.phases import TITLES
    from specdash.verbs.status import clean, server_lines

    run, status = server.run, server.status
    yield clean(f"{run.id}  ({run.profile})  started by {run.started_by or '?'}")
    yield clean(f"  command  {shlex.join(redact.argv(run.argv))}")
    yield clean(f"  in       {run.cwd}")
    yield clean(f"  folder   {run.folder}")
    yield from server_lines(server, now)
    if server.story.version:
        yield clean(f"  sglang   {server.story.version}")
    for phase in story_view.phases(server):
        took = f"{phase.seconds:.0f} s" if phase.seconds is not None else "…"
        yield clean(f"  {TITLES.get(phase.name, phase.name)} {phase.sub}: {took}")
    if status.exit_code is not None or status.exit_signal is not None:
        how = (
            f"signal {status.exit_signal}"
            if status.exit_signal is not None
            else f"exit code {status.exit_code}"
        )
        yield clean(f"  ended    {how}{', as asked' if status.stop_asked else ''}")
    if status.stopped_proof:
        proven = "" if status.stopped_proof.get("proven") else "NOT PROVEN: "
        yield clean(f"  gone     {proven}{status.stopped_proof.get('sentence') or ''}")
    for cause in memory.of(server).causes:
        yield clean(f"  cause    {cause.category}: {cause.sentence}")
        for line in cause.evidence:
            yield clean(f"    | {redact.text(line)}")
        for advice in cause.advice:
            yield clean(f"    → {advice}")
