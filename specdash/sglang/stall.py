"""Slow or hung: a verdict from what moved, never from a timeout alone. And when it will be ready, from history.

What moves: the log, bytes read from disk by the process tree, GPU memory, CPU time. CPU alone is weak: a rank that
waits in NCCL spins at 100 %. A load is stalled when nothing moved for longer than max(the phase's floor, three
times its own history), and the verdict names what did not move.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from specdash.sglang.phases import TITLES, Progress, position

FLOORS: Dict[str, float] = {
    "unknown": 300.0,
    "starting": 180.0,
    "init_distributed": 120.0,
    "loading_weights": 180.0,
    "kv_alloc": 120.0,
    "jit_compile": 1800.0,
    "graph_capture": 420.0,
    "starting_http_or_warmup": 300.0,
}
"""Seconds for which a phase may be still without suspicion. JIT compilation is said to take 10 to 20 minutes by
SGLang itself; the first graph took 66 s without a word on an H200 (captures)."""
EXPECTED: Dict[str, Tuple[float, float]] = {"jit_compile": (600.0, 1200.0)}
"""Seconds that the engine itself announces for a phase."""
COMPUTES = ("starting", "jit_compile", "graph_capture", "starting_http_or_warmup")
"""Phases in which CPU time by itself is work."""
CPU_PATIENCE = 3.0
"""CPU alone stretches the limit by this factor, and no further: it may be a spin."""
HISTORY_FACTOR = 3.0
NOISE_MIB = 8.0
READ_NOISE = 65536
RCHAR_NOISE = 1 << 20
"""Read calls go on in a process that hangs (a watchdog, a log that is polled): only more than this is a load."""
RATE_WINDOW_S = 60.0
"""A rate is of now: over this long at most."""
CPU_NOISE_S = 0.5
SOON_S = 600.0
"""A load that ends within this is not slow, whatever the disk gives."""
SLOW_READ = 50e6
"""Bytes a second under which reading weights is called slow, when no history says better."""
STOPPED_S = 10.0


class Sample(NamedTuple):
    """The process tree at one time. None: not told. Counters only grow within one run."""

    t: float
    """Seconds from now: 0 or less."""
    log_size: Optional[float] = None
    read_bytes: Optional[float] = None
    cpu_s: Optional[float] = None
    gpu_mib: Optional[float] = None
    states: str = ""
    """One letter per process, as in /proc/PID/stat: R, S, D, T, Z."""
    rchar: Optional[float] = None
    """Bytes by read calls: all that is told where files come from a page cache or over a network."""


class Stall(NamedTuple):
    kind: str
    """"progressing", "slow", "stalled", "dead" or "unknown"."""
    sentence: str
    evidence: Tuple[str, ...] = ()
    still_s: Optional[float] = None
    """Seconds since anything moved; None when that is not known."""
    limit_s: Optional[float] = None
    expected_s: Optional[Tuple[float, float]] = None

    @property
    def suspected(self) -> bool:
        return self.kind in ("stalled", "dead")


def judge(
    phase: str,
    quiet_s: Optional[float],
    *,
    in_phase_s: Optional[float] = None,
    samples: Sequence[Sample] = (),
    history_s: Sequence[float] = (),
    progress: Optional[Progress] = None,
    checkpoint_bytes: Optional[float] = None,
    read_in_phase: Optional[float] = None,
    alive: Optional[bool] = None,
    gone: Sequence[str] = (),
    floors: Mapping[str, float] = FLOORS,
) -> Stall:
    """The verdict on a load.

    `quiet_s`: seconds since the log's last byte. `history_s`: how long this phase took in this profile's own
    finished loads. `checkpoint_bytes`, `read_in_phase`: size of the weights and what was read of them.
    `gone`: names of child processes that are no more. `floors`: seconds by phase.
    """
    name = TITLES.get(phase, phase)
    if alive is False:
        return Stall("dead", "Its process is gone.", tuple("gone: " + who for who in gone))
    rows = sorted(samples, key=lambda s: s.t)
    stills = _stills(rows, quiet_s)
    evidence = [_says(what, still) for what, still in stills.items()]
    states = rows[-1].states if rows else ""
    evidence.extend(_states(states))
    limit = max([floors.get(phase, floors.get("unknown", 300.0))] + [HISTORY_FACTOR * s for s in history_s])
    hard = [s for what, s in stills.items() if what != "CPU time"]
    cpu = stills.get("CPU time")
    still = min(hard) if hard else None
    expected = EXPECTED.get(phase)
    if gone:
        told = "A process of it is gone: {}.".format(", ".join(gone))
        return Stall("stalled", told, tuple(evidence), still, limit, expected)
    if still is None:
        return Stall("unknown", "Nothing about it has been seen yet.", tuple(evidence), None, limit, expected)
    if states and set(states) <= set("TtZ") and still > STOPPED_S:
        told = "All its processes are stopped: nothing moved for {}.".format(span(still))
        return Stall("stalled", told, tuple(evidence), still, limit, expected)
    working = cpu is not None and cpu < still and phase in COMPUTES
    bound = limit * CPU_PATIENCE if working else limit
    if still > bound:
        spins = cpu is not None and cpu < still
        told = "Nothing moved for {} in {}{}: {} is the most it may take.".format(
            span(still), name, ", it only uses CPU" if spins else "", span(bound)
        )
        return Stall("stalled", told, tuple(evidence), still, bound, expected)
    return _moving(
        phase,
        name,
        still,
        bound,
        rows,
        history_s,
        in_phase_s,
        progress,
        checkpoint_bytes,
        read_in_phase,
        evidence,
    )


def _moving(
    phase: str,
    name: str,
    still: float,
    bound: float,
    rows: Sequence[Sample],
    history_s: Sequence[float],
    in_phase_s: Optional[float],
    progress: Optional[Progress],
    checkpoint_bytes: Optional[float],
    read_in_phase: Optional[float],
    evidence: List[str],
) -> Stall:
    """Progressing, or slow with its reason."""
    expected = EXPECTED.get(phase)
    rate = read_rate(rows) if phase == "loading_weights" else None
    where = []
    if progress is not None:
        where.append("{} of {} {}".format(progress.done, progress.total, progress.unit))
    if rate is not None and read_in_phase is not None and checkpoint_bytes:
        where.append("{} of {} at {}/s".format(size(read_in_phase), size(checkpoint_bytes), size(rate)))
    elif rate:
        where.append("reading {}/s".format(size(rate)))
    reason = ""
    usual = median(history_s)
    if usual is not None and in_phase_s is not None and in_phase_s > max(30.0, HISTORY_FACTOR * usual):
        reason = "{} in this phase, it usually takes {}".format(span(in_phase_s), span(usual))
    elif rate is not None and rate > 0:
        left = (
            None
            if not checkpoint_bytes or read_in_phase is None
            else (checkpoint_bytes - read_in_phase) / rate
        )
        if usual is not None and left is not None and (in_phase_s or 0.0) + left > HISTORY_FACTOR * usual:
            reason = "at this rate {} more, it usually takes {}".format(span(left), span(usual))
        elif (
            usual is None
            and rate < SLOW_READ
            and (left is None or left > SOON_S)
            and not _soon(progress, in_phase_s)
        ):
            reason = "the disk gives {}/s".format(size(rate))
    if expected is not None:
        where.append("{:.0f} to {:.0f} minutes are normal".format(expected[0] / 60, expected[1] / 60))
    elif still > 30 and not reason:
        where.append("quiet for {}, up to {} is normal here".format(span(still), span(bound)))
    told = "{}{}".format(name[:1].upper() + name[1:], ": " + ", ".join(where) if where else "")
    if reason:
        return Stall("slow", "{}. Slow: {}.".format(told, reason), tuple(evidence), still, bound, expected)
    return Stall("progressing", told + ".", tuple(evidence), still, bound, expected)


LABELS = {
    "log_size": "log",
    "read_bytes": "disk reads",
    "rchar": "disk reads",
    "gpu_mib": "GPU memory",
    "cpu_s": "CPU time",
}


def _soon(progress: Optional[Progress], in_phase_s: Optional[float]) -> bool:
    """The shards come fast enough. From the page cache they do, with hardly a byte from the disk: that is not slow."""
    if progress is None or in_phase_s is None or not 0 < progress.done < progress.total:
        return False
    return in_phase_s / progress.done * (progress.total - progress.done) <= SOON_S


def _stills(rows: Sequence[Sample], quiet_s: Optional[float]) -> Dict[str, float]:
    """Seconds since each kind of evidence moved; what is not told is left out."""
    found: Dict[str, float] = {}
    if quiet_s is not None:
        found["log"] = max(0.0, quiet_s)
    for what, noise in (
        ("log_size", 0.5),
        ("read_bytes", READ_NOISE),
        ("rchar", RCHAR_NOISE),
        ("gpu_mib", NOISE_MIB),
        ("cpu_s", CPU_NOISE_S),
    ):
        still = _still([(s.t, getattr(s, what)) for s in rows], noise)
        if still is None:
            continue
        label = LABELS[what]
        found[label] = min(still, found.get(label, still))
    return found


def _still(points: Sequence[Tuple[float, Optional[float]]], noise: float) -> Optional[float]:
    """Seconds since the value last moved by more than `noise` from where it then stayed."""
    known = [(t, v) for t, v in points if v is not None]
    if len(known) < 2:
        return None
    last = known[-1][1]
    for (_, v), (after, _) in zip(reversed(known[:-1]), reversed(known[1:])):
        if abs(v - last) > noise:
            return max(0.0, -after)
    return max(0.0, -known[0][0])


def _says(what: str, still: float) -> str:
    return "{}: moved {}".format(what, "now" if still < 3 else "{} ago".format(span(still)))


def _states(states: str) -> List[str]:
    rows = []
    for letter, words in (("D", "wait for the disk (D)"), ("T", "are stopped (T)"), ("Z", "are zombies (Z)")):
        count = states.upper().count(letter)
        if count:
            rows.append("{} of {} processes {}".format(count, len(states), words))
    return rows


def read_rate(samples: Sequence[Sample]) -> Optional[float]:
    """Bytes read a second over the last `RATE_WINDOW_S` of the samples; None when fewer than two tell."""
    known = [s for s in samples if s.read_bytes is not None or s.rchar is not None]
    if not known:
        return None
    recent = [s for s in known if s.t >= known[-1].t - RATE_WINDOW_S]
    if len(recent) < 2:
        recent = known[-2:]
    took = recent[-1].t - recent[0].t
    got = read_between(recent[0], recent[-1])
    return None if got is None or took <= 0 else got / took


def read_between(first: Sample, last: Sample) -> Optional[float]:
    """Bytes read from one sample to another: from disk (mapped files too) or by read calls, whichever is more."""
    found = [
        b - a
        for a, b in ((first.read_bytes, last.read_bytes), (first.rchar, last.rchar))
        if a is not None and b is not None
    ]
    return max([0.0] + found) if found else None


PhaseTime = Tuple[str, str, float]
"""(phase, sub, seconds) of a finished load."""


def eta(
    phase: str, sub: str, in_phase_s: Optional[float], loads: Sequence[Sequence[PhaseTime]]
) -> Optional[float]:
    """Seconds to ready, by the median of finished loads of the same profile; None when there are none.

    A phase that takes longer than it did then adds nothing: the rest is what the later phases took.
    """
    rest: List[float] = []
    for load in loads:
        here = [i for i, (name, part, _) in enumerate(load) if name == phase and part == sub]
        if not here:
            here = [i for i, (name, _, _) in enumerate(load) if position(name) >= position(phase)][:1]
            if not here:
                continue
        last = here[-1]
        same = load[last][0] == phase
        later = load[last + 1 :] if same else load[last:]
        left = max(0.0, load[last][2] - (in_phase_s or 0.0)) if same else 0.0
        rest.append(left + sum(s for name, _, s in later if name not in ("ready", "serving", "exited")))
    return median(rest)


def median(values: Sequence[float]) -> Optional[float]:
    """Middle value; None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def span(seconds: float) -> str:
    """`45 s`, `12 min`, `1 h 5 min`."""
    if seconds < 100:
        return "{:.0f} s".format(seconds)
    minutes = seconds / 60
    if minutes < 100:
        return "{:.0f} min".format(minutes)
    return "{:.0f} h {:.0f} min".format(minutes // 60, minutes % 60)


def size(count: float) -> str:
    """Bytes in decimal units, as checkpoints are sold: `547 GB`, `1.7 GB`."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            value = count / factor
            return "{:.0f} {}".format(value, unit) if value >= 100 else "{:.1f} {}".format(value, unit)
    return "{:.0f} B".format(count)
