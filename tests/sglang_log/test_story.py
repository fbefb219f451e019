"""The story's rules: phases of several ranks, idle windows, endings, restarts, lies."""

from __future__ import annotations

import pytest

from specdash.sglang.argsline import parse
from specdash.sglang.causes import first_cause
from specdash.sglang.story import Story, feed, finish
from tests.sglang_log.logkit import told


def at(second: int, rank: str, message: str) -> str:
    return f"[2026-05-04 09:{second // 60:02d}:{second % 60:02d}{' ' + rank if rank else ''}] {message}\n"


BEGIN, END = (
    "Load weight begin. avail mem=78.00 GB",
    "Load weight end. type=X, dtype=d, avail mem=40.00 GB, mem usage=38.00 GB.",
)


def test_lagging_ranks_do_not_turn_the_load_back() -> None:
    log = at(0, "TP0", "Init torch distributed begin.") + at(0, "TP1", "Init torch distributed begin.")
    log += (
        at(1, "TP0", BEGIN)
        + at(2, "TP1", "Init torch distributed ends. mem usage=0.1 GB")
        + at(2, "TP1", BEGIN)
    )
    log += at(30, "TP1", END)
    story = told(log)
    assert story.phase == "kv_alloc"
    story = told(
        log
        + at(31, "TP0", END)
        + at(33, "TP0", "Memory pool end. avail mem=2.00 GB")
        + at(34, "TP1", "Memory pool end. avail mem=2.00 GB")
    )
    assert [p.name for p in story.phases] == ["starting", "init_distributed", "loading_weights", "kv_alloc"]
    assert {s.rank: s.phase for s in story.rank_states} == {"TP0": "kv_alloc", "TP1": "kv_alloc"}
    assert story.numbers["load_weight_s"] == 30.0, "the slowest rank counts"


def test_a_drafter_loaded_after_everything_of_the_target() -> None:
    """The order up to 0.5.11: target weights, pool, graphs; then the same of the drafter."""
    log = at(0, "TP0", BEGIN) + at(30, "TP0", END) + at(32, "TP0", "Memory pool end. avail mem=9.00 GB")
    log += at(33, "TP0", "Capture cuda graph begin. This can take up to several minutes. avail mem=9.00 GB")
    log += at(
        45, "TP0", "Capture cuda graph end. Time elapsed: 12.00 s. mem usage=1.00 GB. avail mem=8.00 GB."
    )
    log += at(46, "TP0", BEGIN) + at(
        50,
        "TP0",
        "Load weight end. type=LlamaForCausalLMEagle3, dtype=d, avail mem=7.00 GB, mem usage=1.00 GB.",
    )
    log += at(51, "TP0", "Memory pool end. avail mem=6.00 GB")
    log += at(
        52, "TP0", "Capture draft cuda graph begin. This can take up to several minutes. avail mem=6.00 GB"
    )
    log += at(
        55, "TP0", "Capture draft cuda graph end. Time elapsed: 3.00 s. mem usage=1.00 GB. avail mem=5.00 GB."
    )
    story = told(log)
    assert [(p.name, p.sub) for p in story.phases[1:]] == [
        ("loading_weights", "target"), ("kv_alloc", "target"), ("graph_capture", "target"),
        ("loading_weights", "draft"), ("kv_alloc", "draft"), ("graph_capture", "draft"),
    ]  # fmt: skip
    assert [p.seconds for p in story.phases[1:-1]] == [30, 3, 13, 4, 2]
    assert story.numbers["draft_weights_gb"] == 1.0 and story.numbers["weights_gb"] == 38.0
    assert story.numbers["target_capture_s"] == 12.0 and story.numbers["draft_capture_s"] == 3.0


def test_ready_is_not_believed_after_a_bind_error() -> None:
    up = at(0, "", "INFO:     Started server process [1]")
    error = at(
        1,
        "",
        "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 31100): address already in use",
    )
    fired = at(2, "", "The server is fired up and ready to roll!")
    assert told(up + fired).ready_seen
    story = told(up + error + fired)
    assert not story.ready_seen and story.false_ready and story.phase == "starting_http_or_warmup"
    cause = first_cause(story, exit_code=3)
    assert cause is not None and cause.category == "http_port_in_use" and cause.numbers["port"] == 31100
    assert "came from that one" in cause.sentence


