# ruff: noqa: PTH100, PTH109, PTH110, PTH111, PTH112, PTH113, PTH116, PTH118, PTH120, PTH208, E402
"""Runs on the host, in the profile's interpreter, where `python -m sglang.launch_server` would: what is there.

The one place with I/O for `specdash.sglang`, with `remote_models` and `remote_host`. Python 3.8, standard library
and `specdash.sglang` only; it never imports SGLang (only `remote_deep` does, in a child of its own). Everything it
returns is JSON. Modules are imported when they are needed: a probe of what is known already needs few.
"""

from __future__ import annotations

import os
import sys

# Our own imports must not come from the working directory: a `json.py` in it would run here.
_PATH = list(sys.path)
_HERE = os.getcwd()
sys.path[:] = [entry for entry in _PATH if entry not in ("", _HERE)]

import builtins
import gc
import importlib.util
import stat
import time
from typing import TYPE_CHECKING

try:
    from _blake2 import blake2b  # what hashlib would give, without loading OpenSSL: 4 ms
except ImportError:  # pragma: no cover
    from hashlib import blake2b

from specdash.sglang import locate

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

sys.path[:] = _PATH

MAX_FILE = 16_000_000
PYTHON = sys.version.split()[0].rstrip("+")


def regular(path: str, flags: int) -> int:
    """An opener for `open` that takes regular files only: a pipe or a device would make the reader wait for ever."""
    number = os.open(path, flags | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(number).st_mode):
        return number
    os.close(number)
    raise OSError(f"{path} is no regular file")


class FolderTree:
    """A tree on disk. `packages`: the folders that are the package `sglang`; `site`: what lies beside it."""

    def __init__(self, packages: builtins.list[str], site: str) -> None:
        self.packages = packages
        self.site = site

    def read(self, path: str) -> bytes | None:
        for full in self._places(path):
            try:
                with open(full, "rb", opener=regular) as file:
                    return file.read(MAX_FILE)
            except OSError:
                continue
        return None

    def tail(self, path: str, size: int) -> bytes | None:
        """The last `size` bytes of a file, or None when there is none."""
        for full in self._places(path):
            try:
                with open(full, "rb", buffering=0, opener=regular) as file:
                    file.seek(max(0, os.fstat(file.fileno()).st_size - size))
                    return file.read(size)
            except OSError:
                continue
        return None

    def list(self, folder: str) -> builtins.list[str]:
        names: dict[str, None] = {}
        for full in self._places(folder):
            try:
                names.update(dict.fromkeys(os.listdir(full)))
            except OSError:
                continue
        return sorted(names)

    def _places(self, path: str) -> builtins.list[str]:
        parts = [part for part in path.split("/") if part]
        if ".." in parts:
            return []
        if parts[:1] == ["sglang"]:
            return [os.path.join(package, *parts[1:]) for package in self.packages]
        return [os.path.join(self.site, *parts)]


def local_tree(folder: str) -> FolderTree | None:
    """The tree in a folder: an unpacked wheel, a site folder, a git clone, or the package itself."""
    folder = os.path.abspath(os.path.expanduser(folder))
    below = locate.package_below(lambda path: os.path.exists(os.path.join(folder, path)))
    if below is None:
        return None
    package = os.path.normpath(os.path.join(folder, below))
    return FolderTree([package], os.path.dirname(package))


def find() -> dict[str, Any]:
    """Where `import sglang` would come from, and every other copy on the path. Imports nothing."""
    copies: list[dict[str, Any]] = []
    for entry in sys.path:
        base = entry or os.getcwd()
        package = os.path.join(base, "sglang")
        if os.path.isdir(package) and not any(c["path"] == package for c in copies):
            regular = os.path.isfile(os.path.join(package, "__init__.py"))
            whole = os.path.exists(os.path.join(package, *locate.MARK.split("/")))
            version = locate.version(FolderTree([package], base))[0]
            copies.append(
                {"path": package, "regular": regular, "whole": whole, "version": version, "wins": False}
            )
        elif os.path.isfile(package + ".py"):
            copies.append(
                {"path": package + ".py", "regular": True, "whole": False, "version": "", "wins": False}
            )
    problem = ""
    try:
        spec = importlib.util.find_spec("sglang")
    except (ImportError, ValueError, AttributeError, OSError) as error:
        spec, problem = None, f"{type(error).__name__}: {error}"
    folders: list[str] = []
    if spec is not None and spec.submodule_search_locations is not None:
        folders = [os.path.abspath(p) for p in spec.submodule_search_locations]
    elif spec is not None:
        problem = f"sglang is a single file, {spec.origin}, and no package"
    for folder in folders:
        known = next((c for c in copies if os.path.abspath(c["path"]) == folder), None)
        if known is None:
            version = locate.version(FolderTree([folder], os.path.dirname(folder)))[0]
            whole = os.path.exists(os.path.join(folder, *locate.MARK.split("/")))
            known = {"path": folder, "regular": True, "whole": whole, "version": version, "wins": False}
            copies.append(known)  # an editable install's finder knows a folder that is not on the path
        known["wins"] = True
    namespace = bool(folders) and (spec is None or spec.origin is None)
    return {
        "found": bool(folders),
        "folders": folders,
        "copies": copies,
        "namespace": namespace,
        "problem": problem,
    }


