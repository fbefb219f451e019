"""A server's numbers through its life: idle for minutes, restarted, with DP ranks, old, without a log, useless."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from specdash.monitor import snapshot
from specdash.monitor.events import (
    BaseMeasured,
    Event,
    HostSeen,
    HttpSeen,
    LinkChanged,
    LogRead,
    ProcessesSeen,
    PulseSeen,
    RunRecorded,
    RunsListed,
    Tick,
)
from specdash.monitor.reduce import reduce, start
from specdash.monitor.state import HostState, ServerState


class Watch:
    def __init__(self, **record: Any) -> None:
        self.state = start([("h", "")])
        self.size = 0
        self(0.0, LinkChanged("up"))
        self(0.0, HostSeen({"now_boot": 1000.0, "boot_id": "b", "user": "ops"}))
        run = {
            "id": "r",
            "alive": True,
            "http": {"port": 1},
            "ready_boot_s": 1.0,
            "argv": ("x", "--model-path", "t"),
        }
        self(0.0, RunsListed(({**run, **record},)))

    def __call__(self, at: float, body: Any) -> ServerState:
        whole = isinstance(body, (LinkChanged, HostSeen, RunsListed, BaseMeasured, ProcessesSeen))
        host, run = ("", "") if isinstance(body, Tick) else ("h", "" if whole else "r")
        self.state = reduce(self.state, Event(at, host, body, run))
        return self.server

    @property
    def server(self) -> ServerState:
        return self.host.servers.get("r") or ServerState.__new__(ServerState)

    @property
    def host(self) -> HostState:
        return self.state.hosts["h"]

    def page(self, at: float, **series: Any) -> ServerState:
        """A metrics page at `at` and a tick: values, or {labels: value}."""
        rows = []
        for name, value in series.items():
            for labels, one in (value if isinstance(value, dict) else {"": value}).items():
                rows.append(f"sglang:{name}{{{labels}}} {one}\n")
        self(at, HttpSeen("metrics", 200, "".join(rows).encode()))
        return self(at + 0.1, Tick())

    def log(self, at: float, text: str) -> ServerState:
        data = text.encode()
        self(at, LogRead(self.size, data, self.size + len(data)))
        self.size += len(data)
        return self(at + 0.1, Tick())


def tokens(value: float) -> dict[str, float]:
    return {'mode="decode",tp_rank="0"': value}


def decode(second: int, running: int, tok_s: float, accept: float | None = None, dp: str = "") -> str:
    spec = f"accept len: {accept:.2f}, accept rate: 0.50, " if accept is not None else ""
    return (
        f"[2026-05-04 10:{second // 60:02d}:{second % 60:02d}{dp}] Decode batch, #running-req: {running}, #token: 9, "
        f"token usage: 0.12, {spec}cuda graph: True, gen throughput (token/s): {tok_s:.2f}, #queue-req: 0\n"
    )


def test_idle_for_ten_minutes_nothing_stays_at_the_last_value_by_metrics() -> None:
    watch = Watch()
    for at in range(30):
        server = watch.page(
            at, realtime_tokens_total=tokens(100.0 * at), num_running_reqs=2, spec_accept_length=2.5
        )
    assert server.numbers.decode_tok_s.value == pytest.approx(100)
    assert server.numbers.accept_length.value == pytest.approx(2.5)
    for at in range(30, 630):
        server = watch.page(at, realtime_tokens_total=tokens(2900.0), num_running_reqs=0, spec_accept_length=2.5,
                            gen_throughput=99.0)  # fmt: skip
        if at > 33:
            n = server.numbers
            assert n.idle is True and n.decode_tok_s.value == 0.0 and n.decode_tok_s.note == "idle"
            assert n.accept_length.value is None and n.accept_rate.value is None
            assert server.health.state == "idle"
    assert server.breakeven.verdict != "pays"
    server = watch.page(630, realtime_tokens_total=tokens(2910.0), num_running_reqs=1, spec_accept_length=2.5)
    assert (server.numbers.decode_tok_s.value or 0.0) < 20
    for at in range(631, 640):
        server = watch.page(at, realtime_tokens_total=tokens(2910 + 50.0 * (at - 630)), num_running_reqs=1)
    assert server.numbers.decode_tok_s.value == pytest.approx(50)


def test_idle_for_ten_minutes_nothing_stays_at_the_last_value_by_the_log() -> None:
    watch = Watch()
    for at in range(20):
        server = watch.log(float(at), decode(at, 1, 90.0, 1.8))
    assert server.numbers.decode_tok_s.value == pytest.approx(90)
    for at in range(20, 620):
        server = watch(float(at), Tick())
        if at > 30:
            assert server.numbers.decode_tok_s.value is None and server.numbers.accept_length.value is None
            assert server.numbers.decode_tok_s.note.startswith("no decode line for")
    assert [value for _, value in server.numbers.decode_history[-500:] if value is not None] == []


def test_metrics_that_stop_answering_leave_a_dash_and_not_the_last_value() -> None:
    watch = Watch()
    for at in range(20):
        watch.page(at, realtime_tokens_total=tokens(100.0 * at), num_running_reqs=2)
    for at in range(20, 60):
        watch(float(at), HttpSeen("metrics", None, problem="timeout"))
        server = watch(at + 0.1, Tick())
    n = server.numbers
    assert n.decode_tok_s.value is None and n.prefill_tok_s.value is None and n.running.value is None


def test_a_restart_shows_no_negative_and_no_giant_rate() -> None:
    watch = Watch()
    shown = []
    for at, total in enumerate([*range(900_000, 903_000, 100), 7, *range(107, 2_000, 100)]):
        server = watch.page(at, realtime_tokens_total=tokens(total), num_running_reqs=1,
                            generation_tokens_total=total, spec_verify_calls_total=total / 2)  # fmt: skip
        shown.append(server.numbers.decode_tok_s.value)
        length = server.numbers.accept_length_finished.value
        assert length is None or 1.9 < length < 2.1
    assert all(value is None or 0 <= value <= 101 for value in shown)
    assert shown[-1] == pytest.approx(100)


def test_labels_that_change_and_series_that_vanish_are_no_jump() -> None:
    watch = Watch()
    for at in range(10):
        watch.page(at, realtime_tokens_total={'mode="decode",model_name="a"': 1e6 + at}, num_running_reqs=1)
    server = watch.page(10, realtime_tokens_total={'mode="decode",model_name="b"': 5e6}, num_running_reqs=1)
    assert (server.numbers.decode_tok_s.value or 0.0) <= 4e6
    server = watch.page(11, num_running_reqs=1)
    assert server.numbers.decode_tok_s.value is None


def test_dp_ranks_one_by_one_and_summed_tp_ranks_once() -> None:
    watch = Watch()
    for at in range(15):
        rows = {
            f'mode="decode",dp_rank="{dp}",tp_rank="{tp}"': 100.0 * at * (dp + 1)
            for dp, tp in itertools.product((0, 1), range(4))
        }
        running = {f'dp_rank="{dp}",tp_rank="{tp}"': dp + 1 for dp, tp in itertools.product((0, 1), range(4))}
        lengths = {'dp_rank="0"': 2.0, 'dp_rank="1"': 3.5}
        server = watch.page(
            at, realtime_tokens_total=rows, num_running_reqs=running, spec_accept_length=lengths
        )
    n = server.numbers
    assert n.decode_tok_s.value == pytest.approx(300) and n.running.value == 3
    assert [(row["dp"], row["tok_s"], row["running"], row["accept_length"]) for row in n.per_dp] == [
        (0, pytest.approx(100), 1, 2.0),
        (1, pytest.approx(200), 2, 3.5),
    ]
    assert n.accept_length.value == pytest.approx(3.0)  # weighted by what each runs, not (2 + 3.5) / 2


def test_dp_ranks_of_a_log() -> None:
    watch = Watch()
    for at in range(15):
        text = (
            decode(at, 1, 100.0, 2.0, " DP0 TP0")
            + decode(at, 3, 200.0, 4.0, " DP1 TP4")
            + decode(at, 3, 200.0, 4.0, " DP1 TP5")
        )
        server = watch.log(float(at), text)
    n = server.numbers
    assert [row["dp"] for row in n.per_dp] == [0, 1]
    assert n.running.value == 4 and n.accept_length.value == pytest.approx(3.5)


def test_a_gauge_is_the_source_before_there_was_a_counter() -> None:
    watch = Watch()
    for at in range(30):
        server = watch.page(at, gen_throughput=80.0 + at % 3, num_running_reqs=1, generation_tokens_total=5)
    n = server.numbers
    assert n.decode_tok_s.source == "metrics gen_throughput" and n.decode_tok_s.value == pytest.approx(
        81, abs=0.5
    )
    for at in range(30, 60):
        server = watch.page(at, gen_throughput=80.0, num_running_reqs=0, generation_tokens_total=5)
    assert server.numbers.decode_tok_s.value == 0.0


def test_break_even_by_metrics_alone() -> None:
    watch = Watch(algorithm="EAGLE3")
    base = {"target": "t", "host": "h", "tp": 1, "running": 2.0, "tok_s": 200.0, "source": "run b"}
    watch(0.0, BaseMeasured(base))
    for at in range(40):
        server = watch.page(
            at, realtime_tokens_total=tokens(150.0 * at), num_running_reqs=2, spec_accept_length=1.5
        )
    even = server.breakeven
    assert even.verdict == "does_not_pay"
    assert even.cycle_ms == pytest.approx(2 * 1.5 / 150 * 1e3)
    assert even.break_even == pytest.approx((2 * 1.5 / 150) / (2 / 200))
    for at in range(40, 200):
        server = watch.page(
            at, realtime_tokens_total=tokens(150.0 * at), num_running_reqs=2, spec_accept_length=1.5
        )
    assert "below-break-even" in {a.key for a in server.alarms}


def test_minutes_of_idleness_are_not_minutes_below_the_line() -> None:
    watch = Watch(algorithm="EAGLE3")
    watch(0.0, BaseMeasured({"target": "t", "host": "h", "tp": 1, "running": 2.0, "tok_s": 200.0}))
    done = 0.0
    for at in range(400):
        busy = at < 40 or at >= 350
        done += 150.0 if busy else 0.0
        pages = {"num_running_reqs": 2 if busy else 0, "spec_accept_length": 1.5}
        server = watch.page(at, realtime_tokens_total=tokens(done), **pages)
        assert "below-break-even" not in {a.key for a in server.alarms}, at
    assert server.breakeven.verdict == "does_not_pay"


def test_a_base_server_is_measured_by_metrics_and_a_mixed_load_is_not() -> None:
    watch = Watch()
    for at in range(40):
        watch.page(at, realtime_tokens_total=tokens(150.0 * at), num_running_reqs=2)
    (base,) = watch.host.bases
    assert (base["target"], base["running"], base["tok_s"]) == ("t", 2.0, pytest.approx(150))
    mixed = Watch()
    for at in range(40):
        mixed.page(at, realtime_tokens_total=tokens(150.0 * at), num_running_reqs=1 + at % 4)
    assert mixed.host.bases == ()


def test_a_useless_drafter_and_a_full_pool_are_alarms_without_a_log() -> None:
    watch = Watch(algorithm="EAGLE3")
    for at in range(90):
        server = watch.page(at, realtime_tokens_total=tokens(50.0 * at), num_running_reqs=2, num_queue_reqs=5,
                            spec_accept_length=1.0, spec_accept_rate=0.0, token_usage=0.99)  # fmt: skip
    keys = {alarm.key: alarm for alarm in server.alarms}
    assert "kv_pressure" in keys and "drafter_useless" in keys
    assert "1.00" in keys["drafter_useless"].sentence and "EAGLE" in keys["drafter_useless"].step
    cold = Watch(algorithm="NGRAM")
    for at in range(90):
        server = cold.page(
            at, realtime_tokens_total=tokens(50.0 * at), num_running_reqs=2, spec_accept_length=1.0
        )
    assert "drafter_useless" not in {alarm.key for alarm in server.alarms}


def test_a_pulse_tells_positions_until_another_drafter_is_switched_in() -> None:
    watch = Watch(algorithm="EAGLE3")
    server = watch(5.0, PulseSeen({"position_acceptance": [0.7, 0.4], "measured_boot_s": 1004.0}))
    assert server.numbers.position_acceptance == (0.7, 0.4)
    assert watch(6.0, Tick()).numbers.position_acceptance == (0.7, 0.4)
    watch(7.0, RunRecorded(({"event": "hot_switched", "boot_s": 1007.0, "drafter": "d2"},)))
    assert watch.server.numbers.position_acceptance is None
    watch(8.0, PulseSeen({"position_acceptance": [0.7, 0.4], "measured_boot_s": 1004.0}))
    assert watch.server.numbers.position_acceptance is None
    watch(9.0, PulseSeen({"position_acceptance": ["x", 7], "measured_boot_s": 1008.0}))
    assert watch.server.numbers.position_acceptance is None


def row(pid: int, ppid: int, *words: str, user: str = "ops", state: str = "S") -> dict[str, Any]:
    return {"pid": pid, "ppid": ppid, "pgid": pid, "sid": pid, "start": pid, "user": user, "state": state,
            "cmdline": list(words), "container": {"kind": "", "id": ""}}  # fmt: skip


def test_servers_of_others_and_orphans_are_told_from_ours() -> None:
    watch = Watch(pid=100, start=100)
    table = [
        row(100, 1, "python3", "-m", "sglang.launch_server", "--port", "30000"),
        row(101, 100, "sglang::scheduler"),
        row(200, 1, "python3", "-m", "sglang.launch_server", "--model-path", "m", "--port", "31000"),
        row(201, 200, "sglang::scheduler_TP0"),
        row(300, 1, "sglang::scheduler_TP1"),
        row(301, 1, "sglang::detokenizer", state="Z"),
        row(302, 1, "sglang::scheduler_TP2", user="else"),
        row(400, 1, "vim", "sglang.py"),
    ]
    watch(1.0, ProcessesSeen({"processes": table}))
    seen = snapshot.of_host(watch.host, 1.0)
    assert [one["pid"] for one in seen["foreign"]] == [200]
    assert seen["foreign"][0]["port"] == 31000 and seen["foreign"][0]["workers"] == 1
    assert seen["orphans"] == []  # one look may have come in the middle of an end
    watch(11.0, ProcessesSeen({"processes": table}))
    assert [one["pid"] for one in snapshot.of_host(watch.host, 11.0)["orphans"]] == [300]
    assert [a.key for a in watch.host.alarms] == ["orphans"]
    watch(21.0, ProcessesSeen({"processes": [None, {"pid": "x"}, {"pid": 5, "cmdline": 7}]}))
    assert watch.host.alarms == ()
