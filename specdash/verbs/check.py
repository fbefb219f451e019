"""Probe hosts and servers once; the exit code is what monitoring systems expect.

TARGET is a host of the config or of ~/.ssh/config, a profile, HOST:PORT, a URL, or `local`. Without a target,
every configured host. Exit codes: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN (usage errors too), 130 on ^C.
Cheap endpoints, processes and the log are read; no token is generated unless --generate asks for it.
"""

from __future__ import annotations

import argparse
import asyncio
from contextlib import AsyncExitStack

from specdash.errors import UsageError
from specdash.verbs.context import Context

EXAMPLES = """examples:
  specdash --check gpu1 kimi-eagle3
  specdash --check kimi-eagle3 --warn 'accept<1.8' --crit 'tok/s<40'
  specdash --check http://127.0.0.1:30000 --generate --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help="host, profile, host:port, URL, or local"
    )
    parser.add_argument("--all", action="store_true", help="every configured host")
    parser.add_argument("--timeout", type=_seconds, default=None, metavar="S", help="per target (default 10)")
    parser.add_argument(
        "--window", type=_seconds0, default=None, metavar="S", help="sampling window (default 2)"
    )
    parser.add_argument(
        "--warn", action="append", default=[], metavar="RULE", help="WARNING when it holds: 'accept<1.8'"
    )
    parser.add_argument(
        "--crit", action="append", default=[], metavar="RULE", help="CRITICAL when it holds: 'tok/s<40'"
    )
    parser.add_argument(
        "--generate", action="store_true", help="prove it by one real generation per idle server"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="every finding with its evidence")


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 600:
        raise argparse.ArgumentTypeError("seconds, above 0 and up to 600")
    return value


def _seconds0(text: str) -> float:
    return 0.0 if text in ("0", "0.0") else _seconds(text)


async def run(args: argparse.Namespace, context: Context) -> int:
    from specdash import check
    from specdash.check import render
    from specdash.config.thresholds import rule

    for text in (*args.warn, *args.crit):
        try:
            rule(text)
        except ValueError as problem:
            raise UsageError(f"{problem}.", "") from None
    settings = context.settings
    words = [] if args.all else list(args.targets)
    timeout = args.timeout or settings.check.timeout_s or 10.0
    async with AsyncExitStack() as stack:
        targets = []
        for word in words or [""]:
            if word in check.INJECTED:
                targets.append(await stack.enter_async_context(check.INJECTED[word]()))
            else:
                targets += check.parse([word] if word else [], settings)
        options = check.Options(timeout, args.window, args.generate, tuple(args.warn), tuple(args.crit))
        results = await check.check(targets, options)
    if context.json:
        context.print_json(render.as_json(results))
    else:
        context.print(render.line(results))
        if args.verbose:
            context.print(*render.verbose(results))
    await asyncio.sleep(0)
    return int(check.worst(result.state for result in results))
