"""The two ways in which SGLang's source declares flags, each read into `Flag`s. See `flags.py`."""

from __future__ import annotations

import ast
import re
from typing import Any, Dict, List, Optional, Set, Tuple

from specdash.sglang.constants import Scope, Unknown, gist
from specdash.sglang.flags import Flag
from specdash.sglang.tree import Unread

_DEPRECATED = re.compile(r"^\W*(deprecated|removed)\b", re.IGNORECASE)
_SCALARS = {"str": "str", "int": "int", "float": "float", "bool": "bool", "json.loads": "json"}
_NARGS = {None: "one", "+": "many", "*": "any", "?": "maybe", 0: "nothing"}
_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")
Problems = List[Unread]


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
                    out.setdefault(item.target.id, _default(scope, item.value))
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
    annotated = _annotated_names(scope)
    for name, holder_class in scope.classes.items():
        if annotated and (listed is None or name in listed):
            for item in holder_class.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    flag = _from_field(scope, item, annotated, problems)
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


def _default(scope: Scope, node: ast.AST) -> Any:
    """A default, looking into `field(default=…)` and `field(default_factory=list)`."""
    if isinstance(node, ast.Call) and gist(node.func).split(".")[-1] == "field":
        for keyword in node.keywords:
            if keyword.arg == "default":
                return scope.value(keyword.value)
            if keyword.arg == "default_factory":
                return {"list": [], "dict": {}}.get(gist(keyword.value), Unknown(gist(node)))
    return scope.value(node)


def _keywords(node: ast.Call) -> Dict[str, ast.expr]:
    return {k.arg: k.value for k in node.keywords if k.arg}


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
    given = _keywords(node)
    has_default = "default" in given
    default = (
        _default(scope, given["default"]) if has_default else _implied_default(scope, given.get("action"))
    )
    kind = _SCALARS.get(gist(given["type"]), gist(given["type"])) if "type" in given else "str"
    dest = scope.value(given["dest"]) if "dest" in given else None
    return [
        _flag(
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


def _flag(
    scope: Scope,
    line: int,
    strings: Tuple[str, ...],
    given: Dict[str, ast.expr],
    kind: str,
    nargs: Any,
    literal: Optional[Tuple[Any, ...]],
    default: Any,
    dest: Any,
    required: bool = False,
) -> Flag:
    """One flag from keyword nodes that both styles share: action, nargs, choices, help, const, new_flag…"""
    action = given.get("action")
    action_name = (
        str(action.value)
        if isinstance(action, ast.Constant)
        else gist(action).split(".")[-1]
        if action
        else ""
    )
    if "nargs" in given:
        value = scope.value(given["nargs"])
        nargs = value if not isinstance(value, Unknown) else "unknown"
    elif action_name:
        nargs = _action_nargs(scope, action_name)
    main = next((s for s in strings if s.startswith("--")), strings[0])
    dest = dest if isinstance(dest, str) else main.lstrip("-").replace("-", "_")
    if action_name == "BooleanOptionalAction":
        strings = strings + tuple("--no-" + s[2:] for s in strings if s.startswith("--"))
    if nargs == 0:
        kind = "bool"
    choices = literal
    dynamic = False
    if "choices" in given and not (
        isinstance(given["choices"], ast.Constant) and given["choices"].value is None
    ):
        value = scope.value(given["choices"])
        if isinstance(value, dict):
            value = list(value)
        dynamic = not isinstance(value, (list, tuple))
        choices = None if dynamic else tuple(value)
    text = scope.value(given["help"]) if "help" in given else ""
    text = text if isinstance(text, str) else ""
    new_flag = scope.value(given["new_flag"]) if "new_flag" in given else ""
    stops = scope.value(given["error_message"]) if "error_message" in given else ""
    deprecated = ""
    if action_name.startswith("Deprecated") or _DEPRECATED.match(text):
        deprecated = text or "SGLang calls it deprecated."
    wanted = scope.value(given["required"]) if "required" in given else required
    return Flag(
        strings=strings,
        dest=dest,
        takes=_NARGS.get(nargs, str(nargs)) if not isinstance(nargs, list) else "unknown",
        type=kind,
        default=None if isinstance(default, Unknown) else _plain(default),
        default_known=not isinstance(default, Unknown),
        choices=choices,
        choices_dynamic=dynamic,
        required=wanted is True,
        help=text[:4000],
        deprecated=deprecated[:1000],
        new_flag=new_flag if isinstance(new_flag, str) else "",
        stops=stops if isinstance(stops, str) else "",
        path=scope.path,
        line=line,
    )


def _plain(value: Any) -> Any:
    """JSON-able, or its text."""
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    return value if value is None or isinstance(value, (str, int, float, bool)) else repr(value)


def _action_nargs(scope: Scope, action: str) -> Any:
    """How many values an action takes: argparse's own by name, SGLang's by the default in its `__init__`."""
    if action in (
        "store_true",
        "store_false",
        "store_const",
        "count",
        "help",
        "version",
        "BooleanOptionalAction",
    ):
        return 0
    if action in ("store", "append", "extend"):
        return None
    home, name = scope.origin(action)
    node = home.classes.get(name) if home is not None else None
    if node is None or home is None:
        return 0 if action.startswith("Deprecated") and "Alias" not in action else None
    return _init_default(home, node, "nargs")


def _implied_default(scope: Scope, action: Optional[ast.AST]) -> Any:
    """What an action defaults to when the call says nothing: False for a switch."""
    if isinstance(action, ast.Constant):
        return {"store_true": False, "store_false": True}.get(str(action.value))
    home, name = scope.origin(gist(action).split(".")[-1]) if action is not None else (None, "")
    node = home.classes.get(name) if home is not None else None
    return _init_default(home, node, "default") if home is not None and node is not None else None


def _init_default(scope: Scope, node: ast.ClassDef, argument: str) -> Any:
    """The default of one argument of a class's `__init__`; None when it has none."""
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            named = item.args.args[len(item.args.args) - len(item.args.defaults) :]
            for found, default in zip(named, item.args.defaults):
                if found.arg == argument:
                    return scope.value(default)
    return None


def _annotated_names(scope: Scope) -> Set[str]:
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


def _from_field(scope: Scope, item: ast.AnnAssign, annotated: Set[str], problems: Problems) -> Optional[Flag]:
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
            given, meant = _keywords(meta), True
            if meta.args:
                given.setdefault("help", meta.args[0])
            break
        if isinstance(scope.value(meta), str):
            given, meant = {"help": meta}, True
            break
    if not meant or scope_true(scope, given.get("no_cli")):
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
        kind, nargs = _SCALARS.get(gist(given["type_parser"]), gist(given["type_parser"])), None
    default = _default(scope, item.value) if item.value is not None else None
    strings = (main,) + tuple(alias for alias in extra or () if isinstance(alias, str))
    return _flag(
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


def scope_true(scope: Scope, node: Optional[ast.AST]) -> bool:
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
        if node.id in _SCALARS:
            return _SCALARS[node.id], None, None
        home, name = scope.origin(node.id)
        if home is not None and home.assigned.get(name):
            return _type(home, home.assigned[name][-1], depth + 1)
    return "str", None, None
