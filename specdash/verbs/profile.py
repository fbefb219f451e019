"""Launch profiles: list, show, check, compare, and read or write shell lines.

A profile is a TOML file in ./profiles, in the config folder's profiles, or named by its path.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash.errors import ConfigError, SpecdashError, UsageError
from specdash.exits import Exit

if TYPE_CHECKING:
    from specdash.control.profiles import Resolved
    from specdash.verbs.context import Context

EXAMPLES = """\
examples:
  specdash profile list
  specdash profile show kimi-k2.5-eagle3
  specdash profile command kimi-k2.5-eagle3
  specdash profile import --name mine 'nohup python3 -m sglang.launch_server … > log 2>&1 &'
  pbpaste | specdash profile import --name mine -
  specdash profile diff kimi-k2.5-base kimi-k2.5-eagle3
  specdash profile new faster --extends kimi-k2.5-base"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def action(name: str, text: str) -> argparse.ArgumentParser:
        return verbs.add_parser(
            name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False
        )

    action("list", "the profiles that can be had by name")
    add = action("show", "a profile with its bases merged, and the file of each value")
    add.add_argument("profile", metavar="PROFILE")
    add = action("check", "whether profiles are well-formed (all, when none is named)")
    add.add_argument("profiles", metavar="PROFILE", nargs="*")
    add = action("command", "the shell line that launches a profile by hand")
    add.add_argument("profile", metavar="PROFILE")
    add.add_argument("--lines", action="store_true", help="one option a line")
    add.add_argument("--host", metavar="HOST", help="over these hosts, with commas: one line a rank")
    add = action("import", "a profile from an existing shell line")
    add.add_argument("line", metavar="LINE", help="the whole line, quoted; - reads it from standard input")
    add.add_argument("--name", metavar="NAME", help="write it as a profile of this name, else print it")
    add.add_argument("--host", metavar="HOST", help="the host that it runs on")
    add.add_argument(
        "--to", metavar="FOLDER", type=Path, help="where to write; default ./profiles or the config folder's"
    )
    add.add_argument("--force", action="store_true", help="replace a profile of that name")
    add = action("diff", "what two profiles launch differently")
    add.add_argument("first", metavar="PROFILE")
    add.add_argument("second", metavar="PROFILE")
    action("schema", "the JSON Schema of profiles, for editors")
    add = action("new", "a new profile to fill in")
    add.add_argument("name", metavar="NAME")
    add.add_argument("--extends", metavar="PROFILE", help="the base that it starts from")
    add.add_argument(
        "--to", metavar="FOLDER", type=Path, help="where to write; default ./profiles or the config folder's"
    )
    add.add_argument("--force", action="store_true", help="replace a profile of that name")


def run(args: argparse.Namespace, context: Context) -> Exit | Coroutine[Any, Any, Exit]:
    actions: dict[str, Callable[[argparse.Namespace, Context], Exit | Coroutine[Any, Any, Exit]]] = {
        "list": _list,
        "show": _show,
        "check": _check,
        "command": _command,
        "import": _import,
        "diff": _diff,
        "schema": _schema,
        "new": _new,
    }
    return actions[args.action](args, context)


def _list(args: argparse.Namespace, context: Context) -> Exit:
    from specdash.config import inherit
    from specdash.control import profiles

    settings = context.settings
    rows: list[dict[str, Any]] = []
    for name, path in inherit.names().items():
        row: dict[str, Any] = {"name": name, "path": str(path), "problem": None}
        try:
            found = profiles.load(name, settings)
        except SpecdashError as problem:
            row["problem"] = str(problem)
        else:
            row.update(
                description=found.merged.description,
                host=found.spec.host,
                algorithm=found.spec.algorithm,
                drafter=found.spec.drafter,
                extends=found.merged.layers[-1].profile.extends,
            )
        rows.append(row)
    if context.json:
        context.print_json({"schema": "specdash.profiles/1", "profiles": rows})
    elif not rows:
        context.say("No profiles yet. Make one: specdash profile new NAME, or specdash profile import LINE")
    for row in [] if context.json else rows:
        text = f"broken: {row['problem']}" if row["problem"] else row["algorithm"] or "no speculation"
        host = row.get("host", "")
        context.print(f"{row['name']:<28} {host:<12} {text:<14} {row.get('description', '')}".rstrip())
    return Exit.WARNING if any(row["problem"] for row in rows) else Exit.OK


