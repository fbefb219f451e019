"""Every command-line flag of a tree, over the three generations of how SGLang declares them.

Up to 0.5.13: `parser.add_argument(…)` in `ServerArgs.add_cli_args`. From 0.5.15: annotated fields of
`ServerArgs` (`name: A[T, Arg(…)]`) beside some `add_argument`. From 0.5.20: the fields moved to classes under
`srt/arg_groups/fields/`. All are merged, so that a tree between two generations reads well too.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Dict, List, Mapping, Optional, Tuple

from specdash.sglang.constants import Scope
from specdash.sglang.tree import Source, Tree, Unread

SERVER_ARGS = "sglang/srt/server_args.py"
ARG_GROUPS = "sglang/srt/arg_groups"


@dataclass(frozen=True)
class Flag:
    """One option as argparse would have it. `None` choices: any value; unknown things are said, not guessed."""

    strings: Tuple[str, ...]
    """Every option string, the main one first; for on/off pairs the `--no-…` forms too."""
    dest: str
    takes: str
    """nothing | one | many (one or more) | any (none or more) | maybe (none or one) | a number as text | unknown"""
    type: str = "str"
    """str | int | float | bool | json | the name of SGLang's own converter, which specdash does not run"""
    default: Any = None
    default_known: bool = True
    choices: Optional[Tuple[Any, ...]] = None
    choices_dynamic: bool = False
    """The choices are computed when SGLang runs: specdash cannot check a value against them."""
    required: bool = False
    help: str = ""
    deprecated: str = ""
    """Empty, or a sentence."""
    new_flag: str = ""
    """What to use instead, as SGLang spells it."""
    stops: str = ""
    """Not empty: the parser knows the flag only to refuse it with this message."""
    path: str = ""
    line: int = 0

    @property
    def name(self) -> str:
        return self.strings[0]


@dataclass(frozen=True)
class FlagTable:
    """All flags of one tree. `unread` names the files that could not be read; `complete` is then False."""

    flags: Tuple[Flag, ...]
    unread: Tuple[Unread, ...] = ()
    by_string: Mapping[str, Flag] = field(default_factory=dict)

    @property
    def readable(self) -> bool:
        """False: nothing could be read, so nothing can be said about any flag."""
        return len(self.flags) > 1

    @property
    def complete(self) -> bool:
        return self.readable and not self.unread

    def get(self, string: str) -> Optional[Flag]:
        return self.by_string.get(string)

    def starting(self, prefix: str) -> List[str]:
        """Option strings that begin so: what argparse would consider for an abbreviation, and completion."""
        return sorted(s for s in self.by_string if s.startswith(prefix))


def table(flags: List[Flag], unread: Tuple[Unread, ...] = ()) -> FlagTable:
    by_string: Dict[str, Flag] = {}
    for flag in flags:
        for string in flag.strings:
            by_string.setdefault(string, flag)
    return FlagTable(tuple(flags), unread, by_string)


HELP = Flag(("--help", "-h"), "help", "nothing", "bool", False, help="argparse's own")


def read(tree: Tree, source: Optional[Source] = None) -> FlagTable:
    """Read the flags. Never raises; what could not be read is in `unread`."""
    from specdash.sglang import flag_source

    source = source or Source(tree)
    unread: List[Unread] = []
    found: List[Flag] = []
    paths = [SERVER_ARGS] + source.files(ARG_GROUPS, depth=3)
    if source.bytes(SERVER_ARGS) is None:
        unread.append(Unread(SERVER_ARGS, "the file is not there"))
    scopes: List[Scope] = []
    for path in paths:
        data = source.bytes(path)
        # A look at the bytes first: most of the files under arg_groups declare nothing and are long.
        if data is None or (path != SERVER_ARGS and not flag_source.may_declare(data)):
            continue
        scope = Scope(source, path)
        if scope.reason:
            unread.append(Unread(path, scope.reason))
            continue
        scopes.append(scope)
    listed = flag_source.listed_classes(scopes)
    defaults = flag_source.defaults(scopes)
    for scope in scopes:
        try:
            flags, problems = flag_source.extract(scope, listed, defaults)
        except RecursionError:
            flags, problems = [], [Unread(scope.path, "the file is nested too deep")]
        found.extend(flags)
        unread.extend(problems)
    if found:
        found.append(HELP)
    return table(_merge(found), tuple(unread))


def _merge(flags: List[Flag]) -> List[Flag]:
    """One entry per main string; the first declaration wins, as argparse would refuse a second."""
    seen: Dict[str, Flag] = {}
    for flag in flags:
        if flag.name not in seen:
            seen[flag.name] = flag
    return list(seen.values())


def as_json(flags: FlagTable, with_help: bool = True) -> Dict[str, Any]:
    """Option string → what is known of it; every option string is a key."""
    out: Dict[str, Any] = {}
    for string in sorted(flags.by_string):
        flag = flags.by_string[string]
        out[string] = {
            "strings": list(flag.strings),
            "dest": flag.dest,
            "takes": flag.takes,
            "type": flag.type,
            "default": flag.default if flag.default_known else None,
            "default_known": flag.default_known,
            "choices": list(flag.choices) if flag.choices is not None else None,
            "choices_dynamic": flag.choices_dynamic,
            "required": flag.required,
            "deprecated": flag.deprecated,
            "new_flag": flag.new_flag,
            "stops": flag.stops,
            "path": flag.path,
            "line": flag.line,
        }
        if with_help:
            out[string]["help"] = flag.help
    return out


_DEFAULTS: Dict[str, Any] = {f.name: f.default for f in fields(Flag) if f.name != "strings"}


def to_wire(flags: FlagTable) -> Dict[str, Any]:
    """Compact: each flag once, and of it only what is not its default."""
    rows = [
        {key: value for key, value in vars(flag).items() if key not in _DEFAULTS or value != _DEFAULTS[key]}
        for flag in flags.flags
    ]
    return {"flags": rows, "unread": [[u.path, u.reason] for u in flags.unread]}


def from_wire(data: Mapping[str, Any]) -> FlagTable:
    """Back from `to_wire`."""
    out: List[Flag] = []
    for row in data["flags"]:
        choices = row.get("choices")
        row = {
            **row,
            "strings": tuple(row["strings"]),
            "choices": None if choices is None else tuple(choices),
        }
        out.append(Flag(**row))
    return table(out, tuple(Unread(str(path), str(reason)) for path, reason in data["unread"]))


def from_json(data: Mapping[str, Any], unread: Tuple[Unread, ...] = ()) -> FlagTable:
    """Back from `as_json`. Unknown keys are ignored, missing ones take their defaults."""
    known = set(Flag.__dataclass_fields__)
    flags: Dict[str, Flag] = {}
    for string, entry in data.items():
        strings = tuple(entry.get("strings") or (string,))
        if strings[0] in flags:
            continue
        values = {key: value for key, value in entry.items() if key in known and key != "strings"}
        flag = Flag(
            strings=strings, dest=values.pop("dest", ""), takes=values.pop("takes", "unknown"), **values
        )
        flags[strings[0]] = replace(flag, choices=tuple(flag.choices) if flag.choices is not None else None)
    return table(list(flags.values()), unread)