DECODE = "Decode batch, #running-req: {}, token usage: 0.10, gen throughput (token/s): {}, #queue-req: 0"
PREFILL = "Prefill batch, #new-seq: 1, #new-token: 9, #cached-token: 0, #running-req: {}, #queue-req: 0"


def test_windows_that_hold_waiting_time_are_marked() -> None:
    log = at(0, "", "The server is fired up and ready to roll!")
    log += (
        at(9, "TP0", PREFILL.format(0))
        + at(10, "TP0", DECODE.format(1, "0.39"))
        + at(11, "TP0", DECODE.format(1, "170.00"))
    )
    log += at(12, "TP0", PREFILL.format(1)) + at(12, "TP0", DECODE.format(2, "300.00"))
    log += at(50, "TP0", PREFILL.format(0)) + at(51, "TP0", DECODE.format(1, "2.00"))
    assert [d.first_after_idle for d in told(log).decodes] == [True, False, False, True]


def test_idle_of_a_decode_instance_without_prefill_lines() -> None:
    log = "".join(at(i, "TP0", DECODE.format(4, "400.00")) for i in range(6)) + at(
        90, "TP0", DECODE.format(4, "11.00")
    )
    assert [d.first_after_idle for d in told(log).decodes] == [False] * 6 + [True]


def test_each_dp_rank_has_its_own_idle() -> None:
    log = at(0, "", "The server is fired up and ready to roll!")
    log += at(1, "DP0 TP0", DECODE.format(1, "1.0")) + at(2, "DP0 TP0", DECODE.format(1, "50.0"))
    log += (
        at(3, "DP1 TP0", DECODE.format(1, "1.0"))
        + at(3, "DP1 TP0", PREFILL.format(0))
        + at(4, "DP0 TP0", DECODE.format(1, "50.0"))
    )
    story = told(log)
    assert [(d.dp, d.first_after_idle) for d in story.decodes] == [
        (0, True),
        (0, False),
        (1, True),
        (0, False),
    ]
    assert set(story.per_dp) == {0, 1}


def test_a_warm_up_is_not_serving() -> None:
    log = at(0, "TP0", "max_total_num_tokens=1, max_prefill_tokens=1, max_running_requests=48, context_len=1")
    log += at(1, "TP0", PREFILL.format(0)) + at(2, "TP0", DECODE.format(1, "2.0"))
    assert told(log).phase == "starting_http_or_warmup" and not told(log).was_serving
    assert told(log + at(9, "TP0", DECODE.format(7, "2.0"))).phase == "serving"


def test_a_second_launch_in_the_same_log_is_a_new_story() -> None:
    first = at(0, "", "server_args=ServerArgs(model_path='/a', port=1)") + at(1, "TP0", BEGIN)
    first += (
        at(2, "TP0", "Scheduler hit an exception: Traceback (most recent call last):") + "ValueError: x\n\n"
    )
    first += at(3, "", "Received sigquit from a child process. It usually means the child failed.")
    story = told(first)
    assert story.phase == "exited" and story.attempts == 1
    again = told(first + at(60, "", "server_args=ServerArgs(model_path='/b', port=2)") + at(61, "TP0", BEGIN))
    assert again.attempts == 2 and again.phase == "loading_weights" and not again.all_evidence
    assert again.server_args["port"] == 2 and again.attempt_offset == len(first)
    assert again.phases[0].began is not None and again.size > len(first)


def test_a_worker_node_is_up_without_firing_up() -> None:
    log = at(0, "TP1", BEGIN) + at(30, "TP1", END)
    story = told(
        log + at(40, "", "Dummy health check server started in background thread at 127.0.0.1:30001")
    )
    assert story.phase == "ready" and story.worker_node and not story.ready_seen


