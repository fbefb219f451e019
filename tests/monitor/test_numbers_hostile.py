"""Pages that came incomplete, numbers that no engine has, gauges that nobody writes any more: a dash, never a number."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

import pytest

from specdash.monitor import breakeven
from specdash.monitor.events import HttpSeen, LogRead, Tick
from specdash.monitor.hindsight import Hindsight
from specdash.monitor.rates import Point, push, rate
from specdash.monitor.state import Numbers
from specdash.sglang import acceptance, explain, metrics, server_info

RANKS = 4


def watch(pages: Iterable[tuple[float, str, bytes | None]]) -> list[Numbers]:
    """What was shown half a second after each answer (None: no answer)."""
    seen, out = Hindsight(), []
    for at, endpoint, body in pages:
        seen.see(at, HttpSeen(endpoint, None if body is None else 200, body or b""))
        seen.see(at + 0.5, Tick())
        out.append(seen.server.numbers)
    return out


def page(t: int, without: int | None = None) -> bytes:
    """A server that has run for long: 100 tok/s, 10 prompt tokens/s, 2.5 tokens a step on each DP rank."""
    rows = []
    for dp in range(RANKS):
        if dp == without:
            continue
        realtime = 'sglang:realtime_tokens_total{mode="%s",dp_rank="%d"} %d'
        rows += [
            realtime % ("decode", dp, 1_000_000 + 100 * t),
            realtime % ("prefill_compute", dp, 1_000_000 + 10 * t),
            f'sglang:num_running_reqs{{dp_rank="{dp}"}} 2',
            f'sglang:generation_tokens_total{{dp_rank="{dp}"}} {1_000_000 + 50 * t}',
            f'sglang:spec_verify_calls_total{{dp_rank="{dp}"}} {100_000 + 20 * t}',
        ]
        name, count = "sglang:e2e_request_latency_seconds", 10_000 + t
        slow = 10_000 if dp == 3 else 0  # what rank 3 had before: all slow; everything since is quick
        rows += [
            f'{name}_bucket{{le="1.0",dp_rank="{dp}"}} {count - slow}',
            f'{name}_bucket{{le="60.0",dp_rank="{dp}"}} {count}',
            f'{name}_bucket{{le="+Inf",dp_rank="{dp}"}} {count}',
            f'{name}_sum{{dp_rank="{dp}"}} {count}',
            f'{name}_count{{dp_rank="{dp}"}} {count}',
        ]
    return "\n".join([*rows, ""]).encode()


@pytest.mark.parametrize("gap", [(15,), (15, 16, 17), (12, 18)])
def test_a_rank_that_some_pages_lack_is_no_burst_when_it_is_back(gap: tuple[int, ...]) -> None:
    for at, n in enumerate(watch((t, "metrics", page(t, 3 if t in gap else None)) for t in range(30))):
        for told, most in (
            (n.decode_tok_s.value, 400),
            (n.prefill_tok_s.value, 40),
            (n.accept_length_finished.value, 2.5),
        ):
            assert told is None or told <= most * 1.001, at
        p99 = n.e2e_s["p99"].value if n.e2e_s else None
        assert p99 is None or p99 <= 1.0, at
    assert n.decode_tok_s.value == pytest.approx(400)
    assert n.prefill_tok_s.value == pytest.approx(40)
    assert n.accept_length_finished.value == pytest.approx(2.5)


def test_a_restart_counts_from_zero_at_once_and_old_losses_are_forgotten() -> None:
    points: tuple[Point[str], ...] = ()
    for at in range(200):
        points = push(points, Point(float(at), {"a": 100.0 * at if at < 50 else 10.0 * (at - 50)}), 120.0)
        found = rate(points, 10.0, skip_idle=False)
        assert found is None or 0 <= found.per_s <= 100.0
        assert at < 52 or found is not None
    assert points[-1].lost == {}


@pytest.mark.parametrize("value", ["+Inf", "1e308", "-3", "NaN", "1e400"])
def test_a_number_that_no_engine_has_is_a_dash(value: str) -> None:
    rows = [
        f'sglang:{name}{{dp_rank="{dp}"}} {value}\n'
        for dp in (0, 1)
        for name in ("num_running_reqs", "num_queue_reqs")
    ]
    n = watch((t, "metrics", "".join(rows).encode() + b"sglang:token_usage 0.5\n") for t in range(5))[-1]
    assert n.running.value is None and n.queued.value is None and n.kv_used.value == 0.5


def test_integers_of_400_digits_in_json_are_not_told() -> None:
    big = "9" * 400
    load = f'{{"loads":[{{"num_running_reqs":{big},"gen_throughput":{big},"num_waiting_reqs":1e300}}]}}'
    info = f'{{"tp_size":{big},"internal_states":[{{"last_gen_throughput":{big},"avg_spec_accept_length":2.5}}]}}'
    n = watch([(0, "loads", load.encode()), (1, "server_info", info.encode())])[-1]
    assert n.running.value is None and n.decode_tok_s.value is None and n.accept_length_start.value == 2.5
    assert acceptance.of([{"completion_tokens": int(big), "spec_verify_ct": 3}]).accept_length is None
    assert acceptance.of([{"spec_verify_ct": 3}]).accept_length is None


def old_version(t: int, running: int = 1) -> bytes:
    """Before 0.5.8: gauges alone. A decode log line writes 0 over `cache_hit_rate`."""
    return (
        f"sglang:gen_throughput {500 + t}\nsglang:spec_accept_length 2.5\nsglang:spec_accept_rate 0.6\n"
        f"sglang:cache_hit_rate 0.0\nsglang:num_running_reqs {running}\n"
    ).encode()


def test_gauges_of_a_server_that_answers_no_more_are_not_live() -> None:
    asked = [(float(t), "metrics", old_version(t)) for t in range(10)]
    silent: list[tuple[float, str, bytes | None]] = [(float(t), "metrics", None) for t in range(10, 60, 5)]
    seen = watch([*asked, *silent])
    assert seen[9].accept_length.value == 2.5 and seen[9].cache_hit.value is None
    assert seen[-1].accept_length.value is None and seen[-1].accept_rate.value is None


def test_idle_for_ten_minutes_leaves_nothing_at_its_last_value() -> None:
    def metrics(t: int) -> bytes:
        busy = t < 10
        return (
            f'sglang:realtime_tokens_total{{mode="decode"}} {100 * min(t, 10)}\nsglang:num_running_reqs {int(busy)}\n'
            "sglang:num_queue_reqs 0\nsglang:cache_hit_rate 0.7\nsglang:spec_accept_length 2.5\nsglang:gen_throughput 9\n"
        ).encode()

    def loads(t: int) -> bytes:
        rank = '{"dp_rank":%d,"num_running_reqs":%d,"num_waiting_reqs":0,"gen_throughput":500,"cache_hit_rate":0.7}'
        return ('{"loads":[' + ",".join(rank % (dp, t < 10) for dp in (0, 1)) + "]}").encode()

    for endpoint, body in (("metrics", metrics), ("loads", loads)):
        last = watch((t, endpoint, body(t)) for t in range(0, 610, 2))[-1]
        assert last.idle is True and last.decode_tok_s.value == 0.0
        told: tuple[Any, ...] = (last.cache_hit, last.accept_length, last.accept_rate)
        assert [reading.value for reading in told] == [None] * 3
        assert all(row["tok_s"] == 0.0 for row in last.per_dp)
    assert len(last.per_dp) == 2


def test_the_last_throughput_of_a_hung_engine_is_not_live() -> None:
    """`/v1/loads` of 0.5.23 reads shared memory and answers for a scheduler that hangs; so does a gauge."""
    rank = '{"loads":[{"num_running_reqs":2,"gen_throughput":%d},{"num_running_reqs":2,"gen_throughput":0}]}'
    gauge = "sglang:gen_throughput %d\nsglang:num_running_reqs 2\n"
    for endpoint, body in (("loads", rank), ("metrics", gauge)):
        seen = watch((t, endpoint, (body % (500 + min(t, 20))).encode()) for t in range(0, 300, 2))
        assert seen[12].decode_tok_s.value == pytest.approx(515, abs=6)
        assert seen[-1].decode_tok_s.value is None and "the same for" in seen[-1].decode_tok_s.note
        assert all(row["tok_s"] is None for row in seen[-1].per_dp)


def line(second: int, tok_s: float, length: float) -> bytes:
    return (
        f"[2026-01-02 03:04:{second:02d}] Decode batch, #running-req: 4, #token: 9, token usage: 0.01, "
        f"accept len: {length:.2f}, accept rate: 0.00, cuda graph: True, gen throughput (token/s): {tok_s:.2f}, #queue-req: 0\n"
    ).encode()


def test_lines_where_nothing_was_speculated_have_no_accept_length() -> None:
    seen, data = Hindsight(), b""
    for at in range(30):
        new = line(at, 99_999_999_999.0 if at == 25 else 200.0, 0.0)
        seen.see(at, LogRead(len(data), new, len(data) + len(new)))
        seen.see(at + 0.5, Tick())
        data += new
    assert seen.server.numbers.accept_length.value is None
    assert seen.server.numbers.decode_tok_s.value == pytest.approx(200.0)
    assert not [alarm for alarm in seen.server.alarms if alarm.key == "drafter_useless"]


@pytest.mark.parametrize("odd", [math.nan, math.inf, 1e300, -1.0, 0.0])
@pytest.mark.parametrize("where", ["running", "accept_length", "tok_s", "base"])
def test_break_even_of_odd_numbers_is_not_known(odd: float, where: str) -> None:
    now: dict[str, Any] = {"running": 1.0, "accept_length": 2.0, "tok_s": 150.0}
    base = breakeven.Base("t", "h", 1, 1.0, odd if where == "base" else 100.0)
    if where != "base":
        now[where] = odd
    assert breakeven.judge(breakeven.Now(True, "t", "h", 1, **now), [base]).verdict == "unknown"


def test_what_is_not_known_of_both_is_not_the_same() -> None:
    now = breakeven.Now(True, "t", "h", None, 1.0, 2.0, 150.0)
    found = breakeven.judge(now, [breakeven.Base("t", "h", None, 1.0, 100.0)])
    assert found.verdict == "unknown" and "tp of this server is not known" in found.sentence


ARGS: dict[str, Any] = {"model_path": "m", "tp_size": 2, "speculative_algorithm": "EAGLE", "version": "0.4.1"}


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (ARGS, "server_info"),
        ({**ARGS, "last_gen_throughput": 5.0}, "server_info"),
        ({"decode": [{**ARGS, "internal_states": []}], "prefill": []}, "server_info"),
        ({"version": "0.5.9", "loads": [{"dp_rank": 0, "num_running_reqs": 2}]}, "server_info"),
        ([{"dp_rank": 0, "num_reqs": 5, "num_waiting_reqs": 2}], "server_info"),
        ({"message": "server_args model_path tp_size", "level": "INFO"}, "log"),
        ({"runs": [{"tp": 1, "tok_s": 5.0}]}, "log"),
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_json_of_a_server_is_known_in_every_version(body: Any, kind: str, indent: int | None) -> None:
    assert explain.kind_of(json.dumps(body, indent=indent).encode()) == kind


def test_a_log_that_begins_with_its_time_is_a_log() -> None:
    assert explain.kind_of(b'[2026-01-02 03:04:05] server_args={"model_path": "m", "tp_size": 2}\n') == "log"


def test_the_info_behind_a_router_is_that_of_its_server() -> None:
    info = server_info.read({"decode": [{**ARGS, "internal_states": [{"last_gen_throughput": 9.0}]}]})
    assert (info.version, info.model, info.tp, info.ranks[0].tok_s) == ("0.4.1", "m", 2, 9.0)


def test_a_number_in_pythons_own_spelling_is_none() -> None:
    assert metrics.total(metrics.read(b"sglang:token_usage 1_0\n"), "token_usage") is None
