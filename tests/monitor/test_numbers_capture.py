"""Real servers under 1, 2 and 4 streams, every source beside an independent client: shown must be what was.

Captured by `tests/capture/make_numbers.py` from SGLang 0.5.23 on CPU. What is shown at a second is compared with what
the client received in the very window that the reading states, so a pause or a slow machine decides nothing.
"""

from __future__ import annotations

import functools
import statistics
from typing import Any

import numberkit as kit
import pytest

from specdash.monitor import bases
from specdash.monitor.breakeven import bucket
from specdash.monitor.state import Reading, RunFacts, ServerState

ALGORITHM = {"eagle3": "EAGLE3", "base": "", "simulated": "EAGLE3", "ngram": "NGRAM"}
SOURCE_NAME = {"log": "log decode lines", "metrics": "metrics realtime_tokens_total", "loads": "/v1/loads"}
RESOLUTION = {"log": 0.05, "metrics": 0.05, "loads": 0.05}
"""/v1/loads tells only the last decode log interval; what ends between two polls is not seen."""


@functools.cache
def rows(name: str) -> list[dict[str, Any]]:
    return kit.rows(name)


@functools.cache
def seen(name: str, source: str) -> list[tuple[float, ServerState]]:
    return list(kit.replay(rows(name), source, ALGORITHM[name]))


def matched(level: kit.Level, ticks: list[tuple[float, ServerState]]) -> list[tuple[float, float]]:
    """(shown, received by the client in the window of the reading) at each second of a level."""
    out = []
    for at, server in ticks:
        reading = server.numbers.decode_tok_s
        if not level.begin + 12 <= at <= level.end or reading.value is None or server.numbers.idle:
            continue
        assert reading.at is not None and reading.window_s
        got = kit.counted(level.client, reading.at - reading.window_s, reading.at)
        if got is not None:
            out.append((reading.value, got))
    return out


@pytest.mark.parametrize("source", ["log", "metrics", "loads"])
@pytest.mark.parametrize("name", ["eagle3", "base", "simulated", "ngram"])
def test_tok_s_of_each_source_is_what_the_client_received(name: str, source: str) -> None:
    for level in kit.levels(rows(name)):
        pairs = matched(level, seen(name, source))
        assert len(pairs) > 0.4 * (level.end - level.begin - 12), (level.streams, len(pairs))
        shown, got = kit.mean([a for a, _ in pairs]), kit.mean([b for _, b in pairs])
        assert shown == pytest.approx(got, rel=RESOLUTION[source]), level.streams


@pytest.mark.parametrize("source", ["log", "metrics", "loads"])
@pytest.mark.parametrize("name", ["eagle3", "base"])
def test_the_source_and_its_window_are_said_and_never_change(name: str, source: str) -> None:
    for level in kit.levels(rows(name)):
        told = {
            s.numbers.source.split(",")[0]
            for t, s in seen(name, source)
            if level.begin + 12 <= t <= level.end
        }
        assert told == {SOURCE_NAME[source]}


@pytest.mark.parametrize("source", ["log", "metrics"])
@pytest.mark.parametrize("name", ["eagle3", "simulated", "ngram"])
def test_accept_length_of_a_window_is_that_of_its_requests(name: str, source: str) -> None:
    """SGLang's own per-request numbers (`meta_info`) of the requests of the same time, within 3 %."""
    for level in kit.levels(rows(name)):
        if name == "ngram":  # it learns all the time: only what the last half minute was is one number
            level.requests = [r for r in level.requests if r["began"] >= level.end - 30]
        told = [r for r in level.requests if r["verify"]]
        begin = min(r["began"] for r in told) + (12 if name != "ngram" else 10)
        truth = sum(r["tokens"] for r in told) / sum(r["verify"] for r in told)
        values = kit.shown(seen(name, source), begin, level.end, lambda n: n.accept_length.value)
        assert len(values) > 0.5 * (level.end - begin)
        assert kit.mean(values) == pytest.approx(truth, rel=0.03), level.streams
        readings = [s.numbers.accept_length for t, s in seen(name, source) if begin <= t <= level.end]
        assert all(r.includes_bonus for r in readings if r.value is not None)


def test_a_simulated_accept_length_is_shown_as_it_was_set() -> None:
    (level,) = kit.levels(rows("simulated"))
    for source in ("log", "metrics"):
        values = kit.shown(seen("simulated", source), *level.steady(), lambda n: n.accept_length.value)
        assert kit.mean(values) == pytest.approx(3.2, rel=0.03)


def test_a_base_server_has_no_accept_length_from_any_source() -> None:
    for source in ("log", "metrics", "loads"):
        assert not [s for _, s in seen("base", source) if s.numbers.accept_length.value is not None]
        assert not [s for _, s in seen("base", source) if s.numbers.accept_length_finished.value is not None]


@pytest.mark.parametrize("name", ["eagle3"])
def test_finished_requests_by_counters_agree(name: str) -> None:
    for level in kit.levels(rows(name)):
        told = [r for r in level.requests if r["verify"]]
        truth = sum(r["tokens"] for r in told) / sum(r["verify"] for r in told)
        last = [s for t, s in seen(name, "metrics") if t <= level.end][-1].numbers.accept_length_finished
        assert last.value == pytest.approx(truth, rel=0.03)
        assert "finished" in last.note


