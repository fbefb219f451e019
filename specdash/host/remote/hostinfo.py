"""Facts about the host: `hello` once, the `host` sample again and again. Reads files only, starts nothing."""

from __future__ import annotations

import glob
import hashlib
import os
import platform
import pwd
import socket
import sys
import time
from typing import Any, Dict, List, Optional

from specdash.host.remote import wire


def read_text(path: str, limit: int = 65536) -> Optional[str]:
    """A small file's text, None when it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(limit).decode("utf-8", "replace")
    except OSError:
        return None


def boot_clock() -> float:
    """Seconds since boot, suspend included: the clock of everything that specdash records on a host."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def boot_id() -> str:
    return (read_text("/proc/sys/kernel/random/boot_id") or "").strip()


def machine_id() -> str:
    """systemd's machine id; where there is none (many containers), one made of the host name."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        text = (read_text(path) or "").strip().lower()
        if len(text) == 32 and all(char in "0123456789abcdef" for char in text):
            return text
    return hashlib.sha256(("specdash " + socket.gethostname()).encode()).hexdigest()[:32]


def base_folder(run_root: Optional[str] = None) -> str:
    """The folder of this host's runs: home folders can be shared by hosts."""
    return os.path.join(os.path.expanduser(run_root or "~/.specdash"), "hosts", machine_id())


def memory_kb() -> Dict[str, int]:
    """/proc/meminfo in kB."""
    values: Dict[str, int] = {}
    for line in (read_text("/proc/meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            values[name] = int(words[0])
    return values


def in_container() -> bool:
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"):
        return True
    environ = read_text("/proc/1/environ") or ""
    cgroup = read_text("/proc/1/cgroup") or ""
    return "container=" in environ or any(
        word in cgroup for word in ("docker", "kubepods", "containerd", "lxc")
    )


def linger(user: str) -> Optional[bool]:
    """Whether systemd keeps the user's processes after logout; None without systemd."""
    if not os.path.isdir("/run/systemd/system"):
        return None
    return os.path.exists("/var/lib/systemd/linger/" + user)


def kill_user_processes() -> Optional[bool]:
    """logind's KillUserProcesses as configured; None where nothing says (the built-in default varies)."""
    if not os.path.isdir("/run/systemd/system"):
        return None
    paths: List[str] = ["/etc/systemd/logind.conf"]
    drop_ins = {}
    for folder in ("/usr/lib/systemd", "/run/systemd", "/etc/systemd"):
        for path in glob.glob(folder + "/logind.conf.d/*.conf"):
            drop_ins[os.path.basename(path)] = path
    paths += [drop_ins[name] for name in sorted(drop_ins)]
    answer: Optional[bool] = None
    for path in paths:
        for line in (read_text(path) or "").splitlines():
            name, _, value = line.partition("=")
            if name.strip() == "KillUserProcesses" and value.strip():
                answer = value.strip().lower() in ("yes", "true", "1", "on")
    return answer


def hello(params: Dict[str, Any], _blob: bytes) -> Dict[str, Any]:
    """`hello` {run_root}: see HELLO_KEYS in host/link.py. Units: seconds, kB, ticks per second."""
    memory = memory_kb()
    try:
        entry = pwd.getpwuid(os.getuid())
        user, home, shell = entry.pw_name, entry.pw_dir, entry.pw_shell
    except KeyError:  # a container that runs as a number without a name
        user, home, shell = str(os.getuid()), os.path.expanduser("~"), os.environ.get("SHELL", "")
    return {
        "protocol": wire.VERSION,
        "agent_pid": os.getpid(),
        "hostname": socket.gethostname(),
        "user": user,
        "uid": os.getuid(),
        "home": os.path.expanduser("~") if os.environ.get("HOME") else home,
        "machine_id": machine_id(),
        "boot_id": boot_id(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "kernel": platform.release(),
        "shell": shell,
        "now_unix": time.time(),
        "now_boot": boot_clock(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "mem_total_kb": memory.get("MemTotal"),
        "mem_available_kb": memory.get("MemAvailable"),
        "clock_ticks": os.sysconf("SC_CLK_TCK"),
        "base": base_folder(params.get("run_root")),
        "container": in_container(),
        "linger": linger(user),
        "kill_user_processes": kill_user_processes(),
    }


def _cpu_ticks() -> Optional[List[int]]:
    """[busy, all] of all CPUs since boot, in ticks."""
    first = (read_text("/proc/stat", 4096) or "").partition("\n")[0].split()
    if len(first) < 6 or first[0] != "cpu":
        return None
    numbers = [int(word) for word in first[1:9]]
    return [sum(numbers) - numbers[3] - numbers[4], sum(numbers)]


def sample(params: Dict[str, Any]) -> Dict[str, Any]:
    """The `host` sample {run_root}: what is not known is None, never 0."""
    state = params["_state"]
    memory = memory_kb()
    ticks, before = _cpu_ticks(), state.get("ticks")
    state["ticks"] = ticks
    busy: Optional[float] = None
    if ticks and before and ticks[1] > before[1]:
        busy = (ticks[0] - before[0]) / float(ticks[1] - before[1])
    folder = os.path.expanduser(params.get("run_root") or "~")
    while not os.path.exists(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    free: Optional[int] = None
    try:
        disk = os.statvfs(folder)
        free = disk.f_bavail * disk.f_frsize
    except OSError:
        pass
    return {
        "now_unix": time.time(),
        "now_boot": boot_clock(),
        "boot_id": boot_id(),
        "load_1min": os.getloadavg()[0],
        "cpu_busy_fraction": busy,
        "mem_total_kb": memory.get("MemTotal"),
        "mem_available_kb": memory.get("MemAvailable"),
        "disk_free_bytes": free,
    }


CALLS = {"hello": hello, "ping": lambda params, blob: {"now_boot": boot_clock()}}
SAMPLES = {"host": sample}
