"""Packs specdash modules into a zip that a host's Python runs, as a file or from memory."""

from __future__ import annotations

import functools
import io
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import specdash

_ROOT = Path(specdash.__file__).resolve().parent
AGENT_MODULES = ("specdash.host.remote",)
RUN_FROM_MEMORY = "specdash.host.remote.memory"


def pack(modules: Iterable[str], main: str | None = None) -> bytes:
    """A zip of `modules` (a package stands for everything in it) with their parents, which are empty.

    `main` is "module:function"; then `python -I FILE` exits with what the function returns. The same modules
    always give the same bytes. ValueError when a module does not exist.
    """
    return _pack(tuple(sorted(set(modules))), main)


def source(module: str) -> str:
    """One module's source text."""
    for path in _files(module):
        return path.read_text("utf-8")
    raise ValueError(f"no module {module}")


@functools.lru_cache(maxsize=16)
def _pack(modules: tuple[str, ...], main: str | None) -> bytes:
    files: dict[str, bytes] = {}
    for module in modules:
        for path in _files(module):
            files[f"specdash/{path.relative_to(_ROOT).as_posix()}"] = path.read_bytes()
    for name in list(files):
        for parent in list(Path(name).parents)[:-1]:
            # Parents are empty: on the host nothing may run, or be missing, that was not named.
            files.setdefault(f"{parent.as_posix()}/__init__.py", b"")
    if main is not None:
        module, _, function = main.partition(":")
        files["__main__.py"] = f"from {module} import {function}\n\nraise SystemExit({function}())\n".encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o600 << 16
            archive.writestr(entry, files[name])
    return out.getvalue()


def _files(module: str) -> Iterator[Path]:
    parts = module.split(".")
    if parts[0] != "specdash":
        raise ValueError(f"{module} is not specdash's own")
    path = _ROOT.joinpath(*parts[1:])
    if path.is_dir():
        yield from sorted(file for file in path.rglob("*.py") if "__pycache__" not in file.parts)
    elif path.with_suffix(".py").is_file():
        yield path.with_suffix(".py")
    else:
        raise ValueError(f"no module {module}")
