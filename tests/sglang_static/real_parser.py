"""`python real_parser.py SITE`: what the real argparse parser of the SGLang in a folder says, without what it needs.

SGLang's own command line is run as it is; everything heavy that it imports (torch, transformers, …) is a stand-in.
A module of SGLang that cannot be imported that way is a stand-in too, and named, but never one that declares flags
or algorithms. Prints {"option_strings", "algorithms", "aliases", "version", "replaced"} as JSON.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.metadata
import json
import os
import re
import sys
import traceback
import types
from pathlib import Path
from typing import Any

REAL = (
    "sglang.srt.server_args",
    "sglang.srt.arg_groups",
    "sglang.srt.speculative.spec_info",
    "sglang.srt.speculative.spec_registry",
)
TRIES = 80


class _Kind(type):
    """A class that has every attribute, can be called, subscripted, joined by `|`, and derived from."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") and name.endswith("__") and name != "__version__":
            raise AttributeError(name)
        made: Any = "99.0.0" if name == "__version__" else stand_in(name)
        setattr(cls, name, made)
        return made

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls.__module__ != __name__:  # a class of SGLang's that derives from a stand-in
            return super().__call__()
        decorates = len(args) == 1 and not kwargs and isinstance(args[0], (types.FunctionType, type))
        return args[0] if decorates else cls

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __or__

    def __iter__(cls) -> Any:
        return iter(())

    def __len__(cls) -> int:
        return 0

    def __bool__(cls) -> bool:
        return False

    def __contains__(cls, item: Any) -> bool:
        return False

    def __lt__(cls, other: Any) -> bool:
        return False

    __gt__ = __le__ = __ge__ = __lt__

    def __int__(cls) -> int:
        return 0

    __index__ = __int__

    def __add__(cls, other: Any) -> Any:
        return other

    __radd__ = __mul__ = __rmul__ = __sub__ = __truediv__ = __add__

    def __enter__(cls) -> Any:
        return cls

    def __exit__(cls, *_: object) -> None:
        pass


def stand_in(name: str) -> Any:
    return _Kind(name, (), {"__module__": __name__, "__init__": lambda self, *a, **k: None})


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name in ("__path__", "__file__", "__spec__", "__all__"):
            raise AttributeError(name)
        made: Any = "99.0.0" if name == "__version__" else stand_in(name)
        setattr(self, name, made)
        return made


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The last finder of all: whatever nobody else has. And the first, for names in `replaced`."""

    def __init__(self, replaced: set[str] | None = None) -> None:
        self.replaced = replaced

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if self.replaced is None:
            wanted = name.partition(".")[0] != "sglang"
        else:
            wanted = any(name == r or name.startswith(r + ".") for r in self.replaced)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if wanted else None

    def create_module(self, spec: Any) -> Any:
        return _Module(spec.name)

    def exec_module(self, module: Any) -> None:
        module.__path__ = []


def _version(name: str, real: Any = importlib.metadata.version) -> str:
    try:
        return str(real(name))
    except importlib.metadata.PackageNotFoundError:
        return "99.0.0"


def _culprit(error: BaseException, site: Path) -> str:
    """The module of SGLang whose import failed: the innermost that may be replaced; "" when there is none."""
    lacking = error.name or "" if isinstance(error, ImportError) else ""
    if lacking.startswith("sglang.") and "cannot import name" in str(error) and not lacking.startswith(REAL):
        return lacking  # it takes `*` from a module that is a stand-in
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(f"{site}{os.sep}sglang"):
            name = ".".join(Path(frame.filename).relative_to(site).with_suffix("").parts).removesuffix(
                ".__init__"
            )
            if name != "sglang" and not name.startswith(REAL):
                return name
    return ""


def _parser() -> Any:
    import argparse

    from sglang.srt.server_args import ServerArgs  # type: ignore[import-not-found]

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return parser


def _algorithms() -> Any:
    try:
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm  # type: ignore[import-not-found]
    except ModuleNotFoundError as error:
        if "speculative" in str(error):
            return []
        raise
    return SpeculativeAlgorithm


def _names(kind: Any) -> list[str]:
    members = getattr(kind, "__members__", None) or getattr(kind, "_members", None) or {}
    return list(members) or [m.name for m in kind]


def retried(site: Path, replaced: set[str], step: Any) -> Any:
    for _ in range(TRIES):
        try:
            return step()
        except (Exception, SystemExit) as error:
            name = _culprit(error, site)
            if not name or name in replaced:
                raise
            replaced.add(name)
            for known in [m for m in sys.modules if m.partition(".")[0] == "sglang" and m != "sglang"]:
                del sys.modules[known]
    raise RuntimeError("too many modules of SGLang could not be imported")


def main() -> None:
    site = Path(sys.argv[1]).resolve()
    package = types.ModuleType("sglang")  # its own __init__ imports the whole client side
    package.__path__ = [str(site / "sglang")]
    sys.modules["sglang"] = package
    text = "".join(
        f.read_text() for f in (site / "sglang" / "_version.py", site / "sglang" / "version.py") if f.exists()
    )
    found = re.search(r"version[^=\n]*= *['\"]([^'\"]+)", text)
    package.__version__ = found[1] if found else ""  # type: ignore[attr-defined]
    importlib.metadata.version = _version  # type: ignore[assignment]
    replaced: set[str] = set()
    sys.path.insert(0, str(site))
    sys.meta_path.insert(0, _StandIns(replaced))
    sys.meta_path.append(_StandIns())
    parser = retried(site, replaced, _parser)
    kind = retried(site, replaced, _algorithms)
    aliases = {}
    for name in ("NEXTN",):
        try:
            aliases[name] = kind.from_string(name).name
        except Exception:
            continue
    out = {
        "version": package.__version__,
        "option_strings": sorted(parser._option_string_actions),
        "algorithms": _names(kind) if kind != [] else [],
        "aliases": aliases,
        "replaced": sorted(replaced),
    }
    sys.__stdout__.write(json.dumps(out) + "\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]
    os._exit(0)


if __name__ == "__main__":
    main()
