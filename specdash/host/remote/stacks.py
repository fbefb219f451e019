"""Where each process of a run is stuck: `py-spy dump` where it is installed, and what /proc tells of every thread.

py-spy is asked not to pause the process: of one that hangs the stack is exact, and one that serves does not notice.
The text is kept in the run folder (0600). Nothing is signalled, attached to or ended.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from specdash.host.remote import children, journal, kin, procs, runstore
from specdash.host.remote import folder as folders
from specdash.host.remote.wire import CallError

MOST_PROCESSES = 64
MOST_THREADS = 400
MOST_BYTES = 4 << 20
DUMP_S = 15.0
TRIES = 3
"""A stack that moves while it is read can come out broken: then once more."""
KEEP = 20
"""Files of stacks kept in a run folder, newest."""
PARALLEL = 4
WAITS = {
    "R": "runs",
    "S": "sleeps",
    "D": "waits for a device, cannot be interrupted",
    "T": "is stopped",
    "t": "is traced",
    "Z": "is a zombie",
}


def members(folder: str, found: Dict[str, Any]) -> List[procs.Row]:
    """Living processes of the run that `runstore.record` found, its launcher first."""
    if not found.get("pid") or found.get("boot_id") != procs.boot_id():
        return []
    root = int(found["pid"])
    mark = folders.mark(str(found["id"]), folder)
    who = kin.Kin(mark, root, int(found.get("start") or 0), bool(found.get("own_session")))
    return sorted(kin.living(who.members(deep=True)), key=lambda row: (row["pid"] != root, row["pid"]))


def spy_of(rows: List[procs.Row], python: str) -> str:
    """The py-spy to use: beside the run's interpreter, beside ours, on PATH; "" when there is none."""
    beside = [python, sys.executable]
    for row in rows[:1]:
        beside.append((procs.argv(row["pid"]) or [""])[0])
    for path in beside:
        tool = os.path.join(os.path.dirname(os.path.expanduser(path)), "py-spy")
        if os.path.isabs(tool) and os.access(tool, os.X_OK):
            return tool
    return shutil.which("py-spy") or ""


def title_of(row: procs.Row) -> str:
    """What a process is called, without the values on its command line."""
    words = procs.argv(row["pid"]) or [str(row["comm"])]
    return " ".join(words[:3])[:120]


def dump(tool: str, pid: int, cancelled: Any = None) -> Tuple[str, str]:
    """(text of py-spy, why there is none)."""
    why = ""
    for _ in range(TRIES):
        order = {
            "argv": [tool, "dump", "--nonblocking", "--pid", str(pid)],
            "timeout": DUMP_S,
            "max_bytes": 1 << 20,
            "_cancelled": cancelled,
        }
        answer = children.run(order, b"")
        text = bytes(answer["blob"]).decode("utf-8", "replace")
        if answer["code"] == 0 and text.strip():
            # Its heading repeats the command line, which may hold a key: ours stands above it.
            lines = [line for line in text.splitlines() if not line.startswith(("Process ", "Python v"))]
            return "\n".join(lines).strip("\n"), ""
        if answer["timed_out"]:
            return "", "py-spy did not answer within %.0f s" % DUMP_S
        told = [line for line in str(answer["stderr"]).splitlines() if line.strip()]
        why = told[-1].strip()[:300] if told else "py-spy ended with code %s" % answer["code"]
        if "ermission" in why or "perating system" in why:
            break
    return "", why


def kernel(pid: int) -> List[str]:
    """One line for each thread by /proc: name, state, where it waits; and the kernel's stack where root may read it."""
    rows: List[str] = []
    try:
        tids = sorted(int(name) for name in os.listdir("/proc/%d/task" % pid))
    except OSError:
        return ["gone"]
    for tid in tids[:MOST_THREADS]:
        base = "/proc/%d/task/%d" % (pid, tid)
        stat = procs.read_bytes(base + "/stat", 4096) or b""
        letter = stat.rpartition(b")")[2].split()[:1]
        state = letter[0].decode("ascii", "replace") if letter else "?"
        name = (procs.read_bytes(base + "/comm", 256) or b"?").decode("utf-8", "replace").strip()
        where = (procs.read_bytes(base + "/wchan", 256) or b"").decode("ascii", "replace").strip()
        call = (procs.read_bytes(base + "/syscall", 256) or b"").decode("ascii", "replace").split()[:1]
        said = "thread %d %s: %s (%s)" % (tid, name, WAITS.get(state, "is in state " + state), state)
        if where not in ("", "0"):
            said += ", in %s" % where
        if call and call[0].isdigit():
            said += ", system call %s" % call[0]
        rows.append(said)
        stack = (procs.read_bytes(base + "/stack", 16384) or b"").decode("ascii", "replace")
        rows.extend("    " + line.split("] ", 1)[-1].split("+", 1)[0] for line in stack.splitlines()[:12])
    if len(tids) > MOST_THREADS:
        rows.append("… and %d threads more" % (len(tids) - MOST_THREADS))
    return rows


