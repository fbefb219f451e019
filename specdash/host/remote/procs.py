"""The host's processes from /proc: a table, who is who, and a signal that never hits a stranger.

A process is named by (boot id, pid, start time in clock ticks), never by a pid alone. Command lines are the
kernel's bytes, decoded with surrogateescape so that they go back to the same bytes. Everything is bounded.
"""

from __future__ import annotations

import os
import pwd
import re
import signal
import time
from stat import S_ISCHR, S_ISFIFO, S_ISREG, S_ISSOCK
from typing import Any, Callable, Dict, Iterable, List, Optional, Set

from specdash.host.remote.wire import CallError

Row = Dict[str, Any]

MAX_CMDLINE = 65536
"""Bytes kept of a command line."""
TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_KB = os.sysconf("SC_PAGE_SIZE") // 1024
_CONTAINER = re.compile(
    r"(docker|libpod|crio|containerd|kubepods|lxc)[^/\n]*?[-/:.]?([0-9a-f]{12,64})?(?:\.scope)?(?:/|$)"
)
_UNIT = re.compile(r"/([^/\n]+\.service)(?:/|$)")


def boot_now() -> float:
    """CLOCK_BOOTTIME in seconds: goes on through suspend, never set back."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    return (read_bytes("/proc/sys/kernel/random/boot_id") or b"").decode("ascii", "replace").strip()


def read_bytes(path: str, limit: int = 1 << 20) -> Optional[bytes]:
    """At most `limit` bytes of a file, or None when it cannot be read (gone, denied)."""
    try:
        with open(path, "rb", buffering=0) as file:
            parts = []
            while limit > 0:
                part = file.read(limit)
                if not part:
                    break
                parts.append(part)
                limit -= len(part)
            return b"".join(parts)
    except OSError:
        return None


def stat(pid: int) -> Optional[Row]:
    """One process: pid, ppid, pgid, sid, state, start, threads (count), rss_kb, cpu_ticks, comm.

    `state` is the kernel's letter (Z zombie, D waits for a device, T stopped). `cpu_ticks` is user plus
    system time of the process, in clock ticks. None when there is no such process.
    """
    raw = read_bytes("/proc/%d/stat" % pid, 4096)
    if not raw:
        return None
    head, _, tail = raw.rpartition(b")")
    fields = tail.split()
    if len(fields) < 22:
        return None
    return {
        "pid": pid,
        "ppid": int(fields[1]),
        "pgid": int(fields[2]),
        "sid": int(fields[3]),
        "state": fields[0].decode("ascii", "replace"),
        "start": int(fields[19]),
        "threads": int(fields[17]),
        "rss_kb": int(fields[21]) * _PAGE_KB,
        "cpu_ticks": int(fields[11]) + int(fields[12]),
        "comm": head.partition(b"(")[2].decode("utf-8", "replace"),
    }


def pids() -> List[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def snapshot() -> Dict[int, Row]:
    """`stat` of every process, by pid."""
    found = ((pid, stat(pid)) for pid in pids())
    return {pid: row for pid, row in found if row is not None}


def argv(pid: int) -> Optional[List[str]]:
    """The command line as the kernel has it (surrogateescape); None: gone or not readable."""
    raw = read_bytes("/proc/%d/cmdline" % pid, MAX_CMDLINE)
    if raw is None:
        return None
    raw = raw[:-1] if raw.endswith(b"\0") else raw
    return [os.fsdecode(part) for part in raw.split(b"\0")] if raw else []


def environ(pid: int) -> Optional[Dict[bytes, bytes]]:
    """The environment a process was started with; None when not ours to read. Secrets: never leaves the host."""
    raw = read_bytes("/proc/%d/environ" % pid, 4 << 20)
    if raw is None:
        return None
    return dict(part.split(b"=", 1) for part in raw.split(b"\0") if b"=" in part)


def user_of(pid: int) -> Dict[str, Any]:
    """{"uid", "user"} of the real owner; uid None when the process is gone."""
    try:
        uid = os.stat("/proc/%d" % pid).st_uid
    except OSError:
        return {"uid": None, "user": ""}
    try:
        return {"uid": uid, "user": pwd.getpwuid(uid).pw_name}
    except KeyError:
        return {"uid": uid, "user": str(uid)}


def io_bytes(pid: int) -> Optional[Dict[str, int]]:
    """{"read_bytes": from disk (page faults of mmap too), "rchar": by read calls}; None when denied or gone."""
    raw = read_bytes("/proc/%d/io" % pid, 4096)
    if not raw:
        return None
    pairs = dict(line.split(b": ", 1) for line in raw.splitlines() if b": " in line)
    try:
        return {"read_bytes": int(pairs[b"read_bytes"]), "rchar": int(pairs[b"rchar"])}
    except (KeyError, ValueError):
        return None


def signal_sets(pid: int) -> Dict[str, Set[int]]:
    """Signals a process ignores and catches, by number: {"ignored", "caught"} (SigIgn and SigCgt)."""
    found: Dict[str, Set[int]] = {"ignored": set(), "caught": set()}
    for line in (read_bytes("/proc/%d/status" % pid, 65536) or b"").splitlines():
        for key, name in ((b"SigIgn:", "ignored"), (b"SigCgt:", "caught")):
            if line.startswith(key):
                mask = int(line.split()[1], 16)
                found[name] = {bit + 1 for bit in range(64) if mask >> bit & 1}
    return found


def container(pid: int) -> Dict[str, str]:
    """Who manages a process, by its cgroup: {"kind": docker|libpod|…|systemd|"", "id": container id or unit}.

    A process in our own cgroup is not "managed": then specdash itself is inside the same container.
    """
    mine, its = (read_bytes("/proc/%s/cgroup" % who, 65536) or b"" for who in ("self", str(pid)))
    if not its or its == mine:
        return {"kind": "", "id": ""}
    text = its.decode("utf-8", "replace")
    match = _CONTAINER.search(text)
    if match and match.group(2):
        return {"kind": match.group(1), "id": match.group(2)}
    unit = _UNIT.search(text)
    if unit and not unit.group(1).startswith(("user@", "ssh", "session", "cron")):
        return {"kind": "systemd", "id": unit.group(1)}
    return {"kind": "", "id": ""}


def tree(root: int, rows: Dict[int, Row]) -> List[int]:
    """`root` and all its descendants that are in `rows`, parents first."""
    children: Dict[int, List[int]] = {}
    for row in rows.values():
        children.setdefault(row["ppid"], []).append(row["pid"])
    found, queue = [], [root] if root in rows else []
    while queue:
        pid = queue.pop(0)
        found.append(pid)
        queue.extend(child for child in sorted(children.get(pid, ())) if child not in found)
    return found


def same(pid: int, start: int, boot: str = "") -> bool:
    """Is `pid` still the process that started at `start` ticks after boot `boot`? (A zombie still is.)"""
    if boot and boot != boot_id():
        return False
    row = stat(pid)
    return row is not None and row["start"] == start


def send(pid: int, start: int, boot: str, number: int) -> bool:
    """Send a signal if (boot, pid, start) all match. False: that process is gone. Raises PermissionError."""
    opener: Optional[Callable[[int], int]] = getattr(os, "pidfd_open", None)
    sender: Optional[Callable[[int, int], None]] = getattr(signal, "pidfd_send_signal", None)
    try:
        if opener is None or sender is None:  # Python 3.8: a check and a kill, microseconds apart
            if not same(pid, start, boot):
                return False
            os.kill(pid, number)
            return True
        try:
            handle = opener(pid)
        except ProcessLookupError:
            return False
        except OSError:  # a kernel without pidfd
            if not same(pid, start, boot):
                return False
            os.kill(pid, number)
            return True
        try:
            if not same(pid, start, boot):
                return False
            sender(handle, number)
            return True
        finally:
            os.close(handle)
    except ProcessLookupError:
        return False


def describe(row: Row) -> Row:
    """A `stat` row with user, uid, cmdline (None: hidden) and container: what a screen shows of a process."""
    pid = row["pid"]
    return dict(row, cmdline=argv(pid), container=container(pid), **user_of(pid))


def listing(only: Optional[Iterable[int]] = None) -> List[Row]:
    """`describe` of every process (or of `only`), kernel threads left out."""
    rows = snapshot()
    wanted = rows.keys() if only is None else [pid for pid in only if pid in rows]
    return [describe(rows[pid]) for pid in wanted if rows[pid]["ppid"] != 2 and pid != 2]


def _call_list(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    return {"boot_id": boot_id(), "now_boot": boot_now(), "clock_ticks": TICKS, "processes": listing()}


def _call_signal(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    """{pid, start, boot_id, signal} → {"sent": bool}. Without a full identity nothing is sent."""
    try:
        pid, start, boot = int(params["pid"]), int(params["start"]), str(params["boot_id"])
        number = int(params["signal"])
    except (KeyError, TypeError, ValueError):
        raise CallError("bad_call", "A signal needs pid, start, boot_id and signal.", "") from None
    if pid <= 1 or not boot:
        raise CallError("bad_call", "Pid %d without a boot id is not an identity." % pid, "")
    try:
        return {"sent": send(pid, start, boot, number)}
    except PermissionError:
        owner = user_of(pid)["user"]
        raise CallError(
            "denied", "Process %d belongs to %s." % (pid, owner), "Ask %s to stop it." % owner
        ) from None


def _call_look(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    """{pid, start} → one process closely: `describe` plus cwd, exe, stdout (a file's path, or "" and `stdout_kind`),
    ignored (signal numbers), env_names, tree (pids). "gone" when the identity does not match."""
    pid = int(params["pid"])
    row = stat(pid)
    if row is None or row["start"] != int(params["start"]):
        raise CallError("gone", "Process %d is gone; another one may have its number." % pid, "Look again.")
    found = describe(row)
    for name, link in (("cwd", "cwd"), ("exe", "exe"), ("stdout", "fd/1")):
        try:
            found[name] = os.readlink("/proc/%d/%s" % (pid, link))
        except OSError:
            found[name] = ""
    try:
        mode = os.stat("/proc/%d/fd/1" % pid).st_mode
        kinds = ((S_ISREG, "file"), (S_ISFIFO, "pipe"), (S_ISSOCK, "socket"), (S_ISCHR, "terminal or device"))
        found["stdout_kind"] = next((word for test, word in kinds if test(mode)), "other")
    except OSError:
        found["stdout_kind"] = "hidden"
    if found["stdout_kind"] != "file" or found["stdout"].endswith(" (deleted)"):
        found["stdout"] = ""
    found["ignored"] = sorted(signal_sets(pid)["ignored"])
    found["env_names"] = sorted(os.fsdecode(name) for name in environ(pid) or {})
    found["tree"] = tree(pid, snapshot())
    found["boot_id"] = boot_id()
    return found


def _sample(params: Dict[str, Any]) -> Dict[str, Any]:
    """{words, pids}: processes whose command line or name has one of `words`, and `pids`, with all their descendants.

    What to look for is the caller's to know. → {"boot_id", "now_boot", "clock_ticks", "processes": [`describe`]}.
    """
    words = [str(word) for word in params.get("words") or ()]
    rows = snapshot()
    wanted = {int(pid) for pid in params.get("pids") or ()} & rows.keys()
    for pid, row in rows.items():
        text = " ".join(argv(pid) or [row["comm"]])[:4096]
        if pid != os.getpid() and any(word in text for word in words):
            wanted.add(pid)
    for pid in list(wanted):
        wanted.update(tree(pid, rows))
    return {
        "boot_id": boot_id(),
        "now_boot": boot_now(),
        "clock_ticks": TICKS,
        "processes": [describe(rows[pid]) for pid in sorted(wanted)],
    }


SAMPLES: Dict[str, Callable[[Dict[str, Any]], Dict[str, Any]]] = {"procs": _sample}
CALLS: Dict[str, Callable[[Dict[str, Any], bytes], Dict[str, Any]]] = {
    "procs.list": _call_list,
    "procs.look": _call_look,
    "procs.signal": _call_signal,
}
