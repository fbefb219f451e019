"""Ask the installed SGLang for its algorithms and flags, without importing it.

TARGET is a host, or a profile (then its interpreter, working directory and environment are used). With --tree
an unpacked SGLang of this machine is read: a wheel's folder, a git clone, or the package itself.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from specdash.errors import ConfigError, HostUnknown, RemoteError, UsageError
from specdash.exits import Exit

if TYPE_CHECKING:
    from specdash.control.probe import Probe
    from specdash.sglang.commandline import LaunchSpec
    from specdash.verbs.context import Context

EXAMPLES = """\
examples:
  specdash probe gpu1
  specdash probe kimi-k2.5-eagle3 --deep
  specdash probe gpu1 --flag speculative
  specdash probe --tree ./sglang-0.5.23 --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", nargs="?", help="a host or a profile")
    parser.add_argument("--tree", metavar="DIR", help="read an unpacked SGLang of this machine")
    parser.add_argument("--python", metavar="PYTHON", help="another interpreter on the host")
    parser.add_argument(
        "--deep", action="store_true", help="also import SGLang there, in a child (10 to 60 s)"
    )
    parser.add_argument("--fresh", action="store_true", help="read again, whatever is remembered")
    parser.add_argument("--flag", metavar="TEXT", help="show the flags whose name holds TEXT")


async def run(args: argparse.Namespace, context: Context) -> Exit:
    from specdash.control import probe as control

    if (args.tree is None) == (args.target is None):
        raise UsageError("name a host, a profile or --tree DIR.", "See specdash probe --help.")
    if args.tree is not None:
        if args.deep:
            raise UsageError("--deep imports SGLang with an interpreter; --tree has none.")
        found = await control.probe_tree(args.tree)
    else:
        found = await _on_host(args, context)
    if context.json:
        context.print_json(control.as_json(found))
    else:
        context.print(*lines(found, args.flag))
    if found.reading is None:
        return Exit.CRITICAL
    return Exit.WARNING if found.reading.unread else Exit.OK


async def _on_host(args: argparse.Namespace, context: Context) -> Probe:
    from specdash.control import probe as control

    spec = profile_or_none(args.target, context)
    host = spec.host if spec is not None else context.host(args.target).name
    python = args.python or (spec.python if spec is not None else context.host(host).python)
    link = await context.open_link(host)
    try:
        return await control.probe(
            link,
            python,
            spec.cwd if spec is not None else "",
            spec.env if spec is not None else {},
            deep=args.deep,
            use_cache=not args.fresh,
        )
    except RemoteError as error:
        raise RemoteError(error.code, f"{host}: {error.sentence}.", error.step or "See `python`.") from None
    finally:
        await link.close()


def profile_or_none(name: str, context: Context) -> LaunchSpec | None:
    """The profile of this name; None when only a host is called so. Raises the profile's own error otherwise."""
    from specdash.control import profiles

    try:
        return profiles.resolve(name, context.settings)
    except ConfigError:
        try:
            context.host(name)
        except HostUnknown:
            pass
        else:
            return None
        raise


def lines(found: Probe, flag: str | None = None) -> list[str]:
    """The probe for people."""
    reading = found.reading
    if reading is None:
        under = f" {found.executable}" if found.executable else " that interpreter"
        return [
            f"No SGLang: {found.problem} ({under.strip()}).",
            "Name the interpreter of SGLang's environment: --python PATH, or `python` of the profile.",
        ]
    winner = found.winner
    where = f" at {winner.path}" if winner else ""
    out = [f"SGLang {reading.version or 'of unknown version'}{where}"]
    if found.python and found.host:
        out.append(f"  under Python {found.python} ({found.executable}) on {found.host}")
    out += [f"  also on the path: {c.path} {c.version}".rstrip() for c in found.copies if not c.wins]
    if flag is not None:
        return out + flag_lines(found, flag)
    out.append("")
    out += algorithm_lines(found)
    out += ["", f"Flags: {len(reading.flags.by_string)} option strings (--flag TEXT shows some, --json all)"]
    for plugin in reading.plugins:
        state = "" if plugin.enabled else " (left out by SGLANG_PLUGINS)"
        adds = ", ".join(plugin.algorithms) or (
            "names built at run time" if plugin.dynamic else "no algorithm found"
        )
        out.append(f"Plugin {plugin.name} ({plugin.value}){state}: {plugin.reason or adds}")
    out += ["", "Techniques:"]
    out += [f"  {a.technique}: {a.sentence}{_where(a.evidence)}" for a in reading.theory]
    if found.deep is not None:
        names = found.deep.get("algorithms")
        told = ", ".join(names) if names is not None else f"failed: {found.deep.get('problem')}"
        out += ["", f"Really registered (imported in {found.deep.get('took_s', 0):.0f} s): {told}"]
    if reading.unread:
        out += ["", "Could not be read:"]
        out += [f"  {u.path}: {u.reason}" for u in reading.unread]
    return out


def algorithm_lines(found: Probe) -> list[str]:
    from specdash.sglang import notes

    assert found.reading is not None
    reading = found.reading
    if reading.names is None:
        return ["Algorithms: could not be read (anything may be there; try --deep)"]
    if not reading.names:
        return ["Algorithms: none, this SGLang has no speculative decoding"]
    out = ["Algorithms:"]
    for name in reading.names:
        note = notes.get(name)
        where = reading.algorithms.where(name)
        out.append(f"  {name}{f'  ({where})' if where else '  (from a plugin)'}")
        if note is None:
            out.append("      nothing is known of it")
            continue
        out.append(f"      {note.what} Since {note.since}.")
        out.append(f"      {note.draft_sentence}")
        out += [f"      - {change}" for change in notes.changes(note, reading.version)]
    for alias, meant in reading.algorithms.aliases.items():
        out.append(f"  {alias} = {meant or 'unknown'}")
    extra = [a for a in reading.accepted if a not in reading.names and a not in reading.algorithms.aliases]
    if extra:
        out.append(f"  the command line also takes: {', '.join(extra)}")
    return out


def flag_lines(found: Probe, text: str) -> list[str]:
    assert found.reading is not None
    table = found.reading.flags
    out: list[str] = []
    for flag in table.flags:
        if not any(text in string for string in flag.strings):
            continue
        default = "" if flag.takes == "nothing" else f", default {_default(flag.default, flag.default_known)}"
        out.append(f"{', '.join(flag.strings)}  ({flag.type}{default})")
        if flag.choices is not None:
            out.append(f"    one of {', '.join(map(str, flag.choices))}")
        if flag.choices_dynamic:
            out.append("    its choices are known only when the engine starts")
        if flag.deprecated or flag.stops:
            out.append(f"    {flag.stops or flag.deprecated}")
        elif flag.help:
            out.append(f"    {flag.help}")
    return out or [f"No flag has {text!r} in its name."]


def _default(value: Any, known: bool) -> str:
    return "computed" if not known else "unset" if value is None else str(value)


def _where(evidence: tuple[str, ...]) -> str:
    return f"  [{', '.join(evidence)}]" if evidence else ""
