"""Find SGLang servers in a process table, and whose they are. Pure: over rows that somebody else read.

A row has pid, ppid, pgid, sid (ints; 0: not told), user, cmdline (list of words) and maybe container
({"kind", "id"}). Launchers: `python -m sglang.launch_server`, `python …/launch_server.py`, `sglang serve`.
Workers rename themselves `sglang::scheduler…`, `sglang::detokenizer`, …: with no launcher above them they are
orphans. An editor on a file named after SGLang, a shell or a docker client that mentions it is neither.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Optional, Sequence

Row = Mapping[str, Any]

_PYTHON = re.compile(r"^(?:python|pypy)[0-9.]*$")
WORDS = ("sglang", "launch_server")
"""What the agent's `procs` sample is asked to look for."""


def launcher_form(cmdline: Sequence[str]) -> str:
    """How a process launches a server: "module", "script", "serve", or "" when it does not."""
    if not cmdline:
        return ""
    first = cmdline[0].rsplit("/", 1)[-1]
    words = list(cmdline)
    if first == "sglang":
        return "serve" if words[1:2] == ["serve"] else ""
    if not _PYTHON.match(first):
        return ""
    at = 1
    while at < len(words) and words[at].startswith("-"):
        if words[at] in ("-m", "-c"):
            break
        at += 2 if words[at] in ("-W", "-X", "--check-hash-based-pycs") else 1
    if at >= len(words):
        return ""
    if words[at] == "-m":
        module = words[at + 1] if at + 1 < len(words) else ""
        if module == "sglang.launch_server":
            return "module"
        return "serve" if module.split(".")[0] == "sglang" and words[at + 2 : at + 3] == ["serve"] else ""
    if words[at] == "-c":
        return ""
    script = words[at].rsplit("/", 1)[-1]
    if script == "launch_server.py":
        return "script"
    return "serve" if script == "sglang" and words[at + 1 : at + 2] == ["serve"] else ""


def worker_role(cmdline: Sequence[str]) -> str:
    """ "scheduler_TP0", "detokenizer", … of a process that SGLang renamed; "" for any other."""
    title = " ".join(cmdline[:1])
    return title[8:].strip() if title.startswith("sglang::") else ""


def flag(cmdline: Sequence[str], *names: str) -> Optional[str]:
    """Value of an option on a command line (`--x v` or `--x=v`, the last one wins), None when not given."""
    found: Optional[str] = None
    for index, word in enumerate(cmdline):
        name, joined, value = word.partition("=")
        if name in names:
            if joined:
                found = value
            elif index + 1 < len(cmdline):
                found = cmdline[index + 1]
    return found


def find(
    rows: Sequence[Row], user: str = "", containers: Sequence[Mapping[str, str]] = ()
) -> List[Dict[str, Any]]:
    """All servers, by launcher: pid, form, user, port, model, algorithm, drafter, workers (pids), cmdline,
    managed_by ("", "docker", "systemd", "user NAME"), stop_with (what to run instead), restart_policy_check.

    `user` is who we are ("root" may do all); `containers` [{"id", "name"}] as `docker ps` tells.
    """
    by_pid = {row["pid"]: row for row in rows}
    found = []
    for row in rows:
        words = list(row.get("cmdline") or ())
        form = launcher_form(words)
        if not form or _above(row, by_pid, lambda up: bool(launcher_form(list(up.get("cmdline") or ())))):
            continue
        port = flag(words, "--port")
        server: Dict[str, Any] = {
            "pid": row["pid"],
            "start": row.get("start"),
            "form": form,
            "user": row.get("user", ""),
            "port": int(port) if port is not None and port.isdigit() else (30000 if port is None else None),
            "model": flag(words, "--model-path", "--model") or "",
            "algorithm": flag(words, "--speculative-algorithm", "--speculative-algo") or "",
            "drafter": flag(words, "--speculative-draft-model-path", "--speculative-draft-model") or "",
            "workers": [one["pid"] for one in rows if one is not row and _under(one, row["pid"], by_pid)],
            "cmdline": words,
        }
        server.update(managed(row, by_pid, user, containers))
        found.append(server)
    return found


def _under(row: Row, root: int, by_pid: Mapping[int, Row]) -> bool:
    return _above(row, by_pid, lambda up: bool(up["pid"] == root)) is not None


def _above(row: Row, by_pid: Mapping[int, Row], test: Any) -> Optional[Row]:
    """The nearest ancestor that passes `test`."""
    seen = {row["pid"]}
    up = by_pid.get(row.get("ppid", 0))
    while up is not None and up["pid"] not in seen:
        if test(up):
            return up
        seen.add(up["pid"])
        up = by_pid.get(up.get("ppid", 0))
    return None


def managed(
    row: Row, by_pid: Mapping[int, Row], user: str, containers: Sequence[Mapping[str, str]] = ()
) -> Dict[str, Any]:
    """Who else would have to stop this process: {"managed_by", "stop_with", "restart_policy_check"}."""
    told = row.get("container") or {}
    kind, ident = str(told.get("kind") or ""), str(told.get("id") or "")
    shim = _above(row, by_pid, lambda up: "containerd-shim" in " ".join(up.get("cmdline") or ())[:400])
    if shim is not None:
        words = list(shim.get("cmdline") or ())
        ident = flag(words, "-id", "--id") or ident
        space = flag(words, "-namespace", "--namespace")
        kind = "docker" if space in (None, "moby") else "kubernetes" if space == "k8s.io" else "containerd"
    if kind == "systemd":
        return {
            "managed_by": "systemd",
            "stop_with": "systemctl stop %s" % ident,
            "restart_policy_check": True,
        }
    if kind:
        tool = {"libpod": "podman", "kubepods": "kubernetes", "crio": "kubernetes"}.get(kind, kind)
        name = next((one["name"] for one in containers if _same(one.get("id", ""), ident)), ident[:12])
        stop = {"docker": "docker stop %s", "podman": "podman stop %s"}.get(
            tool, "the container's own tool (%s)"
        )
        return {"managed_by": tool, "stop_with": stop % name, "restart_policy_check": True}
    owner = str(row.get("user") or "")
    if user and owner and owner != user and user != "root":
        return {"managed_by": "user %s" % owner, "stop_with": "ask %s" % owner, "restart_policy_check": False}
    return {"managed_by": "", "stop_with": "", "restart_policy_check": False}


