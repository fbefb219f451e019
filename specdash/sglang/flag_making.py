"""One `Flag` from the syntax of its declaration: what the two ways of declaring share. See `flag_source.py`."""

from __future__ import annotations

import ast
import re
from typing import Any, Dict, Optional, Tuple

from specdash.sglang.constants import Scope, Unknown, gist
from specdash.sglang.flags import Flag

_DEPRECATED = re.compile(r"^\W*(deprecated|removed)\b", re.IGNORECASE)
SCALARS = {"str": "str", "int": "int", "float": "float", "bool": "bool", "json.loads": "json"}
_NARGS = {None: "one", "+": "many", "*": "any", "?": "maybe", 0: "nothing"}


def default_of(scope: Scope, node: ast.AST) -> Any:
    """A default, looking into `field(default=…)` and `field(default_factory=list)`."""
    if isinstance(node, ast.Call) and gist(node.func).split(".")[-1] == "field":
        for keyword in node.keywords:
            if keyword.arg == "default":
                return scope.value(keyword.value)
            if keyword.arg == "default_factory":
                return {"list": [], "dict": {}}.get(gist(keyword.value), Unknown(gist(node)))
    return scope.value(node)


def keywords(node: ast.Call) -> Dict[str, ast.expr]:
    return {k.arg: k.value for k in node.keywords if k.arg}


def make(
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


def implied_default(scope: Scope, action: Optional[ast.AST]) -> Any:
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
