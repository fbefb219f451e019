"""Who a pid on a GPU is, told from /proc: only where the number is one of this pid namespace. Python 3.8."""

from __future__ import annotations

import os
import pwd
from typing import Any, Dict


def who(pid: int) -> Dict[str, Any]:
    """{} when it is not here, or when the number belongs to someone else in this pid namespace."""
    folder = "/proc/%d" % pid
    try:
        uid = os.stat(folder).st_uid
    except OSError:
        return {}
    if not first_namespace() and not _holds_gpu(folder):
        return {}
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = str(uid)
    command = read(folder + "/cmdline").replace("\0", " ").strip()
    return {"user": user, "command": command[:400], "name": read(folder + "/comm").strip()}


def first_namespace() -> bool:
    """The host's own pid namespace: there pid 2 is the kernel's thread maker."""
    return read("/proc/2/comm").strip() == "kthreadd"


def _holds_gpu(folder: str) -> bool:
    try:
        fds = os.listdir(folder + "/fd")
    except PermissionError:
        return True  # it is there, we only may not look: the driver's word counts
    except OSError:
        return False
    for fd in fds:
        try:
            if os.readlink("%s/fd/%s" % (folder, fd)).startswith("/dev/nvidia"):
                return True
        except OSError:
            continue
    return False


def start_ticks(pid: int) -> int:
    """Start time in clock ticks after boot; 0 when there is no such process here."""
    stat = read("/proc/%d/stat" % pid)
    try:
        return int(stat[stat.rindex(")") + 2 :].split()[19])
    except (ValueError, IndexError):
        return 0


def read(path: str) -> str:
    try:
        with open(path, "rb") as f:
            return f.read(65536).decode("utf-8", "replace")
    except OSError:
        return ""
