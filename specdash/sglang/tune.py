"""What a running SGLang lets be changed without a restart, as its installed files show it. Pure.

Only what can be undone is offered: a number that the server also tells, or a corpus that can be removed.
"""

from __future__ import annotations

import ast
import json
from typing import Any, Dict, List, Mapping, Optional, Tuple

from specdash.sglang import hot_fit
from specdash.sglang.tree import Source

SET = "/set_internal_state"
INFO = "/server_info"
CORPUS = ("/add_external_corpus", "/remove_external_corpus", "/list_external_corpora")
PLACES = (
    "sglang/srt/managers/scheduler_components/internal_state.py",
    "sglang/srt/managers/scheduler.py",
)
FUNCTIONS = ("_update_handlers", "set_internal_state")
ONE_WAY = ("clear", "reset", "dump")
"""Words of keys that are commands, not settings: nothing could undo them."""


def capability(source: Source) -> Dict[str, Any]:
    """{"keys": {name: "file:line"}, "corpora": bool}. Empty where the files do not show it."""
    routes = hot_fit.routes(source)
    keys: Dict[str, str] = {}
    if SET in routes:
        for path in _places(source):
            keys.update(_keys(source, path))
    return {"keys": keys, "corpora": all(path in routes for path in CORPUS)}


def _places(source: Source) -> List[str]:
    folder = "sglang/srt/managers/scheduler_components"
    found = [
        "%s/%s" % (folder, name) for name in source.tree.list(folder) if name.startswith("internal_state")
    ]
    return [*found, *PLACES[1:]]


def _keys(source: Source, path: str) -> Dict[str, str]:
    """Names that `set_internal_state` knows: keys of its table of handlers, or of the set that it compares with."""
    module, _ = source.module(path)
    found: Dict[str, str] = {}
    for node in ast.walk(module) if module else ():
        if isinstance(node, ast.FunctionDef) and node.name in FUNCTIONS:
            for part in ast.walk(node):
                names: List[Any] = []
                if isinstance(part, ast.Dict):
                    names = list(part.keys)
                elif isinstance(part, (ast.Set, ast.List, ast.Tuple)):
                    names = list(part.elts)
                elif isinstance(part, ast.Compare) and any(isinstance(op, ast.Eq) for op in part.ops):
                    names = [part.left, *part.comparators]
                for name in names:
                    if (
                        isinstance(name, ast.Constant)
                        and isinstance(name.value, str)
                        and _setting(name.value)
                    ):
                        found.setdefault(name.value, "%s:%d" % (path, name.lineno))
    return found


def _setting(name: str) -> bool:
    return (
        name.replace("_", "").isalnum()
        and "_" in name
        and name.islower()
        and not any(word in name.split("_") for word in ONE_WAY)
    )


def value(info: Mapping[str, Any], key: str) -> Optional[float]:
    """What the server says the setting is now: its internal state first. None: it does not tell a number."""
    states = info.get("internal_states")
    first = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
    for place in (first, info):
        found = place.get(key)
        if isinstance(found, (int, float)) and not isinstance(found, bool):
            return found
    return None


def offered(capable: Mapping[str, Any], info: Mapping[str, Any]) -> List[Dict[str, Any]]:
    """[{"key", "value", "where"}] of what can be changed and undone; the rest has no undo and is left out."""
    found = []
    for key in sorted(capable.get("keys") or {}):
        now = value(info, key)
        if now is not None:
            found.append({"key": key, "value": now, "where": capable["keys"][key]})
    return found


def number(text: str) -> Optional[float]:
    """`4` → 4, `0.5` → 0.5; None for what is no finite number."""
    try:
        found: float = int(text)
        return found
    except ValueError:
        pass
    try:
        found = float(text)
    except ValueError:
        return None
    return found if found == found and abs(found) != float("inf") else None


def change(key: str, new: float, headers: Mapping[str, str]) -> Dict[str, Any]:
    body = json.dumps({"server_args": {key: new}})
    return {"method": "POST", "path": SET, "headers": dict(headers), "body": body}


def accepted(status: Optional[int], body: bytes) -> Tuple[bool, str]:
    """Did every scheduler take it? (yes, what it said)."""
    try:
        told = json.loads(body.decode("utf-8", "replace"))
    except ValueError:
        told = None
    if status == 200 and isinstance(told, list) and told and all(one is True for one in told):
        return True, "taken"
    if status == 200 and isinstance(told, dict) and told.get("updated") is True:
        return True, "taken"
    return False, "HTTP %s %s" % (status, " ".join(str(told).split())[:200])