def _show(args: argparse.Namespace, context: Context) -> Exit:
    from specdash.control import profiles

    found = profiles.load(args.profile, context.settings)
    merged, spec = found.merged, found.spec
    if context.json:
        sources = {key: {"file": str(s.path), "line": s.line} for key, s in merged.sources.items()}
        check = merged.check.model_dump(exclude_unset=True)
        data = {"schema": "specdash.profile/1", "launch": spec.as_json(), "check": check, "sources": sources}
        context.print_json({**data, "argv": spec.argv()})
        return Exit.OK
    bases = " < ".join(layer.name for layer in reversed(merged.layers))
    context.print(bases if len(merged.layers) > 1 else merged.name)
    if merged.description:
        context.print(merged.description)
    for key, value in _values(found):
        source = merged.sources.get(key)
        told = f"{source.profile}:{source.line}" if source else "default"
        context.print(f"  {key:<34} {_shown(value):<44} {told}")
    return Exit.OK


def _values(found: Resolved) -> list[tuple[str, Any]]:
    from specdash.config.inherit import source_key

    spec = found.spec
    rows: list[tuple[str, Any]] = [
        ("host", spec.host),
        ("python", spec.python),
        ("launcher", " ".join(spec.launcher)),
        *([("wrapper", " ".join(spec.wrapper))] if spec.wrapper else []),
        ("cwd", spec.cwd or "~"),
        ("log", spec.log or "(only in the run folder)"),
    ]
    rows += [(source_key(option), value) for option, value in spec.flags]
    rows += [(source_key(option), reference) for option, reference in spec.secret_flags.items()]
    rows += [(f"env.{name}", value) for name, value in (*spec.env.items(), *spec.secret_env.items())]
    check = found.merged.check
    rows += [
        (f"check.{name.replace('_', '-')}", getattr(check, name)) for name in sorted(check.model_fields_set)
    ]
    return rows


def _shown(value: Any) -> str:
    if value is True:
        return "on"
    if isinstance(value, str):
        return value if value.isprintable() and value else json.dumps(value)
    return json.dumps(value)


def _check(args: argparse.Namespace, context: Context) -> Exit:
    from specdash.config import inherit
    from specdash.control import profiles

    bad, settings = 0, context.settings
    results = []
    for name in args.profiles or inherit.names():
        problem = ""
        try:
            found = profiles.load(name, settings)
            settings.host(found.spec.host)
        except ConfigError as error:
            problem, bad = str(error), bad + 1
        except SpecdashError as error:
            problem = f"warning: {error}"
        results.append({"name": name, "problem": problem or None})
        if not context.json:
            context.print(f"{name}: {problem or 'ok'}")
    if context.json:
        context.print_json({"schema": "specdash.profile-check/1", "profiles": results})
    if bad:
        return Exit.UNKNOWN
    return Exit.WARNING if any(row["problem"] for row in results) else Exit.OK


def _command(args: argparse.Namespace, context: Context) -> Exit | Coroutine[Any, Any, Exit]:
    from specdash.control import profiles
    from specdash.sglang.shell_line import format_line
    from specdash.verbs import many

    layout = many.parts_of(context, args.profile, args.host)
    if layout is not None:
        return many.command(context, layout, continued=args.lines)
    spec = profiles.resolve(args.profile, context.settings)
    line = format_line(spec, continued=args.lines)
    if context.json:
        context.print_json(
            {"schema": "specdash.command/1", "line": line, "argv": spec.argv(), "env": dict(spec.env)}
        )
    else:
        context.print_bytes(os.fsencode(line) + b"\n")
    if spec.secret_flags or spec.secret_env:
        context.say("Secrets are references: set the variables that the line asks for before you run it.")
    return Exit.OK