def look(row: procs.Row, tool: str, cancelled: Any = None) -> Dict[str, Any]:
    """One process: pid, start, title, state, how ("py-spy" or "kernel"), problem (why no py-spy), text."""
    pid, title = row["pid"], title_of(row)
    text, problem = "", ""
    is_python = "python" in _exe(pid)
    if not is_python:
        problem = "no Python program"
    elif not tool:
        problem = "py-spy is not installed on this host"
    else:
        text, problem = dump(tool, pid, cancelled)
    parts = [text] if text else []
    if not procs.same(pid, row["start"]):
        parts, problem = ["gone"], "it ended meanwhile"
    else:
        parts += kernel(pid)
    return {
        "pid": pid,
        "start": row["start"],
        "title": title,
        "state": row["state"],
        "how": "py-spy" if text else "kernel",
        "problem": problem if not text else "",
        "text": "\n".join(parts),
    }


def _exe(pid: int) -> str:
    try:
        return os.path.basename(os.readlink("/proc/%d/exe" % pid)).lower()
    except OSError:
        return "python"  # not ours to read: py-spy will say what is missing


def take(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    """`runs.stacks` {base, id, keep (write the file), py_spy (a path, to use another)} → {path ("" when not kept),
    taken_unix, tool, processes: [`look` without its text]} + blob: the text. "ended" when nothing of it lives."""
    base, ident = runstore.base_of(params), str(params.get("id") or "")
    folder = runstore.folder_of(base, ident)
    found = runstore.record(folder)
    if found is None:
        raise CallError("not_found", "There is no run %s on this host." % ident, "")
    rows = members(folder, found)
    if not rows:
        raise CallError("ended", "No process of the run %s is there." % ident, "Its log is all that is left.")
    tool = str(params.get("py_spy") or "") or spy_of(rows, str(found.get("python") or ""))
    if tool == "none":
        tool = ""
    seen = _all(rows[:MOST_PROCESSES], tool, params.get("_cancelled"))
    now = time.time()
    head = "Stacks of %s at %s UTC" % (ident, time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(now)))
    body = [head, "by %s" % (tool or "/proc only: py-spy is not installed here"), ""]
    for one in seen:
        why = " (no Python stack: %s)" % one["problem"] if one["problem"] else ""
        body += ["== pid %d %s%s" % (one["pid"], one["title"], why), one["text"], ""]
    if len(rows) > MOST_PROCESSES:
        body.append("… and %d processes more" % (len(rows) - MOST_PROCESSES))
    data = "\n".join(body).encode("utf-8", "replace")[:MOST_BYTES]
    path = _save(folder, data, now) if params.get("keep", True) else ""
    short = [{key: value for key, value in one.items() if key != "text"} for one in seen]
    return {"path": path, "taken_unix": round(now, 3), "tool": tool, "processes": short, "blob": data}


def _all(rows: List[procs.Row], tool: str, cancelled: Any) -> List[Dict[str, Any]]:
    """A few at a time: eight ranks that hang must not take eight times the time limit."""
    out: List[Optional[Dict[str, Any]]] = [None] * len(rows)
    left = list(range(len(rows)))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if not left:
                    return
                at = left.pop(0)
            out[at] = look(rows[at], tool, cancelled)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(PARALLEL, len(rows)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [one for one in out if one is not None]


def _save(folder: str, data: bytes, now: float) -> str:
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now)) + "%03d" % int(now % 1 * 1000)
    path = os.path.join(folder, "stacks-%s.txt" % stamp)
    journal.put(path, data)
    kept = sorted(name for name in os.listdir(folder) if name.startswith("stacks-") and name.endswith(".txt"))
    for name in kept[:-KEEP]:
        os.unlink(os.path.join(folder, name))
    return path


CALLS: Dict[str, Callable[[Dict[str, Any], bytes], Dict[str, Any]]] = {"runs.stacks": take}
