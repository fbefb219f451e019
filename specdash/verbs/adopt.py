"""Servers that others started: list them, or take one over by its pid.

Without PID it only looks: what runs, who started it, where it listens and writes its log. Adopting puts a
supervisor beside the server, so that it is watched, and can be stopped and switched like a run of specdash.
Nothing in it is changed. What docker, systemd or another user manages is shown with how to stop it there.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from specdash.errors import UsageError
from specdash.exits import Exit

if TYPE_CHECKING:
    from specdash.control.adopt import Found, Orphan
    from specdash.verbs.context import Context

EXAMPLES = """\
examples:
  specdash adopt --host gpu1                      what runs there that specdash did not start
  specdash adopt 41233 --host gpu1                show the plan, ask, take it over
  specdash adopt 41233 --host gpu1 --confirm 41233   for scripts: the pid is what has to be named"""
SCHEMA = "specdash.servers/1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pid", metavar="PID", nargs="?", type=int, help="the launcher's pid; none: list them")
    parser.add_argument("--host", metavar="HOST", help="where; needed when several hosts are configured")


async def run(args: argparse.Namespace, context: Context) -> Exit:
    from specdash.control import adopt
    from specdash.verbs.follow import follow

    host = _host(context, args.host)
    if args.pid is not None:
        context.require_writable(host)
    link = await context.open_link(host)
    try:
        found, orphans = await adopt.find(link)
        if args.pid is None:
            if context.json:
                context.print_json({"schema": SCHEMA, "host": link.name, **as_json(found, orphans)})
            else:
                context.print(*lines(link.name, found, orphans))
            return Exit.OK
        one = next((server for server in found if server.pid == args.pid), None)
        if one is None:
            there = ", ".join(str(server.pid) for server in found) or "none"
            raise UsageError(
                f"Pid {args.pid} on {link.name} is no SGLang server that others started.",
                f"There: {there}. A worker is adopted by its launcher's pid.",
            )
        plan = adopt.plan(link, one)
        await context.confirm(plan)
        return await follow(context, plan, adopt.run(link, plan), {"run": plan.id})
    finally:
        await link.close()


def _host(context: Context, name: str | None) -> str:
    hosts = list(context.settings.hosts)
    if name:
        return name
    if len(hosts) == 1:
        return hosts[0]
    raise UsageError("Which host?", f"Add --host with one of: {', '.join([*hosts, 'local'])}.")


def as_json(found: list[Found], orphans: list[Orphan]) -> dict[str, Any]:
    """The servers and leftover workers, secrets on command lines replaced."""
    from dataclasses import asdict

    from specdash.sglang import redact

    servers = []
    for one in found:
        row = asdict(one)
        row["cmdline"] = redact.argv(one.cmdline)
        row["details"] = {key: value for key, value in one.details.items() if key != "cmdline"}
        servers.append(row)
    left = [{**asdict(one), "title": redact.text(one.title)} for one in orphans]
    return {"servers": servers, "orphans": left}


def lines(host: str, found: list[Found], orphans: list[Orphan]) -> Iterator[str]:
    import shlex

    from specdash.sglang import redact
    from specdash.verbs.status import clean

    if not found and not orphans:
        yield clean(f"{host}: no SGLang server that others started.")
    for one in found:
        ports = ", ".join(map(str, one.listening)) or "none yet"
        yield clean(
            f"pid {one.pid}  {one.model or 'model unknown'}  {one.algorithm or 'base'}  user {one.user}"
        )
        yield clean(
            f"  listens  {ports}" + (f" (was told {one.port})" if one.port not in one.listening else "")
        )
        yield clean(f"  command  {shlex.join(redact.argv(one.cmdline))[:2000]}")
        log = str(one.details.get("stdout") or "")
        yield clean(
            f"  log      {log or 'none: its output goes to a ' + str(one.details.get('stdout_kind'))}"
        )
        if one.managed_by:
            back = "; its restart policy may bring it back" if one.restart_policy_check else ""
            yield clean(f"  managed by {one.managed_by}: stop it with {one.stop_with}{back}")
        else:
            yield clean(f"  to take it over: specdash adopt {one.pid} --host {host}")
    for left in orphans:
        of = f", of run {left.run}: specdash stop {left.run}" if left.run else ""
        yield clean(
            f"left over: pid {left.pid} {redact.text(left.title)} (user {left.user}, {left.rss_kb // 1024} MiB){of}"
        )
