"""Kinds about a living server: its pages, probes and processes go through the reducer as they would from a host."""

from __future__ import annotations

from typing import Any

from specdash.monitor import breakeven, liveness, memory
from specdash.monitor.events import Event, HttpSeen, LinkChanged, LogRead, RunSampled, RunsListed, Tick
from specdash.monitor.reduce import reduce, start
from specdash.monitor.state import ServerState
from specdash.sglang import acceptance
from tests.cases.adapter import Answer, Case, answers


class Watch:
    """One run under watch; `ready` as its supervisor would have recorded it."""

    def __init__(self, ready: bool = True) -> None:
        record = {"id": "r", "alive": True, "http": {"port": 1}, "ready_boot_s": 1.0 if ready else None}
        self.state = start([("h", "")])
        self.see(0, LinkChanged("up"))
        self.see(0, RunsListed((record,)))

    def see(self, at: float, body: Any) -> ServerState:
        host, run = (
            ("", "")
            if isinstance(body, Tick)
            else ("h", "" if isinstance(body, (LinkChanged, RunsListed)) else "r")
        )
        self.state = reduce(self.state, Event(float(at), host, body, run))
        return self.state.hosts["h"].servers.get("r") or ServerState(None)  # type: ignore[arg-type]


def told(server: ServerState) -> Answer:
    n, m = server.numbers, memory.of(server)
    gauge = sum(m.gauges.get("gen_throughput", {}).values())
    return {
        "state": server.health.state, "category": server.health.category, "evidence": list(server.health.evidence),
        "reason": server.health.sentence[:1].lower() + server.health.sentence[1:].rstrip("."), "auto_restart": False,
        "tok_s": n.decode_tok_s.value, "gauge_is_stale": bool(gauge) and n.decode_tok_s.value != gauge,
        "metrics": "unavailable" if m.metrics_why else "available", "hint": [h.split(" (")[0] for h in m.metrics_hint],
        "accept_len_per_dp": [row.get("accept_length_start") for row in n.per_dp] or [n.accept_length_start.value],
        "max_running_total": n.running_cap.value,
    }  # fmt: skip


@answers("metrics")
def pages(case: Case) -> Answer:
    watch, at = Watch(), 0.0
    status = case.context.get("http_status", 200)
    bodies = [case.data(i) for i in range(len(case.inputs))]
    for body in bodies:
        watch.see(at, HttpSeen("metrics", status, body))
        at += case.context.get("seconds_between", 1)
    for _ in range(0, int(case.context.get("unchanged_for_s", 0)), 5):
        at += 5
        watch.see(at - 1, HttpSeen("metrics", status, bodies[-1]))
    return {**told(watch.see(at, Tick())), "http_status": status}


@answers("server_info")
def info(case: Case) -> Answer | None:
    if case.part() == "json":  # a case's own sidecar lies where a body should: nothing of a server to read
        return None
    watch = Watch()
    watch.see(1, HttpSeen("server_info", 200, case.data()))
    return told(watch.see(2, Tick()))


@answers("mixed")
def mixed(case: Case) -> Answer | None:
    logs = [i for i, path in enumerate(case.inputs) if path.suffix == ".log"]
    probes = [i for i, path in enumerate(case.inputs) if path.name.endswith("probe.json")]
    if not logs or not probes:
        return None
    watch, log, probe = Watch(), case.data(logs[0]), case.json(probes[0])
    watch.see(20, LogRead(0, log, len(log)))
    watch.see(21, HttpSeen(probe["path"].strip("/"), probe.get("status"), took_s=probe.get("took_s", 0.0)))
    return told(watch.see(22, Tick()))


@answers("json")
def probes(case: Case) -> Answer | None:
    data = case.json()
    if "poll_plan" in data:
        plan = data["poll_plan"]
        problem = liveness.poll_plan_problem(plan["path"], plan["interval_s"], plan["client_timeout_s"])
        return {"acceptable": not problem}
    if "timeline" not in data and "ps" not in data:
        return None
    watch = Watch("timeline" not in data)
    seen = [(row["t"], row) for key in ("timeline", "http", "metrics") for row in data.get(key, ())]
    tree = [{"pid": p["pid"], "ppid": p["ppid"], "state": "S", "title": p["cmd"]} for p in data.get("ps", ())]
    watch.see(0, RunSampled(({"tree": tree},)))
    states, last = [], 0.0
    for last, row in sorted(seen, key=lambda pair: pair[0]):
        path = str(row.get("path", "/health")).strip("/")
        page = "".join(f"{key} {value}\n" for key, value in row.items() if key.startswith("sglang:"))
        body = (
            HttpSeen("metrics", 200, page.encode())
            if page
            else HttpSeen(path, row.get("status"), problem=row.get("connect", ""))
        )
        states.append(watch.see(last, body).health.state)
    return {**told(watch.see(last + 1, Tick())), "states": states}


@answers("json")
def requests(case: Case) -> Answer | None:
    data = case.json()
    if "runs" in data and all({"tok_s", "tp", "algorithm"} <= set(run) for run in data["runs"]):
        runs = [
            breakeven.Measured(f"tp={run['tp']}", run["algorithm"] or "", run["tok_s"])
            for run in data["runs"]
        ]
        found = breakeven.against_base(runs)
        return {
            "best": {k: v.best or None for k, v in found.items()},
            "speedup": {k: v.speedup for k, v in found.items()},
        }
    if "spec_verify_ct" not in data:
        return None
    one = acceptance.of([data])
    return {"accept_len_incl_bonus": one.accept_length, "drafts_per_step": one.drafts_per_step,
            "accept_rate": one.accept_rate, "proposed_per_step": one.proposed_per_step}  # fmt: skip