@pytest.mark.parametrize("source", ["log", "metrics", "loads"])
def test_idle_is_idle_after_the_last_request(source: str) -> None:
    last = seen("eagle3", source)[-1][1].numbers
    assert last.decode_tok_s.value in ((0.0, None) if source == "log" else (0.0,))
    assert last.accept_length.value is None
    if source != "log":
        assert last.idle is True


@pytest.mark.parametrize("source", ["log", "metrics", "loads"])
@pytest.mark.parametrize("name", ["eagle3", "base", "simulated", "ngram"])
def test_no_second_under_a_steady_load_is_shown_as_idle(name: str, source: str) -> None:
    """Also where two looks fall between two short requests."""
    for level in kit.levels(rows(name)):
        told = [s.numbers.idle for t, s in seen(name, source) if level.begin + 12 <= t <= level.end]
        assert told and True not in told, (level.streams, told.count(True))


@pytest.mark.parametrize("source", ["log", "metrics", "loads"])
def test_running_requests_are_the_streams(source: str) -> None:
    for level in kit.levels(rows("eagle3")):
        values = kit.shown(seen("eagle3", source), *level.steady(), lambda n: n.running.value)
        assert statistics.mode(values) == level.streams


def test_prefill_of_log_and_metrics_is_what_the_prompts_needed() -> None:
    for level in kit.levels(rows("base")):
        got = sum(r["prompt"] - r["cached"] for r in level.requests) / (level.end - level.begin)
        for source in ("log", "metrics"):
            values = kit.shown(
                seen("base", source), level.begin + 10, level.end, lambda n: n.prefill_tok_s.value
            )
            assert kit.mean(values) == pytest.approx(got, rel=0.25), (source, level.streams)


@pytest.mark.parametrize("name", ["eagle3", "base"])
def test_percentiles_are_those_of_the_clients_requests(name: str) -> None:
    """To the width of the engine's buckets: the client's value lies in the bucket that the shown one lies in."""
    for level in kit.levels(rows(name)):
        took = [r["t"] - r["began"] for r in level.requests if r["t"] > level.end - 60]
        first = [r["first"] - r["began"] for r in level.requests if r["t"] > level.end - 60]
        numbers = [s for t, s in seen(name, "metrics") if t <= level.end][-1].numbers
        for table, values in ((numbers.e2e_s, took), (numbers.ttft_s, first)):
            reading: Reading[float] = table["p50"]
            assert reading.value is not None and reading.window_s and reading.window_s <= 61
            low, high = statistics.quantiles(values, n=10)[2], statistics.quantiles(values, n=10)[6]
            assert 0.5 * low <= reading.value <= 2 * high


@pytest.mark.parametrize("name", ["eagle3", "base"])
def test_time_between_tokens_is_the_clients(name: str) -> None:
    """The engine counts each token, the client each request: its mean lies between their median and their tail."""
    for level in kit.levels(rows(name)):
        ended = [r for r in level.requests if r["t"] > level.end - 60]
        mean = sum(r["t"] - r["first"] for r in ended) / sum(r["tokens"] - 1 for r in ended)
        table = [s for t, s in seen(name, "metrics") if t <= level.end][-1].numbers.itl_s
        p50, p90 = table["p50"].value, table["p90"].value
        assert (
            p50 is not None
            and p90 is not None
            and 0.3 * mean <= p50 <= 1.1 * mean
            and mean <= p90 <= 4 * mean
        )
        assert table["p50"].unit == "s" and table["p50"].window_s and table["p50"].window_s <= 61


def base_records() -> list[dict[str, Any]]:
    log = b"".join(r["data"].encode("latin-1") for r in rows("base") if r["kind"] == "log")
    argv = ("python3", "-m", "sglang.launch_server", "--model-path", "models/base")
    return bases.of_log("h", ServerState(RunFacts("old", target="models/base", argv=argv)), log)


def test_base_measurements_from_a_log_are_what_the_client_received() -> None:
    found = {record["running"]: record for record in base_records()}
    for level in kit.levels(rows("base")):
        if level.streams in found:
            tokens, seconds = level.tokens(level.begin, level.end)
            assert found[level.streams]["tok_s"] == pytest.approx(tokens / seconds, rel=0.15)
    assert set(found) & {1.0, 2.0, 4.0}


@pytest.mark.parametrize("source", ["log", "metrics"])
def test_break_even_is_the_arithmetic_of_what_the_client_received(source: str) -> None:
    """Verdict and numbers, from another run's log as base: pays exactly where more tokens came than from the base."""
    records = base_records()
    ticks = list(kit.replay(rows("eagle3"), source, "EAGLE3", records))
    judged = 0
    for _at, server in ticks:
        even, told = server.breakeven, server.numbers.decode_tok_s
        if even.verdict not in ("pays", "does_not_pay"):
            continue
        judged += 1
        assert (
            even.running
            and even.accept_length
            and even.cycle_ms
            and even.base_ms_per_token
            and even.break_even
        )
        same = [r for r in records if bucket(r["running"]) == bucket(even.running)]
        base = min(same, key=lambda r: abs(r["running"] - even.running))
        assert even.base_ms_per_token == pytest.approx(1e3 * base["running"] / base["tok_s"])
        assert even.break_even == pytest.approx(even.cycle_ms / even.base_ms_per_token)
        if source == "log":
            assert told.value == pytest.approx(even.running * even.accept_length / even.cycle_ms * 1e3)
        assert (even.verdict == "pays") == (even.accept_length > even.break_even)
    assert judged >= 20
