"""Probe hosts and servers once; the exit code is what monitoring systems expect.

TARGET is a host of the config or of ~/.ssh/config, a profile, HOST:PORT, a URL, or `local`. Without a target,
every configured host, and every profile whose [check] says expect-running = true. Exit codes: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN (usage errors too), 130 on ^C.
Cheap endpoints, processes and the log are read; no token is generated unless --generate asks for it.

With -o the output goes to a file that is replaced whole, so that a reader never sees half of it. With --watch it
looks again and again and prints one line for each target that changed: its state, or what is not well.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from specdash.errors import UsageError
from specdash.verbs.context import Context

if TYPE_CHECKING:
    from specdash.check import Options, Result, Target

EXAMPLES = """examples:
  specdash --check gpu1 kimi-eagle3
  specdash --check kimi-eagle3 --warn 'accept<1.8' --crit 'tok/s<40'
  specdash --check http://127.0.0.1:30000 --generate --json
  specdash --check --all --format prometheus -o /var/lib/node_exporter/textfile/specdash.prom
  specdash --check --all --watch --interval 30      one line for each change, until ^C
"""

LEAST_GENERATING_S = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help="host, profile, host:port, URL, or local"
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="every configured host, and every profile with expect-running = true",
    )
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
    parser.add_argument(
        "--api-key", metavar="REF", help="of a server that specdash did not launch: env:NAME or file:PATH"
    )
    parser.add_argument("--insecure", action="store_true", help="take any certificate of an https URL")
    parser.add_argument(
        "--no-memory", action="store_true", help="do not remember for the next check how far the log was read"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="every finding with its evidence")
    parser.add_argument(
        "--format",
        choices=("text", "json", "prometheus"),
        help="text: one line with perfdata; json; prometheus: for a textfile collector",
    )
    parser.add_argument(
        "--schema", action="store_true", help="print the JSON Schema of --json, and check nothing"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write it there, replaced whole")
    parser.add_argument("--watch", action="store_true", help="look again and again; a line for each change")
    parser.add_argument(
        "--interval", type=_seconds, default=10.0, metavar="S", help="with --watch: look every S (10)"
    )


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 600:
        raise argparse.ArgumentTypeError("seconds, above 0 and up to 600")
    return value


def _seconds0(text: str) -> float:
    return 0.0 if text in ("0", "0.0") else _seconds(text)


async def run(args: argparse.Namespace, context: Context) -> int:
    import json

    from specdash import check
    from specdash.config import paths
    from specdash.config.thresholds import rule

    lead_s = time.monotonic() - context.began
    if args.schema:
        from specdash.check import document

        _write(args, context, document.text())
        return 0
    args.form = _asked(args, context)
    for text in (*args.warn, *args.crit):
        try:
            rule(text)
        except ValueError as problem:
            raise UsageError(f"{problem}.", "") from None
    settings = context.settings
    words = list(args.targets)
    async with AsyncExitStack() as stack:
        targets = []
        for word in words or [None]:
            if word in check.INJECTED:
                targets.append(await stack.enter_async_context(check.INJECTED[word]()))
            else:
                targets += check.parse([] if word is None else [word], settings)
        options = check.Options(
            args.timeout,
            0.0 if args.watch else lead_s,
            args.window,
            args.generate,
            tuple(args.warn),
            tuple(args.crit),
            args.insecure,
            _key(args.api_key),
            None if args.no_memory else paths.state_dir() / "check",
            json.dumps([words, args.form, args.output, args.watch]),
        )
        if args.watch:
            _not_often(args, any(target.settings.generate for target in targets))
            await _watch(args, context, targets, options)
        results = await check.check(targets, options)
    _put(args, context, results)
    await asyncio.sleep(0)
    return int(check.worst(result.state for result in results))


def _key(reference: str | None) -> str:
    """The key that a reference stands for; the value itself has no place on a command line that others can see."""
    from specdash.config import secrets

    if not reference:
        return ""
    if not reference.startswith(("env:", "file:")):
        raise UsageError("--api-key wants a reference, not a key.", "Write env:NAME or file:PATH.")
    return secrets.resolve(reference).value or ""


def _asked(args: argparse.Namespace, context: Context) -> str:
    """The format; --json is the same as --format json."""
    if context.json and args.format not in (None, "json"):
        raise UsageError(f"--json and --format {args.format} ask for two formats.", "Leave one out.")
    if args.all and args.targets:
        raise UsageError(
            f"--all takes what is configured, and {args.targets[0]} is named too.", "Leave one out."
        )
    _not_often(args, args.watch and args.generate)
    context.json = context.json or args.format == "json"
    return args.format or ("json" if context.json else "text")


def _not_often(args: argparse.Namespace, generates: bool) -> None:
    if generates and args.interval < LEAST_GENERATING_S:
        raise UsageError(
            f"--generate costs the engine a generation each time: not more often than every {LEAST_GENERATING_S:g} s.",
            f"Add --interval {LEAST_GENERATING_S:g}.",
        )


def _put(args: argparse.Namespace, context: Context, results: list[Result]) -> None:
    import json
    import time

    from specdash.check import prometheus, render

    if args.form == "prometheus":
        text = prometheus.text(results, time.time())
    elif args.form == "json":
        text = json.dumps(render.as_json(results), indent=2, default=str) + "\n"
    else:
        text = "\n".join([render.line(results), *(render.verbose(results) if args.verbose else ())]) + "\n"
    _write(args, context, text)


def _write(args: argparse.Namespace, context: Context, text: str) -> None:
    if args.output:
        replace_whole(args.output, text)
        return
    try:
        context.out.write(text)
        context.out.flush()
    except BrokenPipeError:  # nobody reads the line: the exit code tells the state all the same
        from specdash.verbs import failing

        failing.quiet_pipe()


async def _watch(args: argparse.Namespace, context: Context, targets: list[Target], options: Options) -> None:
    """Never returns: ^C ends it. With -o the file is brought up to date each time, whatever changed."""
    import json
    import time

    from specdash import check
    from specdash.check import render, watch

    seen: watch.Seen = {}
    while True:
        began = time.monotonic()
        results = await check.check(targets, options)
        for result in watch.changes(seen, results):
            if args.form == "json":
                context.print(json.dumps({**render.as_json([result]), "at_unix": time.time()}, default=str))
            else:
                context.print(watch.line(result, time.time()))
        context.out.flush()
        if args.output:
            _put(args, context, results)
        await asyncio.sleep(max(0.1, args.interval - (time.monotonic() - began)))


def replace_whole(path: str, text: str) -> None:
    """A reader sees the old file or the new one, never half of one. 0644: a collector is another user.

    A link stays, and the file that it leads to is replaced; a pipe or a device (/dev/stdout) is written to. Raises
    UsageError where it cannot be written.
    """
    import os
    import tempfile
    from pathlib import Path

    target = Path(path).expanduser()
    if target.is_dir():
        raise UsageError(f"{target} is a folder.", "Name a file in it.")
    new = ""
    try:
        if target.exists() and not target.is_file():
            target.write_text(text, "utf-8", "backslashreplace")
            return
        target = Path(os.path.realpath(target))
        # Its name does not end in .prom: the collector must not read it.
        handle, new = tempfile.mkstemp(".new", f".{target.name}.", target.parent)
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        Path(new).replace(target)
    except OSError as problem:
        if new:
            Path(new).unlink(missing_ok=True)
        raise UsageError(
            f"{target} cannot be written: {problem.strerror}.", "Name another file with -o."
        ) from None