def _same(one: str, other: str) -> bool:
    return bool(one) and bool(other) and (one.startswith(other) or other.startswith(one))


def orphans(rows: Sequence[Row], user: str = "", recorded: Sequence[Mapping[str, Any]] = ()) -> List[int]:
    """Pids of workers with no launcher above them, that are of ours: in the group or session of a `recorded`
    launch ({"root_pid", "pgid"}), or, for one of our user, handed to init. Never another user's."""
    by_pid = {row["pid"]: row for row in rows}
    groups = {int(one[key]) for one in recorded for key in ("root_pid", "pgid") if one.get(key)}
    found = []
    for row in rows:
        if user and row.get("user") and row["user"] != user:
            continue
        if not worker_role(list(row.get("cmdline") or ())):
            continue
        if _above(row, by_pid, lambda up: bool(launcher_form(list(up.get("cmdline") or ())))) is not None:
            continue
        if managed(row, by_pid, user)["managed_by"]:
            continue
        if {row.get("pgid"), row.get("sid")} & groups or row.get("ppid") == 1:
            found.append(row["pid"])
    return sorted(found)


def gpu_holders(
    held: Sequence[Mapping[str, Any]], rows: Sequence[Row], ours: Sequence[int], user: str = ""
) -> Dict[str, Dict[str, Any]]:
    """Per GPU index: {"ours_mib", "others_mib", "launch": ok | warn | other user | unknown holder}.

    `held`: [{"index", "pid", "mib"}]. `ours`: pids that a cleanup may end.
    """
    by_pid = {row["pid"]: row for row in rows}
    out: Dict[str, Dict[str, Any]] = {}
    for one in held:
        gpu = out.setdefault(str(one["index"]), {"ours_mib": 0, "others_mib": 0, "launch": "ok"})
        row = by_pid.get(one["pid"])
        if one["pid"] in ours:
            gpu["ours_mib"] += one.get("mib") or 0
            if gpu["launch"] == "ok":
                gpu["launch"] = "warn"
        else:
            gpu["others_mib"] += one.get("mib") or 0
            other = row is not None and user and row.get("user") not in ("", user)
            gpu["launch"] = "other user" if other else "unknown holder" if row is None else "warn"
    return out


def parse_ps(text: str) -> List[Dict[str, Any]]:
    """Rows of `ps` output with a header: the columns it has, the command last. Words are split at blanks."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return []
    names = lines[0].split()
    if "PID" not in names or names[-1] not in ("CMD", "COMMAND", "ARGS"):
        return []
    found = []
    for line in lines[1:]:
        parts = line.split(None, len(names) - 1)
        if len(parts) < len(names):
            continue
        told = dict(zip(names, parts))
        if not told["PID"].isdigit():
            continue
        row: Dict[str, Any] = {
            "user": told.get("USER", ""),
            "state": told.get("STAT", ""),
            "cmdline": parts[-1].split(),
        }
        for key in ("PID", "PPID", "PGID", "SID"):
            word = told.get(key, "0")
            row[key.lower()] = int(word) if word.isdigit() else 0
        found.append(row)
    return found


def parse_docker_ps(text: str) -> List[Dict[str, str]]:
    """[{"id", "name"}] of `docker ps`: its table, or lines of `--format '{{.ID}} {{.Names}}'`."""
    lines = [line for line in text.splitlines() if line.strip()]
    found = []
    name_at: Optional[int] = None
    end: Optional[int] = None
    for line in lines:
        if line.startswith("CONTAINER ID"):
            name_at = line.find("NAMES")
            rest = line[name_at + 5 :]
            end = name_at + 5 + len(rest) - len(rest.lstrip()) if rest.strip() else None
            continue
        ident = line.split()[0]
        name = line[name_at:end].strip() if name_at is not None else line.split()[-1]
        found.append({"id": ident, "name": name})
    return found


def listing(
    ps: str, user: str = "", recorded: Sequence[Mapping[str, Any]] = (), docker: str = "", apps: str = ""
) -> Dict[str, Any]:
    """What texts of `ps`, `docker ps` and `nvidia-smi --query-compute-apps` (index, pid, MiB) tell together:
    {"orphans": pids that a cleanup may end, "others": all other pids, "holders": `gpu_holders`, "servers": `find`}."""
    rows = parse_ps(ps)
    ours = orphans(rows, user, recorded)
    cells = [line.split(",") for line in apps.splitlines() if line.count(",") == 2]
    held = [
        {"index": int(a), "pid": int(b), "mib": int(c)}
        for a, b, c in cells
        if all(cell.strip().isdigit() for cell in (a, b, c))
    ]
    return {
        "orphans": ours,
        "others": [row["pid"] for row in rows if row["pid"] not in ours],
        "holders": gpu_holders(held, rows, ours, user),
        "servers": find(rows, user, parse_docker_ps(docker)),
    }
