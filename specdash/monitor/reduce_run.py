"""Runs of a host: what each is (run.json), what its supervisor recorded, and the evidence it sampled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from specdash.monitor import memory, reduce_gpu
from specdash.monitor.events import Event, RunRecorded, RunSampled, RunsListed
from specdash.monitor.reduce_link import frozen, seen
from specdash.monitor.state import DrafterNow, HostState, RunFacts, RunStatus, ServerState
from specdash.monitor.untrusted import flag, mapping, number, rows, text, texts, whole

MOST_RUNS = 300
MOST_SAMPLES = 400
WHOLE_S = 120.0
THIN_S = 30.0
MOST_LOG_CLOCK = 4000


def with_server(host: HostState, server: ServerState) -> HostState:
    return replace(host, servers=MappingProxyType({**host.servers, server.run.id: server}))


def server_of(host: HostState, run: str) -> ServerState:
    return host.servers.get(run) or ServerState(RunFacts(run))


def runs_listed(host: HostState, event: Event, body: RunsListed) -> HostState:
    """The host's list is the truth about which runs there are; what was learned of each is kept."""
    servers: dict[str, ServerState] = {}
    listed = sorted(rows(body.runs), key=_created, reverse=True)[:MOST_RUNS]
    for record in listed:
        run = mapping(record.get("run")) or record
        ident = text(record.get("id")) or text(run.get("id"))
        if not ident:
            continue
        old = host.servers.get(ident) or ServerState(RunFacts(ident))
        facts = _facts(ident, record, run, old.run)
        status = _status(record, old.status)
        drafter = old.drafter
        if not drafter.how:
            drafter = DrafterNow(
                facts.algorithm, facts.drafter, status.started_boot_s, facts.started_by, "launched"
            )
        server = replace(old, run=facts, status=status, drafter=drafter)
        if status.ready_boot_s is not None:
            server = memory.keep(server, replace(memory.of(server), was_ready=True))
        servers[ident] = server
    return seen(replace(host, servers=MappingProxyType(servers), runs_at=event.at), event)


def _created(record: Mapping[str, Any]) -> tuple[float, str]:
    run = mapping(record.get("run")) or record
    when = number(run.get("created_unix")) or number(record.get("created_unix")) or 0.0
    return when, text(record.get("id")) or text(run.get("id"))


