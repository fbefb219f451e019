"""The files of an SGLang, wherever they are: installed on a host, unpacked here, or made in a test.

A path is relative and spelled with `/`: `sglang/srt/server_args.py`. Readers get a `Tree` and never open a
file themselves, so that the same code reads a wheel here and an installation far away.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Callable, Dict, List, Mapping, Optional, Protocol, Tuple

Data = bytes  # in `Source` the word is a method
MAX_SOURCE_BYTES = 4_000_000
"""A source file above this is not read; the largest in SGLang 0.5.x has 0.5 MB."""


class Tree(Protocol):
    """What the readers need. Neither method raises: a file that cannot be read is None, a folder is empty."""

    def read(self, path: str) -> Optional[bytes]:
        """The whole file, or None when it is not there or cannot be read."""
        ...

    def list(self, folder: str) -> List[str]:
        """Names (not paths) in a folder, sorted; empty when it is not there."""
        ...


class DictTree:
    """A tree held in memory: path → bytes."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = dict(files)

    def read(self, path: str) -> Optional[bytes]:
        return self._files.get(path)

    def list(self, folder: str) -> List[str]:
        prefix = folder.strip("/") + "/" if folder.strip("/") else ""
        names = {path[len(prefix) :].split("/")[0] for path in self._files if path.startswith(prefix)}
        return sorted(names)


@dataclass(frozen=True)
class Unread:
    """Something that a reader could not make out. `reason` is a sentence without the path."""

    path: str
    reason: str


class Source:
    """Parsed modules of one tree, each parsed once. Never raises."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._raw: Dict[str, Optional[bytes]] = {}
        self._parsed: Dict[str, Tuple[Optional[ast.Module], str]] = {}

    def bytes(self, path: str) -> Optional[bytes]:
        if path not in self._raw:
            self._raw[path] = self.tree.read(path)
        return self._raw[path]

    def end(self, path: str, size: int) -> "Optional[Data]":
        """The last `size` bytes at least, where the tree can read only those; else the whole file."""
        tail: Optional[Callable[[str, int], Optional[Data]]] = getattr(self.tree, "tail", None)
        if tail is None or path in self._raw:
            return self.bytes(path)
        return tail(path, size)

    def module(self, path: str) -> Tuple[Optional[ast.Module], str]:
        """(module, "") or (None, why not); why is "" too when the file is simply not there."""
        if path not in self._parsed:
            self._parsed[path] = _parse(self.bytes(path))
        return self._parsed[path]

    def files(self, folder: str, depth: int = 2) -> List[str]:
        """Paths of the `.py` files in a folder and, to `depth` levels, below it."""
        found: List[str] = []
        for name in self.tree.list(folder):
            path = "{}/{}".format(folder, name)
            if name.endswith(".py"):
                found.append(path)
            elif depth > 1 and "." not in name and name != "__pycache__":
                found.extend(self.files(path, depth - 1))
        return found


def _parse(data: Optional[bytes]) -> Tuple[Optional[ast.Module], str]:
    if data is None:
        return None, ""
    if len(data) > MAX_SOURCE_BYTES:
        return None, "the file has {} bytes, more than specdash reads".format(len(data))
    try:
        return ast.parse(data), ""
    except SyntaxError as error:
        return None, "not Python that this interpreter can parse (line {}: {})".format(
            error.lineno, error.msg
        )
    except (ValueError, RecursionError, MemoryError, UnicodeError, LookupError, OverflowError) as error:
        return None, "not Python ({})".format(type(error).__name__)


def module_path(dotted: str) -> str:
    """`sglang.srt.x` → `sglang/srt/x.py` (a package's is `sglang/srt/x/__init__.py`, see `find_module`)."""
    return dotted.replace(".", "/") + ".py"


def find_module(source: Source, dotted: str) -> Optional[str]:
    """The path of a module's file in this tree, as a module or as a package."""
    for path in (module_path(dotted), dotted.replace(".", "/") + "/__init__.py"):
        if source.bytes(path) is not None:
            return path
    return None
