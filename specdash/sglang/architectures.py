"""Which model architectures a tree can load, and which of them hand out hidden states for a drafter.

SGLang finds models by `EntryClass = …` in `srt/models/*.py`. The files are large and many, so the list is cut
out of the bytes and only that statement is parsed; one file is parsed whole when one model is asked about.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Set, Tuple

from specdash.sglang.constants import Scope, gist
from specdash.sglang.tree import Source, Tree, Unread

MODELS = "sglang/srt/models"
EAGLE3_METHOD = "set_eagle3_layers_to_capture"
DFLASH_METHOD = "set_dflash_layers_to_capture"
DSPARK_METHOD = "set_dspark_layers_to_capture"
NEAR_END = 2048
"""Bytes before the end of a file in which its EntryClass mostly is: all models together are 10 MB."""
_MARK = b"\nEntryClass"
_NAME = rb"(?!(?:None|True|False)\b)[A-Z]\w*"
_PLAIN = re.compile(
    rb"EntryClass = (\[\s*(?:N\s*,\s*)*N(?:\s*,)?\s*(?=\])|N(?=\n|$))\]?\s*(?:\n|$)".replace(b"N", _NAME)
)
"""What nearly all of them look like: read without a parser, which takes 7 ms for all models."""
FALLBACK = "TransformersForCausalLM"
"""When a tree has it, an architecture that SGLang does not know may still load, as a target only."""


@dataclass(frozen=True)
class Architectures:
    """Architecture → the file that has it. Empty with `unread`: nothing can be said."""

    files: Dict[str, str]
    unread: Tuple[Unread, ...] = ()

    @property
    def readable(self) -> bool:
        return bool(self.files)

    def known(self, architecture: str) -> Optional[bool]:
        """None: cannot tell, because no list or not all of it could be read."""
        if architecture in self.files:
            return True
        return False if self.files and not self.unread else None


def read(tree: Tree, source: Optional[Source] = None) -> Architectures:
    """All architectures of a tree. Never raises."""
    source = source or Source(tree)
    files: Dict[str, str] = {}
    unread: List[Unread] = []
    for name in tree.list(MODELS):
        if not name.endswith(".py"):
            continue
        path = "{}/{}".format(MODELS, name)
        data = source.end(path, NEAR_END)
        if data is not None and _MARK not in data:
            data = source.bytes(path)
        if data is None:
            unread.append(Unread(path, "the file cannot be read"))
            continue
        names = _entry(data)
        if names is None:
            unread.append(Unread(path, "its EntryClass is not a plain list of classes"))
        for architecture in names or ():
            files.setdefault(architecture, path)
    if not files:
        unread.append(Unread(MODELS, "no model file was found"))
    return Architectures(files, tuple(unread))


def _entry(data: bytes) -> Optional[List[str]]:
    """Class names in a file's EntryClass; empty when it has none; None when it cannot be made out."""
    start = data.rfind(_MARK) + 1  # of the word itself
    if start == 0 and not data.startswith(_MARK[1:]):
        return []
    plain = _PLAIN.match(data, start)
    if plain is not None:
        return plain.group(1).replace(b"[", b"").replace(b",", b" ").decode("ascii").split()
    lines: List[bytes] = []
    for line in data[start:].split(b"\n")[:200]:
        lines.append(line)
        try:
            module = ast.parse(b"\n".join(lines))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        value = getattr(module.body[0], "value", None) if module.body else None
        if isinstance(value, ast.Name):
            return [value.id]
        if isinstance(value, (ast.List, ast.Tuple)) and all(isinstance(e, ast.Name) for e in value.elts):
            return [e.id for e in value.elts if isinstance(e, ast.Name)]
        return None
    return None


def from_names(names: List[str]) -> Architectures:
    """A list that came without files."""
    return Architectures(dict.fromkeys(names, ""))


def has_method(
    source: Source, architectures: Architectures, architecture: str, method: str
) -> Optional[bool]:
    """Whether the model class, or a base of it in this tree, defines `method`. None: cannot tell."""
    path = architectures.files.get(architecture)
    if not path:
        return None
    try:
        return _class_has(source, path, architecture, method, set())
    except RecursionError:
        return None


def _class_has(
    source: Source, path: str, name: str, method: str, seen: Set[Tuple[str, str]]
) -> Optional[bool]:
    if (path, name) in seen or len(seen) > 30:
        return False
    seen.add((path, name))
    scope, original = Scope(source, path).origin(name)
    node = scope.classes.get(original) if scope is not None else None
    if node is None or scope is None:
        return None
    answer: Optional[bool] = False
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == method:
            return True
        if isinstance(item, ast.FunctionDef) and item.name == "__getattr__":
            answer = None
        if isinstance(item, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == method for t in item.targets
        ):
            return True
    for base in node.bases:
        word = gist(base)
        first = word.split(".")[0]
        outside = first in scope.imported and not scope.imported[first][0].startswith("sglang")
        if outside or first in ("nn", "torch", "object"):
            continue  # only SGLang's own classes have these methods
        found = _class_has(source, scope.path, word.split(".")[-1], method, seen)
        if found:
            return True
        if found is None:
            answer = None
    return answer
