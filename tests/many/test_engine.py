"""One server over two machines, for real: sshd in each, real SGLang with tp 2 over 2 nodes, and what can go wrong.

By hand: `SPECDASH_ENGINE=DIR SPECDASH_RESULTS=docs/results pytest tests/many/test_engine.py -m engine -n 0 --timeout 600`
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.many.desk import ManyDesk, engine_profile
from tests.many.results import Results
from tests.support import engine as engines

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.sshd,
    pytest.mark.xdist_group("engine"),
    pytest.mark.timeout(600),
]

EAGLE3 = """
[speculation]
algorithm = "EAGLE3"
draft-model-path = "models/{draft}"
num-steps = 3
eagle-topk = 1
num-draft-tokens = 4
"""


@pytest.fixture(scope="module")
def desk(two: ManyDesk, engine: Path) -> Iterator[ManyDesk]:
    two.profile("many-base", engine_profile(engine))
    two.profile("many-eagle3", 'extends = "many-base"' + EAGLE3.format(draft="eagle3"))
    two.profile("many-misfit", 'extends = "many-base"' + EAGLE3.format(draft="draft"))
    yield two


def until(what: str, seconds: float, check: Callable[[], Any]) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = check()
        if found:
            return found
        time.sleep(0.3)
    raise AssertionError(f"not within {seconds} s: {what}")


def last(answer: dict[str, Any]) -> str:
    return str(answer["steps"][-1]["sentence"])


def nothing_left(desk: ManyDesk, ident: str = "") -> None:
    """No process of the server, no prepared run, no secret, no port held, on either machine: the test's own look."""
    if ident:
        until("no process is left", 20, lambda: not desk.left(ident))
    for name, machine in desk.machines.items():
        listening = machine.run("cat", "/proc/net/tcp", "/proc/net/tcp6").stdout
        held = {
            int(line.split()[1].rpartition(":")[2], 16) for line in listening.splitlines() if " 0A " in line
        }
        assert not held & {desk.port, *range(20000, 20010)}, f"{name} holds {held}"
        for folder in machine.home.rglob("runs/*"):
            events = folder / "events.jsonl"
            assert events.exists(), f"{folder} was prepared and is still there"
            assert not (folder / "env").exists(), f"{folder} still has its environment"


def launched(desk: ManyDesk, *more: str, code: int = 0) -> dict[str, Any]:
    return desk.json("launch", "many-base", "--wait", "--yes", *more, code=code)


def story(
    desk: ManyDesk, words: tuple[str, ...], when: str, act: Callable[[], object], timeout: float = 240
) -> tuple[dict[str, Any], int]:
    """Run a verb, do something once its narration matches `when`, and return its JSON and exit code."""
    process = desk.start(*words, "--json")
    assert process.stderr is not None and process.stdout is not None
    seen = []
    try:
        for line in process.stderr:
            seen.append(line)
            if re.search(when, line):
                act()
                break
        out, err = process.communicate(timeout=timeout)
    finally:
        process.kill()
    assert out.strip(), "".join(seen) + err
    return json.loads(out), process.returncode


