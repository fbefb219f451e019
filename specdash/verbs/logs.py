"""The log of a run, from its first byte. Secrets are replaced and control characters removed, except with --raw.

--raw gives the file's bytes exactly (secrets too). --since takes 30s, 10m, 2h (before the log's newest time) or a
time as the log prints it (`2026-11-29 12:30` or `12:30`). --json gives one object a line: {"line": "..."}.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from specdash.errors import UsageError
from specdash.exits import Exit

if TYPE_CHECKING:
    from specdash.verbs.context import Context

EXAMPLES = """examples:
  specdash logs kimi-k2.5-eagle3 -f
  specdash logs kimi-k2.5-eagle3 --grep 'accept len' --since 10m
  specdash logs kimi-k2.5-eagle3-20261129-120315-9f2c --raw > server.log"""

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])\Z")
_CLOCK = re.compile(r"(?:(20\d\d-\d\d-\d\d)[ T])?(\d\d:\d\d(?::\d\d)?)\Z")
_FACTOR = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="run id, its beginning, or a profile's name")
    parser.add_argument("--host", metavar="HOST", help="where it is; default: the profile's host")
    parser.add_argument("-f", "--follow", action="store_true", help="go on as it grows, until ^C")
    parser.add_argument("--since", metavar="WHEN", help="only from then on")
    parser.add_argument("--grep", metavar="REGEX", help="only lines that match")
    parser.add_argument("-n", "--lines", type=int, metavar="N", help="only the last N lines")
    parser.add_argument("--raw", action="store_true", help="bytes exactly as on the host, secrets included")


async def run(args: argparse.Namespace, context: Context) -> Exit:
    from specdash.monitor.logstore import LogStore
    from specdash.verbs.follow import find_run, host_of

    pick = Pick(args.since or "", args.grep or "")
    if args.raw and context.json:
        raise UsageError("--raw and --json ask for two formats.", "Leave one out.")
    if args.raw and (args.since or args.grep or args.lines is not None):
        raise UsageError("--raw gives the whole file.", "Leave out --since, --grep and -n.")
    host = host_of(context, args.run, args.host)
    link = await context.open_link(host)
    try:
        run_id = await find_run(link, args.run, live=False)
        answer = await link.call(
            "runs.read", {"base": link.hello["base"], "id": run_id, "positions": {}}, timeout=30
        )
        record = answer["record"]
        path = record.get("log_path") or f"{record['folder']}/server.log"
        store = LogStore(host, run_id)
        try:
            done = 0
            async for chunk in link.tail(path):
                if chunk.gone:
                    raise UsageError(f"The log cannot be read: {chunk.gone}", f"It should be at {path}.")
                if args.raw:
                    context.out.flush()
                    context.out.buffer.write(chunk.data)
                else:
                    store.append(chunk.data)
                caught_up = chunk.offset + len(chunk.data) >= chunk.size
                if not caught_up:
                    continue
                if not args.raw:
                    end = store.line_count if not args.follow else store.whole_lines
                    first = max(done, end - args.lines) if args.lines is not None and done == 0 else done
                    for number in range(first, end, 4096):
                        lines = store.lines(number, min(4096, end - number))
                        shown = pick.choose(lines, store)
                        context.print(*(map(_object, shown) if context.json else shown))
                    done = end
                context.out.flush()
                if not args.follow:
                    break
        finally:
            store.close()
    finally:
        await link.close()
    return Exit.OK


def _object(line: str) -> str:
    return json.dumps({"line": line})


class Pick:
    """Which lines, and how they are shown. A line without a time goes with the last one that has one."""

    def __init__(self, since: str, grep: str) -> None:
        try:
            self.rule = re.compile(grep.encode("utf-8", "surrogateescape")) if grep else None
        except re.error as problem:
            raise UsageError(f"--grep {grep!r} is no regular expression: {problem}.", "") from None
        self.since = since
        self.span = _SPAN.match(since)
        self.clock = _CLOCK.match(since)
        if since and not self.span and not self.clock:
            raise UsageError(f"--since {since!r} is no time.", "Write 10m, 2h, 12:30 or '2026-11-29 12:30'.")
        self.limit: float | None = None
        self.open = not since

    def choose(self, lines: list[bytes], store: object) -> Iterator[str]:
        from specdash.sglang import redact
        from specdash.sglang.lines import visible

        if self.since and self.limit is None:
            self.limit = self._limit(store)
        for line in lines:
            if not self.open and self.limit is not None:
                at = time_of(line)
                self.open = at is not None and at >= self.limit
            if self.open and (self.rule is None or self.rule.search(line)):
                yield redact.text(visible(line))

    def _limit(self, store: object) -> float:
        """The earliest time, in the log's own zone."""
        from specdash.monitor.logstore import LogStore
        from specdash.sglang.prefix import seconds

        assert isinstance(store, LogStore)
        newest = next(
            (
                at
                for at in (time_of(line) for line in reversed(store.lines(store.line_count - 2000, 2000)))
                if at is not None
            ),
            None,
        )
        if self.span:
            return (newest or 0.0) - float(self.span.group(1)) * _FACTOR[self.span.group(2)]
        assert self.clock is not None
        day, clock = self.clock.groups()
        clock = clock if clock.count(":") == 2 else clock + ":00"
        if day:
            return seconds(f"{day} {clock}") or 0.0
        hours, minutes, rest = (int(part) for part in clock.split(":"))
        midnight = (newest or 0.0) // 86400 * 86400
        return midnight + hours * 3600 + minutes * 60 + rest


def time_of(line: bytes) -> float | None:
    """Log time of a line in seconds; None where it has none."""
    from specdash.sglang import prefix

    head = prefix.read(line.rpartition(b"\r")[2] or line)
    return prefix.seconds(head.time) if head is not None and head.time else None
