"""GPU tables and process tables of a host. What is not told stays None; hidden is not free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from specdash.monitor import memory
from specdash.monitor.events import Event, GpusSampled, ProcessesSeen
from specdash.monitor.liveness import Processes
from specdash.monitor.reduce_link import frozen, seen
from specdash.monitor.state import Gpu, GpuBoard, GpuProcess, HostState, ServerState
from specdash.monitor.untrusted import flag, number, rows, text, texts, whole

HISTORY = 600
HELD_MIB = 300.0
"""Memory in use on a GPU without a process of anybody's seen: above this somebody is there, unseen."""
MOST_GPUS = 256
UNTOLD_S = 15.0
"""Longest that a process counts as not told yet: a run lists its own every 2 s, and longer only when it is held up."""
LISTED_S = 4.0
"""A list of a run's processes may be so old when it comes: one period of sampling, and one of reading."""


def gpus_sampled(host: HostState, event: Event, body: GpusSampled) -> HostState:
    table = body.table
    owners = _owners(host)
    before = host.gpus or GpuBoard()
    problem, category = text(table.get("problem")), text(table.get("category"))
    at = event.at - (number(table.get("age_s")) or 0.0)
    known = {(p.pid, p.start): p.seen_at for gpu in before.gpus for p in gpu.processes or ()}
    told = _told_until(host)
    gpus = tuple(_gpu(row, owners, known, at, told) for row in rows(table.get("gpus"))[:MOST_GPUS])
    if table.get("gpus") is None and before.gpus:
        # The tool failed just now: last good table stays, with its own age.
        return seen(replace(host, gpus=replace(before, problem=problem, category=category)), event)
    count = whole(table.get("expected"))
    expected = max((n for n in (before.expected, count, len(gpus)) if n is not None), default=None)
    row = (at, tuple(gpu.memory_used_mib for gpu in gpus))
    newer = bool(gpus) and (not before.memory_history or at > before.memory_history[-1][0])
    board = GpuBoard(
        gpus=gpus,
        source=text(table.get("source")),
        at=at,
        problem=problem,
        category=category,
        driver=text(table.get("driver")),
        expected=expected or None,
        memory_history=(*before.memory_history, row)[-HISTORY:] if newer else before.memory_history,
    )
    return seen(replace(host, gpus=board), event)


def _gpu(
    row: Mapping[str, Any],
    owners: Mapping[int, str],
    known: Mapping[tuple[int, int], float | None],
    at: float,
    told: float | None,
) -> Gpu:
    listed = row.get("processes")
    processes: tuple[GpuProcess, ...] | None = None
    if isinstance(listed, (list, tuple)):
        processes = tuple(_process(item, owners, known, at) for item in rows(listed))
    throttle = row.get("throttle")
    kind = text(row.get("memory_kind"))
    gpu = Gpu(
        index=whole(row.get("index")) or 0,
        uuid=text(row.get("uuid")),
        name=text(row.get("name")),
        memory_used_mib=number(row.get("memory_used_mib")),
        memory_total_mib=number(row.get("memory_total_mib")),
        utilisation_pct=number(row.get("utilisation_pct")),
        power_w=number(row.get("power_w")),
        power_limit_w=number(row.get("power_limit_w")),
        temperature_c=number(row.get("temperature_c")),
        sm_clock_mhz=number(row.get("sm_clock_mhz")),
        memory_clock_mhz=number(row.get("memory_clock_mhz")),
        throttle=texts(throttle) if isinstance(throttle, (list, tuple)) else None,
        pcie_rx_mib_s=number(row.get("pcie_rx_mib_s")),
        pcie_tx_mib_s=number(row.get("pcie_tx_mib_s")),
        ecc_uncorrected=whole(row.get("ecc_uncorrected")),
        mig=flag(row.get("mig")),
        memory_kind="own" if kind == "own" else "unified" if kind == "unified" else "",
        processes=processes,
        problem=text(row.get("problem")),
    )
    return replace(gpu, holder=_holder(gpu, at, told))


def _process(
    row: Mapping[str, Any],
    owners: Mapping[int, str],
    known: Mapping[tuple[int, int], float | None],
    at: float,
) -> GpuProcess:
    pid, start = whole(row.get("pid")) or 0, whole(row.get("start")) or 0
    first = known.get((pid, start))
    return GpuProcess(
        pid=pid,
        memory_mib=number(row.get("memory_mib")),
        name=text(row.get("name")),
        user=text(row.get("user")),
        run=text(row.get("run")) or owners.get(pid, ""),
        command=text(row.get("command")),
        start=start,
        seen_at=at if first is None else first,
    )


