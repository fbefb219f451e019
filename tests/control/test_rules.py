"""The pure rules: ready, pulse, whose server is whose; and the journal that all records go through."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.control.switch import difference, downtime
from specdash.host.remote import gpuhold, journal
from specdash.sglang import pulse, ready, servers

CASES = Path(__file__).parents[1] / "data" / "cases"


def answer(tokens, verify=None, took=1.0, status=200):
    meta = {"completion_tokens": tokens} | ({} if verify is None else {"spec_verify_ct": verify})
    return {
        "status": status,
        "body": json.dumps({"text": "", "meta_info": meta}).encode(),
        "took_s": took,
        "problem": "",
    }


def one_pass(tokens, verify=None, took=1.0):
    return pulse.read([answer(tokens, verify, took)] * 4)


def test_orphans_of_a_recorded_launch_and_nobody_elses():
    case = json.loads((CASES / "C801.json").read_text())
    rows = servers.parse_ps((CASES / "C801.ps.txt").read_text())
    user = case["context"]["user"]
    found = servers.orphans(rows, user, [case["context"]["recorded_launch"]])
    assert found == case["expect"]["orphans"]
    assert not set(found) & set(case["expect"]["do_not_touch"])
    lines = (CASES / "C801.compute_apps.csv").read_text().splitlines()
    held = [
        dict(zip(("index", "pid", "mib"), map(int, line.split(",")), strict=True)) for line in lines if line
    ]
    table = servers.gpu_holders(held, rows, found, user)
    assert {k: v["launch"] for k, v in table.items()} == case["expect"]["launch_on_gpu"]
    assert {k: v["ours_mib"] for k, v in table.items() if v["ours_mib"]} == case["expect"]["gpu_held_mib"]


def test_a_container_is_stopped_by_its_own_tool():
    case = json.loads((CASES / "C806.json").read_text())
    rows = servers.parse_ps((CASES / "C806.ps.txt").read_text())
    names = servers.parse_docker_ps((CASES / "C806.docker_ps.txt").read_text())
    (one,) = servers.find(rows, "root", names)
    assert (
        one["managed_by"] == case["expect"]["managed_by"] and one["stop_with"] == case["expect"]["stop_with"]
    )
    assert one["restart_policy_check"] and [one["pid"], *one["workers"]] == case["expect"]["do_not_kill_pids"]
    assert servers.orphans(rows, "root") == []


@pytest.mark.parametrize(
    ("line", "form"),
    [
        ("python3 -m sglang.launch_server --port 1", "module"),
        ("/opt/env/bin/python3.12 -u -X dev -m sglang.launch_server", "module"),
        ("/usr/bin/python /usr/local/bin/sglang serve --model-path x", "serve"),
        ("/usr/local/bin/sglang serve x", "serve"),
        ("python -m sglang.cli.main serve", "serve"),
        ("python /root/sglang/python/sglang/launch_server.py", "script"),
        ("vim sglang/launch_notes.md", ""),
        ("bash -c python -m sglang.launch_server", ""),
        ("docker run image python3 -m sglang.launch_server", ""),
        ("tail -f launch_server.py", ""),
        ("python -m sglang.bench_serving", ""),
        ("python -c print() -m sglang.launch_server", ""),
        ("grep sglang serve", ""),
    ],
)
def test_launcher_forms(line, form):
    assert servers.launcher_form(line.split()) == form


def test_probes_never_pile_up():
    plan = json.loads((CASES / "C711.probe.json").read_text())["poll_plan"]
    assert ready.PROBE_INTERVAL_S >= 20 > plan["interval_s"]
    assert ready.PROBE_TIMEOUT_S > 20 > plan["client_timeout_s"]
    assert ready.probe()["path"] == "/generate"


def test_judging_a_generation():
    good = {"text": "4", "meta_info": {"completion_tokens": 2}}
    assert ready.judge(200, json.dumps(good).encode()) == (True, "")
    for status, body in [
        (200, b"<html>"),
        (200, b"{}"),
        (503, b""),
        (401, b""),
        (None, b""),
        (200, b"[]"),
        (200, b"\xff"),
    ]:
        yes, said = ready.judge(status, body)
        assert not yes and said.endswith(".")


@given(st.lists(st.integers(1, 40), max_size=30))
def test_a_mark_is_found_however_the_log_is_cut(cuts):
    log = b"x" * 50 + b"[2026] The server is fired up and ready to roll!\n" + b"y" * 50
    marks, carry, at = set(), b"", 0
    for cut in [*cuts, len(log)]:
        found, carry = ready.scan(log[at : at + cut], carry)
        marks |= set(found)
        at += cut
    assert marks == {"fired_up"}


def test_running_requests_of_each_endpoint():
    loads = json.dumps(
        {
            "loads": [
                {"num_running_reqs": 2, "num_waiting_reqs": 1},
                {"num_running_reqs": 1, "num_waiting_reqs": 0},
            ]
        }
    )
    assert ready.running("/v1/loads", 200, loads.encode()) == 4
    assert ready.running("/get_load", 200, b'[{"num_reqs": 3, "num_waiting_reqs": 1}]') == 3
    metrics = b'# TYPE x gauge\nsglang:num_running_reqs{a="b"} 2.0\nsglang:num_queue_reqs{a="b"} 1.0\nsglang:num_queue_reqs{priority="1"} 1.0\n'
    assert ready.running("/metrics", 200, metrics) == 3
    for path, status, body in [
        ("/metrics", 200, b""),
        ("/v1/loads", 404, b""),
        ("/v1/loads", 200, b"{}"),
        ("/v1/loads", 200, b"x"),
    ]:
        assert ready.running(path, status, body) is None, "not told is not zero"


def test_drafter_that_is_not_accepted_goes_back_after_warm_up_only():
    bad, good = one_pass(100, 100), one_pass(100, 40)
    assert pulse.judge([bad, good], "EAGLE3")["decision"] == "keep"
    verdict = pulse.judge([good, bad], "EAGLE3")
    assert verdict["decision"] == "roll_back" and "1.00 over 400" in verdict["sentence"]
    few = one_pass(40, 40)
    assert pulse.more([few, few], "EAGLE3"), "160 verify steps say nothing yet"
    assert pulse.judge([few, few], "EAGLE3")["decision"] == "keep"
    assert not pulse.more([few, few, few], "EAGLE3")


def test_ngram_base_and_slower():
    cold, warm = one_pass(100, 100), one_pass(100, 30)
    assert pulse.judge([cold, warm], "NGRAM")["decision"] == "keep"
    assert pulse.judge([one_pass(100)] * 2, "")["decision"] == "keep"
    before = {"version": pulse.VERSION, "tok_s": 200.0}
    assert pulse.judge([one_pass(100)] * 2, "", before)["decision"] == "ask"
    assert pulse.judge([one_pass(100)] * 2, "", {**before, "tok_s": 101.0})["decision"] == "keep", "noise"
    assert pulse.judge([one_pass(100)] * 2, "", {"version": 0, "tok_s": 999.0})["decision"] == "keep"
    silent = pulse.read(
        [answer(100), answer(0), {"status": None, "problem": "refused", "body": b"", "took_s": 0.0}]
    )
    assert pulse.judge([silent], "EAGLE3")["decision"] == "roll_back"
    assert one_pass(100)["accept_length"] is None and pulse.read([])["tok_s"] is None


def test_journal_survives_rotation_torn_lines_and_rubbish(tmp_path):
    path = str(tmp_path / "j")
    writer = journal.Journal(path, max_bytes=300)
    seen, position = [], None
    for number in range(40):
        writer.add(n=number)
        if number % 3 == 0:
            for _ in range(3):
                records, position = journal.read(path, position)
                seen += [one["n"] for one in records]
    for _ in range(3):
        records, position = journal.read(path, position)
        seen += [one["n"] for one in records]
    assert seen == list(range(40))
    with open(path, "ab") as file:
        file.write(b"\xff rubbish\n" + b'{"n": "torn')
    records, after = journal.read(path, position)
    assert records == []
    with open(path, "ab") as file:
        file.write(b'"}\n')
    assert [one["n"] for one in journal.read(path, after)[0]] == ["torn"]


@pytest.mark.parametrize(
    ("board", "pids", "before", "state"),
    [
        (None, set(), None, "none"),
        ({"gpus": []}, set(), None, "none"),
        ({"gpus": [{"index": 0, "processes": [{"pid": 5, "memory_mib": 100}]}]}, {5}, None, "held"),
        ({"gpus": [{"index": 0, "processes": [{"pid": 6, "memory_mib": 100}]}]}, {5}, None, "free"),
        ({"gpus": [{"index": 0, "memory_used_mib": 90, "processes": None}]}, {5}, None, "unproven"),
        ({"gpus": [{"index": 0, "memory_used_mib": 90, "processes": None}]}, {5}, [10.0], "free"),
        ({"gpus": [{"index": 0, "memory_used_mib": 9000, "processes": None}]}, {5}, [10.0], "unproven"),
        ({"gpus": [{"index": 0, "memory_used_mib": None, "processes": None}]}, {5}, [10.0], "unproven"),
        (
            {"gpus": [{"index": 0, "processes": []}], "category": "stale", "problem": "old."},
            {5},
            None,
            "unproven",
        ),
    ],
)
def test_gpu_memory_is_never_free_by_silence(board, pids, before, state):
    assert gpuhold.verdict(board, pids, before)["state"] == state


def test_the_plan_says_what_differs_and_how_long_it_takes():
    a = {
        "argv": ["py", "-m", "x", "--tp", "8", "--a"],
        "spec": {"env": {"E": "1"}},
        "algorithm": "",
        "drafter": "",
    }
    b = {
        "argv": ["py", "-m", "x", "--tp", "8", "--b=2"],
        "spec": {"env": {}},
        "algorithm": "EAGLE3",
        "drafter": "/d",
    }
    said = difference(a, b)
    assert (
        "algorithm: none → EAGLE3" in said
        and "--b: not given → 2" in said
        and "environment E: 1 → not set" in said
    )
    assert not [line for line in said if "--tp" in line]
    runs = [{"profile": "b", "started_boot_s": 10.0, "ready_boot_s": 310.0}, {"profile": "a"}]
    assert "300 s" in downtime(runs, "a", "b") and "not known" in downtime([], "a", "b")


def test_a_server_with_several_tokenizer_workers_is_told_apart():
    from specdash.control import stop

    many = ["python", "-m", "sglang.launch_server", "--tokenizer-worker-num", "4"]
    assert stop.caveats({"argv": many[:3]}) == [] == stop.caveats({})
    (said,) = stop.caveats({"argv": many})
    assert "4 tokenizer workers" in said and "--wait-idle" in said
