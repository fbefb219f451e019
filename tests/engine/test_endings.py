"""Every way in which the real engine can be made to end, launched through specdash over a real sshd and named.

After each, nothing is left: no process of the run, and its port is free. The quick ones run in every CI pass;
all of them, and docs/results/endings.md, by the command in docs/testing.md.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.endings import REFUSED_BY_ENGINE, Ending
from tests.engine.results import Results
from tests.support import engine as engines
from tests.support.engine import Desk

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine"), pytest.mark.timeout(600)]
slow = pytest.mark.slow


@pytest.fixture(scope="module")
def results(engine: Path) -> Iterator[Results]:
    found = Results(engines.python(engine))
    yield found
    found.write()


class Run:
    """One launch of a profile made for the test, and what became of it."""

    def __init__(self, desk: Desk, name: str, text: str, port: int | None = None) -> None:
        self.desk = desk
        self.profile = "ends-" + re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        self.port = port or engines.free_port()
        head, _, rest = text.partition("[server]") if "[server]" in text else ("", "", "")
        if "[server]" in text:
            body = f"{head}[server]\nport = {self.port}{rest}"
        else:
            top, bracket, tables = text.partition("[")
            body = f"{top}[server]\nport = {self.port}\n{bracket}{tables}"
        (desk.home / "profiles" / f"{self.profile}.toml").write_text(f'extends = "engine-base"\n{body}\n')
        self.id = ""
        self.told = ""

    def launch(self, *, wait: bool = True, code: int = 2) -> dict[str, Any]:
        words = ["launch", self.profile, "--yes", "--force", *(["--wait"] if wait else [])]
        answer = self.desk.json(*words, code=code)
        self.id = str(answer["run"])
        self.told = str(answer["steps"][-1]["sentence"])
        return answer

    def record(self) -> dict[str, Any]:
        found = [r for r in self.desk.json("runs", "gpu")["runs"] if r["id"] == self.id]
        assert found, f"{self.id} is not listed"
        return dict(found[0])

    def shown(self) -> dict[str, Any]:
        return self.desk.json("show", self.id, "--host", "gpu")

    def first_cause(self) -> dict[str, Any]:
        causes = self.shown()["causes"]
        assert causes, f"no cause is named for {self.id}: {self.log()[-3000:]}"
        return dict(causes[0])

    def log(self) -> str:
        found = list((self.desk.home / "host").glob(f"hosts/*/runs/{self.id}/server.log"))
        return found[0].read_text(errors="replace") if found else ""

    def root(self) -> int:
        return int(self.record()["pid"])

    def tree(self) -> dict[int, str]:
        return engines.family(self.id, self.root())

    def pid_of(self, title: str) -> int:
        found = [pid for pid, name in self.tree().items() if title in name]
        assert len(found) == 1, f"{title}: {self.tree()}"
        return found[0]

    def stop(self) -> dict[str, Any]:
        """`specdash stop`; a run that has ended by itself is refused, and that is fine."""
        done = self.desk.run("stop", self.id, "--host", "gpu", "--yes", "--json", "--deadline", "20")
        found: dict[str, Any] = json.loads(done.stdout) if done.stdout.strip() else {}
        assert done.returncode == 0 or "ended already" in done.stderr or "No running run" in done.stderr, (
            done.stdout + done.stderr
        )
        return found

    def nothing_left(self, *, port_held: bool = False) -> None:
        root = self.root()
        wait_for("no process of the run", 30, lambda: not engines.family(self.id, root))
        wait_for("the run's record ends", 30, lambda: self.record().get("ended"))
        if not port_held:
            with socket.socket() as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind(("127.0.0.1", self.port))


def wait_for(what: str, seconds: float, check: Any) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = check()
        if found:
            return found
        time.sleep(0.2)
    raise AssertionError(f"not within {seconds} s: {what}")


def judged(results: Results, name: str, run: Run, expected: str, words: str, began: float) -> None:
    cause = run.first_cause()
    results.add(name, expected, cause["category"], run.told, time.monotonic() - began)
    assert cause["category"] == expected, f"{cause}\n{run.log()[-4000:]}"
    assert re.search(words, run.told, re.S), run.told


def params(endings: tuple[Ending, ...]) -> list[Any]:
    return [pytest.param(e, id=e.name, marks=() if e.quick else (slow,)) for e in endings]


@pytest.mark.parametrize("ending", params(REFUSED_BY_ENGINE))
def test_an_engine_that_dies_before_it_serves(desk: Desk, results: Results, ending: Ending) -> None:
    began = time.monotonic()
    run = Run(desk, ending.name, ending.profile)
    run.launch()
    run.nothing_left()
    judged(results, ending.name, run, ending.category, ending.words, began)


@slow
def test_a_port_that_a_silent_listener_holds(desk: Desk, results: Results) -> None:
    began = time.monotonic()
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen(64)
        run = Run(desk, "silent listener", "", port=holder.getsockname()[1])
        run.launch()
        assert str(os.getpid()) in run.told, "who holds the port is named"
        run.stop()
        run.nothing_left(port_held=True)
        judged(results, "port held by a silent listener", run, "http_port_in_use", r"bind port", began)


@slow
def test_a_port_that_another_sglang_holds_then_its_scheduler_is_killed(desk: Desk, results: Results) -> None:
    began = time.monotonic()
    first = Run(desk, "holder", "")
    first.launch(code=0)
    second = Run(desk, "same port", "", port=first.port)
    second.launch()
    assert second.record().get("ready_boot_s") is None, "the other server's answer is not this run's"
    second.stop()
    second.nothing_left(port_held=True)
    judged(results, "port held by another SGLang", second, "http_port_in_use", r"bind port", began)
    assert desk.run("--check", f"127.0.0.1:{first.port}").returncode == 0, "the holder serves on"
    killed(
        results, first, "sglang::scheduler", "kill -9 of a scheduler", "killed_by_signal", r"(?i)scheduler"
    )


def killed(results: Results, run: Run, title: str, name: str, category: str, words: str) -> None:
    """KILL one process of a serving run: it must be called down at once, and by its cause once it has ended."""
    began = time.monotonic()
    os.kill(run.pid_of(title), signal.SIGKILL)
    wait_for(
        "it is no more called ready",
        30,
        lambda: run.shown()["verdict"]["kind"] in ("stalled", "dead", "stopped"),
    )
    run.told = run.shown()["verdict"]["sentence"]
    early = run.told
    if not run.record().get("ended"):
        # SGLang waits for core dumps of its own for a minute or more: nobody has to wait for that.
        run.stop()
    run.nothing_left()
    cause = run.first_cause()
    run.told = f"{early} / {cause['sentence']}"
    judged(results, name, run, category, words, began)


@pytest.mark.parametrize(
    ("title", "name", "words"),
    [
        pytest.param("sglang::detokenizer", "kill -9 of the detokenizer", r"(?i)detokenizer", marks=slow),
        pytest.param("launch_server", "kill -9 of the launcher", r"signal 9"),
    ],
)
def test_a_serving_engine_loses_a_process(
    desk: Desk, results: Results, title: str, name: str, words: str
) -> None:
    run = Run(desk, name, "")
    run.launch(code=0)
    killed(results, run, title, name, "killed_by_signal", words)


@slow
@pytest.mark.parametrize("word", ["SIGTERM", "SIGINT"])
def test_a_signal_while_it_starts(desk: Desk, results: Results, word: str) -> None:
    """By another's hand, not by specdash: TERM leaks the detokenizer, and that is cleaned up by a stop."""
    began = time.monotonic()
    run = Run(desk, f"{word} during start", "")
    answers: list[dict[str, Any]] = []
    waiter = threading.Thread(target=lambda: answers.append(run.launch()))
    waiter.start()
    record = wait_for("the run", 60, lambda: newest(desk, run.profile))
    wait_for("its children", 90, lambda: len(engines.family(record["id"], int(record["pid"]))) >= 3)
    os.kill(int(record["pid"]), getattr(signal, word))
    waiter.join(120)
    assert answers, "the launch did not end"
    run.stop()
    run.nothing_left()
    number = int(getattr(signal, word))
    judged(results, f"{word} during start", run, "killed_by_signal", rf"signal {number}", began)


def newest(desk: Desk, profile: str) -> dict[str, Any] | None:
    runs = [r for r in desk.json("runs", "gpu")["runs"] if r["profile"] == profile and r.get("pid")]
    return dict(runs[0]) if runs else None
