"""The config file: make one, show what holds, check it, or print where it is."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from specdash.errors import ConfigError
from specdash.exits import Exit

if TYPE_CHECKING:
    from specdash.verbs.context import Context

EXAMPLES = """\
examples:
  specdash config path
  specdash config init --host gpu1
  specdash config check"""

TEMPLATE = """\
#{schema}
# specdash: hosts, groups, thresholds. Hosts of ~/.ssh/config need no entry here.

# theme = "textual-dark"
# read-only = true          # refuse everything that changes a host

[defaults]
{default_host}
# python = "/venv/bin/python3"   # interpreter of profiles that name none

{hosts}
# [groups]
# lab = ["gpu1", "gpu2"]

# [check]                   # thresholds of specdash --check
# warn = ["accept<1.8"]
# crit = ["tok/s<40"]

# [keys]                    # keys of the screen: action = "key"
# launch = "ctrl+l"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, text in (
        ("path", "where the config file is"),
        ("init", "write a config file to fill in"),
        ("show", "the settings that hold, as JSON"),
        ("check", "whether the config file and all profiles are well-formed"),
        ("schema", "the JSON Schema of the config file, for editors"),
    ):
        add = actions.add_parser(
            name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False
        )
        if name == "init":
            add.add_argument(
                "--host", metavar="HOST", action="append", default=[], help="a host to start with"
            )
            add.add_argument("--force", action="store_true", help="replace the file that is there")


def run(args: argparse.Namespace, context: Context) -> Exit:
    from specdash.config import paths

    if args.action == "path":
        if context.json:
            context.print_json(_places())
        else:
            context.print(str(paths.config_file()))
    elif args.action == "init":
        _init(args, context)
    elif args.action == "schema":
        from specdash.config.schema import config_schema

        context.print_json(config_schema())
    elif args.action == "show":
        settings = context.settings
        data = settings.model_dump(mode="json")
        context.print_json({"schema": "specdash.config/1", "file": str(settings.path or ""), **data})
    else:
        return _check(context)
    return Exit.OK


def _places() -> dict[str, object]:
    from specdash.config import paths

    return {
        "schema": "specdash.paths/1",
        "config": str(paths.config_file()),
        "exists": paths.config_file().exists(),
        "profiles": [str(folder) for folder in paths.profile_dirs()],
        "secrets": str(paths.secrets_dir()),
        "data": str(paths.data_dir()),
        "state": str(paths.state_dir()),
    }


def _init(args: argparse.Namespace, context: Context) -> None:
    from specdash.config import paths, schema, write
    from specdash.config.settings import Settings

    target = paths.config_file()
    known = Settings()
    for name in args.host:
        known.host(name)
    hosts = "".join(f'[hosts."{name}"]\nssh = "{name}"\n\n' for name in args.host if name != "local")
    default = f'host = "{args.host[0]}"' if args.host else '# host = "gpu1"'
    text = TEMPLATE.format(
        schema=schema.directive(target, "config", paths.config_dir())[0],
        default_host=default,
        hosts=hosts
        or '# [hosts.gpu1]\n# ssh = "gpu1"              # alias of ~/.ssh/config, or an address\n',
    )
    write.create(target, text, replace=args.force)
    context.print(str(target))


def _check(context: Context) -> Exit:
    from specdash.config import inherit, paths
    from specdash.control import profiles

    problems = []
    settings = context.settings
    for name in inherit.names():
        try:
            profiles.load(name, settings)
        except ConfigError as problem:
            problems.append(str(problem))
    where = settings.path or f"{paths.config_file()} (not there: defaults hold)"
    if context.json:
        context.print_json(
            {"schema": "specdash.config-check/1", "file": str(settings.path or ""), "problems": problems}
        )
    else:
        context.print(f"{where}: ok", *problems)
    return Exit.UNKNOWN if problems else Exit.OK
