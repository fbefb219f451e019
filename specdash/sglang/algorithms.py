"""Which speculative algorithms a tree has, read from its files over all the shapes they have had.

Shapes: no `srt/speculative` (0.4.1: no speculation, not a broken install); members of an Enum or IntEnum;
`register("X", aliases=…)` calls beside a class that is no Enum (0.5.5, 0.5.6); an Enum plus a registry and
reserved aliases (0.5.13 on). What cannot be read is None, which is never "none supported".
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from specdash.sglang.constants import Scope, Unknown
from specdash.sglang.enum_members import members_of
from specdash.sglang.tree import Source, Tree, Unread

SPEC_FOLDER = "sglang/srt/speculative"
SPEC_INFO = SPEC_FOLDER + "/spec_info.py"
SPEC_REGISTRY = SPEC_FOLDER + "/spec_registry.py"
CLASS = "SpeculativeAlgorithm"
NOT_OFFERED = ("NONE",)
"""A member everywhere, but it means *off*: never an offer. From 0.5.13 the command line takes it as a name."""


@dataclass(frozen=True)
class Algorithms:
    """What the files say. `names` None: could not be read (`unread` says why), so anything may be there."""

    names: Optional[Tuple[str, ...]]
    aliases: Dict[str, Optional[str]]
    """Other accepted names → the algorithm they mean; None where the file does not tell."""
    style: str
    """absent | int_enum | enum | register_calls | enum_plus_registry | unknown"""
    members: Tuple[str, ...] = ()
    """All members as written, `NONE` included, in file order."""
    evidence: Tuple[Tuple[str, str, int], ...] = ()
    """(name, path, line)."""
    registry: bool = False
    """Plugins can add names (`SpeculativeAlgorithm.register`)."""
    unread: Tuple[Unread, ...] = ()

    @property
    def category(self) -> str:
        """A word for scripts: empty, or `probe_unknown` when the list could not be read."""
        return "probe_unknown" if self.names is None else ""

    def where(self, name: str) -> str:
        """`path:line` of a name, or empty."""
        for known, path, line in self.evidence:
            if known == name:
                return "{}:{}".format(path, line)
        return ""


def read(tree: Tree, source: Optional[Source] = None) -> Algorithms:
    """Read the algorithms. Never raises."""
    source = source or Source(tree)
    try:
        return _read(source)
    except RecursionError:
        return _unknown(SPEC_INFO, "the file is nested too deep")


def _unknown(path: str, reason: str) -> Algorithms:
    return Algorithms(None, {}, "unknown", unread=(Unread(path, reason),))


def _read(source: Source) -> Algorithms:
    if source.bytes(SPEC_INFO) is None:
        return _missing(source)
    scope, name = Scope(source, SPEC_INFO).origin(CLASS)
    if scope is None or name not in scope.classes:
        start = Scope(source, SPEC_INFO)
        if start.reason:
            return _unknown(SPEC_INFO, start.reason)
        moved = start.imported.get(CLASS)
        if moved:
            return _unknown(SPEC_INFO, "{} comes from {}, which is not in this tree".format(CLASS, moved[0]))
        return _unknown(SPEC_INFO, "no class {} in the file".format(CLASS))
    node = scope.classes[name]
    bases = [_last(base) for base in node.bases]
    found: List[Tuple[str, str, int]] = []
    aliases: Dict[str, Optional[str]] = {}
    is_enum = any("Enum" in base for base in bases)
    unread: List[Unread] = []
    if is_enum:
        listed, puzzles = members_of(node)
        found = [(member, scope.path, line) for member, line in listed]
        unread = [Unread(scope.path, reason) for reason in puzzles]
    module, _ = source.module(scope.path)
    calls, dynamic = _register_calls(scope, module.body if module else [])
    for member, extra, line in calls:
        if member not in [f[0] for f in found]:
            found.append((member, scope.path, line))
        for alias in extra:
            aliases[alias] = member
    members = tuple(f[0] for f in found)
    aliases.update(_name_map(scope, node, members))
    registry = any(isinstance(b, ast.FunctionDef) and b.name.startswith("register") for b in node.body)
    reserved = _reserved(scope)
    for alias in reserved:
        aliases.setdefault(alias, None)
    for alias in [a for a, target in aliases.items() if target is None]:
        aliases[alias] = _returned_for(scope, node, alias, members) or _hook_target(source, alias, members)
    unread += [Unread(scope.path, "a name built at run time (line {})".format(line)) for line in dynamic]
    if not members:
        return _unknown(scope.path, "class {} has no member that can be read".format(CLASS))
    if is_enum:
        style = "int_enum" if any("Int" in base for base in bases) else "enum"
        style = "enum_plus_registry" if registry or reserved else style
    else:
        style = "register_calls"
    names = tuple(m for m in members if m not in NOT_OFFERED)
    return Algorithms(names, aliases, style, members, tuple(found), registry, tuple(unread))


def _missing(source: Source) -> Algorithms:
    """No spec_info: no speculation in this build, unless something else says that there is."""
    if source.tree.list(SPEC_FOLDER):
        return _unknown(SPEC_INFO, "the folder is there, but not this file")
    args = source.bytes("sglang/srt/server_args.py")
    if args is None:
        return _unknown("sglang/srt", "there is no sglang/srt/server_args.py in this tree")
    if b"speculative" in args and b"speculative-algorithm" in args.replace(b"_", b"-"):
        return _unknown(SPEC_INFO, "the file is missing, yet the command line knows --speculative-algorithm")
    return Algorithms((), {}, "absent")


def _last(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _register_calls(
    scope: Scope, body: List[ast.stmt]
) -> Tuple[List[Tuple[str, Tuple[str, ...], int]], List[int]]:
    """`register*("X", aliases=(…))` at module level: (name, aliases, line), and lines whose name is dynamic."""
    found: List[Tuple[str, Tuple[str, ...], int]] = []
    dynamic: List[int] = []
    for statement in body:
        value = getattr(statement, "value", None)
        if not isinstance(statement, (ast.Expr, ast.Assign)) or not isinstance(value, ast.Call):
            continue
        if not _last(value.func).startswith("register") or not value.args:
            continue
        name = scope.value(value.args[0])
        if not isinstance(name, str):
            if isinstance(name, Unknown):
                dynamic.append(statement.lineno)
            continue
        extra: List[str] = []
        for keyword in value.keywords:
            given = scope.value(keyword.value) if keyword.arg == "aliases" else None
            if isinstance(given, (tuple, list)):
                extra = [str(alias).upper() for alias in given]
        found.append((name.upper(), tuple(extra), statement.lineno))
    return found, dynamic


def _name_map(scope: Scope, node: ast.ClassDef, members: Tuple[str, ...]) -> Dict[str, Optional[str]]:
    """Aliases in dict literals like `{"NEXTN": SpeculativeAlgorithm.EAGLE}` within the class."""
    out: Dict[str, Optional[str]] = {}
    for item in ast.walk(node):
        if not isinstance(item, ast.Dict):
            continue
        for key, value in zip(item.keys, item.values):
            name = key.value if isinstance(key, ast.Constant) else None
            target = value.attr if isinstance(value, ast.Attribute) else None
            if isinstance(name, str) and name.isupper() and name not in members and target in members:
                out[name] = target
    return out


def _reserved(scope: Scope) -> List[str]:
    """Names that the class's module, or the registry, reserves beside the members."""
    out: List[str] = []
    for place in (scope, Scope(scope.source, SPEC_REGISTRY)):
        for name in place.assigned:
            if "ALIAS" in name.upper():
                value = place.named(name)
                if isinstance(value, dict):
                    value = list(value)
                if isinstance(value, (list, tuple)):
                    out.extend(v for v in value if isinstance(v, str) and v not in out)
    return out


