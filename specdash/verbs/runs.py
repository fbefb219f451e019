"""Runs of the hosts, newest first: what each was, how it went, how it ended. Reads the hosts' run folders."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specdash.exits import Exit

if TYPE_CHECKING:
    from specdash.verbs.context import Context

EXAMPLES = """examples:
  specdash runs
  specdash runs gpu1 --profile kimi-k2.5-eagle3 -n 20
  specdash runs --json"""
SCHEMA = "specdash.runs/1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("hosts", nargs="*", metavar="HOST", help="host or group; default: all configured")
    parser.add_argument("--profile", metavar="NAME", help="only runs of this profile")
    parser.add_argument("-n", "--count", type=int, default=50, metavar="N", help="at most N per host (50)")


async def run(args: argparse.Namespace, context: Context) -> Exit:
    from specdash.errors import SpecdashError
    from specdash.sglang import redact

    settings = context.settings
    names = list(settings.expand(args.hosts)) if args.hosts else [*settings.hosts] or ["local"]
    for name in names:
        context.host(name)  # a name that is none is told before any host is asked
    code = Exit.OK
    answers = await asyncio.gather(*(_list(context, name) for name in names), return_exceptions=True)
    found: list[dict[str, Any]] = []
    for name, answer in zip(names, answers, strict=True):
        if isinstance(answer, SpecdashError):
            context.say(f"{name}: {answer}")
            code = Exit(answer.exit)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            mine = [r for r in answer if not args.profile or r.get("profile") == args.profile]
            found += [dict(redact.json_value(r), host=name) for r in mine[: args.count]]
    found.sort(key=lambda r: r.get("created_unix") or 0, reverse=True)
    if context.json:
        context.print_json({"schema": SCHEMA, "runs": found})
    elif found:
        context.print(*table(found))
    else:
        context.say("No runs yet.")
    return code


async def _list(context: Context, name: str) -> list[Mapping[str, Any]]:
    link = await context.open_link(name)
    try:
        answer = await link.call("runs.list", {"base": link.hello["base"]}, timeout=30)
        return [r for r in answer.get("runs", ()) if isinstance(r, dict)]
    finally:
        await link.close()


def table(found: list[dict[str, Any]]) -> list[str]:
    rows = [("STARTED", "HOST", "RUN", "ALGORITHM", "STATE", "READY", "UP", "LOG")]
    for r in found:
        created = r.get("created_unix")
        when = (
            time.strftime("%m-%d %H:%M", time.localtime(created))
            if isinstance(created, (int, float))
            else "-"
        )
        rows.append(
            (
                when,
                _clean(r.get("host")),
                _clean(r.get("id")),
                _drafting(r),
                state_of(r),
                span(r.get("started_boot_s"), r.get("ready_boot_s")),
                span(r.get("ready_boot_s"), r.get("ended_boot_s")),
                size(r.get("log_size")),
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _drafting(r: Mapping[str, Any]) -> str:
    """The algorithm; after a hot switch also the drafter, which the command line does not tell any longer."""
    word = _clean(r.get("algorithm") or "base")
    now = r.get("drafter_now")
    if not isinstance(now, dict):
        return word
    return f"{word}, hot: {_clean(str(now.get('drafter') or '?').rstrip('/').rpartition('/')[2])}"


def state_of(r: Mapping[str, Any]) -> str:
    """The phase, with how it ended."""
    phase = _clean(r.get("phase") or "?")
    if phase != "exited":
        return phase
    if r.get("stop_asked"):
        return "stopped"  # also by the signal that asked it to
    if r.get("exit_signal"):
        return f"signal {_clean(r['exit_signal'])}"
    return "exit ?" if r.get("exit_code") is None else f"exit {_clean(r['exit_code'])}"


def span(start: Any, end: Any) -> str:
    if not isinstance(start, (int, float)) or not isinstance(end, (int, float)):
        return "-"
    seconds = max(0, round(end - start))
    return (
        f"{seconds} s"
        if seconds < 120
        else f"{seconds // 60} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )


def size(count: Any) -> str:
    if not isinstance(count, (int, float)):
        return "-"
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def _clean(value: Any) -> str:
    return "".join(c if c.isprintable() else " " for c in str(value))[:80]
