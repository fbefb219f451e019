"""--check on a real SGLang (CPU) over a real sshd: idle, busy, a long prefill, one generation, a dead scheduler, a key.

One story in order. By hand: `pytest -m engine tests/engine/test_check_states.py -n 0 --timeout 900`; with
SPECDASH_CHECKS=1000 a thousand checks in a row.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest

from specdash.check import document
from tests.support import engine as engines
from tests.support.clients import Clients
from tests.support.engine import Desk

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.xdist_group("engine"),
    pytest.mark.timeout(3600),
]
LONGEST = 3900
"""Tokens of a prompt: the model takes 4096."""
CHECKS = int(os.environ.get("SPECDASH_CHECKS", "20"))


def check(desk: Desk, *words: str, target: str = "engine-base") -> tuple[int, str]:
    done = desk.run("--check", target, *words)
    assert done.stdout.count("\n") == 1 and not done.stderr, (done.stdout, done.stderr)
    return done.returncode, done.stdout


def document_of(desk: Desk, *words: str) -> dict[str, Any]:
    done = desk.run("--check", "engine-base", "--json", *words)
    data: dict[str, Any] = json.loads(done.stdout)
    jsonschema.Draft202012Validator(document.schema()).validate(data)
    assert done.returncode == data["code"]
    return data


def posts(desk: Desk) -> int:
    """Generations that the engine answered, by its own access log."""
    return sum(log.read_bytes().count(b'"POST /generate HTTP/1.1" 200') for log in desk.logs())


def run_of(desk: Desk) -> dict[str, Any]:
    runs = [run for run in desk.json("runs", "gpu")["runs"] if not run.get("ended")]
    assert len(runs) == 1
    return dict(runs[0])


@pytest.fixture
def long_request(desk: Desk) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=lambda: desk.generate(tokens=1500), daemon=True)
    thread.start()
    yield thread
    thread.join(120)


def test_absent_then_ready_and_idle(desk: Desk) -> None:
    code, line = check(desk)
    assert code == 2 and f"no server of engine-base on port {desk.port}" in line
    done = desk.run("launch", "engine-base", "--wait", "--yes")
    assert done.returncode == 0, done.stderr
    code, line = check(desk)
    assert code == 0 and "idle. Ready; nothing runs and nothing waits" in line, line
    code, line = check(desk, target="gpu")
    assert code == 0 and "engine-base: idle." in line


def test_one_generation_where_it_is_asked_for_and_none_else(desk: Desk) -> None:
    before = posts(desk)
    assert check(desk)[0] == 0 and posts(desk) == before, "a plain check costs nothing"
    code, line = check(desk, "--generate")
    assert code == 0 and "a generation came back" in line and posts(desk) == before + 1
    with ThreadPoolExecutor(3) as pool:
        told = list(pool.map(lambda _: check(desk, "--generate"), range(3)))
    assert [code for code, _ in told] == [0, 0, 0], told
    shared = sum("of another check" in line for _, line in told)
    assert posts(desk) == before + 1 + 3 - shared


def test_busy_is_seen_with_its_rate_and_is_not_disturbed(desk: Desk, long_request: threading.Thread) -> None:
    deadline = time.monotonic() + 20
    while "busy" not in (said := check(desk, "--window", "0")[1]):
        assert time.monotonic() < deadline, said
    before = posts(desk)
    data = document_of(desk, "--generate", "--crit", "tok/s<0.001")
    assert long_request.is_alive(), "it must run longer than the check"
    assert data["state"] == "OK", data["line"]
    told = data["targets"][0]["servers"]["engine-base"]
    assert told["running"]["value"] == 1 and told["tok/s"]["value"] > 0
    assert posts(desk) == before, "no generation while requests run"
    assert check(desk, "--crit", "tok/s>0.001")[0] == 2


def test_steady_clients_meet_no_check(desk: Desk) -> None:
    with Clients(desk.port) as clients:
        clients.wait_served(2)
        for _ in range(3):
            assert check(desk, "--generate", "--window", "0.5")[0] == 0
        clients.wait_served(2)
    assert not [one for one in clients.asked if one.how != "finished"]


def test_a_long_prefill_is_busy_and_not_down(desk: Desk) -> None:
    """Requests as long as the model takes, one after another, so that the engine prefills while it is looked at."""
    over, told = threading.Event(), []

    def ask() -> None:
        while not over.is_set():
            ids = [5 + (number + len(told)) % 900 for number in range(LONGEST)]  # none is in the prefix cache
            body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
            told.append(engines.post(desk.port, body)["meta_info"]["prompt_tokens"])

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    try:
        lines = {
            (data := document_of(desk, "--window", "0", "--timeout", "8"))["line"]: data["state"]
            for _ in range(3)
        }
    finally:
        over.set()
        thread.join(60)
    assert set(lines.values()) == {"OK"}, lines
    assert told and set(told) == {LONGEST}, "it prefilled"


def test_checks_in_a_row_leave_the_engine_as_it_was(desk: Desk) -> None:
    run = run_of(desk)
    before, posted = engines.family(run["id"], run["pid"]), posts(desk)
    for number in range(CHECKS):
        code, line = check(desk, *(["--generate"] if number % 10 == 0 else []))
        assert code == 0, (number, line)
    assert posts(desk) == posted + (CHECKS + 9) // 10
    assert engines.family(run["id"], run["pid"]).keys() == before.keys()
    assert desk.generate(tokens=4)["meta_info"]["completion_tokens"] == 4
    here = [pid for pid in desk.sshd.children() if "sshd" not in comm(pid)]
    assert here == [], "no agent is left"
    assert len(list((desk.home / "state/specdash/check").iterdir())) <= 8


def comm(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read()
    except OSError:
        return "sshd"


def test_new_errors_of_the_log_are_told_once(desk: Desk) -> None:
    """The line is ours, in the log that the engine itself goes on writing."""
    assert check(desk)[0] == 0
    log = max(desk.logs(), key=lambda path: path.stat().st_mtime)
    with log.open("ab") as file:
        file.write(
            time.strftime("[%Y-%m-%d %H:%M:%S TP0] ERROR: the grammar of request 17 failed\n").encode()
        )
    desk.generate(tokens=30)
    code, line = check(desk)
    assert code == 1 and "1 error in the log since the last check" in line and "request 17" in line, line
    code, line = check(desk)
    assert code == 0 and "'log_errors'=0" in line, "told once"


def test_a_dead_scheduler_under_a_port_that_still_takes_connections(desk: Desk) -> None:
    run = run_of(desk)
    family = engines.family(run["id"], run["pid"])
    (scheduler,) = [pid for pid, line in family.items() if "sglang::scheduler" in line]
    os.kill(run["pid"], signal.SIGSTOP)  # so that the launcher cannot notice it and leave
    try:
        os.kill(scheduler, signal.SIGKILL)
        deadline = time.monotonic() + 20
        while "no sglang::scheduler" not in (said := check(desk, "--timeout", "8"))[1]:
            assert time.monotonic() < deadline, said
        assert said[0] == 2
    finally:
        os.kill(run["pid"], signal.SIGCONT)
    deadline = time.monotonic() + 60
    while engines.family(run["id"], run["pid"]) and time.monotonic() < deadline:
        time.sleep(0.2)
    code, line = check(desk)
    assert code == 2 and "no server of engine-base" in line and "Its last run: Died" in line
    assert check(desk, target="gpu")[0] == 1, "its host is well, and its last run crashed"


def test_an_api_key_of_the_profile_and_one_that_is_given(desk: Desk) -> None:
    key = desk.home / "key"
    key.write_text("sesame-sesame")
    (desk.home / "profiles/engine-key.toml").write_text(
        f'extends = "engine-base"\n[server]\napi-key = "file:{key}"\n'
    )
    done = desk.run("launch", "engine-key", "--wait", "--yes")
    assert done.returncode == 0, done.stderr
    code, line = check(desk, "--generate", target="engine-key")
    assert code == 0 and "a generation came back" in line, line
    straight = f"127.0.0.1:{desk.port}"
    code, line = check(desk, target=straight)
    assert code == 0 and "idle" in line, "its /ready and /metrics want no key"
    code, line = check(desk, "--generate", target=straight)
    assert code == 3 and "wants an API key" in line, line
    code, line = check(desk, "--generate", "--api-key", f"file:{key}", target=straight)
    assert code == 0 and "a generation came back" in line, line
    wrong = desk.home / "wrong"
    wrong.write_text("open")
    code, line = check(desk, "--generate", "--api-key", f"file:{wrong}", target=straight)
    assert code == 3 and "wants an API key" in line, line
    assert b"sesame" not in b"".join(path.read_bytes() for path in (desk.home / "state").rglob("*.json"))
