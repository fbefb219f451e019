"""The newer way in which SGLang declares flags: `name: A[T, "help" | Arg(…)] = default`. See `flag_source.py`."""

from __future__ import annotations

import ast
from typing import Any, Dict, List, Optional, Set, Tuple

from specdash.sglang.constants import Scope, Unknown, gist
from specdash.sglang.flag_making import SCALARS, default_of, keywords, make
from specdash.sglang.flags import Flag
from specdash.sglang.tree import Unread

Problems = List[Unread]


def annotated_names(scope: Scope) -> Set[str]:
    """What `Annotated` is called in this file."""
    out = {"Annotated"} if "Annotated" in scope.imported else set()
    for name, (dotted, original) in scope.imported.items():
        if original == "Annotated" or (original == "A" and dotted.endswith("arg_utils")):
            out.add(name)
    for name, nodes in scope.assigned.items():
        if gist(nodes[-1]).split(".")[-1] == "Annotated":
            out.add(name)
    return out


def _index(node: ast.Subscript) -> List[ast.expr]:
    inner: Any = node.slice
    if type(inner).__name__ == "Index":  # Python 3.8
        inner = inner.value
    return list(inner.elts) if isinstance(inner, ast.Tuple) else [inner]


def from_field(scope: Scope, item: ast.AnnAssign, annotated: Set[str], problems: Problems) -> Optional[Flag]:
    """`name: A[T, "help" | Arg(…)] = default` → its flag, or None when it has none."""
    note = item.annotation
    if not (isinstance(note, ast.Subscript) and gist(note.value).split(".")[-1] in annotated):
        return None
    parts = _index(note)
    assert isinstance(item.target, ast.Name)
    name = item.target.id
    given: Dict[str, ast.expr] = {}
    meant = False
    for meta in parts[1:]:
        if isinstance(meta, ast.Call) and gist(meta.func).split(".")[-1] == "Arg":
            given, meant = keywords(meta), True
            if meta.args:
                given.setdefault("help", meta.args[0])
            break
        if isinstance(scope.value(meta), str):
            given, meant = {"help": meta}, True
            break
    if not meant or _is_true(scope, given.get("no_cli")):
        return None
    cli = scope.value(given["cli_name"]) if "cli_name" in given else None
    main = cli if isinstance(cli, str) else "--" + name.replace("_", "-")
    extra = scope.value(given["aliases"]) if "aliases" in given else ()
    if isinstance(extra, Unknown):
        problems.append(Unread(scope.path, "other names of {} are built at run time".format(main)))
        extra = ()
    inner = given.get("action_kwargs")
    if isinstance(inner, ast.Dict):
        for key, value in zip(inner.keys, inner.values):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                given.setdefault(key.value, value)
    kind, nargs, literal = _type(scope, parts[0])
    if "type_parser" in given:
        kind, nargs = SCALARS.get(gist(given["type_parser"]), gist(given["type_parser"])), None
    default = default_of(scope, item.value) if item.value is not None else None
    strings = (main,) + tuple(alias for alias in extra or () if isinstance(alias, str))
    return make(
        scope,
        item.lineno,
        strings,
        given,
        kind,
        nargs,
        literal,
        default,
        dest=name,
        required=item.value is None,
    )


def _is_true(scope: Scope, node: Optional[ast.AST]) -> bool:
    return node is not None and scope.value(node) is True


def _type(scope: Scope, node: ast.AST, depth: int = 0) -> Tuple[str, Any, Optional[Tuple[Any, ...]]]:
    """(type word, nargs, choices of a Literal) of an annotation; `Optional` and `| None` are looked through."""
    if depth > 8:
        return "str", None, None
    if isinstance(node, ast.BinOp):
        sides = [s for s in (node.left, node.right) if not (isinstance(s, ast.Constant) and s.value is None)]
        return _type(scope, sides[0], depth + 1) if len(sides) == 1 else ("str", None, None)
    if isinstance(node, ast.Subscript):
        outer, inner = gist(node.value).split(".")[-1], _index(node)
        if outer in ("Optional", "Union"):
            kept = [n for n in inner if not (isinstance(n, ast.Constant) and n.value is None)]
            return _type(scope, kept[0], depth + 1) if len(kept) == 1 else ("str", None, None)
        if outer == "Literal":
            values = [scope.value(n) for n in inner]
            known = tuple(v for v in values if not isinstance(v, Unknown))
            return (type(known[0]).__name__ if known else "str"), None, known
        if outer in ("List", "list"):
            return _type(scope, inner[0], depth + 1)[0], "+", None
        return "str", None, None
    if isinstance(node, ast.Name):
        if node.id == "bool":
            return "bool", 0, None
        if node.id in SCALARS:
            return SCALARS[node.id], None, None
        home, name = scope.origin(node.id)
        if home is not None and home.assigned.get(name):
            return _type(home, home.assigned[name][-1], depth + 1)
    return "str", None, None
