"""`specdash explain` of a JSON file that holds what somebody saw: each shape by its own keys, read by the same rules.

Shapes: a response's `meta_info`; `runs` that were measured; a server's `timeline`, `http`, `metrics` and `ps`; a
`poll_plan`; `polls` of a GPU tool; looks at a log `file` (`events`); `results` of sessions that were opened at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from specdash.host import classify
from specdash.host.remote import follow, gpu
from specdash.monitor import breakeven, comparing, liveness
from specdash.monitor.events import HttpSeen, LogLost, LogRead, RunSampled
from specdash.monitor.hindsight import Hindsight
from specdash.sglang import acceptance

Body = Mapping[str, Any]
Told = dict[str, Any]


def read(body: Any) -> Told | None:
    """What is concluded, with its `kind`; None when it is none of these shapes. Raises nothing for odd values."""
    if not isinstance(body, Mapping):
        return None
    for kind, reader in READERS.items():
        try:
            found = reader(body)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError):
            continue
        if found is not None:
            return {"kind": kind, **found}
    return None


def request(body: Body) -> Told | None:
    meta = body.get("meta_info", body)
    return acceptance.of([meta])._asdict() if "spec_verify_ct" in meta else None


def runs(body: Body) -> Told | None:
    if "runs" not in body:
        return None
    rows = body["runs"]
    measured = [
        breakeven.Measured(f"tp={row['tp']}", row["algorithm"] or "", row["tok_s"])
        for row in rows
        if {"tok_s", "tp", "algorithm"} <= set(row)
    ]
    against = breakeven.against_base(measured)
    return {
        **asdict(comparing.compare(rows)),
        "best": {terms: one.best or None for terms, one in against.items()},
        "speedup": {terms: one.speedup for terms, one in against.items()},
    }


def timeline(body: Body) -> Told | None:
    """Rows {"t" (s), "path", "status", "connect" (why it did not)} or {"t", "sglang:…": value}; `ps` rows."""
    if "timeline" not in body and "ps" not in body:
        return None
    watch = Hindsight(ready="timeline" not in body)
    tree = [{"pid": p["pid"], "ppid": p["ppid"], "state": "S", "title": p["cmd"]} for p in body.get("ps", ())]
    watch.see(0, RunSampled(({"tree": tree},)))
    rows = [row for key in ("timeline", "http", "metrics") for row in body.get(key, ())]
    states, last = [], 0.0
    for row in sorted(rows, key=lambda row: float(row["t"])):
        last = float(row["t"])
        page = "".join(f"{key} {value}\n" for key, value in row.items() if key.startswith("sglang:"))
        path = str(row.get("path", "/health")).strip("/")
        answer = HttpSeen(path, row.get("status"), problem=row.get("connect", ""))
        server = watch.see(last, HttpSeen("metrics", 200, page.encode()) if page else answer)
        states.append(server.health.state if server else "")
    return {"server": watch.conclude(last + 1), "states": states}


def poll_plan(body: Body) -> Told | None:
    if "poll_plan" not in body:
        return None
    plan = body["poll_plan"]
    problem = liveness.poll_plan_problem(plan["path"], plan["interval_s"], plan["client_timeout_s"])
    return {"acceptable": not problem, "problem": problem}


def gpu_polls(body: Body) -> Told | None:
    """Rows {"t" (s), "ok", "gpu0_used" (MiB)}: what is shown after the last of them."""
    if "polls" not in body:
        return None
    good = [row for row in body["polls"] if row.get("ok")]
    if not good:
        return {"shown": None}
    held = {"t_boot": good[-1]["t"], "gpus": []}
    age_s = gpu.stale(held, body["polls"][-1]["t"], "nvidia-smi hangs")["age_s"]
    used = f"{good[-1]['gpu0_used']:.0f} MiB"
    return {"shown": f"{used}, {gpu.age_words(age_s)}" if age_s else used}


def log_looks(body: Body) -> Told | None:
    """Rows {"t" (s), "inode", "size"} or {"t", "missing"}: when the log is read anew, and what its server is taken for."""
    if "events" not in body or "file" not in body:
        return None
    watch = Hindsight()
    inode = offset = generation = 0
    reopened: list[Any] = []
    after: dict[Any, str] = {}
    for row in body["events"]:
        if row.get("missing"):
            server = watch.see(row["t"], LogLost(f"{body['file']} is not there"))
        else:
            if inode and not follow.same_file((0, inode), offset, (0, row["inode"]), row["size"]):
                reopened.append(row["t"])
                generation, offset = generation + 1, 0
            server = watch.see(row["t"], LogRead(offset, b"", row["size"], generation))
            inode, offset = row["inode"], row["size"]
        state = server.health.state if server is not None else ""
        lost = server is not None and bool(server.log.missing) and state not in ("down", "hung_suspected")
        after[row["t"]] = "log missing (server may be fine)" if lost else state
    return {"reopened": reopened, "after": after, "restarted": watch.server.story.attempts > 1}


def sessions(body: Body) -> Told | None:
    if "results" not in body or "opened_at_once" not in body:
        return None
    found = classify.session_limit(body["results"])
    return {"category": str(found.category), "sentence": found.sentence, **dict(found.detail or {})}


READERS: dict[str, Callable[[Body], Told | None]] = {
    "request": request,
    "runs": runs,
    "server": timeline,
    "poll_plan": poll_plan,
    "gpu_polls": gpu_polls,
    "log_looks": log_looks,
    "sessions": sessions,
}
