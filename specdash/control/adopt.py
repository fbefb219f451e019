"""Servers that others started: find them, show what they run, and take one over by name.

Until it is adopted a server is only looked at. Adopting starts nothing and changes nothing in it: a supervisor
gets beside it that keeps evidence and can stop it. A server that something else manages (docker, systemd, another
user) cannot be adopted: stopping it here could restart it there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from specdash.control import hostruns
from specdash.control.plans import Check, Danger, Plan, Step, StepEvent
from specdash.errors import Refused, RemoteError
from specdash.host.link import Link
from specdash.sglang import redact, servers


@dataclass(frozen=True, slots=True)
class Found:
    """A server on the host that is no run of ours. `servers.find` says what the fields mean."""

    pid: int
    start: int
    boot_id: str
    form: str
    user: str
    port: int | None
    model: str
    algorithm: str
    drafter: str
    workers: tuple[int, ...]
    cmdline: tuple[str, ...]
    managed_by: str
    stop_with: str
    restart_policy_check: bool
    listening: tuple[int, ...] = ()
    """Ports that its processes really listen on."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """`procs.look`: cwd, stdout (path of its log, "" when it is no file), stdout_kind, ignored signals."""

    @property
    def name(self) -> str:
        """What the operator types to adopt it."""
        return f"{self.pid}"


@dataclass(frozen=True, slots=True)
class Orphan:
    """A worker whose launcher is gone: it may hold GPU memory. `run`: the run of ours it came from, or ""."""

    pid: int
    start: int
    user: str
    title: str
    rss_kb: int
    run: str = ""


async def find(link: Link) -> tuple[list[Found], list[Orphan]]:
    """Servers that are not ours, and orphaned workers. Reads only; an observation, never a guess of idleness."""
    table = await _table(link, {"words": list(servers.WORDS)})
    rows = table["processes"]
    user = str(link.hello.get("user") or "")
    runs = (await link.call("runs.list", {"base": hostruns.base(link)}))["runs"]
    roots = {(run.get("pid"), run.get("start")) for run in runs if run.get("alive")}
    containers = await _containers(link, rows)
    listening: dict[int, list[int]] = {}
    ports = (await link.call("procs.listeners", {}))["ports"]
    for port, pids in ports.items():
        for pid in pids:
            listening.setdefault(pid, []).append(int(port))
    found = []
    for one in servers.find(rows, user, containers):
        if (one["pid"], one["start"]) in roots:
            continue
        try:
            details = await link.call("procs.look", {"pid": one["pid"], "start": one["start"]})
        except RemoteError:
            continue  # it ended while we looked
        real = tuple(sorted({port for pid in details["tree"] for port in listening.get(pid, ())}))
        found.append(
            Found(
                boot_id=table["boot_id"],
                listening=real,
                details=details,
                **{**one, "workers": tuple(one["workers"]), "cmdline": tuple(one["cmdline"])},
            )
        )
    recorded = [{"root_pid": run.get("pid"), "pgid": run.get("pid")} for run in runs if run.get("pid")]
    by_pid = {row["pid"]: row for row in rows}
    left = []
    for pid in servers.orphans(rows, user, recorded):
        row = by_pid[pid]
        of = next(
            (run["id"] for run in runs if run.get("pid") and run["pid"] in (row["pgid"], row["sid"])), ""
        )
        left.append(
            Orphan(pid, row["start"], row["user"], " ".join(row["cmdline"] or [])[:120], row["rss_kb"], of)
        )
    return found, left


async def _table(link: Link, params: dict[str, Any]) -> dict[str, Any]:
    async for sample in link.sample("procs", 60.0, params):
        return sample
    return {"processes": [], "boot_id": ""}


async def _containers(link: Link, rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Names of containers, only asked for when a server is in one."""
    kinds = {str((row.get("container") or {}).get("kind")) for row in rows}
    found: list[dict[str, str]] = []
    for kind, tool in (("docker", "docker"), ("libpod", "podman")):
        if kind in kinds:
            argv = [tool, "ps", "--no-trunc", "--format", "{{.ID}} {{.Names}}"]
            try:
                answer = await link.call("exec", {"argv": argv, "timeout": 5}, timeout=10)
            except RemoteError:
                continue  # no such tool for us: the id is shown instead of the name
            found += servers.parse_docker_ps(bytes(answer["blob"]).decode("utf-8", "replace"))
    return found


