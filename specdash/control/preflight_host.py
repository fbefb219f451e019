"""The host's half of preflight: memory, disk, limits, ports, other launches, clock. GPUs: `preflight_gpus.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdash.control.plans import Check
from specdash.control.preflight_facts import (
    Facts,
    bind_address,
    internal_ports,
    made,
)
from specdash.control.preflight_gpus import gpus, on_cpu, wanted_gpus, weights_bytes
from specdash.sglang import envcheck

__all__ = ["checks", "gpus", "on_cpu", "wanted_gpus"]

SKEW_S = 5.0
GB = 1e9
MIB = 1024 * 1024
STARTING = ("created", "starting")


def checks(facts: Facts) -> tuple[Check, ...]:
    return (
        *gpus(facts),
        *host_memory(facts),
        *disks(facts),
        *limits(facts),
        *logout(facts),
        *pid1(facts),
        *ports(facts),
        *launches(facts),
        *clock(facts),
    )


def host_memory(facts: Facts) -> list[Check]:
    available, total = facts.hello.get("mem_available_kb"), facts.hello.get("mem_total_kb")
    weights = weights_bytes(facts)
    if available is None or weights is None:
        return [Check("host memory", "not_checked", "Host memory against the weights: a size is not known.")]
    free = available * 1024
    evidence = (f"{free / GB:.1f} GB available of {(total or 0) * 1024 / GB:.1f} GB",)
    if on_cpu(facts) and weights > free:
        sentence = f"The weights take {weights / GB:.1f} GB; the host has {free / GB:.1f} GB available."
        return [Check("host memory", "block", sentence, evidence, "", "host_oom")]
    if free < 2 * GB:
        return [
            Check(
                "host memory",
                "warn",
                f"Only {free / GB:.1f} GB of host memory are available.",
                evidence,
                "",
                "host_oom",
            )
        ]
    if weights > free:
        sentence = "The weights do not fit into the page cache: loading reads the disk all the way."
        return [Check("host memory", "warn", sentence, evidence, "", "slow_load")]
    return [Check("host memory", "ok", f"{free / GB:.0f} GB of host memory are available.", evidence)]


def disks(facts: Facts) -> list[Check]:
    known = (facts.probe.facts.get("disk") if facts.probe is not None else None) or {}
    out: list[Check] = []
    log, shm = known.get("log"), known.get("shm")
    if log is not None:
        free = log["free_bytes"]
        if not log["writable"]:
            sentence = f"The log's folder {log['path']} cannot be written to."
            out.append(
                Check("disk", "block", sentence, (), "Correct `log` in the profile.", "log_not_writable")
            )
        elif free < 50 * MIB:
            sentence = f"{log['path']} has {free / MIB:.0f} MiB free: the log cannot be written."
            out.append(Check("disk", "block", sentence, (), "Make room.", "disk_full"))
        elif free < 2 * GB:
            out.append(
                Check(
                    "disk",
                    "warn",
                    f"{log['path']} has only {free / GB:.1f} GB free for the log.",
                    category="disk_low",
                )
            )
        else:
            out.append(Check("disk", "ok", f"{free / GB:.0f} GB free for the log.", (log["path"],)))
    if shm is not None and (envcheck.whole(facts.spec.flags, envcheck.TP, 1) or 1) > 1:
        if shm["free_bytes"] < 256 * MIB:
            sentence = f"/dev/shm has {shm['free_bytes'] / MIB:.0f} MiB free: NCCL fails with several ranks."
            remedy = "Give the container --shm-size 16g (or --ipc=host), or remove what fills it."
            out.append(Check("shared memory", "warn", sentence, (), remedy, "shm_small"))
        else:
            out.append(Check("shared memory", "ok", f"/dev/shm has {shm['free_bytes'] / GB:.1f} GB free."))
    return out


def limits(facts: Facts) -> list[Check]:
    known = (facts.probe.facts.get("limits") if facts.probe is not None else None) or {}
    files = known.get("nofile")
    if files is None:
        return []
    soft, hard = files
    if 0 <= soft < 4096:
        # SGLang raises its own soft limit to 65535 where the hard one allows it.
        status = "warn" if 0 <= hard < 4096 else "ok"
        sentence = f"Open files are limited to {soft} (hard limit {hard})."
        return [
            made(
                "limits",
                status,
                sentence,
                (),
                "Raise the hard limit: ulimit -Hn." if status == "warn" else "",
            )
        ]
    return [Check("limits", "ok", f"Open files: {soft}.")]


def logout(facts: Facts) -> list[Check]:
    kills, linger = facts.hello.get("kill_user_processes"), facts.hello.get("linger")
    if kills and linger is False:
        sentence = (
            "logind kills this user's processes at logout (KillUserProcesses=yes, no linger): the server too."
        )
        remedy = f"loginctl enable-linger {facts.hello.get('user') or ''}".strip()
        return [Check("logout", "block", sentence, (), remedy, "killed_at_logout")]
    if kills is None and linger is None:
        return []
    return [Check("logout", "ok", "The server outlives the login.")]


def pid1(facts: Facts) -> list[Check]:
    known = (facts.probe.facts.get("pid1") if facts.probe is not None else None) or {}
    if not facts.hello.get("container") or not known:
        return []
    name, zombies = known.get("name") or "unknown", known.get("zombies") or 0
    if known.get("reaps") is False or zombies:
        seen = f"; {zombies} zombies wait for it" if zombies else ""
        sentence = f"PID 1 of this container is {name}, which does not reap orphans{seen}."
        remedy = "Start the container with --init. specdash's own runs are reaped by their supervisor."
        return [Check("pid 1", "warn", sentence, (), remedy, "pid1_no_reaper")]
    return [Check("pid 1", "ok", f"PID 1 is {name}.")] if known.get("reaps") else []


def ports(facts: Facts) -> list[Check]:
    main = bind_address(facts.spec)
    if main is None:
        return [Check("port", "block", "--port is no port number.", (), "Correct it.", "bad_flag_value")]
    bound = (facts.probe.facts.get("ports") if facts.probe is not None else None) or {}
    out = [_port(facts, main[0], main[1], "port", "the server's own", "http_port_in_use", bound)]
    for port, what in internal_ports(facts.spec):
        inner = _port(facts, main[0], port, "internal port", what, "internal_port_in_use", bound)
        if inner.status != "ok":
            out.append(inner)
    return out


def _port(
    facts: Facts, address: str, port: int, name: str, what: str, category: str, bound: Mapping[str, Any]
) -> Check:
    held = facts.listeners.get(port)
    tried = bound.get(f"{address}:{port}")
    if tried is not None and not tried["free"] and tried["problem"] == "no such address":
        return Check(
            name,
            "block",
            f"The host has no address {address} to listen on.",
            (),
            "Correct --host.",
            "no_such_address",
        )
    if tried is not None and not tried["free"] and tried["problem"] == "not allowed":
        return Check(
            name, "block", f"This user may not listen on port {port}.", (), "Use a port above 1023.", category
        )
    taken = (tried is not None and not tried["free"]) or (tried is None and bool(held and held["listening"]))
    if taken:
        rows = (held or {}).get("processes") or ()
        who = ", ".join(
            f"pid {r['pid']} ({r.get('user')}) {' '.join(r.get('cmdline') or [])[:100]}" for r in rows
        )
        sentence = f"Port {port} ({what}) is held by {who or 'a process that is hidden from this user'}."
        return Check(name, "block", sentence, (), "Stop it, or use another port.", category)
    if tried is None and held is None:
        return Check(name, "not_checked", f"Port {port}: the host was not asked.")
    return Check(name, "ok", f"Port {port} ({what}) is free on {address}.")


def launches(facts: Facts) -> list[Check]:
    """A launch that is loading now: ours by its run, another user's by the socket its supervisor holds."""
    out: list[Check] = []
    mine = {str(run.get("id")): run for run in facts.runs}
    shared = envcheck.visible(facts.spec.env)
    for run in facts.runs:
        if run.get("phase") not in STARTING or run.get("alive") is False:
            continue
        theirs = envcheck.visible((run.get("spec") or {}).get("env") or {})
        apart = shared is not None and theirs is not None and not set(shared) & set(theirs)
        since = _since(run, facts)
        who = run.get("started_by") or facts.hello.get("user") or "someone"
        sentence = f"{who} is launching {run.get('profile') or run.get('id')}{since}."
        status = "warn" if apart or on_cpu(facts) else "block"
        told = " Its GPUs are others." if apart else ""
        remedy = "Wait until it is ready or gone, or use GPUs that it does not."
        out.append(
            made(
                "other launches", status, sentence + told, (str(run.get("id")),), remedy, "launch_in_progress"
            )
        )
    locks = (facts.probe.facts.get("locks") if facts.probe is not None else None) or ()
    for lock in locks:
        if lock["kind"] == "run" and lock["id"] not in mine and lock["uid"] != facts.hello.get("uid"):
            age = f" since {lock['age_s'] / 60:.0f} min" if lock.get("age_s") is not None else ""
            sentence = f"{lock['user']} has a specdash run on this host{age} (supervisor pid {lock['pid']})."
            out.append(
                Check(
                    "other launches",
                    "warn",
                    sentence,
                    (lock["id"],),
                    "Ask before you take its GPUs.",
                    "other_operator",
                )
            )
    return out or [Check("other launches", "ok", "Nobody is launching through specdash here.")]


def _since(run: Mapping[str, Any], facts: Facts) -> str:
    began = run.get("started_unix")
    now = facts.probe.now_unix if facts.probe is not None else None
    if not isinstance(began, (int, float)) or now is None:
        return ""
    return f", since {max(0.0, now - began) / 60:.0f} min"


def clock(facts: Facts) -> list[Check]:
    if facts.skew_s is None:
        return [Check("clock", "not_checked", "The host's clock was not read.")]
    off, within = abs(facts.skew_s), facts.skew_within_s
    if off - within > SKEW_S:
        direction = "ahead of" if facts.skew_s > 0 else "behind"
        sentence = f"The host's clock is {off:.0f} s {direction} this machine's."
        return [Check("clock", "warn", sentence, (), "Log times are the host's; set up NTP.", "clock_skew")]
    return [Check("clock", "ok", f"The clocks agree within {max(off, within):.1f} s.")]
