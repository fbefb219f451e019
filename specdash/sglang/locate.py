"""Which SGLang a folder holds: the shapes of an unpacked tree, and the version that its files tell."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Callable, Optional, Tuple

if TYPE_CHECKING:
    from specdash.sglang.tree import Tree

FORMAT = 3
"""Of a reading as JSON. Goes up when its meaning changes; a cache of another format is read anew."""
MARK = "srt/server_args.py"
"""In every SGLang since 0.4.1, so a folder that has it is the package."""
SHAPES = ("", "sglang", "python/sglang", "src/sglang")
"""Where the package can be below a folder: the package itself, a wheel's or a site folder, a git clone."""


def package_below(exists: Callable[[str], bool]) -> Optional[str]:
    """The package's path below a folder ("" is the folder itself), or None. `exists` gets relative paths."""
    for shape in SHAPES:
        if exists((shape + "/" if shape else "") + MARK):
            return shape
    for shape in SHAPES:
        if exists((shape + "/" if shape else "") + "srt") and exists(
            (shape + "/" if shape else "") + "version.py"
        ):
            return shape
    return None


def version(tree: Tree) -> Tuple[str, str]:
    """(version, which file told), both empty when no file tells. Nothing is run.

    `_version.py` is written when the files are built, so it goes before `version.py` (computed from 0.5.8 on)
    and before the metadata beside the package, which an editable install can leave behind.
    """
    for path in ("sglang/_version.py", "sglang/version.py"):
        found = _literal(tree.read(path))
        if found:
            return found, path
    for folder in tree.list(""):
        if folder.lower().startswith("sglang-") and folder.endswith((".dist-info", ".egg-info")):
            for name in ("METADATA", "PKG-INFO"):
                found = _metadata(tree.read("{}/{}".format(folder, name)))
                if found:
                    return found, "{}/{}".format(folder, name)
    return "", ""


def _literal(data: Optional[bytes]) -> str:
    """`__version__ = "…"` at the top level of a module."""
    if data is None or len(data) > 100_000:
        return ""
    try:
        body = ast.parse(data).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    for node in body:
        value = node.value if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.Assign) and isinstance(value, ast.Constant) and isinstance(value.value, str):
            names = [t.id for t in node.targets if isinstance(t, ast.Name)]
            if "__version__" in names or "version" in names:
                return value.value[:100]
    return ""


def _metadata(data: Optional[bytes]) -> str:
    name = found = ""
    for line in (data or b"")[:20_000].decode("utf-8", "replace").splitlines():
        key, _, value = line.partition(":")
        if key == "Name":
            name = value.strip().lower()
        elif key == "Version":
            found = value.strip()[:100]
        elif not line:
            break
    return found if name == "sglang" else ""
