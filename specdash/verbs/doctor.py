"""What works here and on hosts, what does not, and what to do about it; and a support bundle without secrets.

Looks at this machine: Python, packages, config, profiles and their secrets, ssh agent and keys, terminal, locale.
For each HOST: the link, Python, GPUs, disk, clock, and the SGLang that its profiles would run. Changes nothing.

With --bundle FILE it writes a tar.gz (0600, never over a file that is there) with all of that, the redacted
config and profiles, the last runs' records and the ends of their logs, and traces of unexpected errors. Secrets
are taken out by name and by value; look into it before you send it all the same.

Exit codes: 0 all is well; 1 there are warnings; 2 something does not work; 3 usage.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from specdash.exits import Exit

if TYPE_CHECKING:
    from specdash.host.link import Link
    from specdash.verbs.context import Context
    from specdash.verbs.doctor_here import Item

EXAMPLES = """\
examples:
  specdash doctor
  specdash doctor gpu1 gpu2
  specdash doctor --all --bundle specdash-bundle.tar.gz
  specdash doctor local --json | jq '.items[] | select(.status != "ok")'"""
SCHEMA = "specdash.doctor/1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("hosts", nargs="*", metavar="HOST", help="hosts or groups to look at too")
    parser.add_argument("--all", action="store_true", help="every configured host")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="for each host (60)")
    parser.add_argument("--bundle", metavar="FILE", help="write a support bundle (tar.gz)")


async def run(args: argparse.Namespace, context: Context) -> Exit:
    import asyncio

    from specdash.errors import UsageError
    from specdash.verbs import doctor_bundle, doctor_here, doctor_host

    if args.timeout <= 0:
        raise UsageError("--timeout wants seconds above 0.")
    path = doctor_bundle.place(args.bundle) if args.bundle else None
    items = list(doctor_here.here(context))
    looked = await asyncio.gather(
        *(doctor_host.look(context, name, args.timeout) for name in _hosts(args, context))
    )
    links: list[Link] = [link for _, link in looked if link is not None]
    items += [item for found, _ in looked for item in found]
    try:
        if path is not None:
            context.say("Collecting the bundle …")
            names = await doctor_bundle.write(context, path, _document(items), links)
            context.say(*(f"  {name}" for name in names))
            context.say(
                f"{path}: {len(names)} files, 0600. Secrets are taken out; look into it before you send it."
            )
    finally:
        await asyncio.gather(*(link.close() for link in links), return_exceptions=True)
    if context.json:
        context.print_json(_document(items))
    else:
        context.print(*lines(items))
    return code_of(items)


def _hosts(args: argparse.Namespace, context: Context) -> list[str]:
    """Named hosts, groups replaced. A config that cannot be read is told of; only `local` can be had then."""
    from specdash.errors import SpecdashError

    try:
        settings = context.settings
    except SpecdashError:
        return [name for name in args.hosts if name == "local"]
    for name in settings.expand(args.hosts):
        settings.host(name)
    wanted = [*args.hosts, *(settings.hosts if args.all else ())]
    return list(settings.expand(wanted))


def code_of(items: list[Item]) -> Exit:
    found = {item.status for item in items}
    return Exit.CRITICAL if "fail" in found else Exit.WARNING if "warn" in found else Exit.OK


def lines(items: list[Item]) -> list[str]:
    """One line for each item, what to do below it."""
    out, where = [], ""
    for item in items:
        if item.where != where:
            where = item.where
            out.append("This machine" if where == "here" else _clean(where))
        out.append(f"  {item.status:<5} {item.name:<11} {_clean(item.sentence)}")
        if item.remedy and item.status != "ok":
            out.append(f"        {'':<11} → {_clean(item.remedy)}")
    return out


def _document(items: list[Item]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "exit": int(code_of(items)),
        "items": [
            {
                "where": item.where,
                "name": item.name,
                "status": item.status,
                "sentence": item.sentence,
                "remedy": item.remedy,
            }
            for item in items
        ],
    }


def _clean(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)
