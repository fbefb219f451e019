"""Reads files into the page cache while somebody else serves: slowly, at idle disk priority, and only into free memory."""

from __future__ import annotations

import ctypes
import os
import platform
import time
from typing import Any, Callable, Dict, Iterable, List, Tuple

from specdash.host.remote import procs

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
PIECE = 4 << 20
SPARE = 8 << 30
"""Bytes of memory that must stay available beside what is read."""
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IDLE = 3 << 13


def files(folders: Iterable[str]) -> List[Tuple[str, int]]:
    """(path, bytes) of the weight files in some folders, each once."""
    found: Dict[str, int] = {}
    for folder in folders:
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries[:20000]:
            if entry.name.endswith(WEIGHTS):
                real = os.path.realpath(entry.path)
                try:
                    found[real] = os.stat(real).st_size
                except OSError:
                    continue
    return list(found.items())


def weigh(folders: Iterable[str]) -> Dict[str, Any]:
    """{bytes, files, available_bytes (None: not told)}: what a warm-up would read, and the memory that is there."""
    found = files(folders)
    return {"bytes": sum(size for _, size in found), "files": len(found), "available_bytes": available()}


def available() -> Any:
    for line in (procs.read_bytes("/proc/meminfo", 65536) or b"").splitlines():
        if line.startswith(b"MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def read(
    folders: Iterable[str], bytes_s: float, stop: Callable[[], bool], tell: Callable[[int], None]
) -> Tuple[int, str]:
    """Read at most `bytes_s`. → (bytes read, why it ended early or "").

    It ends early when `stop` says so or memory gets short: a warm cache is worth less than somebody's memory.
    """
    quiet(True)
    try:
        return _read(folders, bytes_s, stop, tell)
    finally:
        quiet(False)  # what this thread starts next, an engine that loads, inherits it


def _read(
    folders: Iterable[str], bytes_s: float, stop: Callable[[], bool], tell: Callable[[int], None]
) -> Tuple[int, str]:
    began, done = time.monotonic(), 0
    told = began
    for path, _ in files(folders):
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            while True:
                if stop():
                    return done, "it was taken back"
                left = available()
                if left is not None and left < SPARE // 2:
                    return done, "memory got short"
                try:
                    size = len(os.read(handle, PIECE))
                except OSError as error:
                    return done, "%s cannot be read: %s" % (path, error.strerror)
                if not size:
                    break
                done += size
                now = time.monotonic()
                if now - told > 5:
                    told = now
                    tell(done)
                time.sleep(max(0.0, done / bytes_s - (now - began)))
        finally:
            os.close(handle)
    return done, ""


def quiet(yes: bool) -> None:
    """Idle disk priority for this thread, or the usual one again, where the kernel knows it."""
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None, use_errno=True).syscall(number, 1, 0, _IDLE if yes else 0)