def version_of(tree: FolderTree, folder: str) -> tuple[str, str]:
    """(version, who says so): the files beside the winner, then the interpreter's metadata."""
    told, where = locate.version(tree)
    if told:
        return told, where
    try:
        with _ours():
            import importlib.metadata  # 40 ms, and seldom needed

        return importlib.metadata.version("sglang"), "metadata of the interpreter"
    except Exception:  # any broken metadata on the path raises what it likes
        return "", ""


def fingerprint(tree: FolderTree, version: str, sites: Iterable[str], enabled: str) -> str:
    """Changes when any file that the reading came from may have changed: paths, sizes, times."""
    digest = blake2b(digest_size=32)
    words = [str(locate.FORMAT), sys.executable, PYTHON, version, enabled, *tree.packages]
    digest.update("\0".join(words).encode("utf-8", "surrogateescape"))
    names = [
        "",
        "_version.py",
        "version.py",
        "srt/server_args.py",
        "srt/speculative",
        "srt/models",
        "srt/plugins",
    ]
    for package in tree.packages:
        for name in names:
            _stamp(digest, os.path.join(package, name))
        for folder in ("srt/speculative", "srt/models"):
            _stamp_folder(digest, os.path.join(package, folder), 1)
        _stamp_folder(digest, os.path.join(package, "srt/arg_groups"), 3)
    for site in sites:
        # Not the folder's own time: the working directory is among them and changes all the time.
        try:
            names = sorted(n for n in os.listdir(site) if n.endswith((".dist-info", ".egg-info")))
        except OSError:
            continue
        for name in names[:5000]:
            _stamp(digest, os.path.join(site, name, "entry_points.txt"))
    return digest.hexdigest()


def _stamp(digest: Any, path: str) -> None:
    try:
        facts = os.stat(path)
    except OSError:
        digest.update(b"-")
        return
    digest.update(f"{path}:{facts.st_size}:{facts.st_mtime_ns};".encode("utf-8", "surrogateescape"))


def _stamp_folder(digest: Any, folder: str, depth: int) -> None:
    try:
        entries = sorted(os.scandir(folder), key=lambda e: e.name)
    except OSError:
        return
    for entry in entries[:5000]:
        if entry.name.endswith(".py"):
            _stamp(digest, entry.path)
        elif depth > 1 and entry.name != "__pycache__" and entry.is_dir():
            _stamp_folder(digest, entry.path, depth - 1)


def look(
    known: str = "",
    models: Iterable[str] = (),
    tree: str | None = None,
    host: dict[str, Any] | None = None,
    environ: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Everything static in one call. `known`: the fingerprint that the caller has a reading for.

    → {python, executable, sglang: {found, copies, …, version}, fingerprint, reading (None: as known),
    models: {path: …}, host: {…}, now_unix, took_s}. Problems are sentences in it, not exceptions.
    """
    began = time.monotonic()
    env = dict(os.environ) if environ is None else environ
    out: dict[str, Any] = {"python": PYTHON, "executable": sys.executable, "reading": None, "models": {}}
    found = find() if tree is None else _given(tree)
    out["sglang"] = found
    source: Any = None
    if found["found"]:
        folder = found["folders"][0]
        files = FolderTree(found["folders"], os.path.dirname(folder))
        found["version"], found["version_from"] = version_of(files, folder)
        paths = [files.site] + [p for p in sys.path if os.path.isdir(p) and p != files.site]
        sites = paths if tree is None else [files.site]
        enabled = env.get("SGLANG_PLUGINS", "")
        out["fingerprint"] = fingerprint(files, found["version"], sites, enabled)
        if out["fingerprint"] != known:
            trees = [FolderTree([], site) for site in sites]
            trees[0] = files
            collecting = gc.isenabled()
            gc.disable()  # a syntax tree is all alive until it is read: looking for garbage in it is a third of the time
            try:
                with _ours():
                    from specdash.sglang import flag_source, reading

                    assert flag_source  # it is imported late elsewhere
                out["reading"] = reading.to_wire(reading.read(files, trees, enabled, found["version"]))
            finally:
                if collecting:
                    gc.enable()
        if models:
            with _ours():
                from specdash.sglang.tree import Source
            source = Source(files)
    if models:
        with _ours():
            from specdash.control import remote_models
        out["models"] = {path: remote_models.model(path, source) for path in models}
    if host is not None:
        with _ours():
            from specdash.control import remote_host
        out["host"] = remote_host.host_facts(host)
    out["now_unix"] = time.time()
    out["took_s"] = time.monotonic() - began
    return out


class _ours:
    """While we import: not from the working directory."""

    def __enter__(self) -> None:
        self.path = list(sys.path)
        sys.path[:] = [entry for entry in self.path if entry not in ("", _HERE)]

    def __exit__(self, *_: object) -> None:
        sys.path[:] = self.path


def _given(folder: str) -> dict[str, Any]:
    tree = local_tree(folder)
    packages = tree.packages if tree is not None else []
    return {"found": tree is not None, "folders": packages, "copies": [], "namespace": False, "problem": ""}
