"""The pulse of a serving run: the same few prompts, greedily, one request at a time.

Tells tok/s of one stream, accept length, and how often each draft position is accepted, by SGLang's own numbers of
these very requests. It generates on the server for some seconds; what else runs there shares them. The result is
kept as pulse.json in the run's folder, so that every screen shows it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from specdash.exits import Exit

if TYPE_CHECKING:
    from specdash.verbs.context import Context

EXAMPLES = """\
examples:
  specdash pulse kimi-k2.5-eagle3                 the newest running run of that profile
  specdash pulse kimi-k2.5-eagle3 --json | jq .position_acceptance"""
SCHEMA = "specdash.pulse/1"
BAR = 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="run id, its beginning, or a profile's name")
    parser.add_argument("--host", metavar="HOST", help="where it runs; default: the profile's host")
    parser.add_argument("--no-keep", action="store_true", help="do not write it into the run's folder")


async def run(args: argparse.Namespace, context: Context) -> Exit:
    from specdash.control import pulse
    from specdash.sglang import pulse as rules
    from specdash.verbs.follow import find_run, host_of
    from specdash.verbs.status import clean

    name = host_of(context, args.run, args.host)
    read_only = context.read_only or context.settings.read_only or context.host(name).read_only
    link = await context.open_link(name)
    try:
        run_id = await find_run(link, args.run)
        asked = (
            f"{len(rules.PROMPTS)} requests of {rules.MAX_NEW_TOKENS} tokens, at least {rules.PASSES} times"
        )
        context.say(clean(f"Pulse of {run_id}: {asked}, one after another."))
        result = await pulse.measure(link, run_id, keep=not (args.no_keep or read_only))
    finally:
        await link.close()
    if context.json:
        context.print_json({"schema": SCHEMA, "host": name, **result})
    else:
        context.print(*(clean(line) for line in lines(result)))
    if result["running_before"]:
        context.say(f"{result['running_before']} other requests ran: tok/s is not that of one stream alone.")
    return Exit.OK if result["ok"] else Exit.CRITICAL


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """A pulse in words: a dash is *not told*."""
    yield str(result["sentence"])
    rate = result.get("accept_rate")
    yield (
        f"  {result['tokens']} tokens in {result['seconds']:.1f} s, "
        f"{_said(result['verify_steps'], '{}')} verify steps, accept rate {_said(rate, '{:.2f}')}"
    )
    shares = result.get("position_acceptance")
    if shares:
        yield "  share of verify steps in which at least so many draft tokens were right:"
        for position, share in enumerate(shares, 1):
            yield f"  {position:>4}  {'#' * round(share * BAR):<{BAR}}  {share * 100:5.1f} %"


def _said(value: Any, form: str) -> str:
    return "-" if value is None else form.format(value)