def _facts(ident: str, record: Mapping[str, Any], run: Mapping[str, Any], old: RunFacts) -> RunFacts:
    """From run.json, laid out as `RunFacts`; a launch spec under "spec" fills what is not told."""
    spec = mapping(run.get("spec"))
    http = mapping(run.get("http"))
    folder = text(record.get("folder")) or text(run.get("folder")) or old.folder
    argv = texts(run.get("argv")) or old.argv

    def say(key: str) -> str:
        return text(record.get(key)) or text(run.get(key)) or text(spec.get(key)) or str(getattr(old, key))

    return RunFacts(
        id=ident,
        profile=say("profile"),
        target=say("target") or flag_of(argv, "--model-path", "--model"),
        algorithm=say("algorithm") or flag_of(argv, "--speculative-algorithm", "--speculative-algo"),
        drafter=say("drafter")
        or flag_of(argv, "--speculative-draft-model-path", "--speculative-draft-model"),
        argv=argv,
        cwd=say("cwd"),
        python=say("python"),
        http_host=text(http.get("host")) or text(run.get("http_host")) or old.http_host,
        http_port=_first(whole(http.get("port")), whole(run.get("http_port")), old.http_port),
        log_path=say("log_path") or (f"{folder}/server.log" if folder else ""),
        folder=folder,
        http_tls=http.get("tls") is True or old.http_tls,
        created_unix=_first(
            number(run.get("created_unix")), number(record.get("created_unix")), old.created_unix
        ),
        boot_id=say("boot_id"),
        started_by=say("started_by"),
        adopted=bool(_first(flag(record.get("adopted")), flag(run.get("adopted")), old.adopted)),
        managed_by=say("managed_by"),
        nnodes=_first(whole(run.get("nnodes")), old.nnodes) or 1,
        node_rank=_first(whole(run.get("node_rank")), old.node_rank) or 0,
        run_id_all=text(run.get("run_id_all")) or old.run_id_all or ident,
        mem_fraction=_first(
            number(run.get("mem_fraction")),
            _number_of(flag_of(argv, "--mem-fraction-static")),
            old.mem_fraction,
        ),
        weights_bytes=_first(whole(run.get("weights_bytes")), old.weights_bytes),
        extra=frozen(mapping(run.get("extra"))) if run.get("extra") else old.extra,
    )


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _number_of(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def flag_of(argv: tuple[str, ...], *names: str) -> str:
    """Value of the last option spelled as one of `names`, `--x v` or `--x=v`; empty when not given."""
    found = ""
    for index, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name in names:
            found = value if equals else (argv[index + 1] if index + 1 < len(argv) else "")
    return found


def _status(record: Mapping[str, Any], old: RunStatus) -> RunStatus:
    """A record that leaves something out says nothing of it."""
    head = mapping(record.get("head")) or mapping(record.get("status")) or record
    proof = mapping(head.get("proof"))
    return RunStatus(
        pid=_first(whole(head.get("pid")), old.pid),
        pid_start=_first(whole(head.get("start")), whole(head.get("pid_start")), old.pid_start),
        alive=_first(flag(record.get("alive")), flag(head.get("alive")), old.alive),
        supervisor_alive=_first(
            flag(record.get("supervisor_alive")), flag(record.get("supervised")), old.supervisor_alive
        ),
        phase_hint=text(head.get("phase")) or old.phase_hint,
        started_boot_s=_first(number(head.get("started_boot_s")), old.started_boot_s),
        ready_boot_s=_first(number(head.get("ready_boot_s")), old.ready_boot_s),
        ended_boot_s=_first(number(head.get("ended_boot_s")), old.ended_boot_s),
        exit_code=_first(whole(head.get("exit_code")), old.exit_code),
        exit_signal=_first(whole(head.get("exit_signal")), old.exit_signal),
        stop_asked=bool(_first(flag(head.get("stop_asked")), old.stop_asked)),
        stopped_proof=frozen(proof) if proof else old.stopped_proof,
    )


def run_recorded(host: HostState, event: Event, body: RunRecorded) -> HostState:
    server = server_of(host, event.run)
    for record in rows(body.records):
        server = _recorded(server, record)
    return seen(with_server(host, server), event)


def _recorded(server: ServerState, record: Mapping[str, Any]) -> ServerState:
    """One line of events.jsonl (`host/remote/supervisor.py`). Words that are not known change nothing."""
    status, boot = server.status, number(record.get("boot_s"))
    kind = text(record.get("event"))
    if kind == "started":
        status = replace(
            status,
            pid=whole(record.get("pid")),
            pid_start=whole(record.get("start")),
            alive=True if status.ended_boot_s is None else status.alive,
            started_boot_s=boot,
            phase_hint="starting",
        )
    elif kind == "ready":
        status = replace(status, ready_boot_s=boot, phase_hint="ready")
        server = memory.keep(server, replace(memory.of(server), was_ready=True))
    elif kind == "failed":
        status = replace(status, phase_hint="failed", alive=False)
    elif kind == "stop_asked" and status.phase_hint != "exited":
        # One that is asked after the end (a switch that clears up) does not make a crash a stop.
        status = replace(status, stop_asked=True, phase_hint="stopping")
    elif kind == "stop_aborted":
        status = replace(status, stop_asked=False, phase_hint="ready" if status.ready_boot_s else "starting")
    elif kind == "exited":
        status = replace(
            status,
            alive=False,
            exit_code=whole(record.get("code")),
            exit_signal=whole(record.get("signal")),
            ended_boot_s=boot,
            phase_hint="exited",
        )
    elif kind == "stopped" or (kind == "ended" and record.get("proof")):
        status = replace(status, stopped_proof=frozen(mapping(record.get("proof"))))
    elif kind in ("hot_switched", "switched", "drafter"):
        server = replace(
            server,
            numbers=replace(server.numbers, position_acceptance=None),
            drafter=DrafterNow(
                text(record.get("algorithm")) or server.drafter.algorithm,
                text(record.get("drafter")) or text(record.get("path")),
                boot,
                text(record.get("by")),
                "hot switch",
            ),
        )
    if kind == "bind_failed" or kind in ("failed", "probe_failed", "leftovers"):
        server = replace(server, inner=MappingProxyType({**server.inner, kind: frozen(record)}))
    return replace(server, status=status)


def run_sampled(host: HostState, event: Event, body: RunSampled) -> HostState:
    server = server_of(host, event.run)
    fresh = rows(body.samples)
    if not fresh:
        return host
    kept = thin_samples(
        (*server.samples, *(frozen({k: v for k, v in s.items() if k != "tree"}) for s in fresh))
    )
    clock = list(memory.of(server).log_clock)
    for sample in fresh:
        size, boot = whole(sample.get("log_size")), number(sample.get("boot_s"))
        if (
            size is not None
            and boot is not None
            and (not clock or (size > clock[-1][0] and boot >= clock[-1][1]))
        ):
            clock.append((size, boot))
    server = replace(server, samples=kept)
    was = memory.of(server)
    server = memory.keep(server, replace(was, log_clock=thinned(tuple(clock))))
    listed = next((rows(sample["tree"]) for sample in reversed(fresh) if "tree" in sample), None)
    if listed is not None:
        server = reduce_gpu.remember_tree(server, tuple(frozen(row) for row in listed), event.at)
    return seen(with_server(host, server), event)


def thin_samples(samples: tuple[Mapping[str, Any], ...]) -> tuple[Mapping[str, Any], ...]:
    """The last two minutes whole, before that one sample in 30 s: hours of stillness stay provable.

    Which samples stay depends on their times alone, not on how they arrived.
    """
    newest = number(samples[-1].get("boot_s")) or 0.0
    out: list[Mapping[str, Any]] = []
    last_bucket: float | None = None
    for sample in samples:
        at = number(sample.get("boot_s")) or 0.0
        bucket = at // THIN_S
        if newest - at <= WHOLE_S or bucket != last_bucket:
            out.append(sample)
        last_bucket = bucket
    return tuple(out[-MOST_SAMPLES:])


def thinned(clock: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
    """Bounded: the older half loses every second point."""
    if len(clock) <= MOST_LOG_CLOCK:
        return clock
    half = len(clock) // 2
    return (*clock[:half:2], *clock[half:])