def _import(args: argparse.Namespace, context: Context) -> Exit:
    from specdash.config import paths, write
    from specdash.config.secrets import is_secret_env, is_secret_option
    from specdash.control import profiles
    from specdash.sglang.shell_import import parse_line

    line = _stdin(context) if args.line == "-" else args.line
    name = _profile_name(args.name) if args.name else ""
    found = parse_line(
        line,
        profile=name,
        host=args.host or context.settings.defaults.host or "local",
        is_secret_option=is_secret_option,
        is_secret_env=is_secret_env,
    )
    if args.host:
        context.settings.host(args.host)
    target = _target(args, name) if name else None
    if target and target.exists() and not args.force:
        raise ConfigError(f"{target} is there already.", "Choose another name, or say --force.")
    spec = profiles.with_stored_secrets(found, paths.secrets_dir(), name or "imported")
    text = write.profile_text(profiles.to_tables(spec))
    written = None
    if target:
        write.create(target, text, replace=args.force)
        written = str(target)
    if context.json:
        context.print_json(
            {
                "schema": "specdash.import/1",
                "launch": spec.as_json(),
                "toml": text,
                "notes": list(found.notes),
                "written": written,
            }
        )
    elif written:
        context.print(written)
    else:
        context.print(text.rstrip("\n"))
    for note in found.notes:
        context.say(f"note: {note}")
    for what in (*found.literal_flags, *found.literal_env):
        reference = spec.secret_flags.get(what) or spec.secret_env.get(what)
        context.say(f"note: the value of {what} is now {reference}, mode 0600")
    return Exit.OK


def _diff(args: argparse.Namespace, context: Context) -> Exit:
    from specdash.control import profiles

    first, second = (dict(_values(profiles.load(n, context.settings))) for n in (args.first, args.second))
    rows = [
        {"key": key, "first": first.get(key), "second": second.get(key)}
        for key in dict.fromkeys([*first, *second])
        if first.get(key) != second.get(key)
    ]
    if context.json:
        context.print_json({"schema": "specdash.profile-diff/1", "differences": rows})
        return Exit.OK
    for row in rows:
        for mark, side in (("-", first), ("+", second)):
            if row["key"] in side:
                context.print(f"{mark} {row['key']} = {_shown(side[row['key']])}")
    if not rows:
        context.say("They launch the same.")
    return Exit.OK


def _schema(args: argparse.Namespace, context: Context) -> Exit:
    from specdash.config.schema import profile_schema

    context.print_json(profile_schema())
    return Exit.OK


def _new(args: argparse.Namespace, context: Context) -> Exit:
    from specdash.config import inherit, paths, schema, write

    name = _profile_name(args.name)
    target = _target(args, name)
    if args.extends:
        inherit.find(args.extends, beside=target.parent)
        tables: dict[str, Any] = {
            "extends": args.extends,
            "speculation": {"algorithm": "EAGLE3", "draft-model-path": "/path/on/the/host/to/the/drafter"},
        }
    else:
        tables = {
            "host": context.settings.defaults.host or "local",
            "python": context.settings.defaults.python or "python3",
            "server": {"model-path": "/path/on/the/host/to/the/model", "tp": 1, "port": 30000},
        }
    if target.exists() and not args.force:
        raise ConfigError(f"{target} is there already.", "Choose another name, or say --force.")
    comments = schema.directive(target, "profile", paths.config_dir())
    write.create(target, write.profile_text(tables, comments), replace=args.force)
    if context.json:
        context.print_json({"schema": "specdash.profile-new/1", "path": str(target)})
    else:
        context.print(str(target))
    return Exit.OK


def _profile_name(name: str) -> str:
    if not name or name.startswith((".", "-")) or "/" in name or not name.isprintable() or " " in name:
        raise UsageError(f'"{name}" is no name for a profile.', "Use letters, digits, dot, dash, underscore.")
    return name.removesuffix(".toml")


def _target(args: argparse.Namespace, name: str) -> Path:
    from specdash.config import paths

    if args.to:
        return Path(args.to).expanduser() / f"{name}.toml"
    folder = Path("profiles") if Path("profiles").is_dir() else paths.config_dir() / "profiles"
    return folder / f"{name}.toml"


def _stdin(context: Context) -> str:
    buffer = getattr(context.stdin, "buffer", None)
    if buffer is None:
        return context.stdin.read()
    return os.fsdecode(buffer.read(1_000_001))
