"""`specdash explain` of JSON that somebody noted down; odd values never raise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdash.cli import main
from specdash.monitor.comparing import compare
from specdash.verbs import evidence
from tests.support.examples import examples


def test_a_response_tells_its_accept_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "answer.json"
    file.write_text(json.dumps({"text": "x", "meta_info": {"completion_tokens": 106, "spec_verify_ct": 43}}))
    assert main(["explain", str(file), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["kind"] == "request" and round(told["accept_length"], 4) == 2.4651


def test_runs_under_other_settings_have_no_winner() -> None:
    alike = [
        {"draft_tokens": 2, "tok_s": 300.0, "accept_len": 1.5},
        {"draft_tokens": 8, "tok_s": 220.0, "accept_len": 2.1},
    ]
    assert compare(alike).winner == 2
    other = [{**alike[0], "temperature": 0}, {**alike[1], "temperature": 1}]
    found = compare(other)
    assert (found.comparable, found.differences, found.winner) == (False, ("temperature",), None)
    warm = compare([{**alike[0], "cached_share": 0.0}, {**alike[1], "cached_share": 0.9}])
    assert not warm.comparable and warm.reason == "warm prefix cache in run 2"
    assert compare([]).winner is None


KEYS = ("runs", "tok_s", "tp", "algorithm", "timeline", "ps", "http", "t", "path", "status", "poll_plan", "polls", "ok",
        "events", "file", "inode", "size", "missing", "results", "opened_at_once", "meta_info", "spec_verify_ct")  # fmt: skip
values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**6) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(KEYS), values, max_size=4))
@settings(max_examples=examples(60), deadline=None)
def test_any_json_is_told_or_is_none_of_them(body: dict[str, Any]) -> None:
    found = evidence.read(body)
    assert found is None or found["kind"] in evidence.READERS
