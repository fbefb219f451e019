"""Whole logs of real servers: phases, times, ending, cause; any cutting gives the same story."""

from __future__ import annotations

import random
import re
from datetime import datetime

import pytest

from specdash.sglang.causes import first_cause
from specdash.sglang.explain import as_json, as_text, conclude
from specdash.sglang.story import Story, feed
from tests.sglang_log.logkit import captures, cut, exit_codes, line_by_line, told

TARGET = ["starting", "init_distributed", "loading_weights/target", "kv_alloc/target"]
DRAFTED = [*TARGET[:3], "loading_weights/draft", "kv_alloc/target", "kv_alloc/draft"]
UP = ["starting_http_or_warmup", "ready", "serving"]
THOROUGHLY = ("0.5.15.post1-h200/misfit", "0.5.23-cpu/eagle3")
GRAPHS = ["graph_capture/prefill", "graph_capture/target"]

ENDINGS = {
    # capture: (phases, ready, cause, at most errors)
    "0.5.15.post1-h200/badflag": (["starting", "exited"], False, "unknown_flag"),
    "0.5.15.post1-h200/base": ([*TARGET, *GRAPHS, *UP, "exited"], True, "stopped_on_request"),
    "0.5.15.post1-h200/misfit": (
        [*DRAFTED, *GRAPHS, "graph_capture/draft", "exited"],
        False,
        "drafter_mismatch_hidden",
    ),
    "0.5.15.post1-h200/ngram": ([*TARGET, *GRAPHS, *UP, "exited"], True, "stopped_on_request"),
    "0.5.15.post1-h200/oom": ([*TARGET, GRAPHS[0], "exited"], False, "oom_graph_capture"),
    "0.5.23-cpu/base": ([*TARGET, *UP, "exited"], True, "stopped_on_request"),
    "0.5.23-cpu/base-amx": ([*TARGET, *UP, "exited"], True, "stopped_on_request"),
    "0.5.23-cpu/eagle3": ([*DRAFTED, *UP, "exited"], True, "stopped_on_request"),
    "0.5.23-cpu/eagle3-sim-acc-3.2": ([*DRAFTED, *UP, "exited"], True, "stopped_on_request"),
    "0.5.23-cpu/fail-ambiguous-flag": (["starting", "exited"], False, "flag_abbreviation"),
    "0.5.23-cpu/fail-drafter-not-given": ([*DRAFTED, "exited"], False, "missing_flag"),
    "0.5.23-cpu/fail-drafter-path-missing": (["starting", "exited"], False, "drafter_path_missing"),
    "0.5.23-cpu/fail-kv-pool-too-big": ([*TARGET, "exited"], False, "killed_by_signal"),
    "0.5.23-cpu/fail-kv-pool-too-small": ([*TARGET, "exited"], False, "oom_kv_pool"),
    "0.5.23-cpu/fail-model-hub-offline": (["starting", "exited"], False, "model_path_missing"),
    "0.5.23-cpu/fail-model-path-missing": (["starting", "exited"], False, "model_path_missing"),
    "0.5.23-cpu/fail-port-in-use-http": ([*DRAFTED, UP[0]], False, "http_port_in_use"),
    "0.5.23-cpu/fail-port-in-use-silent": ([*DRAFTED, UP[0]], False, "http_port_in_use"),
    "0.5.23-cpu/fail-scheduler-exception-midrun": ([*DRAFTED, *UP, "exited"], True, "scheduler_exception"),
    "0.5.23-cpu/fail-torch-native-with-spec": ([*DRAFTED, "exited"], False, "flag_conflict"),
    "0.5.23-cpu/fail-unknown-algorithm": (["starting", "exited"], False, "unknown_algorithm"),
    "0.5.23-cpu/fail-unknown-flag": (["starting", "exited"], False, "unknown_flag"),
    "0.5.23-cpu/hup-idle": ([*DRAFTED, *UP], True, "killed_by_signal"),
    "0.5.23-cpu/int-idle": ([*DRAFTED, *UP, "exited"], True, "stopped_on_request"),
    "0.5.23-cpu/kill-detokenizer-idle": ([*DRAFTED, *UP, "exited"], True, "killed_by_signal"),
    "0.5.23-cpu/kill-group-under-load": ([*DRAFTED, *UP], True, "killed_by_signal"),
    "0.5.23-cpu/kill-parent-under-load": ([*DRAFTED, *UP], True, "killed_by_signal"),
    "0.5.23-cpu/ngram": ([*TARGET, *UP, "exited"], True, "stopped_on_request"),
    "0.5.23-cpu/quit-idle": ([*DRAFTED, *UP, "exited"], True, "killed_by_signal"),
    "0.5.23-cpu/serve-entry-default-log": ([*DRAFTED, *UP, "exited"], True, "stopped_on_request"),
    "0.5.23-cpu/standalone": ([*DRAFTED, *UP, "exited"], True, "stopped_on_request"),
    "0.5.23-cpu/standalone-queue": ([*DRAFTED, *UP, "exited"], True, "stopped_on_request"),
    "0.5.23-cpu/term-during-startup": ([*DRAFTED, UP[0], "exited"], False, "killed_by_signal"),
    "0.5.23-cpu/term-group-idle": ([*DRAFTED, *UP, "exited"], True, "stopped_on_request"),
    "0.5.23-cpu/term-under-load": ([*DRAFTED, *UP, "exited"], True, "stopped_on_request"),
    "0.5.9-cpu/base": ([*TARGET, *UP, "exited"], True, "stopped_on_request"),
    "0.5.9-cpu/fail-unknown-algorithm": (["starting", "exited"], False, "unknown_algorithm"),
    "0.5.9-cpu/int-idle": ([*TARGET, *UP, "exited"], True, "stopped_on_request"),
}


