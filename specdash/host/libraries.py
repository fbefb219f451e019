"""Finding C libraries by their files, for as long as asyncssh is imported.

It looks for liboqs and nettle, and `ctypes.util.find_library` starts ldconfig, gcc and ld for each that is not there:
40 ms of every short command. Where the files are, the answer is the same.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("/usr/local/lib", "/usr/local/lib64", "/usr/lib", "/usr/lib64", "/lib", "/lib64", "/opt/lib")


@contextlib.contextmanager
def by_files() -> Iterator[None]:
    """Linux only; elsewhere, and where the import is done already, nothing changes."""
    if sys.platform != "linux" or "asyncssh" in sys.modules:
        yield
        return
    kept = ctypes.util.find_library
    ctypes.util.find_library = lambda name: kept(name) if _maybe_there(name) else None
    try:
        yield
    finally:
        ctypes.util.find_library = kept


def _maybe_there(name: str) -> bool:
    """Whether any file in the usual places, or in LD_LIBRARY_PATH, could be that library."""
    import os

    triple = getattr(sys.implementation, "_multiarch", "")  # sysconfig would tell, after 5 ms
    folders = [*FOLDERS, *(f"{folder}/{triple}" for folder in FOLDERS[2:5] if triple)]
    folders += [part for part in os.environ.get("LD_LIBRARY_PATH", "").split(":") if part]
    for folder in folders:
        with contextlib.suppress(OSError):
            if next(Path(folder).glob(f"lib{name}.so*"), None) is not None:
                return True
    return False
