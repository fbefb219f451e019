"""Imports Python modules from a zip that is held in memory: nothing is written on the host.

The source of this file is itself sent ahead of a bundle and executed, so it stands alone. It derives from nothing
and imports little: `importlib.abc` alone would cost a probe 20 ms.
"""

from __future__ import annotations

import sys

MYPY = False
if MYPY:
    from typing import Any, Dict, Optional


def unpacked(archive: bytes) -> Dict[str, bytes]:
    """Name → bytes of each file of a bundle."""
    import io
    import zipfile

    with zipfile.ZipFile(io.BytesIO(archive)) as bundle:
        return {name: bundle.read(name) for name in bundle.namelist()}


class MemoryFinder:
    def __init__(self, files: Dict[str, bytes]) -> None:
        self._files = files

    def _path(self, fullname: str) -> Optional[str]:
        stem = fullname.replace(".", "/")
        for path in (stem + "/__init__.py", stem + ".py"):
            if path in self._files:
                return path
        return None

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        found = self._path(fullname)
        if found is None:
            return None
        kind: Any = type(sys.__spec__)  # ModuleSpec, without an import of its own
        spec = kind(fullname, self, origin="<bundle>/" + found, is_package=found.endswith("/__init__.py"))
        spec.has_location = True
        return spec

    def is_package(self, fullname: str) -> bool:
        return (self._path(fullname) or "").endswith("/__init__.py")

    def get_source(self, fullname: str) -> str:
        path = self._path(fullname)
        if path is None:
            raise ImportError("not in the bundle: " + fullname)
        return self._files[path].decode("utf-8")

    def create_module(self, spec: Any) -> None:
        """None: Python makes the module itself."""

    def exec_module(self, module: Any) -> None:
        exec(self.get_code(module.__name__), module.__dict__)

    def get_code(self, fullname: str) -> Any:
        # The whole place as file name, so that tracebacks name the module.
        return compile(
            self.get_source(fullname), "<bundle>/" + str(self._path(fullname)), "exec", dont_inherit=True
        )

    def get_data(self, path: str) -> bytes:
        return self._files[path.replace("<bundle>/", "", 1)]


def install(archive: bytes, files: Optional[Dict[str, bytes]] = None) -> None:
    """From now on the bundle's modules are importable, ahead of anything of the same name.

    `files`: the same, already unpacked.
    """
    sys.meta_path.insert(0, MemoryFinder(unpacked(archive) if files is None else files))