def test_launched_switched_stopped(desk: ManyDesk, results: Results) -> None:
    began = time.monotonic()
    answer = launched(desk)
    ident = answer["together"]
    start = next(step for step in answer["steps"] if step["step"] == "start" and step["status"] == "done")
    assert start["data"]["apart_s"] < 1.0
    took_1 = time.monotonic() - began
    assert [rank["host"] for rank in answer["ranks"]] == ["a", "b"]
    for host, rank in (("a", 0), ("b", 1)):
        record = desk.record(host, f"{ident}-r{rank}")
        assert record["phase"] == "ready" and record["run_id_all"] == ident and record["node_rank"] == rank
    served = desk.generate()
    assert served["meta_info"]["completion_tokens"] == 24
    state = desk.json("status", "--all")
    assert state["together"][0]["phase"] == "ready"

    refused = desk.run("switch", "--hot", "many-base", "models/eagle3", "--yes")
    assert refused.returncode == 4 and "shared memory" in refused.stderr

    began = time.monotonic()
    switched = desk.json("switch", "many-base", "many-eagle3", "--yes", "--settle", "5", timeout=400)
    assert switched["outcome"] == "done"
    took_2 = time.monotonic() - began
    assert not desk.left(ident), "the old ranks are gone"
    assert desk.generate()["text"] == served["text"], "greedy output is the same"
    new = switched["together"]
    assert desk.json("status")["together"][0]["id"] == new

    began = time.monotonic()
    stopped = desk.json("stop", "many-eagle3", "--yes")
    proofs = {rank["host"]: rank["proof"]["proven"] for rank in stopped["steps"][-1]["data"]["ranks"]}
    assert proofs == {"a": True, "b": True}
    took_3 = time.monotonic() - began
    nothing_left(desk, new)
    again = desk.run("stop", "many-eagle3", "--yes")
    assert again.returncode == 0 and "ended on all hosts already" in again.stdout
    results.add("launch", f"{start['sentence']} {last(answer)}", 0, took_1)
    results.add("hot switch", refused.stderr.splitlines()[-1], refused.returncode, 0)
    results.add("switch base → EAGLE3", last(switched), 0, took_2)
    results.add("stop", last(stopped), 0, took_3)


def test_a_switch_that_fails_brings_all_ranks_back(desk: ManyDesk, results: Results) -> None:
    launched(desk)
    began = time.monotonic()
    words = ("switch", "many-base", "many-misfit", "--yes", "--force", "--settle", "1", "--no-measure")
    answer = desk.json(*words, code=6, timeout=400)
    assert answer["outcome"] == "rolled_back"
    took_1 = time.monotonic() - began
    assert "serves again on all hosts" in last(answer) and re.search(r"[Rr]ank \d on [ab]", last(answer))
    assert desk.generate()["meta_info"]["completion_tokens"] == 24
    back = desk.json("stop", "many-base", "--yes")
    assert back["outcome"] == "done"
    nothing_left(desk, back["together"])
    results.add("switch to a drafter that does not fit", last(answer), 6, took_1)


def test_one_rank_is_killed_while_it_loads(desk: ManyDesk, results: Results) -> None:
    began = time.monotonic()

    def kill() -> None:
        run = next(one for one in desk.records("b") if not one.get("ended"))
        os.kill(int(run["pid"]), signal.SIGKILL)

    answer, code = story(
        desk, ("launch", "many-base", "--wait", "--yes"), r"\[running\].*distributed init on all", kill
    )
    took_1 = time.monotonic() - began
    assert code == 2 and "Rank 1 on b" in last(answer) and "signal 9" in last(answer)
    assert last(answer).index("Rank 1 on b") == 0, "the first failure leads"
    assert answer["steps"][-1]["data"]["host"] == "b"
    assert "Nothing of it is left on a, b." in last(answer)
    nothing_left(desk, answer["together"])
    results.add("one rank killed while it loads", last(answer), code, took_1)


def test_one_rank_is_killed_while_it_serves(desk: ManyDesk, results: Results) -> None:
    answer = launched(desk)
    ident = answer["together"]
    began = time.monotonic()
    os.kill(int(desk.record("b", f"{ident}-r1")["pid"]), signal.SIGKILL)
    until("rank 0 ends too", 60, lambda: desk.record("a", f"{ident}-r0").get("ended"))
    group = next(one for one in desk.json("status", "-a")["together"] if one["id"] == ident)
    took_1 = time.monotonic() - began
    assert group["first_failure"] == {"host": "b", "rank": 1}, group["sentence"]
    assert desk.run("stop", "many-base", "--yes").returncode in (0, 3)
    nothing_left(desk, ident)
    results.add("one rank killed while it serves", group["sentence"], 0, took_1)