def test_same_failure_of_eight_ranks_is_one() -> None:
    log = "".join(
        at(1, f"TP{i}", "Scheduler hit an exception: Traceback (most recent call last):")
        + f'  File "/x/sglang/srt/a.py", line {i}, in f\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate {i}.00 GiB.\n\n'
        for i in (3, 0, 1, 2, 4, 5, 6, 7)
    )
    story = told(log)
    assert len(story.all_evidence) == 1 and story.all_evidence[0].count == 8
    cause = first_cause(story)
    assert cause is not None and cause.rank == "TP3" and len(cause.ranks) == 8
    assert cause.line == 0


def test_finish_reads_a_last_line_without_its_end() -> None:
    story = feed(
        Story(),
        b"ValueError: UNO reuses the target model and does not accept --speculative-draft-model-path.",
    )
    assert not story.all_evidence
    cause = first_cause(finish(story), exit_code=1)
    assert cause is not None and cause.category == "flag_conflict" and cause.numbers["algorithm"] == "UNO"
    assert finish(finish(story)) == finish(story)


def test_ends_that_were_asked_for_are_no_failures() -> None:
    log = at(0, "", "The server is fired up and ready to roll!") + at(
        1, "", "SIGTERM received. signum=None frame=None. Draining requests and shutting down..."
    )
    draining = told(
        log
        + at(
            2,
            "",
            "Gracefully exiting... Remaining number of requests 5. Remaining requests remaining_rids=[].",
        )
    )
    assert draining.draining and draining.drain_remaining == 5 and draining.phase == "ready"
    done = told(log + at(7, "", "Gracefully exiting... Remaining number of requests 0."))
    assert done.phase == "exited"
    for code in (0, -9, 137, None):
        cause = first_cause(done, exit_code=code)
        assert cause is not None and (cause.category, cause.severity) == ("stopped_on_request", "info")


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        (
            "server_args=ServerArgs(model_path='/a, b', tp_size=8, flags=['x', 'y'], note='(q) \\'s')",
            "flags",
            ["x", "y"],
        ),
        (
            "server_args={'model_path': '/a', 'tp_size': 8, 'sub': {'a': 1, 'b': [1, 2]}}",
            "sub",
            {"a": 1, "b": [1, 2]},
        ),
        (
            "server_args=ServerArgs(model_path='/a', tp_size=8, kind=<Kind.A: 'a, b'>, last=None)",
            "last",
            None,
        ),
        ("server_args=ServerArgs(model_path='/a', tp_size=8, cut='abc", "cut", "'abc"),
        ("server_args=ServerArgs(tp_size=8, api_key='sk-123', admin_api_key=None)", "api_key", "•••"),
        ("server_args={'tp_size': 8, 'ssl_keyfile_password': 'hunter2'}", "ssl_keyfile_password", "•••"),
    ],
)
def test_arguments_of_both_forms(text: str, name: str, value: object) -> None:
    found = dict(parse(text))
    assert found["tp_size"] == 8
    assert found[name] == value


def test_an_exception_that_was_survived_is_taken_back() -> None:
    odd = "ValueError: a plugin could not be read\n"
    story = told(at(0, "TP0", BEGIN) + odd)
    assert story.phase == "exited" and story.exit_told == "weak"
    story = told(at(0, "TP0", BEGIN) + odd + at(30, "TP0", END))
    assert [p.name for p in story.phases] == ["starting", "loading_weights", "kv_alloc"]
    assert story.phases[1].seconds == 30 and first_cause(story) is None


def test_other_programs_errors_are_no_flag_of_ours() -> None:
    story = told(
        at(0, "TP0", BEGIN)
        + "g++: error: unrecognized command-line option '-mamx'\nninja: error: loading 'build.ninja'\n"
    )
    assert story.phase == "loading_weights" and first_cause(story) is None


def test_the_keys_of_known_kinds_are_those_that_have_an_action() -> None:
    """`speaking.KEYS` stands apart from the actions, which need the teller."""
    from specdash.sglang import oneline, speaking

    assert set(oneline.KEYED) == speaking.KEYS
