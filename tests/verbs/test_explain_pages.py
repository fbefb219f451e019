"""`specdash explain` of what is no log. Inputs are written here in the shapes that servers give."""

from __future__ import annotations

import json

from specdash.verbs import explain_pages as pages

PAGE = b"""# HELP sglang:num_running_reqs x
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m",tp_rank="0",dp_rank="0"} 3.0
sglang:num_running_reqs{model_name="m",tp_rank="1",dp_rank="0"} 3.0
sglang:num_running_reqs{model_name="m",tp_rank="0",dp_rank="1"} 1.0
sglang:spec_accept_length{model_name="m",dp_rank="0"} %s
sglang:generation_tokens_total{model_name="m"} 250
sglang:spec_verify_calls_total{model_name="m"} 100
"""


def test_a_page_is_one_moment_and_ranks_are_not_counted_twice():
    text, body = pages.metrics_page(PAGE % b"2.5")
    assert body["gauges"]["num_running_reqs"] == {"0": 3.0, "1": 1.0}
    assert body["since_start"]["accept_length"] == 2.5
    assert "rates need a second look" in text


def test_an_accept_length_of_zero_is_none():
    _, body = pages.metrics_page(PAGE % b"0.0")
    assert "spec_accept_length" not in body["gauges"]


def test_a_page_without_sglang_says_so():
    text, body = pages.metrics_page(b"# HELP other x\nother 1\n")
    assert body["problem"] and "No SGLang numbers" in text


def test_server_info_is_redacted_and_none_is_a_dash():
    info = {
        "model_path": "/m",
        "speculative_algorithm": "EAGLE3",
        "api_key": "sk-very-secret-1",
        "version": "0.5.20",
        "internal_states": [{"last_gen_throughput": 12.5}],
    }
    text, body = pages.server_json(json.dumps(info).encode())
    assert "secret" not in text + json.dumps(body)
    assert body["ranks"][0]["accept_length"] is None and "accept length -" in text
    assert body["algorithm"] == "EAGLE3"


def test_half_a_json_is_a_sentence():
    text, body = pages.server_json(b'{"internal_states": [')
    assert "whole" in text and body["problem"]


def test_a_gpu_table_keeps_what_is_not_told_apart_from_zero():
    csv = b"index, name, memory.used [MiB], memory.total [MiB], utilization.gpu [%]\n0, X, [N/A], 100 MiB, 0 %\n"
    text, body = pages.gpu_table(csv)
    assert body["gpus"][0]["memory_used_mib"] is None and body["gpus"][0]["utilisation_pct"] == 0
    assert "memory - of 100 MiB" in text


def test_dp_ranks_are_in_their_order_and_one_that_never_speculated_has_no_accept_length() -> None:
    page = "".join(
        f'sglang:spec_accept_length{{model_name="m",dp_rank="{rank}"}} {0 if rank == 3 else 2.5}\n'
        f'sglang:num_running_reqs{{model_name="m",dp_rank="{rank}"}} {rank}\n'
        for rank in range(11)
    )
    text, body = pages.metrics_page(page.encode())
    assert body["gauges"]["spec_accept_length"]["3"] is None
    assert "DP3 -," in text and "DP2 2, DP3 3" in text and text.index("DP9 9") < text.index("DP10 10")