def test_every_capture_is_in_the_table() -> None:
    assert set(captures()) == set(ENDINGS)


@pytest.mark.parametrize("name", sorted(ENDINGS))
def test_phases_and_ending(name: str) -> None:
    phases, ready, category = ENDINGS[name]
    story = told(captures()[name])
    assert [f"{p.name}/{p.sub}".rstrip("/") for p in story.phases] == phases
    assert story.ready_seen is ready
    assert not story.false_ready or not ready
    cause = first_cause(story, exit_code=exit_codes()[name])
    assert cause is not None and cause.category == category


@pytest.mark.parametrize("name", sorted(ENDINGS))
def test_times_go_forward_and_add_up(name: str) -> None:
    story = told(captures()[name])
    for before, after in zip(story.phases, story.phases[1:], strict=False):
        assert before.ended == after.began
        assert before.seconds is None or before.seconds >= 0
    known = [p.seconds for p in story.phases if p.seconds is not None]
    if story.first_time is not None and story.last_time is not None:
        assert sum(known) <= story.last_time - story.first_time + 1


@pytest.mark.parametrize("name", sorted(ENDINGS))
def test_any_cutting_gives_the_same_story(name: str) -> None:
    data = captures()[name]
    whole = feed(Story(), data)
    dice = random.Random(name)
    for _ in range(2):
        assert cut(data, [dice.choice((61, 997, 4096, 65536)) for _ in range(50)]) == whole


@pytest.mark.parametrize("name", sorted(ENDINGS))
def test_a_prefix_is_what_the_whole_was_at_that_byte(name: str) -> None:
    data = captures()[name]
    dice = random.Random(7)
    stops = sorted(dice.sample(range(len(data)), 60 if name in THOROUGHLY else 6))
    story, start = Story(), 0
    for stop in stops:
        story = feed(story, data[start:stop])
        start = stop
        assert story == feed(Story(), data[:stop])


