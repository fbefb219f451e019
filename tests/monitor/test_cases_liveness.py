"""Cases of group 7: what a correct product concludes from HTTP, processes and counters together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specdash.monitor import liveness
from specdash.monitor.events import Event, HttpSeen, LinkChanged, LogRead, RunSampled, RunsListed, Tick
from specdash.monitor.reduce import reduce, start
from specdash.monitor.state import FleetState, ServerState

DATA = Path(__file__).parents[1] / "data" / "monitor"


class Watch:
    """Feeds one run's events to the reducer."""

    def __init__(self, **record: Any) -> None:
        self.state: FleetState = start([("h", "")])
        self(0.0, LinkChanged("up"))
        self(0.0, RunsListed(({"id": "r", "http": {"port": 30000}, **record},)))

    def __call__(self, at: float, body: Any) -> ServerState:
        run = "" if isinstance(body, (Tick, LinkChanged, RunsListed)) else "r"
        self.state = reduce(self.state, Event(at, "" if isinstance(body, Tick) else "h", body, run))
        return self.state.hosts["h"].servers.get("r") or ServerState.__new__(ServerState)

    def page(self, at: float, text: str | bytes) -> ServerState:
        return self(at, HttpSeen("metrics", 200, text if isinstance(text, bytes) else text.encode()))


def data(name: str) -> Any:
    return json.loads((DATA / name).read_text())


def test_c701_a_200_with_a_dead_scheduler_is_down() -> None:
    case = data("C701.probe.json")
    watch = Watch(alive=True, phase="ready", ready_boot_s=1.0)
    tree = [{"pid": p["pid"], "ppid": p["ppid"], "state": "S", "title": p["cmd"]} for p in case["ps"]]
    watch(0, RunSampled(({"tree": tree},)))
    pages = {m["t"]: m for m in case["metrics"]}
    for answer in case["http"]:
        watch(answer["t"], HttpSeen("health", answer["status"]))
        if answer["t"] in pages:
            watch.page(
                answer["t"], "".join(f'{k}{{a="b"}} {v}\n' for k, v in pages[answer["t"]].items() if k != "t")
            )
    health = watch(21, Tick()).health
    assert (health.state, health.category) == ("down", "scheduler_dead_health_lies")
    assert "no sglang::scheduler process" in health.evidence
    assert any("frozen with 16 running" in line for line in health.evidence)


def test_the_same_with_a_scheduler_alive_is_hung_not_down() -> None:
    case = data("C701.probe.json")
    watch = Watch(alive=True, phase="ready", ready_boot_s=1.0)
    tree = [{"pid": 1, "title": "sglang::scheduler_TP0"}, {"pid": 2, "title": "sglang::detokenizer"}]
    watch(0, RunSampled(({"tree": tree},)))
    for m in (*case["metrics"], {**case["metrics"][-1], "t": 37}):
        watch.page(m["t"], "".join(f"{k} {v}\n" for k, v in m.items() if k != "t"))
        if m["t"] == 20:
            # An engine that went idle leaves its gauges as they were for 30 s: this is not a hang yet.
            assert watch(21, Tick()).health.state == "busy"
    assert watch(38, Tick()).health.state == "hung_suspected"


def test_a_zombie_scheduler_is_no_scheduler() -> None:
    watch = Watch(alive=True, phase="ready", ready_boot_s=1.0)
    watch(0, RunSampled(({"tree": [{"pid": 1, "title": "sglang::scheduler", "state": "S"}]},)))
    watch(2, RunSampled(({"tree": [{"pid": 1, "title": "sglang::scheduler", "state": "Z"}]},)))
    assert watch(3, Tick()).health.state == "down"


def test_processes_without_titles_say_nothing_of_schedulers() -> None:
    watch = Watch(alive=True, phase="ready", ready_boot_s=1.0)
    watch(
        0,
        RunSampled(
            (
                {
                    "tree": [
                        {"pid": 1, "title": "python3 -m sglang.launch_server"},
                        {"pid": 2, "title": "python3"},
                    ]
                },
            )
        ),
    )
    assert watch(3, Tick()).health.state == "ready"


def test_c702_a_503_under_a_long_prefill_is_busy() -> None:
    watch = Watch(alive=True, phase="ready", ready_boot_s=1.0)
    log = (DATA / "C702.server.log").read_bytes()
    watch(20, LogRead(0, log, len(log)))
    probe = data("C702.probe.json")
    watch(21, HttpSeen("health", probe["status"], took_s=probe["took_s"]))
    health = watch(22, Tick()).health
    assert (health.state, health.category) == ("busy", "long_prefill")


