"""The immutable state that the screen, `--check`, the ledger and the tests all read.

`FleetState` → `HostState` per host → `ServerState` per run. Made only by `specdash.monitor.reduce`.
`None` is *not available* and is never drawn as 0. Ages are views: `reading.age(state.now)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar

from specdash.sglang.story import Story

T = TypeVar("T")
EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """One value and all that is needed to believe it."""

    value: T | None = None
    unit: str = ""
    """"tok/s", "tokens/step", "MiB", "W", "°C", "%", "requests", "s", "" for none."""
    source: str = ""
    """E.g. "log decode line", "metrics realtime_tokens_total", "nvml", "server_info"."""
    at: float | None = None
    """Local monotonic seconds when it was true; None when never seen."""
    window_s: float | None = None
    """Length of the window it is over; None for an instant value."""
    load: int | None = None
    """Running requests that it was seen under, where that matters."""
    includes_bonus: bool | None = None
    """Accept length only: whether the bonus token counts (SGLang: always yes)."""
    note: str = ""

    def age(self, now: float) -> float | None:
        """Seconds since it was true; None when never seen."""
        return None if self.at is None else max(0.0, now - self.at)


NOTHING: Reading[Any] = Reading()


@dataclass(frozen=True, slots=True)
class LinkState:
    status: Literal["connecting", "up", "lost", "refused", "failed", "closed"] = "connecting"
    sentence: str = ""
    since: float = 0.0
    attempt: int = 0
    retry_at: float | None = None
    rtt_ms: float | None = None
    last_up: float | None = None
    """Local monotonic time of the last observation that came over it: the age of everything below."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    pid: int
    memory_mib: float | None
    name: str = ""
    user: str = ""
    run: str = ""
    """Run id it belongs to; empty: not one of ours or not told."""
    command: str = ""
    start: int = 0
    """Start time in clock ticks after boot: with the boot id, the identity of the process."""
    seen_at: float | None = None
    """Local monotonic time of the first sample that had it."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. Every field may be None by itself: `[N/A]` in one never blanks the others."""

    index: int
    uuid: str = ""
    name: str = ""
    memory_used_mib: float | None = None
    memory_total_mib: float | None = None
    utilisation_pct: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    throttle: tuple[str, ...] | None = None
    """Active reasons that slow it down, in words; () is none, None is not told."""
    pcie_rx_mib_s: float | None = None
    pcie_tx_mib_s: float | None = None
    ecc_uncorrected: int | None = None
    mig: bool | None = None
    memory_kind: Literal["own", "unified", ""] = ""
    processes: tuple[GpuProcess, ...] | None = None
    """None: hidden (pid namespace, permissions) — hidden is not free."""
    problem: str = ""
    """Lost, fell off the bus, needs reset: a sentence. An alarm, not a blank."""
    holder: Literal["free", "ours", "others", "hidden", "unknown"] = "unknown"


@dataclass(frozen=True, slots=True)
class GpuBoard:
    gpus: tuple[Gpu, ...] = ()
    source: str = ""
    """"nvml" or "nvidia-smi", with the interpreter or path that gave it."""
    at: float | None = None
    problem: str = ""
    """Driver mismatch, no tool found, …: a sentence with the next step. Not the same as no GPU."""
    category: str = ""
    """One word for `problem`: driver_mismatch, gpu_lost, stuck, denied, …"""
    driver: str = ""
    expected: int | None = None
    """Most GPUs ever seen on this host since it booted: fewer now is an alarm."""
    memory_history: tuple[tuple[float, tuple[float | None, ...]], ...] = ()
    """(local time, MiB used per GPU), bounded, newest last."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Slow or hung, with the evidence that says so. Never a timeout."""

    kind: Literal["starting", "progressing", "slow", "stalled", "dead", "ready", "stopped", "unknown"]
    sentence: str = ""
    evidence: tuple[str, ...] = ()
    since: float | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """Liveness once ready: HTTP, processes and token counters together."""

    state: Literal["starting", "warmup", "ready", "idle", "busy", "hung_suspected", "down", "unknown"]
    sentence: str = ""
    evidence: tuple[str, ...] = ()
    at: float | None = None
    category: str = ""


