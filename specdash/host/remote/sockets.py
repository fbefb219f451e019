"""Which process listens on a TCP port: /proc/net/tcp{,6} gives inodes, /proc/PID/fd gives their owners."""

from __future__ import annotations

import os
import socket
from typing import Any, Callable, Dict, Iterable, List, Optional, Set

from specdash.host.remote.procs import describe, pids, read_bytes, stat

_LISTEN, _ESTABLISHED = b"0A", b"01"


def listen_inodes(port: Optional[int] = None) -> Dict[int, Set[int]]:
    """port → socket inodes that listen on it, in this network namespace, IPv4 and IPv6."""
    found: Dict[int, Set[int]] = {}
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in (read_bytes(path, 16 << 20) or b"").splitlines()[1:]:
            fields = line.split()
            if len(fields) < 10 or fields[3] != _LISTEN:
                continue
            here = int(fields[1].rpartition(b":")[2], 16)
            if port is None or here == port:
                found.setdefault(here, set()).add(int(fields[9]))
    return found


def connections(port: int, among: Iterable[int]) -> int:
    """How many connections to a local port these processes have accepted and not closed.

    What still waits in the kernel's queue (nobody has accepted it: inode 0) does not count.
    """
    inodes: Set[str] = set()
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in (read_bytes(path, 16 << 20) or b"").splitlines()[1:]:
            fields = line.split()
            if len(fields) < 10 or fields[3] != _ESTABLISHED or fields[9] == b"0":
                continue
            if int(fields[1].rpartition(b":")[2], 16) == port:
                inodes.add("socket:[%d]" % int(fields[9]))
    held: Set[str] = set()
    for pid in among if inodes else ():
        folder = "/proc/%d/fd" % pid
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            try:
                held.add(os.readlink(folder + "/" + name))
            except OSError:
                continue
    return len(inodes & held)


def owners(inodes: Set[int], among: Optional[Iterable[int]] = None) -> List[int]:
    """Pids that hold one of the sockets. Processes of other users cannot be looked into: they are missing."""
    wanted = {"socket:[%d]" % inode for inode in inodes}
    found = []
    for pid in pids() if among is None else among:
        folder = "/proc/%d/fd" % pid
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            try:
                if os.readlink(folder + "/" + name) in wanted:
                    found.append(pid)
                    break
            except OSError:
                continue
    return sorted(found)


def holder(port: int) -> Dict[str, Any]:
    """Who listens on a port: {"port", "listening", "pids", "processes"}; pids [] with listening True is hidden."""
    inodes = listen_inodes(port).get(port, set())
    who = owners(inodes) if inodes else []
    rows = [row for row in (stat(pid) for pid in who) if row is not None]
    return {
        "port": port,
        "listening": bool(inodes),
        "pids": who,
        "processes": [describe(row) for row in rows],
    }


def bindable(port: int) -> bool:
    """Could a server bind the port now on all addresses? (Sees what /proc hides: other namespaces' rules.)"""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((address, port))
        except OSError as error:
            if error.errno == 98:  # EADDRINUSE; a host without IPv6 says something else
                return False
    return True


def _call_listeners(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    """{port} → `holder`; without a port: every listening port with its pids."""
    if params.get("port") is not None:
        return holder(int(params["port"]))
    table = {}
    sockets = listen_inodes()
    by_inode: Dict[int, List[int]] = {}
    for pid in pids():
        try:
            links = [os.readlink("/proc/%d/fd/%s" % (pid, name)) for name in os.listdir("/proc/%d/fd" % pid)]
        except OSError:
            continue
        for link in links:
            if link.startswith("socket:["):
                by_inode.setdefault(int(link[8:-1]), []).append(pid)
    for port, inodes in sockets.items():
        table[str(port)] = sorted({pid for inode in inodes for pid in by_inode.get(inode, ())})
    return {"ports": table}


CALLS: Dict[str, Callable[[Dict[str, Any], bytes], Dict[str, Any]]] = {"procs.listeners": _call_listeners}
