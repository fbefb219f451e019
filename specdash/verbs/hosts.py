"""Hosts that specdash knows: configured ones, this machine, and the aliases of ~/.ssh/config.

Nothing is connected to; `specdash status` does that.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from specdash.exits import Exit

if TYPE_CHECKING:
    from specdash.verbs.context import Context

EXAMPLES = """\
examples:
  specdash hosts
  specdash hosts --json | jq -r '.hosts[].name'"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", metavar="HOST", nargs="*", help="only these hosts or groups")


def run(args: argparse.Namespace, context: Context) -> Exit:
    settings = context.settings
    groups: dict[str, list[str]] = {}
    for group, members in settings.groups.items():
        for member in members:
            groups.setdefault(member, []).append(group)
    rows: list[dict[str, Any]] = []
    for name in settings.expand(args.names) if args.names else settings.host_names():
        host = settings.host(name)
        origin = (
            "config" if name in settings.hosts else "this machine" if name == "local" else "~/.ssh/config"
        )
        rows.append(
            {**host.model_dump(mode="json"), "name": name, "from": origin, "groups": groups.get(name, [])}
        )
    if context.json:
        context.print_json({"schema": "specdash.hosts/1", "hosts": rows})
        return Exit.OK
    for row in rows:
        flags = ["read-only"] if row["read_only"] else []
        flags += [row["label"]] if row["label"] else []
        flags += [f"in {', '.join(row['groups'])}"] if row["groups"] else []
        context.print(
            f"{row['name']:<24} {row['ssh'] or '-':<32} {row['from']:<14} {' · '.join(flags)}".rstrip()
        )
    return Exit.OK