def _told_until(host: HostState) -> float | None:
    """Every living run has listed its processes as they were then; None when no run of ours lives."""
    told = [
        known.at - LISTED_S if (known := memory.of(server).processes) is not None else float("-inf")
        for server in host.servers.values()
        if server.status.alive is not False
        and server.status.ended_boot_s is None
        and server.status.exit_code is None
    ]
    return min(told, default=None)


def _holder(gpu: Gpu, at: float, told: float | None) -> Any:
    """`told`: until when the living runs have said which processes are theirs. A younger one may be of any of them."""
    used = gpu.memory_used_mib
    if gpu.processes is None:
        return "hidden" if used is not None and used > HELD_MIB else "unknown"
    if any(process.run for process in gpu.processes):
        return "ours"
    if gpu.processes:
        young = [p for p in gpu.processes if p.seen_at is not None and at - p.seen_at < UNTOLD_S]
        if told is not None and any(p.seen_at >= told for p in young if p.seen_at is not None):
            return "unknown"
        return "others"
    if used is None:
        return "unknown"
    return "hidden" if used > HELD_MIB else "free"


def _owners(host: HostState) -> dict[int, str]:
    """pid → run id, from the newest sample of each run that lives."""
    owners: dict[int, str] = {}
    for server in host.servers.values():
        if server.status.alive is False:
            continue
        if server.status.pid:
            owners[server.status.pid] = server.run.id
        for pid in pids(server):
            owners[pid] = server.run.id
    return owners


def pids(server: ServerState) -> tuple[int, ...]:
    """Processes of a run in its newest sample that lists them."""
    return tuple(pid for pid in (whole(row.get("pid")) for row in memory.of(server).tree) if pid)


def processes_seen(host: HostState, event: Event, body: ProcessesSeen) -> HostState:
    table = dict(body.table)
    table["seen_at"] = event.at
    before = rows(host.processes.get("processes"))
    table["seen_before"] = tuple((whole(row.get("pid")), whole(row.get("start"))) for row in before)
    return seen(replace(host, processes=frozen(table)), event)


def role(title: str, command: str) -> str:
    """main, scheduler, detokenizer, or empty, by process title or command line."""
    both = f"{title} {command}"
    for name in ("scheduler", "detokenizer", "data_parallel_controller", "tokenizer_worker"):
        if f"sglang::{name[:8]}" in both:
            return name
    if "sglang.launch_server" in both or "sglang serve" in both or "sglang-serve" in both:
        return "main"
    return ""


def tree(listed: tuple[Mapping[str, Any], ...], at: float) -> Processes | None:
    """Roles of a process table: rows with "pid", "state", and "title" or "comm" with "cmdline", "argv" or "cmd".

    Zombies are no living processes. Titles count as set when any process here has one. A child that bears its
    parent's own title is a fork of it that has not become anything yet: it comes and goes, and is no rank.
    """
    if not listed:
        return None
    roles: dict[str, int] = {}
    titled = False
    titles = {whole(row.get("pid")): text(row.get("title")) for row in listed}
    for row in listed:
        if text(row.get("state"))[:1] in ("Z", "X"):
            continue
        argv = row.get("cmdline") or row.get("argv")
        command = " ".join(texts(argv)) if isinstance(argv, (list, tuple)) else text(argv or row.get("cmd"))
        title = " ".join(text(row.get(key)) for key in ("title", "name", "comm"))
        found = role(title, command)
        titled = titled or "sglang::" in title or "sglang::" in command
        if found and text(row.get("title")) and titles.get(whole(row.get("ppid"))) == text(row.get("title")):
            continue
        if found:
            roles[found] = roles.get(found, 0) + 1
    return Processes(roles, titled, at)


def remember_tree(server: ServerState, listed: tuple[Mapping[str, Any], ...], at: float) -> ServerState:
    """Keeps the roles of a run's own process tree, and the most schedulers that it ever had."""
    known = tree(listed, at)
    if known is None:
        return server
    was = memory.of(server)
    most = {role: max(count, was.roles_seen.get(role, 0)) for role, count in known.roles.items()}
    seen_all = frozen({**was.roles_seen, **most})
    return memory.keep(server, replace(was, processes=known, roles_seen=seen_all, tree=listed))
