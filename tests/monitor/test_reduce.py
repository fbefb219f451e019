"""The reducer: never raises, replays equal, moves by ticks alone, and keeps numbers honest."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specdash.monitor import events as ev
from specdash.monitor.events import (
    Event,
    GpusSampled,
    HostSeen,
    HttpSeen,
    LinkChanged,
    LogRead,
    RunRecorded,
    RunSampled,
    RunsListed,
    Tick,
)
from specdash.monitor.recording import dumps, loads
from specdash.monitor.reduce import reduce, start
from specdash.monitor.state import FleetState, HostState, ServerState
from tests.support.examples import examples

HOST = "h"


def fold(events: list[Event], state: FleetState | None = None) -> FleetState:
    state = state or start([(HOST, "")])
    for event in events:
        state = reduce(state, event)
    return state


class Feed:
    def __init__(self, boot: float = 1000.0, **record: Any) -> None:
        self.state = start([(HOST, "")])
        self.offset = 0
        self.put(0.0, LinkChanged("up"))
        self.put(0.0, HostSeen({"now_boot": boot, "boot_id": "b"}))
        if record:
            self.put(0.0, RunsListed(({"id": "r", "alive": True, **record},)))

    def put(self, at: float, body: Any, run: str = "") -> FleetState:
        host = "" if isinstance(body, Tick) else HOST
        self.state = reduce(self.state, Event(at, host, body, run))
        return self.state

    def log(self, at: float, text: str, run: str = "r") -> None:
        data = text.encode()
        self.put(at, LogRead(self.offset, data, self.offset + len(data)), run)
        self.offset += len(data)

    def tick(self, at: float) -> HostState:
        return self.put(at, Tick()).hosts[HOST]

    def server(self) -> ServerState:
        return self.state.hosts[HOST].servers["r"]


def decode(
    clock: int, running: int, tok_s: float, accept: float | None = None, rank: str = "", queue: int = 0
) -> str:
    spec = f"accept len: {accept:.2f}, accept rate: 0.50, " if accept is not None else ""
    prefix = f" {rank}" if rank else ""
    return (
        f"[2026-05-04 10:{clock // 60:02d}:{clock % 60:02d}{prefix}] Decode batch, #running-req: {running}, #token: 900, token usage: 0.12, "
        f"{spec}cuda graph: True, gen throughput (token/s): {tok_s:.2f}, #queue-req: {queue}\n"
    )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
records = st.dictionaries(
    st.sampled_from(
        [
            "id",
            "run",
            "http",
            "port",
            "argv",
            "phase",
            "alive",
            "pid",
            "start",
            "boot_s",
            "event",
            "code",
            "signal",
            "proof",
            "gpus",
            "processes",
            "tree",
            "states",
            "log_size",
            "read_bytes",
            "cpu_s",
            "gpu_mib",
            "memory_used_mib",
            "index",
            "title",
            "now_boot",
            "boot_id",
            "problem",
            "age_s",
            "created_unix",
        ]
    ),
    json_values,
    max_size=8,
)
log_bytes = st.one_of(
    st.binary(max_size=200),
    st.sampled_from(
        [
            decode(5, 1, 90.0, 1.8).encode(),
            b"\xff\x00\x1b[31m\r",
            b"Traceback (most recent call last):\n  x\nValueError: y\n",
        ]
    ),
)
bodies = st.one_of(
    st.just(Tick()),
    st.builds(LinkChanged, st.sampled_from(["connecting", "up", "lost", "failed"])),
    st.builds(HostSeen, records),
    st.builds(GpusSampled, records),
    st.builds(ev.HostSampled, records),
    st.builds(RunsListed, st.lists(records, max_size=3).map(tuple)),
    st.builds(RunRecorded, st.lists(records, max_size=3).map(tuple)),
    st.builds(RunSampled, st.lists(records, max_size=3).map(tuple)),
    st.builds(LogRead, st.integers(0, 500), log_bytes, st.integers(0, 1000), st.integers(0, 2)),
    st.builds(ev.LogLost, st.text(max_size=10)),
    st.builds(
        HttpSeen,
        st.sampled_from(["metrics", "server_info", "loads", "ready", "health", "generate"]),
        st.sampled_from([None, 200, 404, 500, 503]),
        st.one_of(
            st.binary(max_size=100),
            json_values.map(lambda v: json.dumps(v).encode()),
            st.floats().map(lambda v: b'sglang:num_running_reqs{tp_rank="0"} %r\n' % v),
        ),
    ),
    st.builds(ev.ProcessesSeen, records),
    st.builds(ev.PulseSeen, records),
    st.builds(ev.BaseMeasured, records),
    st.builds(
        ev.ActionChanged,
        st.text(max_size=3),
        st.just("stop"),
        st.text(max_size=5),
        st.sampled_from(["running", "done"]),
    ),
)
streams = st.lists(
    st.builds(
        Event, st.floats(0, 1e6), st.sampled_from(["h", "other"]), bodies, st.sampled_from(["r", "q", ""])
    ),
    max_size=25,
)


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(streams)
def test_no_order_of_any_events_raises_and_it_is_deterministic(stream: list[Event]) -> None:
    assert repr(fold(stream)) == repr(fold(stream))


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(streams)
def test_a_recorded_stream_replays_to_the_same_state(stream: list[Event]) -> None:
    again = [loads(dumps(event)) for event in stream]
    assert repr(fold(again)) == repr(fold(stream))


def test_only_ticks_move_time() -> None:
    feed = Feed(phase="starting", started_boot_s=1000.0)
    feed.put(1.0, RunSampled(({"boot_s": 1000.0, "log_size": 66, "read_bytes": 5, "cpu_s": 1.0},)), "r")
    feed.log(1.0, "[2026-05-04 10:00:00] Load weight begin. avail mem=70.00 GB\n")
    feed.tick(2.0)
    before = feed.server().verdict
    assert before.kind in ("progressing", "starting")
    # A day passes without a tick: nothing is concluded from it.
    feed.put(90_000.0, LinkChanged("up", rtt_ms=1.0))
    feed.put(
        90_000.0, RunSampled(({"boot_s": 91_000.0, "log_size": 66, "read_bytes": 5, "cpu_s": 1.0},)), "r"
    )
    assert feed.server().verdict == before
    assert feed.tick(90_001.0).servers["r"].verdict.kind == "stalled"


def test_a_load_that_reads_the_disk_is_not_stalled_however_quiet_its_log() -> None:
    feed = Feed(phase="starting", started_boot_s=1000.0)
    feed.log(1.0, "[2026-05-04 10:00:00] Load weight begin. avail mem=70.00 GB\n")
    for second in range(0, 1200, 2):
        sample = {
            "boot_s": 1000.0 + second,
            "log_size": 60,
            "read_bytes": second * 10**9,
            "cpu_s": 1.0,
            "states": {"D": 8},
        }
        feed.put(float(second), RunSampled((sample,)), "r")
    assert feed.tick(1200.0).servers["r"].verdict.kind in ("progressing", "slow")


def test_hours_of_stillness_are_proved_although_samples_are_thinned() -> None:
    feed = Feed(phase="starting", started_boot_s=1000.0)
    feed.log(1.0, "[2026-05-04 10:00:00] Load weight begin. avail mem=70.00 GB\n")
    still = [
        {"boot_s": 1000.0 + s, "log_size": 60, "read_bytes": 10**9, "cpu_s": 1.0} for s in range(0, 7200, 2)
    ]
    feed.put(7200.0, RunSampled(tuple(still)), "r")
    verdict = feed.tick(7201.0).servers["r"].verdict
    assert verdict.kind == "stalled"
    assert any("disk" in line and ("h" in line or "min" in line) for line in verdict.evidence)
    assert len(feed.server().samples) <= 400


def test_samples_thin_the_same_in_one_piece_or_in_many() -> None:
    rows = [{"boot_s": 1000.0 + s, "log_size": s} for s in range(0, 1000, 2)]
    one, many = Feed(phase="starting"), Feed(phase="starting")
    one.put(1.0, RunSampled(tuple(rows)), "r")
    for row in rows:
        many.put(1.0, RunSampled((row,)), "r")
    assert one.server().samples == many.server().samples


def test_live_numbers_from_decode_lines_state_their_window_and_source() -> None:
    feed = Feed(phase="ready", ready_boot_s=1001.0, argv=["x", "--speculative-algorithm", "EAGLE3"])
    for second in range(1, 12):
        feed.log(float(second), decode(second, 2, 100.0, 2.0))
    numbers = feed.tick(11.5).servers["r"].numbers
    assert numbers.decode_tok_s.value == pytest.approx(100.0)
    assert numbers.decode_tok_s.load == 2
    assert numbers.decode_tok_s.window_s == 10.0
    assert numbers.accept_length.value == pytest.approx(2.0)
    assert numbers.accept_length.includes_bonus is True
    assert numbers.source == "log decode lines, last 10 s"


def test_when_decode_lines_stop_the_last_value_does_not_stay() -> None:
    feed = Feed(phase="ready", ready_boot_s=1001.0)
    for second in range(1, 12):
        feed.log(float(second), decode(second, 2, 100.0))
    assert feed.tick(12.0).servers["r"].numbers.decode_tok_s.value == pytest.approx(100.0)
    numbers = feed.tick(40.0).servers["r"].numbers
    assert numbers.decode_tok_s.value is None  # not told idle: a dash, not zero
    assert "no decode line" in numbers.decode_tok_s.note
    loads_page = json.dumps(
        {"loads": [{"num_running_reqs": 0, "num_waiting_reqs": 0, "gen_throughput": 100.0}]}
    ).encode()
    feed.put(41.0, HttpSeen("loads", 200, loads_page), "r")
    numbers = feed.tick(42.0).servers["r"].numbers
    assert (numbers.idle, numbers.decode_tok_s.value, numbers.decode_tok_s.note) == (True, 0.0, "idle")
    assert numbers.accept_length.value is None
    assert (
        feed.tick(642.0).servers["r"].numbers.decode_tok_s.value is None
    )  # ten minutes later nobody tells any more


def test_dp_ranks_are_added_and_shown_one_by_one_tp_ranks_are_not_counted_twice() -> None:
    feed = Feed(phase="ready", ready_boot_s=1001.0)
    for second in range(1, 8):
        feed.log(
            float(second),
            decode(second, 2, 100.0, 2.0, "DP0 TP0") + decode(second, 4, 300.0, 3.0, "DP1 TP4"),
        )
    numbers = feed.tick(7.5).servers["r"].numbers
    assert numbers.decode_tok_s.value == pytest.approx(400.0)
    assert [row["tok_s"] for row in numbers.per_dp] == [pytest.approx(100.0), pytest.approx(300.0)]
    assert numbers.running.value == 6
    feed = Feed(phase="ready", ready_boot_s=1001.0)
    for second in range(1, 8):
        feed.log(float(second), decode(second, 2, 100.0, None, "TP0") + decode(second, 2, 100.0, None, "TP1"))
    assert feed.tick(7.5).servers["r"].numbers.decode_tok_s.value == pytest.approx(100.0)


def test_a_log_read_an_hour_late_is_not_shown_as_now() -> None:
    feed = Feed(boot=5000.0, phase="ready", ready_boot_s=1001.0)
    text = "".join(decode(second, 2, 100.0, 2.0) for second in range(1, 60))
    sizes = [
        {"boot_s": 1000.0, "log_size": 0},
        {"boot_s": 1400.0, "log_size": len(text)},
        {"boot_s": 5000.0, "log_size": len(text)},
    ]
    feed.put(0.5, RunSampled(tuple(sizes)), "r")
    feed.log(1.0, text)
    server = feed.tick(1.5).servers["r"]
    assert server.numbers.decode_tok_s.value is None
    assert server.log.last_growth == pytest.approx(0.0 + (1400.0 - 5000.0))


def test_break_even_from_a_base_run_and_a_drafter_run_of_the_same_target() -> None:
    feed = Feed()
    base = {
        "id": "b",
        "alive": True,
        "phase": "ready",
        "ready_boot_s": 1.0,
        "argv": ["x", "--model-path", "k2", "--tp", "8"],
    }
    spec = {**base, "id": "r", "argv": [*base["argv"], "--speculative-algorithm", "EAGLE3"]}
    feed.put(0.5, RunsListed((base,)))
    for second in range(1, 13):
        feed.log(float(second), decode(second, 1, 63.6), "b")
        feed.tick(second + 0.1)
    feed.offset = 0
    feed.put(20.0, RunsListed((spec,)))
    for second in range(21, 33):
        feed.log(float(second), decode(second, 1, 52.0, 1.5), "r")
        feed.tick(second + 0.1)
    even = feed.server().breakeven
    assert even.verdict == "does_not_pay"
    assert even.break_even == pytest.approx(1.83, abs=0.01)
    assert "run b" in even.base_source
    assert even.below_since is not None
    for second in range(33, 200):
        feed.log(float(second), decode(second, 1, 52.0, 1.5), "r")
        feed.tick(second + 0.1)
    assert "below-break-even" in [alarm.key for alarm in feed.server().alarms]


def test_while_the_link_is_down_nothing_is_judged_anew() -> None:
    feed = Feed(phase="starting", started_boot_s=1000.0)
    feed.put(1.0, RunSampled(({"boot_s": 1000.0, "log_size": 10, "read_bytes": 5, "cpu_s": 1.0},)), "r")
    feed.log(1.0, "[2026-05-04 10:00:00] Load weight begin. avail mem=70.00 GB\n")
    before = feed.tick(2.0).servers["r"]
    feed.put(3.0, LinkChanged("lost", "gone", 1, 1.0))
    assert feed.tick(9999.0).servers["r"] == before
    assert feed.state.hosts[HOST].link.last_up == pytest.approx(1.0)


def test_a_death_names_its_first_cause_and_an_asked_stop_is_no_death() -> None:
    feed = Feed(phase="starting", started_boot_s=1000.0)
    feed.log(
        1.0,
        "[2026-05-04 10:00:00] Load weight begin. avail mem=1.00 GB\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n",
    )
    feed.put(2.0, RunRecorded(({"event": "exited", "code": None, "signal": 9, "boot_s": 1002.0},)), "r")
    server = feed.tick(3.0).servers["r"]
    assert server.verdict.kind == "dead"
    silent = Feed(phase="starting", started_boot_s=1000.0)
    silent.put(2.0, RunRecorded(({"event": "exited", "code": None, "signal": 9, "boot_s": 1002.0},)), "r")
    assert silent.tick(3.0).servers["r"].verdict.sentence == "Died: killed by signal 9."
    for number, asked, words in (
        (2, True, "Stopped (ended by a stop, signal INT)."),
        (15, False, "Died: ended by signal TERM, which asks it to stop."),
    ):
        other = Feed(phase="ready", ready_boot_s=1001.0)
        first = [{"event": "stop_asked", "boot_s": 1001.5}] if asked else []
        exited = {"event": "exited", "code": None, "signal": number, "boot_s": 1002.0}
        other.put(2.0, RunRecorded((*first, exited)), "r")
        assert other.tick(3.0).servers["r"].verdict.sentence == words
    assert server.verdict.sentence.endswith(" (killed by signal 9).") and ". (" not in server.verdict.sentence
    stopped = Feed(phase="ready", ready_boot_s=1001.0)
    stopped.put(
        1.0,
        RunRecorded(
            (
                {"event": "stop_asked", "boot_s": 1.0},
                {"event": "exited", "code": -15, "signal": 15, "boot_s": 2.0},
            )
        ),
        "r",
    )
    assert stopped.tick(3.0).servers["r"].verdict.kind == "stopped"


def test_fired_up_alone_is_not_ready_while_a_supervisor_watches() -> None:
    feed = Feed(phase="starting", supervisor_alive=True, started_boot_s=1000.0)
    feed.log(1.0, "[2026-05-04 10:00:00] The server is fired up and ready to roll!\n")
    assert feed.tick(2.0).servers["r"].health.state != "ready"
    feed.put(3.0, RunRecorded(({"event": "ready", "boot_s": 1003.0},)), "r")
    assert feed.tick(4.0).servers["r"].verdict.kind == "ready"


def test_gpus_field_by_field_and_a_failing_tool_keeps_the_last_table() -> None:
    feed = Feed()
    gpu = {
        "index": 0,
        "name": "H200",
        "memory_used_mib": 101044.0,
        "memory_total_mib": None,
        "processes": None,
        "utilisation_pct": 0.0,
    }
    feed.put(
        1.0,
        GpusSampled({"gpus": [gpu, {"index": 1, "memory_used_mib": 0.0, "processes": []}], "source": "nvml"}),
    )
    board = feed.state.hosts[HOST].gpus
    assert board is not None
    assert (board.gpus[0].memory_total_mib, board.gpus[0].holder, board.gpus[1].holder) == (
        None,
        "hidden",
        "free",
    )
    feed.put(
        5.0,
        GpusSampled(
            {"gpus": None, "problem": "Driver/library version mismatch", "category": "driver_mismatch"}
        ),
    )
    board = feed.state.hosts[HOST].gpus
    assert board is not None and board.at == 1.0 and board.gpus[0].memory_used_mib == 101044.0
    assert [alarm.key for alarm in feed.tick(6.0).alarms] == ["gpu-problem"]
    feed.put(7.0, GpusSampled({"gpus": [gpu], "source": "nvml"}))
    assert "gpu-fewer" in [alarm.key for alarm in feed.tick(8.0).alarms]


def test_log_bytes_are_taken_once_even_when_sent_twice() -> None:
    feed = Feed(phase="ready", ready_boot_s=1.0)
    line = decode(1, 2, 100.0, 2.0).encode()
    for _ in range(2):
        feed.put(1.0, LogRead(0, line, len(line)), "r")
    assert feed.server().story.decode_count == 1
    assert feed.server().log.read == len(line)


def test_an_eta_comes_from_finished_loads_of_the_profile() -> None:
    feed = Feed()
    done = {
        "id": "old",
        "profile": "p",
        "phase": "exited",
        "alive": False,
        "started_boot_s": 100.0,
        "ready_boot_s": 413.0,
        "exit_code": 0,
    }
    now = {"id": "r", "profile": "p", "phase": "starting", "alive": True, "started_boot_s": 1000.0}
    feed.put(0.0, RunsListed((now, done)))
    feed.put(0.0, LinkChanged("up"))
    server = feed.tick(13.0).servers["r"]
    assert server.eta_s == pytest.approx(300.0)
    assert "1 earlier run" in server.eta_source


def test_a_question_that_nobody_answered_is_no_sign_of_life() -> None:
    """On a host that was stopped with SIGSTOP the header went on saying *live*: each poll that timed out counted."""
    state = reduce(start([("h", "")]), Event(1.0, "h", LinkChanged("up")))
    state = reduce(state, Event(2.0, "h", HostSeen({"now_boot": 1.0, "boot_id": "b"})))
    before = state.hosts["h"].link.last_up
    silent = reduce(state, Event(20.0, "h", HttpSeen("metrics", None, b"", problem="timeout"), "r"))
    assert silent.hosts["h"].link.last_up == before
    told = reduce(state, Event(20.0, "h", HttpSeen("metrics", 200, b""), "r"))
    assert told.hosts["h"].link.last_up == 20.0
