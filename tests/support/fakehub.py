"""A hub and an operator that play synthetic states to the screen. No network, no clock."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from specdash.control.plans import Check, Danger, Plan, Step, StepEvent
from specdash.control.profile_text import Known
from specdash.monitor.state import (
    ActionState,
    Alarm,
    BreakEven,
    DrafterNow,
    FleetState,
    Gpu,
    GpuBoard,
    GpuProcess,
    Health,
    HostState,
    LinkState,
    LogState,
    Numbers,
    Reading,
    RunFacts,
    RunStatus,
    ServerState,
    Verdict,
)
from specdash.sglang.story import Story, feed
from specdash.tui.ports import AlgorithmRow, ProbeView, ProfileRow, StacksView

NOW = 10_000.0
STATES = (
    "connecting",
    "refused",
    "empty",
    "loading",
    "slow",
    "stalled",
    "ready",
    "idle",
    "base",
    "stale",
    "failed",
    "switching",
    "rolled_back",
    "gpu_lost",
)


class LogList:
    """A log in memory."""

    def __init__(self, lines: Iterable[bytes] = ()) -> None:
        self.lines = list(lines)

    @property
    def line_count(self) -> int:
        return len(self.lines)

    def line(self, index: int) -> bytes:
        return self.lines[index]


def log_lines(count: int = 400) -> list[bytes]:
    out = [
        b"[2026-11-29 13:00:01] server_args=ServerArgs(model_path='/data/kimi-k2.5', tp_size=8)",
        b"[2026-11-29 13:00:12 TP0] Init torch distributed begin.",
        b"[2026-11-29 13:00:23 TP0] Load weight begin. avail mem=139.10 GB",
    ]
    for i in range(count):
        rank = i % 8
        if i % 57 == 56:
            out.append(
                b"[2026-11-29 13:05:%02d TP%d] WARNING: NCCL version mismatch, using 2.27" % (i % 60, rank)
            )
        out.append(
            b"[2026-11-29 13:05:%02d TP0] Decode batch, #running-req: 1, #token: %d, token usage: 0.12, accept len: 2.%02d, "
            b"cuda graph: True, gen throughput (token/s): %d.10, #queue-req: 0"
            % (i % 60, 2000 + i, i % 97, 60 + i % 9)
        )
    return out


LOADING_LOG = b"""[2026-11-29 13:00:01] server_args=ServerArgs(model_path='/data/kimi-k2.5', tp_size=8)
[2026-11-29 13:00:12 TP0] Init torch distributed begin.
[2026-11-29 13:00:23 TP0] Init torch distributed ends. mem usage=1.20 GB
[2026-11-29 13:00:24 TP0] Load weight begin. avail mem=139.10 GB
\rLoading safetensors checkpoint shards:  64% Completed | 41/64 [03:12<01:48,  4.7s/it]"""


def story(data: bytes = LOADING_LOG) -> Story:
    """What the real parser makes of a log; it began 223 s ago and its last byte came 2 s ago."""
    at = NOW - 223
    told = Story()
    for line in data.splitlines(keepends=True):
        told = feed(told, line, at)
        at = min(at + 11, NOW - 192)
    return told


def gpus(used: float | None = 121_000.0, run: str = "r1", busy: bool = True, count: int = 8) -> GpuBoard:
    return GpuBoard(
        gpus=tuple(
            Gpu(
                index=i,
                uuid=f"GPU-{i}",
                name="NVIDIA H200",
                memory_used_mib=None if used is None else used + 37 * i,
                memory_total_mib=143_771.0,
                utilisation_pct=(97.0 - i) if busy else 0.0,
                power_w=(612.0 - 7 * i) if busy else 84.0,
                power_limit_w=700.0,
                temperature_c=58.0 + i,
                throttle=(),
                processes=(GpuProcess(4000 + i, used, "python3", run=run),) if run else (),
                holder="ours" if run else "free",
            )
            for i in range(count)
        ),
        source="nvml",
        at=NOW - 0.6,
        expected=count,
    )


def history(
    mean: float, swing: float, seconds: int = 300, end: float = NOW
) -> tuple[tuple[float, float | None], ...]:
    return tuple(
        (
            end - seconds + i,
            None if 120 <= i < 132 else mean + swing * math.sin(i / 17) + swing / 3 * math.sin(i / 3),
        )
        for i in range(seconds)
    )


def numbers(accept: float | None = 2.31, rate: float = 81.4, end: float = NOW, idle: bool = False) -> Numbers:
    def reading(value: Any, unit: str = "", **more: Any) -> Reading[Any]:
        return Reading(value, unit, "log decode line", end - 0.8, **more)

    return Numbers(
        decode_tok_s=reading(rate, "tok/s", window_s=5.0, load=1),
        prefill_tok_s=reading(1840.0, "tok/s", window_s=5.0),
        running=reading(0 if idle else 1, "requests"),
        queued=reading(0, "requests"),
        running_cap=reading(48, "requests", note="set by speculation"),
        kv_used=reading(0.12),
        cache_hit=reading(0.41),
        accept_length=reading(accept, "tokens/step", window_s=30.0, load=1, includes_bonus=True),
        accept_rate=reading(None if accept is None else 0.44),
        ttft_s={k: reading(v, "s") for k, v in (("p50", 0.21), ("p90", 0.48), ("p99", 1.31))},
        itl_s={k: reading(v, "s") for k, v in (("p50", 0.0123), ("p90", 0.0181), ("p99", 0.0402))},
        e2e_s={k: reading(v, "s") for k, v in (("p50", 6.1), ("p90", 11.2), ("p99", 19.8))},
        position_acceptance=(0.71, 0.48, 0.29) if accept else None,
        source="log decode lines, 0.8 s",
        idle=idle,
        decode_history=history(rate, rate / 9, end=end),
        accept_history=history(accept, 0.3, end=end) if accept else (),
    )


PAYS = BreakEven(
    "pays",
    "Accept length 2.31 is 26 % over break-even 1.83: speculation gives about 81 tok/s where base gives 63.6.",
    2.31,
    1.83,
    0.26,
    15.7,
    28.8,
    1.0,
    "base run of 28 Nov, 1 running",
)
LOSES = BreakEven(
    "does_not_pay",
    "Accept length 1.50 is 18 % under break-even 1.83: base would give 63.6 tok/s, this gives 52.0.",
    1.5,
    1.83,
    -0.18,
    15.7,
    28.8,
    1.0,
    "base run of 28 Nov, 1 running",
    below_since=NOW - 90,
)


def server(
    run: str = "r1", profile: str = "kimi-k2.5-eagle3", algorithm: str = "EAGLE3", **more: Any
) -> ServerState:
    return ServerState(
        run=RunFacts(
            id=run,
            profile=profile,
            target="/data/kimi-k2.5-int4",
            algorithm=algorithm,
            drafter="/data/eagle3/aq-medai-k2-drafter" if algorithm == "EAGLE3" else "",
            http_port=8000,
            log_path="/root/.specdash/hosts/x/runs/r1/server.log",
            started_by="ana@laptop",
            created_unix=1_795_957_200.0,
        ),
        story=more.pop("story", Story()),
        status=more.pop("status", RunStatus(pid=4000, alive=True, started_boot_s=100.0)),
        log=LogState(size=90_000, read=90_000, last_growth=NOW - 0.4),
        drafter=DrafterNow(algorithm),
        **more,
    )


def ready_server(**more: Any) -> ServerState:
    values: dict[str, Any] = {
        "verdict": Verdict("ready", "A generation was answered in 0.4 s."),
        "health": Health("busy", "Requests are answered."),
        "numbers": numbers(),
        "breakeven": PAYS,
    }
    return server(**{**values, **more})


def host(name: str = "h200-a", **more: Any) -> HostState:
    link = more.pop("link", LinkState("up", "", NOW - 500, rtt_ms=12.0, last_up=NOW - 0.4))
    facts = {"seen_at": NOW - 500, "now_boot": 100.0 + 223 - 500}
    return HostState(
        name=name, label=more.pop("label", ""), link=link, facts=facts, gpus=more.pop("gpus", gpus()), **more
    )


def _second() -> HostState:
    return host(
        "h200-b",
        gpus=gpus(420.0, "", False),
        link=LinkState("up", "", NOW - 800, rtt_ms=31.0, last_up=NOW - 0.9),
    )


def fleet(kind: str) -> FleetState:
    """One of `STATES` as a fleet of two hosts."""
    first = _first(kind)
    return FleetState(now=NOW, ticked=NOW, hosts={first.name: first, "h200-b": _second()})


def _first(kind: str) -> HostState:
    loading = RunStatus(pid=4000, alive=True, started_boot_s=100.0, phase_hint="loading_weights")
    if kind == "connecting":
        return host(link=LinkState("connecting", since=NOW - 2), gpus=None)
    if kind == "refused":
        sentence = "The host key of h200-a changed. Remove line 12 of ~/.ssh/known_hosts if that was meant."
        return host(link=LinkState("refused", sentence, NOW - 20), gpus=None)
    if kind == "empty":
        return host(gpus=gpus(420.0, "", False))
    if kind in ("loading", "slow", "stalled"):
        verdict = {
            "loading": Verdict(
                "progressing",
                "Weights are being read: 8.1 GB in the last 10 s.",
                ("log grew 2 s ago", "GPU memory +1.1 GB/s"),
            ),
            "slow": Verdict(
                "slow",
                "This phase takes 313 s; it took 140 s the last 3 times. It still moves.",
                ("read 41 MB/s", "log silent for 74 s"),
            ),
            "stalled": Verdict(
                "stalled",
                "Nothing moved for 620 s in distributed init: no log byte, no disk read, no CPU time, GPU memory flat.",
                ("log silent for 620 s", "CPU 0.0 s in 620 s", "GPU memory 541 MiB, flat"),
                NOW - 620,
            ),
        }[kind]
        now = server(
            status=loading,
            story=story()
            if kind != "stalled"
            else story(LOADING_LOG[: LOADING_LOG.index(b"[2026-11-29 13:00:23")]),
            verdict=verdict,
            health=Health("starting"),
            eta_s=110.0 if kind == "loading" else None,
            eta_source="3 past loads",
        )
        return host(servers={"r1": now}, gpus=gpus(61_000.0 if kind != "stalled" else 541.0))
    if kind == "idle":
        now = ready_server(numbers=numbers(idle=True), health=Health("idle"))
        return host(servers={"r1": now}, gpus=gpus(busy=False))
    if kind == "base":
        now = ready_server(
            profile="kimi-k2.5-base",
            algorithm="",
            numbers=numbers(None, 63.6),
            breakeven=BreakEven("not_speculating"),
        )
        return host(servers={"r1": now})
    if kind == "stale":
        now = ready_server(numbers=numbers(end=NOW - 41))
        link = LinkState("lost", "The connection was cut.", NOW - 40, 3, NOW + 4, last_up=NOW - 41)
        return host(servers={"r1": now}, link=link, gpus=replace(gpus(), at=NOW - 41))
    if kind == "failed":
        ended = RunStatus(
            pid=None,
            alive=False,
            started_boot_s=100.0,
            ended_boot_s=160.0,
            exit_code=1,
            phase_hint="starting",
        )
        now = server(
            "r2",
            "kimi-k2.5-ngram",
            "NGRAM",
            status=ended,
            verdict=Verdict(
                "dead", "NGRAM needs --speculative-num-draft-tokens; the launcher ended with exit code 1."
            ),
            health=Health("down"),
            alarms=(
                Alarm(
                    "dead",
                    "critical",
                    "kimi-k2.5-ngram ended with exit code 1.",
                    NOW - 30,
                    "Read its cause in the log.",
                ),
            ),
        )
        return host(servers={"r2": now}, gpus=gpus(420.0, "", False))
    if kind in ("switching", "rolled_back"):
        steps: list[dict[str, Any]] = [
            {
                "name": "preflight",
                "title": "Check kimi-k2.5-ngram",
                "status": "done",
                "sentence": "12 ok, 1 warning",
            },
            {
                "name": "stop",
                "title": "Stop kimi-k2.5-eagle3",
                "status": "done",
                "sentence": "8 GPUs free, port 8000 free",
            },
            {"name": "launch", "title": "Launch kimi-k2.5-ngram", "status": "running"},
            {"name": "ready", "title": "Wait until it answers", "status": ""},
        ]
        action = ActionState(
            "a1",
            "switch",
            "Switch to kimi-k2.5-ngram",
            "running",
            "launch",
            "",
            tuple(steps),
            NOW - 93,
            NOW - 2,
        )
        if kind == "rolled_back":
            steps[2].update(status="failed", sentence="exit code 1")
            steps[3].update(
                name="rollback",
                title="Back to kimi-k2.5-eagle3",
                status="done",
                sentence="serves again after 312 s",
            )
            action = replace(
                action,
                status="failed",
                final="rolled_back",
                steps=tuple(steps),
                sentence="kimi-k2.5-ngram did not start; kimi-k2.5-eagle3 serves again.",
            )
            return host(servers={"r1": ready_server()}, actions=(action,))
        now = server(
            "r2",
            "kimi-k2.5-ngram",
            "NGRAM",
            status=loading,
            story=story(),
            verdict=Verdict("progressing", "Weights are being read."),
            health=Health("starting"),
        )
        return host(servers={"r2": now}, actions=(action,), gpus=gpus(30_000.0, "r2"))
    if kind == "gpu_lost":
        board = gpus()
        lost = replace(board.gpus[5], problem="GPU 5 fell off the bus (0000:0B:00.0).", memory_used_mib=None)
        board = replace(board, gpus=(*board.gpus[:5], lost, *board.gpus[6:7]))
        alarm = Alarm("gpu", "critical", "7 of 8 GPUs answer.", NOW - 5, "Look at dmesg for Xid.")
        return host(
            servers={"r1": ready_server(numbers=numbers(1.5, 52.0), breakeven=LOSES)},
            gpus=board,
            alarms=(alarm,),
        )
    return host(
        servers={
            "r1": ready_server(
                numbers=numbers(1.5, 52.0) if kind == "loses" else numbers(),
                breakeven=LOSES if kind == "loses" else PAYS,
            )
        }
    )


PROFILES = (
    ProfileRow(
        "kimi-k2.5-base",
        "",
        "",
        "/data/kimi-k2.5-int4",
        "h200-a",
        (),
        "/p/kimi-k2.5-base.toml",
        "Target alone",
    ),
    ProfileRow(
        "kimi-k2.5-eagle3",
        "EAGLE3",
        "/data/eagle3/aq-medai-k2-drafter",
        "/data/kimi-k2.5-int4",
        "h200-a",
        ("kimi-k2.5-base",),
        "/p/e.toml",
        "With the AQ-MedAI drafter",
    ),
    ProfileRow(
        "kimi-k2.5-ngram",
        "NGRAM",
        "",
        "/data/kimi-k2.5-int4",
        "h200-a",
        ("kimi-k2.5-base",),
        "/p/n.toml",
        "Drafts from the prompt",
    ),
)


class FakeHub:
    """Plays states; `play` swaps them and tells the subscribers."""

    def __init__(self, state: FleetState | str = "ready", log: LogList | None = None) -> None:
        self.state = fleet(state) if isinstance(state, str) else state
        self.logs = log if log is not None else LogList(log_lines())
        self.wanted: list[tuple[str, str]] = []
        self.retried: list[str] = []
        self.callbacks: list[Callable[[FleetState], None]] = []

    def subscribe(self, callback: Callable[[FleetState], None]) -> Callable[[], None]:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def log(self, host: str, run_id: str) -> LogList | None:
        return self.logs if run_id else None

    def want(self, host: str, run: str) -> None:
        self.wanted.append((host, run))

    def retry(self, host: str) -> None:
        self.retried.append(host)

    def play(self, state: FleetState | str) -> None:
        self.state = fleet(state) if isinstance(state, str) else state
        for callback in list(self.callbacks):
            callback(self.state)


class FakeOperator:
    """Plans without a host; remembers what was performed."""

    def __init__(self, *, blocked: bool = False, typed: str = "", refuse: str = "") -> None:
        self.blocked, self.typed, self.refuse = blocked, typed, refuse
        self.performed: list[tuple[Plan, str]] = []
        self.asked: list[str] = []

    def profiles(self) -> Sequence[ProfileRow]:
        return PROFILES

    def command(self, profile: str) -> str:
        return f"/root/ml-env/bin/python3 -m sglang.launch_server --model-path /data/kimi-k2.5-int4 --tp-size 8 --served-model-name {profile}"

    def profile_lines(self, profile: str) -> list[str]:
        lines = ["--model-path /data/kimi-k2.5-int4", "--tp-size 8", "--port 8000"]
        if profile.endswith("eagle3"):
            lines += ["--speculative-algorithm EAGLE3", "--speculative-num-steps 3"]
        if profile.endswith("ngram"):
            lines += ["--speculative-algorithm NGRAM"]
        return lines

    def can_change(self, host: str) -> str:
        return self.refuse

    def _plan(self, kind: Any, title: str, danger: Danger, notes: tuple[str, ...]) -> Plan:
        self.asked.append(kind)
        checks = (
            Check("algorithm", "ok", "NGRAM is in the installed SGLang 0.5.23."),
            Check(
                "port",
                "block" if self.blocked else "ok",
                "Port 8000 is taken by pid 4000." if self.blocked else "Port 8000 is free.",
                ("python3 4000 ana",),
                "Stop it, or choose another port." if self.blocked else "",
            ),
            Check("disk", "warn", "2.1 GB are left on /root.", (), "Delete old run folders."),
        )
        return Plan(
            "p1",
            kind,
            "h200-a",
            title,
            danger,
            (
                Step("stop", "Stop the running server", "kill -TERM 4000", 90.0),
                Step("launch", "Launch", "python3 -m sglang.launch_server …", 900.0),
            ),
            checks,
            notes,
            self.typed,
        )

    async def plan_launch(self, host: str, profile: str) -> Plan:
        return self._plan(
            "launch",
            f"Launch {profile} on {host}",
            Danger.CHANGES,
            ("8 GPUs for about 5 min 13 s until it answers (3 past loads).",),
        )

    async def plan_stop(self, host: str, run: str) -> Plan:
        return self._plan(
            "stop",
            f"Stop kimi-k2.5-eagle3 on {host}",
            Danger.DESTROYS,
            ("This ends kimi-k2.5-eagle3: 8 GPUs, 1 request in flight.",),
        )

    async def plan_switch(self, host: str, run: str, profile: str) -> Plan:
        return self._plan(
            "switch",
            f"Switch to {profile} on {host}",
            Danger.DESTROYS,
            (
                "kimi-k2.5-eagle3 is down for about 6 min.",
                "If it does not get ready, kimi-k2.5-eagle3 is launched again.",
            ),
        )

    async def plan_hot(self, host: str, run: str, profile: str) -> Plan:
        return self._plan("hot_switch", f"Hot switch to {profile} on {host}", Danger.CHANGES, ())

    async def attach(self, plan: Plan) -> AsyncIterator[StepEvent]:
        self.asked.append(f"attach {plan.id}")
        yield StepEvent(plan.id, "launch", "done", "It went on.", final="done")

    async def check_profile(self, host: str, profile: str) -> Sequence[Check]:
        return (
            Check("flags", "block", "--tp-sise is no flag of SGLang 0.5.23.", (), "Did you mean --tp-size?"),
        )

    async def flags_of(self, host: str, profile: str) -> Known:
        return Known(host, problem=f"Flags unknown: {host} is not connected. Connect, then probe it (p).")

    async def perform(self, plan: Plan, typed: str = "") -> AsyncIterator[StepEvent]:
        self.performed.append((plan, typed))
        yield StepEvent(plan.id, "launch", "running")
        yield StepEvent(plan.id, "launch", "done", "It answers.", final="done")

    async def unfinished(self, host: str) -> list[tuple[Plan, AsyncIterator[StepEvent]]]:
        return []

    async def follow(self, plan: Plan, events: AsyncIterator[StepEvent]) -> AsyncIterator[StepEvent]:
        async for event in events:
            yield event

    async def again(self, plan: Plan) -> AsyncIterator[StepEvent]:
        yield StepEvent(plan.id, "live", "done", "It serves.", final="done")

    async def abort(self, host: str, kind: str, ident: str) -> str:
        self.asked.append(f"abort {kind} {ident}")
        return "The switch is taken back."

    async def answer(self, host: str, switch_id: str, word: str) -> None:
        self.asked.append(f"answer {switch_id} {word}")

    async def adoptable(self, host: str) -> list[tuple[str, str]]:
        return [("777", "pid 777 bob port 30000 /data/other")]

    async def plan_adopt(self, host: str, name: str) -> Plan:
        return self._plan("adopt", f"Adopt pid {name} on {host}", Danger.CHANGES, ())

    async def probe(self, host: str, profile: str) -> ProbeView:
        return ProbeView(
            "0.5.23",
            "/root/ml-env/lib/python3.12/site-packages/sglang",
            "/root/ml-env/bin/python3",
            (
                AlgorithmRow(
                    "EAGLE3",
                    ("eagle3",),
                    "yes, one trained for the target",
                    "A small drafter head on the target's hidden states.",
                ),
                AlgorithmRow(
                    "NGRAM", (), "no", "Drafts from n-grams of the prompt.", ("caps running requests at 48",)
                ),
                AlgorithmRow("UNO"),
            ),
            (
                ("EAGLE 3", "in_build", "EAGLE3 is in sglang/srt/speculative/spec_info.py:12."),
                ("Medusa", "not_in_build", "No algorithm and no file of that name."),
            ),
        )

    async def stacks(self, host: str, run: str) -> StacksView:
        self.asked.append(f"stacks {host} {run}")
        text = "4000 sglang::scheduler_TP0 S\n  barrier (torch/distributed/distributed_c10d.py:4811)\n"
        return StacksView(
            text, 1, "/root/.specdash/hosts/x/runs/r1/stacks.txt", "For Python frames install py-spy."
        )

    async def pulse(self, host: str, run: str) -> str:
        self.asked.append(f"pulse {host} {run}")
        return "81.0 tok/s, one stream, accept length 2.31 over 209 verify steps."

    def redact(self, line: bytes) -> bytes:
        return line.replace(b"hunter2", "•••".encode())