def test_a_503_with_no_prefill_for_long_is_not_busy() -> None:
    watch = Watch(alive=True, phase="ready", ready_boot_s=1.0)
    log = (DATA / "C702.server.log").read_bytes()
    watch(20, LogRead(0, log, len(log)))
    for at in (80, 100, 120):
        watch(at, HttpSeen("health", 503, took_s=20.0))
    assert watch(121, Tick()).health.state == "hung_suspected"


def test_an_engine_that_says_it_is_not_ready_any_more_is_down() -> None:
    watch = Watch(alive=True, phase="ready", ready_boot_s=1.0)
    assert watch(1, HttpSeen("ready", 200)).health.state == "ready"
    watch(5, HttpSeen("ready", 503))
    assert watch(6, Tick()).health.state == "down"


def test_c703_idle_is_idle_and_the_gauge_is_stale() -> None:
    watch = Watch(alive=True, phase="ready", ready_boot_s=1.0)
    watch.page(0, (DATA / "C703.t0.prom").read_bytes())
    watch.page(10, (DATA / "C703.t10.prom").read_bytes())
    server = watch(10.5, Tick())
    assert server.health.state == "idle"
    assert server.numbers.idle is True
    assert server.numbers.decode_tok_s.value in (0.0, None)
    assert server.numbers.decode_tok_s.value != 182.4


def test_c705_an_empty_page_is_no_metrics_not_zero() -> None:
    from specdash.monitor import memory

    watch = Watch(alive=True, phase="ready", ready_boot_s=1.0)
    server = watch.page(1, (DATA / "C705.prom").read_bytes())
    server = watch(2, Tick())
    assert server.numbers.decode_tok_s.value is None
    assert server.numbers.running.value is None
    m = memory.of(server)
    assert m.metrics_why
    assert "--enable-metrics" in m.metrics_hint
    assert any("multi-process directory" in hint for hint in m.metrics_hint)


def test_c706_a_rank_without_a_forward_has_no_accept_length() -> None:
    info = {
        "internal_states": [
            {"effective_max_running_requests_per_dp": 24, "last_gen_throughput": 0.0},
            {"effective_max_running_requests_per_dp": 24, "avg_spec_accept_length": 2.31},
        ]
    }
    watch = Watch(alive=True, phase="ready", ready_boot_s=1.0)
    watch(1, HttpSeen("server_info", 200, json.dumps(info).encode()))
    numbers = watch(2, Tick()).numbers
    assert [row["accept_length_start"] for row in numbers.per_dp] == [None, 2.31]
    assert numbers.running_cap.value == 48
    assert numbers.accept_length_start.value is None


def test_c708_a_queue_with_nothing_running_is_suspected_hung() -> None:
    watch = Watch(alive=True, phase="ready", ready_boot_s=1.0)
    page = (DATA / "C708.prom").read_bytes()
    for at in range(0, 61, 5):
        watch.page(float(at), page)
    health = watch(60, Tick()).health
    assert health.state == "hung_suspected"
    assert "queue 37 with nothing running for 60 s" in " ".join((health.sentence.lower(), *health.evidence))


def test_a_queue_seen_once_is_not_hung() -> None:
    watch = Watch(alive=True, phase="ready", ready_boot_s=1.0)
    watch.page(1.0, (DATA / "C708.prom").read_bytes())
    assert watch(2, Tick()).health.state == "busy"


def test_c710_refused_then_503_then_200_is_a_start() -> None:
    watch = Watch(alive=True, phase="starting")
    states = []
    for seen in data("C710.probe.json")["timeline"]:
        if "connect" in seen:
            server = watch(seen["t"], HttpSeen("health", None, problem=seen["connect"]))
        else:
            server = watch(seen["t"], HttpSeen("health", seen["status"]))
        states.append(server.health.state)
    assert states == ["starting", "starting", "warmup", "warmup", "ready"]


def test_c711_a_plan_that_piles_up_probes_is_refused() -> None:
    plan = data("C711.probe.json")["poll_plan"]
    assert liveness.poll_plan_problem(plan["path"], plan["interval_s"], plan["client_timeout_s"])


@pytest.mark.parametrize(
    ("path", "interval", "timeout", "skips", "fine"),
    [
        ("/health", 1.0, 5.0, True, False),
        ("/health", 30.0, 25.0, True, True),
        ("/health_generate", 30.0, 25.0, False, False),
        ("/generate", 30.0, 5.0, True, False),
        ("/metrics", 1.0, 5.0, False, True),
        ("/v1/loads", 2.0, 5.0, False, True),
    ],
)
def test_poll_plans(path: str, interval: float, timeout: float, skips: bool, fine: bool) -> None:
    assert (liveness.poll_plan_problem(path, interval, timeout, skips_when_running=skips) == "") is fine
