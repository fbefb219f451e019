"""What was seen, by whom, and when. The only input of the reducer, and what a recording holds.

An event is a frozen `Event` with one `body`. Bodies carry raw observations (bytes of log, a metrics page,
a GPU table), never conclusions: conclusions are the reducer's, so that a recording replays to the same
verdicts after the rules have improved. Time passes only through `Tick`.

Clocks: `at` is the operator's machine's monotonic clock in seconds. `host_at` is the host's
CLOCK_BOOTTIME in seconds, where the observation was made there (samples, run records), else None.
Wall-clock times (`*_unix`, seconds since 1970, host's clock) are for people only; no rule uses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Json = Any  # decoded JSON: dict, list, str, int, float, bool, None


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed and nothing else. Emitted once a second by the hub, and recorded."""


@dataclass(frozen=True, slots=True)
class LinkChanged:
    """The state of the way to a host."""

    status: Literal["connecting", "up", "lost", "refused", "failed", "closed"]
    sentence: str = ""
    """Why, with the next step; empty when up."""
    attempt: int = 0
    retry_in_s: float | None = None
    rtt_ms: float | None = None


@dataclass(frozen=True, slots=True)
class HostSeen:
    """`hello` of the agent. `facts` as `specdash.host.link.HELLO_KEYS` documents."""

    facts: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class GpusSampled:
    """One sample of all GPUs. `table` is the agent's `gpu` sample (see host/remote/gpu.py)."""

    table: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class HostSampled:
    """Host memory, load, disk: the agent's `host` sample."""

    table: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class RunsListed:
    """All runs in the host's run folders: each the agent's `runs.list` record."""

    runs: tuple[Mapping[str, Json], ...]


@dataclass(frozen=True, slots=True)
class RunRecorded:
    """Lines that a run's supervisor wrote (started, ready, stop asked, signal, exit): `events.jsonl`."""

    records: tuple[Mapping[str, Json], ...]


@dataclass(frozen=True, slots=True)
class RunSampled:
    """Evidence of a run's process tree, by the supervisor every 2 s: `samples.jsonl`."""

    samples: tuple[Mapping[str, Json], ...]


@dataclass(frozen=True, slots=True)
class LogRead:
    """Bytes of a run's log, exactly as on the host, in order, none twice.

    `offset` counts bytes from the first byte of the run's log, over rotations. `size` is the file's size
    when the bytes were read, so `size - (offset + len(data))` is how far the reader is behind.
    `generation` goes up when the file was replaced or truncated (tail -F semantics).
    """

    offset: int
    data: bytes
    size: int
    generation: int = 0


@dataclass(frozen=True, slots=True)
class LogLost:
    """The log file is missing or unreadable just now. Says nothing about the server."""

    sentence: str


@dataclass(frozen=True, slots=True)
class HttpSeen:
    """One answer (or none) of the engine's HTTP port.

    `endpoint`: "metrics", "server_info", "loads", "ready", "health", "generate", "model_info".
    `status` None means no answer: `problem` says refused, timeout, closed, … in one word.
    """

    endpoint: str
    status: int | None
    body: bytes = b""
    problem: str = ""
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ProcessesSeen:
    """SGLang-looking and GPU-holding processes of the host: the agent's `procs` sample."""

    table: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class ActionChanged:
    """A plan's progress (launch, stop, switch, adopt). See `specdash.control.plans`."""

    action_id: str
    kind: str
    title: str
    status: Literal["running", "done", "failed", "refused", "aborted"]
    step: str = ""
    """Name of the step that runs now, or that ended it."""
    sentence: str = ""
    steps: tuple[Mapping[str, Json], ...] = ()
    """All steps with name, status, sentence, started/ended (host boot time), for the screen."""
    final: str = ""
    """How it ended, as its last `StepEvent` said: a switch that was rolled back is `failed` by status."""


@dataclass(frozen=True, slots=True)
class PulseSeen:
    """Result of a pulse: fixed prompts, tok/s, accept length by meta_info. See control/pulse."""

    result: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class BaseMeasured:
    """A base measurement that break-even may use (from the host's run folders)."""

    record: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class BasesRead:
    """The logs of earlier base runs were looked through once: what `BaseMeasured` did not tell is not there."""


Body = (
    Tick
    | LinkChanged
    | HostSeen
    | GpusSampled
    | HostSampled
    | RunsListed
    | RunRecorded
    | RunSampled
    | LogRead
    | LogLost
    | HttpSeen
    | ProcessesSeen
    | ActionChanged
    | PulseSeen
    | BaseMeasured
    | BasesRead
)


@dataclass(frozen=True, slots=True)
class Event:
    """What was seen, by which source, and when."""

    at: float
    host: str
    """Name of the host as the operator configured it; empty for `Tick`."""
    body: Body
    run: str = ""
    """Run id, for bodies that are about one run."""
    rank: int = 0
    """Node rank of the run that the observation is about; 0 on one host."""
    source: str = ""
    """Which source saw it: "agent", "log", "http", "supervisor", "control", "clock"."""
    host_at: float | None = None
    extra: Mapping[str, Json] = field(default_factory=dict)
