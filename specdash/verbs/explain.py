"""Why a log ended as it did: phases with times, first cause with evidence and advice, accept length and tok/s.

FILE is any SGLang log that somebody has, `-` is standard input. No host is connected to. Exit code 0 when the
log tells no failure, 1 for a warning, 2 for a failure.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

from specdash.errors import UsageError
from specdash.exits import Exit
from specdash.sglang import explain as room
from specdash.sglang.story import Story, feed, finish
from specdash.verbs.explain_pages import READERS

if TYPE_CHECKING:
    from specdash.verbs.context import Context

EXAMPLES = """\
examples:
  specdash explain server.log
  ssh gpu-a docker logs sglang-1 2>&1 | specdash explain -
  specdash explain server.log --exit-code 137 --json | jq .cause"""

CHUNK = 1 << 20
SNIFF = 256 * 1024
MOST_OTHER = 64 * 1024 * 1024
"""Bytes of what is no log: such files are read whole."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a log; - reads standard input")
    parser.add_argument("--exit-code", type=int, help="how the launcher ended, where you know it")
    parser.add_argument("--signal", type=int, help="the signal that ended it, where you know it")
    parser.add_argument("--sglang-version", default=None, help="version, so that the advice fits it")


def run(args: argparse.Namespace, context: Context) -> Exit:
    if args.file == "-":
        stdin = getattr(context.stdin, "buffer", None) or sys.stdin.buffer
        return _tell(stdin, "", args, context)
    path = Path(args.file).expanduser()
    try:
        with path.open("rb") as file:
            return _tell(file, path.name, args, context)
    except OSError as problem:
        raise UsageError(
            f"{path} cannot be read: {problem.strerror or problem}.",
            "Give a log file, or - for standard input.",
        ) from problem


def _tell(file: IO[bytes], name: str, args: argparse.Namespace, context: Context) -> Exit:
    """In chunks, so that a log of any size needs the same memory."""
    head = file.read(SNIFF)
    reader = READERS.get(room.kind_of(head))
    if reader is not None:
        text, body = reader(head + file.read(MOST_OTHER))
        _show(text, body, context)
        return Exit.OK
    if head.lstrip()[:1] == b"{" and (told := _evidence(head)) is not None:
        body = {"schema": "specdash.explain.evidence/1", **told}
        _show(json.dumps(body, indent=2, default=str), body, context)
        return Exit.OK
    story = feed(Story(), head)
    while chunk := file.read(CHUNK):
        story = feed(story, chunk)
    found = room.conclude(finish(story), args.exit_code, args.signal, args.sglang_version)
    _show(room.as_text(found, name), {"schema": "specdash.explain/1", **room.as_json(found)}, context)
    severity = found.cause.severity if found.cause is not None else ""
    return {"fatal": Exit.CRITICAL, "fatal_soon": Exit.CRITICAL, "warning": Exit.WARNING}.get(
        severity, Exit.OK
    )


def _evidence(head: bytes) -> dict[str, object] | None:
    """What a JSON file holds that is no log, when it is whole and one of the shapes that are known."""
    from specdash.verbs import evidence

    try:
        return evidence.read(json.loads(head))
    except (ValueError, RecursionError):
        return None


def _show(text: str, body: dict[str, object], context: Context) -> None:
    if context.json:
        context.print_json(body)
    else:
        context.print(*text.rstrip("\n").split("\n"))
