"""The two ways in which SGLang's source declares flags, each read into `Flag`s. See `flags.py`."""

from __future__ import annotations

import ast
from typing import Any, Dict, List, Optional, Set, Tuple

from specdash.sglang.constants import Scope, Unknown, gist
from specdash.sglang.flag_fields import Problems, annotated_names, from_field
from specdash.sglang.flag_making import SCALARS, default_of, implied_default, keywords, make
from specdash.sglang.flags import Flag
from specdash.sglang.tree import Unread

_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")


def may_declare(data: bytes) -> bool:
    """Cheap look at a file's bytes: could it declare flags at all?"""
    return b"add_argument(" in data or b": A[" in data or b"Annotated[" in data


def listed_classes(scopes: List[Scope]) -> Optional[Set[str]]:
    """Names of the classes that `server_args.py` collects fields from; None where it has no such list."""
    for scope in scopes:
        for name, nodes in scope.assigned.items():
            if name.endswith("NAMESPACES") and scope.path.endswith("/server_args.py"):
                node = nodes[-1]
                if isinstance(node, (ast.List, ast.Tuple)) and all(
                    isinstance(e, ast.Name) for e in node.elts
                ):
                    return {e.id for e in node.elts if isinstance(e, ast.Name)} | {"ServerArgs"}
    return None


def defaults(scopes: List[Scope]) -> Dict[str, Any]:
    """Field name → default, from every class that holds fields: `default=ServerArgs.x` reads from here."""
    out: Dict[str, Any] = {}
    for scope in scopes:
        for node in scope.classes.values():
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.value:
                    out.setdefault(item.target.id, default_of(scope, item.value))
    return out


def extract(scope: Scope, listed: Optional[Set[str]], fields: Dict[str, Any]) -> Tuple[List[Flag], Problems]:
    """All flags that one file declares."""
    scope.attribute = lambda owner, name: (
        fields.get(name, Unknown(name)) if owner == "ServerArgs" else Unknown(name)
    )
    scope.call = lambda node: _declared(scope, node, fields)
    problems: Problems = []
    flags: List[Flag] = []
    module, _ = scope.source.module(scope.path)
    lines = _lines(scope.source.bytes(scope.path) or b"")
    for holder in _functions(module.body) if module and lines else ():
        # A look at its text first: of a hundred functions one or two declare flags.
        if any(holder.lineno <= line <= (holder.end_lineno or line) for line in lines):
            scope.local = _locals(holder)
            for node in _own_calls(holder):
                flags.extend(_from_call(scope, node, problems))
            scope.local = {}
    annotated = annotated_names(scope)
    for name, holder_class in scope.classes.items():
        if annotated and (listed is None or name in listed):
            for item in holder_class.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    flag = from_field(scope, item, annotated, problems)
                    if flag is not None:
                        flags.append(flag)
    return flags, problems


def _lines(data: bytes) -> List[int]:
    """The lines, from 1, that say `add_argument`, as the parser counts them."""
    text = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in data else data
    return [number for number, line in enumerate(text.split(b"\n"), 1) if b"add_argument" in line]


def _functions(body: List[ast.stmt]) -> List[ast.FunctionDef]:
    """All functions, whatever they are in. Only statements hold statements: expressions are not looked into."""
    out: List[ast.FunctionDef] = []
    todo: List[ast.AST] = list(body)
    for node in todo:
        if isinstance(node, ast.FunctionDef):
            out.append(node)
        for part in _BODIES:
            todo.extend(getattr(node, part, ()))
    return out


def _locals(function: ast.FunctionDef) -> Dict[str, List[ast.AST]]:
    out: Dict[str, List[ast.AST]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            out.setdefault(node.targets[0].id, []).append(node.value)
    return out


def _own_calls(function: ast.FunctionDef) -> List[ast.Call]:
    """`x.add_argument(…)` in this function, not in functions inside it (those are walked for themselves)."""
    out: List[ast.Call] = []
    todo: List[ast.AST] = list(function.body)
    for node in todo:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "add_argument"
        ):
            out.append(node)
        todo.extend(ast.iter_child_nodes(node))
    return sorted(out, key=lambda n: n.lineno)


def _declared(scope: Scope, node: ast.Call, fields: Dict[str, Any]) -> Any:
    """`_declared_default("x")` and the like: a call that names one known field."""
    if isinstance(node.func, ast.Name) and "default" in node.func.id and len(node.args) == 1:
        name = scope.value(node.args[0])
        if isinstance(name, str) and name in fields:
            return fields[name]
    return Unknown(gist(node))


def _from_call(scope: Scope, node: ast.Call, problems: Problems) -> List[Flag]:
    names = [scope.value(arg) for arg in node.args if not isinstance(arg, ast.Starred)]
    if any(isinstance(arg, ast.Starred) for arg in node.args):
        return []  # the generic loop over annotated fields, which are read themselves
    if any(not isinstance(name, str) for name in names):
        problems.append(
            Unread(scope.path, "a flag whose name is built at run time (line {})".format(node.lineno))
        )
        return []
    strings = tuple(name for name in names if name.startswith("-"))
    if not strings:
        return []
    given = keywords(node)
    has_default = "default" in given
    default = (
        default_of(scope, given["default"]) if has_default else implied_default(scope, given.get("action"))
    )
    kind = SCALARS.get(gist(given["type"]), gist(given["type"])) if "type" in given else "str"
    dest = scope.value(given["dest"]) if "dest" in given else None
    return [
        make(
            scope,
            node.lineno,
            strings,
            given,
            kind=kind,
            nargs=None,
            literal=None,
            default=default,
            dest=dest,
        )
    ]
