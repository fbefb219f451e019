"""The members of an Enum class, read from its body; what cannot be read is said, so it never counts as absent.

A member is what the class body assigns, unless it is a descriptor (`property(…)`, a lambda) or starts with an
underscore. Members are names for the command line when they are upper case, as `from_string` makes them; any
other, and whatever stands under an `if` or in a loop, may be there or not: only the engine knows.
"""

from __future__ import annotations

import ast
from typing import List, Tuple

DESCRIPTORS = ("property", "classmethod", "staticmethod", "nonmember", "cached_property")
PLAIN = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Pass, ast.Assert, ast.Delete)


def members_of(node: ast.ClassDef) -> Tuple[List[Tuple[str, int]], List[str]]:
    """((name, line) of each member in file order, a reason for each thing that may be a member too)."""
    found: List[Tuple[str, int]] = []
    reasons: List[str] = []
    for item in node.body:
        if isinstance(item, (ast.Assign, ast.AnnAssign)):
            for target in _assigned(item):
                if not isinstance(target, ast.Name):
                    reasons.append("a member whose name is computed (line {})".format(item.lineno))
                elif target.id.startswith("_"):
                    continue
                elif target.id.isupper():
                    found.append((target.id, item.lineno))
                else:
                    reasons.append(
                        "the member {}, not in upper case (line {})".format(target.id[:60], item.lineno)
                    )
        elif isinstance(item, ast.Expr):
            if isinstance(item.value, ast.Call):
                reasons.append("a call in the class body (line {})".format(item.lineno))
        elif not isinstance(item, PLAIN):
            reasons += _nested(item)
    return found, reasons


def _assigned(item: ast.stmt) -> List[ast.expr]:
    """The single targets of an assignment that makes members: none for a bare annotation or a descriptor."""
    value = getattr(item, "value", None)
    if value is None or isinstance(value, ast.Lambda):
        return []
    if isinstance(value, ast.Call):
        called = value.func
        name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
        if name in DESCRIPTORS:
            return []
    targets = item.targets if isinstance(item, ast.Assign) else [item.target]  # type: ignore[attr-defined]
    out: List[ast.expr] = []
    for target in targets:
        parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
        out += [part.value if isinstance(part, ast.Starred) else part for part in parts]
    return out


def _nested(item: ast.stmt) -> List[str]:
    """What a compound statement of the body (if, for, while, with, try) or an import may make a member."""
    if isinstance(item, (ast.Import, ast.ImportFrom)):
        return ["an import in the class body (line {})".format(item.lineno)]
    out: List[str] = []
    waiting = list(ast.iter_child_nodes(item))
    while waiting:
        inner = waiting.pop(0)
        if isinstance(inner, (ast.Assign, ast.AnnAssign)):
            for target in _assigned(inner):
                name = target.id if isinstance(target, ast.Name) else "whose name is computed"
                if not name.startswith("_"):
                    out.append("a member under a condition, {} (line {})".format(name[:60], inner.lineno))
        elif isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Call):
            out.append("a call in the class body (line {})".format(inner.lineno))
        elif not isinstance(inner, (*PLAIN, ast.expr)):
            waiting += ast.iter_child_nodes(inner)
    return out
