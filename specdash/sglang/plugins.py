"""Algorithms that plugins add: entry points `sglang.srt.plugins`, read without importing anything.

A plugin's module is searched, with what it imports from its own package, for `SpeculativeAlgorithm.register`
calls. A name built at run time stays unknown; only a deep probe (which imports SGLang) settles it.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import List, Optional, Sequence, Set, Tuple

from specdash.sglang.constants import Scope, gist
from specdash.sglang.tree import Source, Tree, Unread, find_module

GROUP = "sglang.srt.plugins"
REGISTRARS = ("register_algorithm", "register_speculative_algorithm")
MAX_MODULES = 40


@dataclass(frozen=True)
class Plugin:
    """One entry point. `algorithms`: the names that its source registers."""

    name: str
    value: str
    """`package.module:function`"""
    dist: str
    enabled: bool
    """False: SGLANG_PLUGINS names others, so SGLang skips it."""
    algorithms: Tuple[str, ...] = ()
    dynamic: bool = False
    """It registers something whose name its source does not tell."""
    evidence: Tuple[str, ...] = ()
    reason: str = ""
    """Not empty: it could not be read, because …; it may add anything."""


def read(sites: Sequence[Tree], enabled: str = "") -> Tuple[Plugin, ...]:
    """Plugins declared beside SGLang. `enabled` is the value of SGLANG_PLUGINS. Never raises."""
    wanted = {name.strip() for name in enabled.split(",") if name.strip()}
    sources = [Source(site) for site in sites]
    out: List[Plugin] = []
    seen: Set[Tuple[str, str]] = set()
    for site in sites:
        for folder in site.list(""):
            if not folder.endswith((".dist-info", ".egg-info")):
                continue
            for name, value in _entries(site.read(folder + "/entry_points.txt")):
                if (name, value) in seen:
                    continue
                seen.add((name, value))
                dist = folder.rsplit(".", 1)[0]
                try:
                    out.append(_plugin(sources, name, value, dist, not wanted or name in wanted))
                except RecursionError:
                    out.append(Plugin(name, value, dist, True, reason="its source is nested too deep"))
    return tuple(out)


def _entries(data: Optional[bytes]) -> List[Tuple[str, str]]:
    """(name, value) of the group in an `entry_points.txt`."""
    out: List[Tuple[str, str]] = []
    section = ""
    for line in (data or b"")[:200_000].decode("utf-8", "replace").splitlines():
        line = line.strip()
        if line.startswith("["):
            section = line.strip("[]").strip()
        elif section == GROUP and "=" in line and not line.startswith(("#", ";")):
            name, value = line.split("=", 1)
            out.append((name.strip(), value.split("[")[0].strip()))
    return out


def _plugin(sources: List[Source], name: str, value: str, dist: str, enabled: bool) -> Plugin:
    module = value.split(":")[0].strip()
    home = next((s for s in sources if find_module(s, module)), None)
    if home is None:
        reason = "the files of {} are not beside it (an editable install?)".format(module)
        return Plugin(name, value, dist, enabled, reason=reason)
    top = module.split(".")[0]
    todo = [module]
    done: Set[str] = set()
    names: List[str] = []
    evidence: List[str] = []
    dynamic, reason = False, ""
    while todo and len(done) < MAX_MODULES:
        dotted = todo.pop(0)
        path = find_module(home, dotted)
        if path is None or path in done:
            continue
        done.add(path)
        scope = Scope(home, path)
        if scope.reason:
            reason = "{}: {}".format(path, scope.reason)
            continue
        tree, _ = home.module(path)
        dynamic = dynamic or (tree is not None and _hidden(scope, tree, home.bytes(path) or b""))
        for node in ast.walk(tree) if tree else ():
            if isinstance(node, ast.Call) and _registers(scope, node):
                first = (
                    node.args[0]
                    if node.args
                    else next((k.value for k in node.keywords if k.arg == "name"), None)
                )
                value_ = scope.value(first)
                if isinstance(value_, str):
                    names.append(value_.upper())
                    evidence.append("{}:{}".format(path, node.lineno))
                else:
                    dynamic = True
            todo.extend(_imports(scope, node, top))
    return Plugin(name, value, dist, enabled, tuple(dict.fromkeys(names)), dynamic, tuple(evidence), reason)


def _registers(scope: Scope, node: ast.Call) -> bool:
    called = gist(node.func)
    last = called.split(".")[-1]
    if last in REGISTRARS:
        return True
    if last != "register" or not isinstance(node.func, ast.Attribute):
        return False
    owner = gist(node.func.value).split(".")[-1]
    return owner == "SpeculativeAlgorithm" or scope.imported.get(owner, ("", ""))[1] == "SpeculativeAlgorithm"


def _hidden(scope: Scope, tree: ast.Module, data: bytes) -> bool:
    """Whether a module that speaks of the class uses a `register` that is no plain call on it: what it adds is open."""
    if b"SpeculativeAlgorithm" not in data:
        return False
    plain = {id(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call) and _registers(scope, n)}
    foreign = {name for name, (place, _) in scope.imported.items() if not place.startswith("sglang")}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            foreign.update(a.asname or a.name for a in node.names if not a.name.startswith("sglang"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value == "register":
            return True
        if not isinstance(node, ast.Attribute) or node.attr != "register" or id(node) in plain:
            continue
        if gist(node.value).split(".")[0] not in foreign:
            return True
    return False


def _imports(scope: Scope, node: ast.AST, top: str) -> List[str]:
    """Modules of the plugin's own package that this statement imports."""
    out: List[str] = []
    if isinstance(node, ast.ImportFrom):
        base = scope._absolute(node)
        out = [base] + ["{}.{}".format(base, alias.name) for alias in node.names]
    elif isinstance(node, ast.Import):
        out = [alias.name for alias in node.names]
    return [name for name in out if name == top or name.startswith(top + ".")]


def unread(plugins: Sequence[Plugin]) -> List[Unread]:
    """What a list of algorithms may lack because of plugins."""
    out: List[Unread] = []
    for plugin in plugins:
        if plugin.enabled and (plugin.reason or plugin.dynamic):
            why = plugin.reason or "it registers a name that is built at run time"
            out.append(Unread("plugin " + plugin.name, why + "; a deep probe asks the engine"))
    return out