def test_one_link_is_cut_while_it_loads(desk: ManyDesk, results: Results) -> None:
    began = time.monotonic()
    machine = desk.machines["b"]
    words = ("launch", "many-base", "--wait", "--yes", "--lost", "stop", "--lost-after", "10")
    try:
        answer, code = story(desk, words, r"\[done\] Start all ranks", machine.cut)
        took_1 = time.monotonic() - began
        assert code == 2 and "Out of reach while it was loading: b" in last(answer)
        assert "Not proven to be gone on b" in last(answer)
        assert not [k for k in desk.left(answer["together"]) if k.endswith("-r0")], "rank 0 was stopped"
        open_ = desk.run("stop", answer["together"], "--yes")
        assert open_.returncode == 2 and "Not proven on b" in open_.stdout
    finally:
        machine.mend()
    began = time.monotonic()
    done = desk.json("stop", "--unproven", "--yes")
    took_2 = time.monotonic() - began
    assert done["outcome"] in ("done", "ended"), (
        done
    )  # ended: it lost its peer for good when the cable was back
    told = last(done) if done.get("steps") else done["sentence"]
    nothing_left(desk, answer["together"])
    results.add("one link cut while it loads", last(answer), code, took_1)
    results.add("… and finished when the host is back", told, 0, took_2)


def test_another_version_on_one_host(desk: ManyDesk, engine: Path, results: Results) -> None:
    """A tree of links to the real one, with another version file."""
    real = next((engine / "venv/lib").glob("python*/site-packages/sglang"))
    other = desk.home / "older" / "sglang"
    other.mkdir(parents=True)
    for entry in real.iterdir():
        if entry.name not in ("version.py", "_version.py", "__pycache__"):
            (other / entry.name).symlink_to(entry)
    (other / "_version.py").write_text('__version__ = version = "0.5.22"\n')
    path = f"{desk.home}/older:{engines.environment()['PYTHONPATH']}"
    desk.profile("many-mixed", f'extends = "many-base"\n[on.b.env]\nPYTHONPATH = "{path}"\n')
    began = time.monotonic()
    done = desk.run("launch", "many-mixed", "--wait", "--yes")
    took_1 = time.monotonic() - began
    assert done.returncode == 4
    assert "0.5.23 on a, 0.5.22 on b" in done.stderr
    nothing_left(desk)
    results.add("another version on one host", done.stderr.splitlines()[-1], done.returncode, took_1)


def test_the_init_port_cannot_be_reached(desk: ManyDesk, results: Results) -> None:
    a, b = desk.machines["a"], desk.machines["b"]
    began = time.monotonic()
    b.run("ip", "route", "add", "unreachable", f"{a.address}/32")
    try:
        done = desk.run("launch", "many-base", "--wait", "--yes")
    finally:
        b.run("ip", "route", "del", "unreachable", f"{a.address}/32")
    took_1 = time.monotonic() - began
    assert done.returncode == 4
    assert f"b cannot reach {a.address}:20000 on a" in done.stderr
    nothing_left(desk)
    results.add(
        "init port not reachable from one host",
        done.stderr.splitlines()[-1],
        done.returncode,
        took_1,
    )


def test_the_disk_of_one_host_is_full(desk: ManyDesk, results: Results) -> None:
    machine = desk.machines["b"]
    assert machine._process is not None
    small = machine.folder / "small"
    small.mkdir()
    subprocess.run(
        [
            "nsenter",
            "-t",
            str(machine._process.pid),
            "-m",
            "mount",
            "-t",
            "tmpfs",
            "-o",
            "size=64k",
            "tmpfs",
            str(small),
        ],
        check=True,
    )
    table = (
        machine.table().replace("[hosts.b]", "[hosts.full]").replace(f"{machine.home}/specdash", str(small))
    )
    config = desk.home / "config.toml"
    config.write_text(config.read_text().replace("\n[groups]", f"{table}\n[groups]"))
    desk.profile("many-full", 'extends = "many-base"\nhosts = ["a", "full"]\n')
    began = time.monotonic()
    done = desk.run("launch", "many-full", "--wait", "--yes", "--force")
    took_1 = time.monotonic() - began
    assert done.returncode == 2
    assert "Rank 1 cannot be prepared on full" in done.stdout and "No space left" in done.stdout
    assert "Nothing was started" in done.stdout
    nothing_left(desk)
    results.add(
        "the disk of one host is full",
        done.stdout + done.stderr.splitlines()[-1],
        done.returncode,
        took_1,
    )
