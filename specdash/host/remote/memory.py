"""Imports Python modules from a zip that is held in memory: nothing is written on the host.

The source of this file is itself sent ahead of a bundle and executed, so it stands alone.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import io
import sys
import zipfile
from typing import Any, Dict, Optional


class MemoryFinder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    def __init__(self, archive: bytes) -> None:
        self._files: Dict[str, bytes] = {}
        with zipfile.ZipFile(io.BytesIO(archive)) as bundle:
            for name in bundle.namelist():
                self._files[name] = bundle.read(name)

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
        spec = importlib.machinery.ModuleSpec(
            fullname, self, origin="<bundle>/" + found, is_package=found.endswith("/__init__.py")
        )
        spec.has_location = True
        return spec

    def is_package(self, fullname: str) -> bool:
        return (self._path(fullname) or "").endswith("/__init__.py")

    def get_source(self, fullname: str) -> str:
        path = self._path(fullname)
        if path is None:
            raise ImportError("not in the bundle: " + fullname)
        return importlib.util.decode_source(self._files[path])

    def get_code(self, fullname: str) -> Any:
        # The whole place as file name, so that tracebacks name the module.
        return compile(
            self.get_source(fullname), "<bundle>/" + str(self._path(fullname)), "exec", dont_inherit=True
        )

    def get_data(self, path: str) -> bytes:
        return self._files[path.replace("<bundle>/", "", 1)]


def install(archive: bytes) -> None:
    """From now on the bundle's modules are importable, ahead of anything of the same name."""
    sys.meta_path.insert(0, MemoryFinder(archive))