def plan(link: Link, server: Found) -> Plan:
    """What adopting does. Raises Refused for a server that something else manages, or that is not on this boot."""
    if server.managed_by:
        warn = " Its restart policy may bring it back." if server.restart_policy_check else ""
        raise Refused(
            f"Pid {server.pid} is managed by {server.managed_by}.{warn}", f"Stop it with: {server.stop_with}."
        )
    log = str(server.details.get("stdout") or "")
    kind = server.details.get("stdout_kind")
    port = server.listening[0] if server.port not in server.listening and server.listening else server.port
    checks = (
        Check("log", "ok", f"Its log is {log}.")
        if log
        else Check("log", "warn", f"Its output goes to a {kind}: there is no log to follow."),
    )
    ident = f"adopted-{server.pid}-{server.start}"
    return Plan(
        id=ident,
        kind="adopt",
        host=link.name,
        title=f"Adopt pid {server.pid} ({server.model or 'unknown model'}, port {port}) on {link.name}",
        danger=Danger.CHANGES,
        steps=(
            Step(
                "attach",
                "Put a supervisor beside it",
                "it only reads, until you stop or switch this server",
                30.0,
            ),
        ),
        checks=checks,
        notes=(
            f"Started by {server.user}: {' '.join(redact.argv(server.cmdline))[:2000]}",
            "It can then be stopped and switched like a run of specdash. Its exit code will not be known.",
        ),
        typed_name=server.name,
        spec={"run": _run(link, server, ident, port, log)},
    )


def _run(link: Link, server: Found, ident: str, port: int | None, log: str) -> dict[str, Any]:
    tls = servers.flag(server.cmdline, "--ssl-certfile") is not None
    return {
        "id": ident,
        "profile": f"adopted-{port or server.pid}",
        "argv": list(server.cmdline),
        "cwd": str(server.details.get("cwd") or "/"),
        "python": server.cmdline[0],
        "http": {"host": "127.0.0.1", "port": port, "tls": tls},
        "rules": hostruns.RULES,
        "target": server.model,
        "algorithm": server.algorithm,
        "drafter": server.drafter,
        "adopted": True,
        "stdout": log,
        "started_by": server.user,
        "adopted_by": hostruns.operator(),
        "env_names": list(server.details.get("env_names") or ()),
        "nnodes": 1,
        "node_rank": int(servers.flag(server.cmdline, "--node-rank") or 0),
        "run_id_all": ident,
        "base": hostruns.base(link),
        "folder": hostruns.run_folder(link, ident),
        "attach": {"pid": server.pid, "start": server.start, "boot_id": server.boot_id, "own_session": False},
    }


async def run(link: Link, plan: Plan) -> AsyncIterator[StepEvent]:
    """Attach a supervisor. Safe to repeat: the same process is adopted once."""
    yield StepEvent(plan.id, "attach", "running", "Attaching.")
    run = plan.spec["run"]
    files = {"supervisor.pyz": hostruns.program()}
    key = servers.flag(run["argv"], "--api-key")
    if key:  # it is on its command line already; a probe needs it
        files["auth"] = key.encode("utf-8", "surrogateescape")
    params = {
        "base": hostruns.base(link),
        "run": run,
        "files": {name: len(data) for name, data in files.items()},
    }
    made = await link.call("runs.create", params, timeout=60, blob=b"".join(files.values()))
    if made["phase"] in ("failed", "exited"):
        said = str(made.get("sentence") or "The process is gone.")
        yield StepEvent(plan.id, "attach", "failed", said, final="failed", data={"run": run["id"]})
        return
    said = f"Adopted as run {run['id']}."
    yield StepEvent(plan.id, "attach", "done", said, made.get("started_boot_s"), "done", {"run": run["id"]})