@dataclass(frozen=True, slots=True)
class Numbers:
    """What the engine does now. Each a `Reading`, `NOTHING` when not available."""

    decode_tok_s: Reading[float] = NOTHING
    prefill_tok_s: Reading[float] = NOTHING
    running: Reading[int] = NOTHING
    queued: Reading[int] = NOTHING
    running_cap: Reading[int] = NOTHING
    """Effective most running requests; `note` says why (e.g. set by speculation to 48)."""
    kv_used: Reading[float] = NOTHING
    """Share 0..1 of KV tokens in use."""
    cache_hit: Reading[float] = NOTHING
    """Share 0..1 of prompt tokens found in the prefix cache."""
    accept_length: Reading[float] = NOTHING
    """Tokens per target verify step, bonus token included, over `window_s`."""
    accept_length_start: Reading[float] = NOTHING
    """The same since the server started (or its last flush)."""
    accept_length_finished: Reading[float] = NOTHING
    """Of the requests that finished in the window, by counters; says nothing of one that still runs."""
    accept_rate: Reading[float] = NOTHING
    """Share 0..1 of draft tokens accepted; its definition changes at 0.5.11: `note` names it."""
    ttft_s: Mapping[str, Reading[float]] = field(default_factory=lambda: EMPTY)
    """"p50", "p90", "p99" over a rolling window."""
    itl_s: Mapping[str, Reading[float]] = field(default_factory=lambda: EMPTY)
    e2e_s: Mapping[str, Reading[float]] = field(default_factory=lambda: EMPTY)
    per_dp: tuple[Mapping[str, Any], ...] = ()
    position_acceptance: tuple[float, ...] | None = None
    """P(accepted ≥ i) for i = 1…k from the last pulse."""
    source: str = ""
    """The one source chosen for the live numbers, said on screen, never switched silently."""
    idle: bool | None = None
    decode_history: tuple[tuple[float, float | None], ...] = ()
    """(local time, tok/s) bounded, newest last; None is a gap, idle is 0.0 only when known idle."""
    accept_history: tuple[tuple[float, float | None], ...] = ()


