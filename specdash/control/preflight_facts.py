"""What preflight gathers of a host, in as few calls as possible, and all at once."""

from __future__ import annotations

import asyncio
import posixpath
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from specdash.control import probe as probe_
from specdash.control.plans import Check
from specdash.control.probe import Probe
from specdash.errors import RemoteError
from specdash.host.link import Link
from specdash.sglang.commandline import LaunchSpec
from specdash.sglang.envcheck import whole

CALL_S = 15.0
ZMQ_DELTA = 233
"""SGLang's ZMQ_TCP_PORT_DELTA: with attention DP its sockets are TCP ports from `--port` + this on."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that the checks look at. `problems`: call → why it gave nothing (then: not checked)."""

    spec: LaunchSpec
    hello: Mapping[str, Any]
    probe: Probe | None
    probe_problem: str = ""
    probe_code: str = ""
    gpu: Mapping[str, Any] = field(default_factory=dict)
    processes: tuple[Mapping[str, Any], ...] = ()
    runs: tuple[Mapping[str, Any], ...] = ()
    listeners: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    skew_s: float | None = None
    skew_within_s: float = 0.0

    def model(self, path: str) -> Mapping[str, Any] | None:
        return self.probe.models.get(path) if self.probe is not None else None

    @property
    def flags(self) -> tuple[tuple[str, Any], ...]:
        """All flags, secret ones with a stand-in value: only their names matter here."""
        return (*self.spec.flags, *((name, "secret") for name in self.spec.secret_flags))


def target_path(spec: LaunchSpec) -> str:
    value = spec.flag("--model-path", "--model")
    return value if isinstance(value, str) else ""


def draft_path(spec: LaunchSpec) -> str:
    value = spec.flag("--speculative-draft-model-path", "--speculative-draft-model")
    return value if isinstance(value, str) else spec.drafter


def bind_address(spec: LaunchSpec) -> tuple[str, int] | None:
    """(address that the server binds, port), or None when the port is no number."""
    value = spec.flag("--host")
    address = value.strip("[]") if isinstance(value, str) and value else "127.0.0.1"
    port = whole(spec.flags, ("--port",), 30000)
    return (address, port) if port is not None and 0 < port < 65536 else None


def internal_ports(spec: LaunchSpec) -> tuple[tuple[int, str], ...]:
    """(port, what for) that the engine takes beside its own, as far as flags fix them.

    Most internal sockets are files (ipc) or ports that SGLang picks free by itself; these it does not.
    """
    out: list[tuple[int, str]] = []
    for flag, what in (
        ("--nccl-port", "NCCL"),
        ("--disaggregation-bootstrap-port", "disaggregation bootstrap"),
    ):
        port = whole(spec.flags, (flag,), 0)
        if port and (flag == "--nccl-port" or spec.flag("--disaggregation-mode") in ("prefill",)):
            out.append((port, what))
    address = spec.flag("--dist-init-addr", "--nccl-init-addr")
    rank = whole(spec.flags, ("--node-rank",), 0)
    tail = str(address).rpartition(":")[2] if address not in (None, True) else ""
    if tail.isdigit() and rank == 0:
        out.append((int(tail), "rendezvous of the ranks"))
    main = bind_address(spec)
    if main is not None and any(o in ("--enable-dp-attention", "--attn-dp-size") for o, _ in spec.flags):
        base = int(tail) + 1 if tail.isdigit() else main[1] + ZMQ_DELTA
        out.extend((base + i, "attention DP") for i in range(5))
    return tuple((port, what) for port, what in out if 0 < port < 65536)


async def gather(link: Link, spec: LaunchSpec, *, use_cache: bool = True) -> Facts:
    """Asks the host. Raises LinkLost; a call that the host refuses is a problem, not an error."""
    paths = [path for path in dict.fromkeys((target_path(spec), draft_path(spec))) if path]
    main = bind_address(spec)
    ports = ([main[1]] if main else []) + [port for port, _ in internal_ports(spec)]
    address = main[0] if main else "127.0.0.1"
    log = posixpath.join(spec.cwd or str(link.hello.get("home") or "/"), spec.log) if spec.log else ""
    wanted = {
        "log_folder": posixpath.dirname(log) if log else str(link.hello.get("base") or ""),
        "run_folder": str(link.hello.get("base") or ""),
        "ports": [[address, port] for port in ports],
    }
    problems: dict[str, str] = {}

    async def ask(name: str, call: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await call
        except RemoteError as error:
            problems[name] = error.sentence
            if name == "probe":
                problems["probe.code"] = error.code
        except TimeoutError:
            problems[name] = "the host did not answer in time"
        return None

    began = time.time()
    probed, gpu, table, runs, *held = await asyncio.gather(
        ask(
            "probe",
            probe_.probe(
                link,
                spec.python,
                spec.cwd,
                spec.env,
                models=paths,
                host=wanted,
                use_cache=use_cache,
            ),
        ),
        ask("gpu", link.call("gpu.static", {"wait_s": 5.0}, timeout=CALL_S)),
        ask("processes", link.call("procs.list", {}, timeout=CALL_S)),
        ask("runs", link.call("runs.list", {"base": link.hello.get("base")}, timeout=CALL_S)),
        *(ask("listeners", link.call("procs.listeners", {"port": port}, timeout=CALL_S)) for port in ports),
    )
    ended = time.time()
    now = probed.now_unix if probed is not None else None
    middle = (began + ended) / 2
    return Facts(
        spec=spec,
        hello=link.hello,
        probe=probed,
        probe_problem=problems.pop("probe", ""),
        probe_code=problems.pop("probe.code", ""),
        gpu=gpu or {},
        processes=tuple((table or {}).get("processes") or ()),
        runs=tuple((runs or {}).get("runs") or ()),
        listeners={port: answer for port, answer in zip(ports, held, strict=True) if answer is not None},
        problems=problems,
        skew_s=now - middle if now is not None else None,
        skew_within_s=(ended - began) / 2,
    )


def made(
    name: str,
    status: str,
    sentence: str,
    evidence: tuple[str, ...] = (),
    remedy: str = "",
    category: str = "",
) -> Check:
    """A check whose status is computed. `status`: ok | warn | block | not_checked."""
    return Check(name, cast(Any, status), sentence, evidence, remedy, category)