BEGINS = {
    # phase: (what its first line says, the which of these lines)
    "init_distributed": (r"Init (?:torch distributed|parallel) begin", 0),
    "loading_weights/target": (r"Load weight begin", 0),
    "loading_weights/draft": (r"Load weight begin", 1),
    "kv_alloc/target": (r"Load weight end", -1),
    "kv_alloc/draft": (r"KV Cache is allocated|KV Cache skipped|Memory pool end", -2),
    "graph_capture/prefill": (r"Capture target prefill", 0),
    "graph_capture/target": (r"Capture target (?:verify|decode)", 0),
    "graph_capture/draft": (r"Capture draft", 0),
    "starting_http_or_warmup": (r"max_total_num_tokens=", 0),
    "ready": (r"fired up and ready", 0),
}


@pytest.mark.parametrize("name", sorted(ENDINGS))
def test_a_phase_begins_when_its_first_line_says(name: str) -> None:
    """By a search of the text that knows nothing of rules: one rank wrote these logs."""
    rows = re.findall(
        r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[^]\n]*\] (.*)", captures()[name].decode("utf-8", "replace")
    )
    checked = 0
    for phase in told(captures()[name]).phases:
        mark, which = BEGINS.get(f"{phase.name}/{phase.sub}".rstrip("/"), ("", 0))
        if mark:
            times = [time for time, text in rows if re.match(mark, text.removeprefix("The server is "))]
            assert phase.began == datetime.fromisoformat(times[which] + "+00:00").timestamp(), phase
            checked += 1
    assert checked >= len(set(ENDINGS[name][0]) & set(BEGINS))


def test_numbers_of_a_real_load() -> None:
    story = told(captures()["0.5.15.post1-h200/misfit"])
    assert story.numbers["weights_gb"] == 1.46
    assert story.numbers["draft_weights_gb"] == 0.08
    assert story.numbers["load_weight_s"] == 0.31
    assert story.numbers["kv_tokens"] == 1047870
    assert story.numbers["prefill_capture_s"] == 3.97
    assert story.numbers["target_capture_s"] == 1.54
    assert story.capped_by_speculation == 48
    assert story.server_args["speculative_algorithm"] == "EAGLE3"
    base = told(captures()["0.5.15.post1-h200/base"])
    took = {p.name: p.seconds for p in base.phases}
    assert took["starting_http_or_warmup"] == 9.0
    assert base.numbers["prefill_capture_s"] == 70.27


def test_decode_lines_of_a_real_server() -> None:
    story = told(captures()["0.5.23-cpu/eagle3"])
    assert story.decode_count == 260
    first, second, third = story.decodes[:3]
    assert (first.accept_len, first.accept_rate, first.tok_s) == (3.0, 0.67, 2.78)
    assert first.first_after_idle and not second.first_after_idle and not third.first_after_idle
    assert first.graph == "False" and first.queued == 0
    base = told(captures()["0.5.23-cpu/base"])
    assert {line.accept_len for line in base.decodes} == {None}


def test_arrival_times_go_into_phases() -> None:
    story = Story()
    for i, row in enumerate(captures()["0.5.23-cpu/base"].splitlines(keepends=True)):
        story = feed(story, row, at=float(i))
    assert story.ready_at is not None and story.ready_at > 20
    began = [p.began_at for p in story.phases]
    assert began == sorted(began)
    assert story.decodes[-1].at is not None


@pytest.mark.parametrize("name", sorted(ENDINGS))
def test_every_capture_can_be_explained(name: str) -> None:
    found = conclude(told(captures()[name]), exit_codes()[name])
    text = as_text(found, "server.log")
    assert "State:" in text and "\x1b" not in text
    body = as_json(found)
    assert body["phase"] == "exited" or body["exit_code"] is None
    assert body["cause"]["sentence"] in text.replace("\n", " ") or body["cause"]["severity"]


@pytest.mark.parametrize("name", sorted(ENDINGS))
def test_lines_known_by_their_shape_tell_what_reading_each_one_tells(name: str) -> None:
    """Batch lines whose numbers stand at known places too: the other reading goes by key and value."""
    assert feed(Story(), captures()[name]) == line_by_line(captures()[name])
