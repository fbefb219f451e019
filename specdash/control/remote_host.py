# ruff: noqa: PTH100, PTH110, PTH111, PTH112, PTH120, PTH123, PTH208
"""Runs on the host, for `remote_probe`: disks, limits, ports, PID 1, locks. Python 3.8, standard library only."""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import Any

try:
    import resource
except ImportError:  # pragma: no cover - Linux has it
    resource = None  # type: ignore[assignment]


def read_start(path: str, limit: int) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read(limit)
    except OSError:
        return None


def host_facts(wanted: dict[str, Any]) -> dict[str, Any]:
    """{log_folder, ports: [[address, port]], …} → disk, /dev/shm, limits, ports, PID 1, locks of other runs."""
    out: dict[str, Any] = {"disk": {}, "ports": {}}
    for name, path in (("log", wanted.get("log_folder")), ("tmp", "/tmp"), ("shm", "/dev/shm")):
        out["disk"][name] = _disk(path)
    out["limits"] = _limits()
    for address, port in wanted.get("ports") or []:
        out["ports"][f"{address}:{port}"] = _bind(str(address), int(port))
    out["pid1"] = _pid1()
    out["locks"] = _locks()
    return out


def _disk(path: str | None) -> dict[str, Any] | None:
    if not path:
        return None
    here = os.path.abspath(os.path.expanduser(path))
    while not os.path.exists(here) and os.path.dirname(here) != here:
        here = os.path.dirname(here)
    try:
        usage = os.statvfs(here)
    except OSError:
        return None
    writable = os.access(here, os.W_OK | os.X_OK)
    return {
        "path": here,
        "free_bytes": usage.f_bavail * usage.f_frsize,
        "total_bytes": usage.f_blocks * usage.f_frsize,
        "writable": writable,
    }


def _limits() -> dict[str, list[int] | None]:
    out: dict[str, list[int] | None] = {}
    for name in ("NOFILE", "MEMLOCK", "NPROC", "AS", "STACK"):
        code = getattr(resource, "RLIMIT_" + name, None)
        out[name.lower()] = list(resource.getrlimit(code)) if code is not None else None
    return out


def _bind(address: str, port: int) -> dict[str, Any]:
    """Whether a server could listen there now: {free, problem}. Nothing listens, the socket is closed at once."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, port))
        return {"free": True, "problem": ""}
    except (OSError, OverflowError, ValueError) as error:
        number = getattr(error, "errno", None)
        problem = {
            errno.EADDRINUSE: "in use",
            errno.EACCES: "not allowed",
            errno.EADDRNOTAVAIL: "no such address",
        }
        return {"free": False, "problem": problem.get(number or 0, str(error))}


REAPERS = (
    "systemd",
    "init",
    "tini",
    "dumb-init",
    "docker-init",
    "catatonit",
    "s6-svscan",
    "runit",
    "bash",
    "sh",
    "dash",
    "supervisord",
    "runsvdir",
    "zsh",
    "conmon",
    "launchd",
)


def _pid1() -> dict[str, Any]:
    """{name, reaps (by its name; None: cannot tell), zombies: those that already wait for it}."""
    name = (read_start("/proc/1/comm", 64) or b"").decode("utf-8", "replace").strip()
    zombies = 0
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if entry.isdigit():
            data = read_start(f"/proc/{entry}/stat", 1000) or b""
            fields = data.rpartition(b")")[2].split()
            if len(fields) > 1 and fields[0] == b"Z" and fields[1] == b"1":
                zombies += 1
    reaps: bool | None = True if name in REAPERS else None
    if name in ("python", "python3", "sleep", "tail", "node", "java", "sshd", "jupyter-lab", "cat"):
        reaps = False
    return {"name": name, "reaps": reaps, "zombies": zombies}


def _locks() -> list[dict[str, Any]]:
    """Living supervisors of every user: their abstract sockets. The kernel names the owner; none is ever stale."""
    out: list[dict[str, Any]] = []
    for line in (read_start("/proc/net/unix", 4_000_000) or b"").splitlines()[1:]:
        name = line.split(b" ")[-1]
        if not name.startswith(b"@specdash/"):
            continue
        parts = name.decode("utf-8", "replace").split("/")
        if len(parts) != 4 or any(o["kind"] == parts[2] and o["id"] == parts[3] for o in out):
            continue
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(0.5)
            try:
                sock.connect(b"\0" + name[1:])
                pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            except (OSError, AttributeError):
                continue
        out.append(
            {"kind": parts[2], "id": parts[3], "pid": pid, "uid": uid, "user": _user(uid), "age_s": _age(pid)}
        )
    return out


def _user(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _age(pid: int) -> float | None:
    data = read_start(f"/proc/{pid}/stat", 1000) or b""
    fields = data.rpartition(b")")[2].split()
    up = (read_start("/proc/uptime", 100) or b"").split()
    if len(fields) < 20 or not up:
        return None
    return max(0.0, float(up[0]) - int(fields[19]) / os.sysconf("SC_CLK_TCK"))
