"""Values that can be known from source alone: literals, module constants, and what is built from them.

`Scope.value(node)` gives the value, or `Unknown` with the expression's gist when only running the code would
tell. Nothing is executed. Depth and size are bounded, so hostile source costs little.
"""

from __future__ import annotations

import ast
from typing import Any, Callable, Dict, List, Optional, Tuple

from specdash.sglang.tree import Source, find_module

MAX_DEPTH = 40
MAX_ITEMS = 5000
LARGE_FILE = 60_000
"""Bytes from which a file is not parsed whole for one constant of it."""


class Unknown:
    """A value that the source alone does not tell."""

    def __init__(self, gist: str = "") -> None:
        self.gist = gist

    def __repr__(self) -> str:
        return "Unknown({!r})".format(self.gist)


def gist(node: Optional[ast.AST]) -> str:
    """A few words of an expression, for people: `f(...)`, `a.b`, `[...]`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return "{}.{}".format(gist(node.value), node.attr)
    if isinstance(node, ast.Call):
        return "{}(...)".format(gist(node.func))
    if isinstance(node, ast.Constant):
        return repr(node.value)[:60]
    return type(node).__name__.lower() if node is not None else ""


class Scope:
    """The module-level names of one file, looked up lazily and across `from sglang.… import`."""

    def __init__(self, source: Source, path: str) -> None:
        self.source = source
        self.path = path
        self.assigned: Dict[str, List[ast.AST]] = {}
        self.imported: Dict[str, Tuple[str, str]] = {}
        self.classes: Dict[str, ast.ClassDef] = {}
        self.functions: Dict[str, ast.FunctionDef] = {}
        self.local: Dict[str, List[ast.AST]] = {}
        """Names bound in the function being read; they win."""
        self.attribute: Optional[Callable[[str, str], Any]] = None
        """(owner, name) → a value for `owner.name`, or Unknown: class defaults live elsewhere."""
        self.call: Optional[Callable[[ast.Call], Any]] = None
        module, self.reason = source.module(path)
        if module is not None:
            self._collect(module.body)

    def _collect(self, body: List[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        self.assigned.setdefault(target.id, []).append(node.value)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
                self.assigned.setdefault(node.target.id, []).append(node.value)
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                self.assigned.setdefault(node.target.id, []).append(node)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self.imported[alias.asname or alias.name] = (self._absolute(node), alias.name)
            elif isinstance(node, ast.ClassDef):
                self.classes[node.name] = node
            elif isinstance(node, ast.FunctionDef):
                self.functions[node.name] = node
            elif isinstance(node, (ast.If, ast.Try)):
                self._collect(node.body)
                self._collect(node.orelse)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.path[:-3].split("/")
        base = parts[: max(0, len(parts) - node.level)]
        return ".".join(base + ([node.module] if node.module else []))

    def origin(self, name: str, hops: int = 4) -> Tuple[Optional["Scope"], str]:
        """The scope that defines `name`, through imports within the tree, and the name there."""
        if name in self.assigned or name in self.classes or name in self.functions:
            return self, name
        if name in self.imported and hops > 0:
            dotted, original = self.imported[name]
            path = find_module(self.source, dotted)
            if path is not None and path != self.path and not _is_function(self.source.bytes(path), original):
                return Scope(self.source, path).origin(original, hops - 1)
        return None, name

    def _literal_elsewhere(self, name: str) -> Any:
        """A plain literal in a large imported file, cut out of its bytes: parsing all of it costs 0.2 s."""
        dotted, original = self.imported.get(name, ("", ""))
        path = find_module(self.source, dotted) if dotted else None
        data = self.source.bytes(path) if path is not None else None
        if data is None or len(data) < LARGE_FILE:
            return Unknown(name)
        text = b"\n" + data
        start = text.find(b"\n" + original.encode("utf-8", "replace") + b" = ")
        lines = text[start + 1 : start + 20_000].split(b"\n") if start >= 0 else []
        for count in range(1, min(len(lines), 200) + 1):
            try:
                (statement,) = ast.parse(b"\n".join(lines[:count])).body
                return (
                    ast.literal_eval(statement.value) if isinstance(statement, ast.Assign) else Unknown(name)
                )
            except SyntaxError:
                continue
            except (ValueError, TypeError, RecursionError, MemoryError):
                break
        return Unknown(name)

    def value(self, node: Optional[ast.AST], depth: int = 0) -> Any:
        """The value of an expression, or Unknown."""
        if node is None or depth > MAX_DEPTH:
            return Unknown("too deep")
        handler = _HANDLERS.get(type(node))
        if handler is None:
            return Unknown(gist(node))
        try:
            return handler(self, node, depth + 1)
        except (TypeError, ValueError, KeyError, IndexError, OverflowError, MemoryError, ArithmeticError):
            return Unknown(gist(node))

    def named(self, name: str, depth: int = 0) -> Any:
        """The value of a name, following re-assignments and `+=` in order."""
        nodes = self.local.get(name) or self.assigned.get(name)
        if nodes:
            if len(nodes) > 1 and not all(isinstance(n, ast.AugAssign) for n in nodes[1:]):
                return Unknown(name)
            total = self.value(nodes[0], depth)
            for extra in nodes[1:]:
                more = self.value(extra.value, depth) if isinstance(extra, ast.AugAssign) else Unknown(name)
                if isinstance(total, Unknown) or isinstance(more, Unknown):
                    return Unknown(name)
                total = total + more
            return total
        quick = self._literal_elsewhere(name)
        if not isinstance(quick, Unknown):
            return quick
        scope, original = self.origin(name)
        if scope is not None and scope is not self and depth < MAX_DEPTH:
            return scope.named(original, depth + 1)
        return Unknown(name)


def _is_function(data: Optional[bytes], name: str) -> bool:
    """Whether a file only defines a function of that name: then it holds no value, and need not be parsed."""
    text, word = b"\n" + (data or b""), name.encode("utf-8", "replace")
    assigned = any(b"\n" + word + mark in text for mark in (b" =", b"=", b":", b" :"))
    return b"\ndef " + word + b"(" in text and not assigned


def _constant(scope: Scope, node: Any, depth: int) -> Any:
    return node.value


def _name(scope: Scope, node: Any, depth: int) -> Any:
    return scope.named(node.id, depth)


def _items(scope: Scope, nodes: List[ast.expr], depth: int) -> Any:
    out: List[Any] = []
    for node in nodes[:MAX_ITEMS]:
        value = scope.value(node.value if isinstance(node, ast.Starred) else node, depth)
        if isinstance(value, Unknown):
            return value
        if isinstance(node, ast.Starred):
            out.extend(list(value)[:MAX_ITEMS])
        else:
            out.append(value)
    return out


def _sequence(scope: Scope, node: Any, depth: int) -> Any:
    items = _items(scope, node.elts, depth)
    if isinstance(items, Unknown):
        return items
    if isinstance(node, ast.Tuple):
        return tuple(items)
    # A set's order means nothing: sorted, so that two readings agree.
    return sorted(set(items), key=str) if isinstance(node, ast.Set) else items


def _dict(scope: Scope, node: Any, depth: int) -> Any:
    if any(key is None for key in node.keys):
        return Unknown("dict")
    keys, values = _items(scope, node.keys, depth), _items(scope, node.values, depth)
    if isinstance(keys, Unknown) or isinstance(values, Unknown):
        return Unknown("dict")
    return dict(zip(keys, values))


def _binary(scope: Scope, node: Any, depth: int) -> Any:
    left, right = scope.value(node.left, depth), scope.value(node.right, depth)
    if isinstance(left, Unknown) or isinstance(right, Unknown):
        return Unknown(gist(node))
    numbers = isinstance(left, (int, float)) and isinstance(right, (int, float))
    if isinstance(node.op, ast.Add) and (numbers or type(left) is type(right)):
        return left + right
    if isinstance(node.op, ast.Mult) and numbers and abs(left) < 1e12 and abs(right) < 1e12:
        return left * right
    if isinstance(node.op, ast.Sub) and numbers:
        return left - right
    if isinstance(node.op, ast.Div) and numbers:
        return left / right
    if isinstance(node.op, (ast.Pow, ast.LShift)) and numbers and 0 <= right <= 64 and abs(left) <= 1024:
        return left**right if isinstance(node.op, ast.Pow) else left << right
    return Unknown(gist(node))


def _unary(scope: Scope, node: Any, depth: int) -> Any:
    value = scope.value(node.operand, depth)
    if isinstance(value, Unknown):
        return value
    if isinstance(node.op, ast.USub):
        return -value
    return (not value) if isinstance(node.op, ast.Not) else value


def _fstring(scope: Scope, node: Any, depth: int) -> Any:
    parts: List[str] = []
    for piece in node.values:
        value = scope.value(piece.value if isinstance(piece, ast.FormattedValue) else piece, depth)
        parts.append("…" if isinstance(value, Unknown) else str(value))
    return "".join(parts)


def _attribute(scope: Scope, node: Any, depth: int) -> Any:
    if scope.attribute is not None and isinstance(node.value, ast.Name):
        return scope.attribute(node.value.id, node.attr)
    return Unknown(gist(node))


_BUILDERS: Dict[str, Callable[[Any], Any]] = {
    "frozenset": lambda v: sorted(set(v), key=str),
    "set": lambda v: sorted(set(v), key=str),
    "sorted": lambda v: sorted(v),
    "list": lambda v: list(v),
    "tuple": lambda v: tuple(v),
}


def _call(scope: Scope, node: Any, depth: int) -> Any:
    if scope.call is not None:
        value = scope.call(node)
        if not isinstance(value, Unknown):
            return value
    if isinstance(node.func, ast.Name) and not node.keywords and len(node.args) <= 1:
        if node.func.id in _BUILDERS:
            inner = scope.value(node.args[0], depth) if node.args else []
            return inner if isinstance(inner, Unknown) else _BUILDERS[node.func.id](inner)
        if node.func.id in ("str", "int", "float", "bool") and node.args:
            inner = scope.value(node.args[0], depth)
            if isinstance(inner, (str, int, float, bool)):
                return {"str": str, "int": int, "float": float, "bool": bool}[node.func.id](inner)
    return Unknown(gist(node))


_HANDLERS: Dict[type, Callable[[Scope, Any, int], Any]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.List: _sequence,
    ast.Tuple: _sequence,
    ast.Set: _sequence,
    ast.Dict: _dict,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.JoinedStr: _fstring,
    ast.Attribute: _attribute,
    ast.Call: _call,
}
