# ruff: noqa: PTH110, PTH120, PTH123
"""Processes of the simulated engine: schedulers and detokenizer as real children, all tied to the demo host."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import threading
import time

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_libc = ctypes.CDLL(None)


def rename(title: str) -> None:
    """What `ps` shows, as setproctitle does: over the argv area, and the kernel's short name."""
    _libc.prctl(_PR_SET_NAME, title.encode()[:15], 0, 0, 0)
    with open("/proc/self/stat", "rb") as f:
        fields = f.read().rsplit(b")", 1)[1].split()
    start, end = int(fields[45]), int(fields[46])
    if end > start:
        ctypes.memmove(start, title.encode()[: end - start - 1].ljust(end - start, b"\0"), end - start)


def spawn(title: str) -> int:
    """A child that only exists (and dies with us). Its pid."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)  # it was killed before the kernel knew whom to tell
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        rename(title)
        while True:
            time.sleep(3600)
    finally:
        os._exit(1)


def dead(pids: dict[int, str]) -> list[tuple[str, int]]:
    """Children that ended: (title, exit code, negative for a signal)."""
    found = []
    for pid in list(pids):
        gone, status = os.waitpid(pid, os.WNOHANG)
        if gone:
            found.append((pids.pop(pid), os.waitstatus_to_exitcode(status)))
    return found


def leash(path: str) -> None:
    """End this engine when the demo host goes, however it goes: the kernel closes its end of the socket."""
    if not os.path.exists(os.path.dirname(path)):
        os._exit(1)
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.connect(path)
    except OSError:
        os._exit(1)

    def wait() -> None:
        try:
            line.recv(1)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)  # the children follow by PDEATHSIG

    threading.Thread(target=wait, daemon=True, name="leash").start()