def _returned_for(scope: Scope, node: ast.ClassDef, alias: str, members: Tuple[str, ...]) -> Optional[str]:
    """The member that `from_string` returns after a test that names the alias, or a set holding it."""
    for item in ast.walk(node):
        if not isinstance(item, ast.If):
            continue
        for part in ast.walk(item.test):
            known: Any = scope.value(part) if isinstance(part, (ast.Name, ast.Constant)) else None
            if known == alias or (isinstance(known, (list, tuple, dict)) and alias in known):
                target = _outcome(item.body, members)
                if target:
                    return target
    return None


def _hook_target(source: Source, alias: str, members: Tuple[str, ...]) -> Optional[str]:
    """Elsewhere: `if algorithm == "NEXTN": … return "EAGLE"` where the command line is resolved."""
    for path in ("sglang/srt/arg_groups/speculative_hook.py", "sglang/srt/server_args.py"):
        target = cli_alias(source, path, alias, members)
        if target:
            return target
    return None


def cli_alias(source: Source, path: str, alias: str, members: Tuple[str, ...]) -> Optional[str]:
    """What a file turns the name `alias` into, when it compares with it literally."""
    data = source.bytes(path)
    if data is None or alias.encode() not in data:
        return None
    module, _ = source.module(path)
    for item in ast.walk(module) if module else ():
        if isinstance(item, ast.If):
            tested = [p.value for p in ast.walk(item.test) if isinstance(p, ast.Constant)]
            if alias in tested:
                target = _outcome(item.body, members)
                if target:
                    return target
    return None


def _outcome(body: List[ast.stmt], members: Tuple[str, ...]) -> Optional[str]:
    """The member that a branch ends in: its last direct `return` or assignment wins over nested ones."""
    target = None
    for statement in body:
        if isinstance(statement, (ast.Return, ast.Assign)) and statement.value is not None:
            for part in ast.walk(statement.value):
                name = part.value if isinstance(part, ast.Constant) else getattr(part, "attr", None)
                if isinstance(name, str) and name in members:
                    target = name
    return target
