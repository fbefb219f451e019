from __future__ import annotations

from specdash.sglang import redact


def test_counts_in_a_decode_line_are_no_secrets():
    for line in (
        "Decode batch, #running-req: 1, #token: 1234, token usage: 0.00, gen throughput (token/s): 63.6",
        "Decode batch. #full token: 12, #swa token: 3, full token usage: 0.10",
        "Prefill batch, #new-token: 14, #cached-token: 64",
    ):
        assert redact.text(line) == line
    assert "hf_" not in redact.text("# token: hf_abcdef")
