"""The main job on a real SGLang, over a real sshd, by the command an operator types.

One story in order: each test stands on the one before. Run with `pytest -m engine -n 0`.
"""

from __future__ import annotations

import hashlib
import subprocess
import time
from pathlib import Path

import pytest

from tests.support import engine as engines
from tests.support.clients import Clients
from tests.support.engine import Desk

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine"), pytest.mark.timeout(600)]

STATE: dict[str, str] = {}


def wait_for(what: str, seconds: float, check: object) -> object:
    """Poll a condition to a deadline; its first true value."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = check()  # type: ignore[operator]
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds} s: {what}")


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def record(desk: Desk, profile: str, *, live: bool = True) -> dict[str, object]:
    runs = desk.json("runs", "gpu")["runs"]
    found = [r for r in runs if r["profile"] == profile and (not live or not r.get("ended"))]
    assert found, f"no run of {profile}: {runs}"
    return max(found, key=lambda r: r["created_unix"])


def log_of(desk: Desk, run_id: str) -> Path:
    found = list((desk.home / "host").glob(f"hosts/*/runs/{run_id}/server.log"))
    assert len(found) == 1
    return found[0]


def test_probe_lists_what_is_installed(desk: Desk) -> None:
    found = desk.json("probe", "engine-base")
    names = set(found["algorithms"])
    assert {"EAGLE", "EAGLE3", "STANDALONE", "NGRAM"} <= names
    assert "NONE" not in names and "MEDUSA" not in names


def test_a_closed_port_is_critical(desk: Desk) -> None:
    began = time.monotonic()
    done = desk.run("--check", f"127.0.0.1:{desk.port}")
    assert done.returncode == 2, done.stdout + done.stderr
    assert time.monotonic() - began < 5


def test_launch_survives_kill_of_specdash_and_is_taken_up_again(desk: Desk) -> None:
    process = subprocess.Popen(
        desk.command("launch", "engine-base", "--wait", "--yes"),
        env=desk.env(),
        cwd=desk.home,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    wait_for("the run to start", 60, lambda: list((desk.home / "host").glob("hosts/*/runs/*/events.jsonl")))
    run_id = str(record(desk, "engine-base")["id"])
    process.kill()
    process.wait()
    STATE["base"] = run_id
    desk.sshd.kill_sessions()  # whatever connection is left is cut too
    wait_for("ready", 240, lambda: record(desk, "engine-base").get("phase") == "ready")
    whole = log_of(desk, run_id)
    told = subprocess.run(
        desk.command("logs", run_id, "--host", "gpu", "--raw"),
        env=desk.env(),
        cwd=desk.home,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    ).stdout
    on_host = whole.read_bytes()
    assert told and sha(told) == sha(on_host[: len(told)]) and len(on_host) - len(told) < 4096


def test_two_read_the_same_log_at_the_same_time(desk: Desk) -> None:
    readers = [
        subprocess.Popen(
            desk.command("logs", STATE["base"], "--host", "gpu", "--raw"),
            env=desk.env(),
            cwd=desk.home,
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )
        for _ in range(2)
    ]
    told = [reader.communicate(timeout=60)[0] for reader in readers]
    on_host = log_of(desk, STATE["base"]).read_bytes()
    assert all(one and sha(one) == sha(on_host[: len(one)]) for one in told)


def test_check_and_status_of_a_serving_engine(desk: Desk) -> None:
    for target in ("engine-base", "gpu", f"127.0.0.1:{desk.port}"):
        began = time.monotonic()
        done = desk.run("--check", target)
        assert done.returncode == 0, f"{target}: {done.stdout}{done.stderr}"
        assert time.monotonic() - began < 10
    answer = desk.generate()
    assert answer["meta_info"]["completion_tokens"] > 0
    shown = desk.json("status", "gpu")
    assert STATE["base"] in str(shown)


def test_switch_to_each_drafter_and_back_from_one_that_does_not_fit(desk: Desk) -> None:
    """Steady clients, plain, streaming and with kept connections: refused is fine, cut is not."""
    with Clients(desk.port) as clients:
        old = "engine-base"
        for new in ("engine-ngram", "engine-standalone", "engine-eagle3"):
            confirm = ("--yes", "--confirm", old)  # a request may run just then: then the name is wanted
            clients.wait_served(5)
            done = desk.json("switch", old, new, *confirm, "--settle", "3", "--slower", "keep", timeout=400)
            assert done["outcome"] == "done"
            answer = desk.generate()
            assert answer["meta_info"]["spec_verify_ct"] > 0
            old = new
        clients.wait_served(5)
        words = ("--yes", "--confirm", old, "--force", "--settle", "3")
        done = desk.json("switch", old, "engine-misfit", *words, code=6, timeout=400)
        assert done["outcome"] == "rolled_back"
        clients.wait_served(5)
    assert desk.generate()["meta_info"]["spec_verify_ct"] > 0
    assert record(desk, "engine-eagle3")["phase"] == "ready"
    counted = clients.count(desk.logs())
    assert counted["finished"] > 25 and counted["refused"] > 10, counted
    assert not clients.lost(desk.logs()), f"accepted requests were lost: {clients.lost(desk.logs())}"


def test_an_unknown_algorithm_is_said_before_and_after(desk: Desk) -> None:
    before = desk.run("preflight", "engine-unknown")
    assert before.returncode != 0 and "MEDUSA" in before.stdout
    serving = desk.port
    try:
        (desk.home / "profiles/engine-unknown-elsewhere.toml").write_text(
            f'extends = "engine-unknown"\n[server]\nport = {engines.free_port()}\n'
        )
        after = desk.run("launch", "engine-unknown-elsewhere", "--wait", "--yes", "--force")
    finally:
        assert serving == desk.port
    assert after.returncode == 2, after.stdout + after.stderr
    assert "MEDUSA" in after.stdout


def test_stop_leaves_nothing(desk: Desk) -> None:
    run_id = str(record(desk, "engine-eagle3")["id"])
    done = desk.json("stop", "engine-eagle3", "--yes", "--confirm", run_id)
    assert done["outcome"] == "done"
    wait_for("no process of the run", 10, lambda: not engines.marked(run_id))
    assert desk.run("--check", f"127.0.0.1:{desk.port}").returncode == 2
    assert desk.run("--check", "engine-eagle3").returncode == 2