@dataclass(frozen=True, slots=True)
class BreakEven:
    verdict: Literal["pays", "does_not_pay", "unknown", "not_speculating"] = "unknown"
    sentence: str = ""
    accept_length: float | None = None
    break_even: float | None = None
    margin: float | None = None
    """accept_length / break_even - 1."""
    base_ms_per_token: float | None = None
    cycle_ms: float | None = None
    running: float | None = None
    base_source: str = ""
    missing: str = ""
    """What to run to know, when unknown."""
    below_since: float | None = None


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that wants the operator. Kept until read; `key` makes repeats one."""

    key: str
    severity: Literal["info", "warning", "critical"]
    sentence: str
    at: float
    step: str = ""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """From run.json: what this run is. Secrets are references here, never values."""

    id: str
    profile: str = ""
    target: str = ""
    """Model path or name of the target."""
    algorithm: str = ""
    """Speculative algorithm asked for; empty is base."""
    drafter: str = ""
    argv: tuple[str, ...] = ()
    cwd: str = ""
    python: str = ""
    http_host: str = "127.0.0.1"
    http_port: int | None = None
    http_tls: bool = False
    log_path: str = ""
    folder: str = ""
    created_unix: float | None = None
    boot_id: str = ""
    started_by: str = ""
    """user@machine of the operator."""
    adopted: bool = False
    """Started by others; read-only until adopted by name."""
    managed_by: str = ""
    """"docker", "systemd", another user, …: stop it there."""
    nnodes: int = 1
    node_rank: int = 0
    run_id_all: str = ""
    """One id over all hosts of a multi-host run; equals `id` on one host."""
    mem_fraction: float | None = None
    weights_bytes: int | None = None
    extra: Mapping[str, Any] = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True, slots=True)
class RunStatus:
    """What the supervisor recorded, and whether processes live now."""

    pid: int | None = None
    pid_start: int | None = None
    alive: bool | None = None
    supervisor_alive: bool | None = None
    phase_hint: str = ""
    started_boot_s: float | None = None
    ready_boot_s: float | None = None
    ended_boot_s: float | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    stop_asked: bool = False
    stopped_proof: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    """Result of the stop proof: processes left, GPU memory, port."""


@dataclass(frozen=True, slots=True)
class LogState:
    size: int = 0
    read: int = 0
    generation: int = 0
    last_growth: float | None = None
    missing: str = ""

    @property
    def behind(self) -> int:
        """Bytes on the host that have not been read yet."""
        return max(0, self.size - self.read)


@dataclass(frozen=True, slots=True)
class DrafterNow:
    """Which drafter serves. State, not argv: after a hot switch the command line no longer tells."""

    algorithm: str = ""
    path: str = ""
    since_boot_s: float | None = None
    by: str = ""
    how: Literal["launched", "hot switch", "reported by server", ""] = ""


@dataclass(frozen=True, slots=True)
class ServerState:
    run: RunFacts
    status: RunStatus = RunStatus()
    story: Story = field(default_factory=Story)
    """What the log told: phases, progress, causes, decode lines. Pure parser state inside."""
    log: LogState = LogState()
    samples: tuple[Mapping[str, Any], ...] = ()
    """Last supervisor samples, bounded, newest last."""
    verdict: Verdict = Verdict("unknown")
    health: Health = Health("unknown")
    numbers: Numbers = Numbers()
    breakeven: BreakEven = BreakEven()
    drafter: DrafterNow = DrafterNow()
    server_info: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    """Redacted by key before it came here."""
    eta_s: float | None = None
    """Seconds to ready, from this profile's own finished loads; None when there is no history."""
    eta_source: str = ""
    alarms: tuple[Alarm, ...] = ()
    inner: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    """The reducer's own memory (previous counters, windows). No reader outside monitor/."""


@dataclass(frozen=True, slots=True)
class ActionState:
    id: str
    kind: str
    title: str
    status: Literal["running", "done", "failed", "refused", "aborted"]
    step: str = ""
    sentence: str = ""
    steps: tuple[Mapping[str, Any], ...] = ()
    since: float = 0.0
    changed: float = 0.0
    final: str = ""
    """"done", "failed", "rolled_back", "aborted", or "" while it runs: what `status` cannot tell apart."""


@dataclass(frozen=True, slots=True)
class HostState:
    name: str
    label: str = ""
    """Shown beside the name all the time, e.g. "simulated"; from the host's settings."""
    link: LinkState = LinkState()
    facts: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    gpus: GpuBoard | None = None
    sample: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    servers: Mapping[str, ServerState] = field(default_factory=lambda: EMPTY)
    """By run id. Newest first when iterated."""
    runs_at: float | None = None
    """Local time of the last list of runs; None: not listed yet, so no servers is not *none*."""
    processes: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    actions: tuple[ActionState, ...] = ()
    bases: tuple[Mapping[str, Any], ...] = ()
    bases_at: float | None = None
    """Local time when earlier base runs were last looked through; None: not yet, so *no base* is not known."""
    alarms: tuple[Alarm, ...] = ()


@dataclass(frozen=True, slots=True)
class FleetState:
    now: float = 0.0
    """Local monotonic time of the last event: ages are counted against it."""
    ticked: float = 0.0
    """Local monotonic time of the last `Tick`: the only clock of time-based verdicts."""
    hosts: Mapping[str, HostState] = field(default_factory=lambda: EMPTY)
