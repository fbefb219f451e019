"""`specdash try` as a command, on real runs of the simulated engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specdash.control.queue import Queue, Row, Serving
from specdash.exits import Exit
from specdash.verbs import try_verb
from tests.monitor.conftest import _end_marked, free_port  # noqa: F401  (fixtures)

STUB = Path(__file__).parents[1] / "support" / "engine_stub.py"
FAST = ("--drain", "0", "--deadline", "5", "--settle", "0.1", "--ready", "30", "--force")


@pytest.fixture
def desk(tmp_path: Path, free_port: int) -> Iterator[Callable[..., list[str]]]:  # noqa: F811
    """A config with one host and four profiles; gives the words of a command line, its environment in `env`."""
    (tmp_path / "config.toml").write_text(
        f'[hosts.box]\nssh = ""\npython = "{sys.executable}"\nrun_root = "{tmp_path}/runs"\n'
        f'[defaults]\nhost = "box"\n'
    )
    (tmp_path / "profiles").mkdir()
    flags = {
        "base": "tok-s = 3000",
        "good": 'tok-s = 4500\naccept = 2.5\n[speculation]\nalgorithm = "EAGLE3"',
        "dies": 'die = 1\naccept = 2\n[speculation]\nalgorithm = "EAGLE3"',
        "long": 'tok-s = 6000\nload = 3\naccept = 2\n[speculation]\nalgorithm = "EAGLE3"',
    }
    for name, text in flags.items():
        more = text if "load" in text else f"load = 0.1\n{text}"
        (tmp_path / "profiles" / f"{name}.toml").write_text(
            f'python = "{sys.executable}"\nlauncher = ["-B", "{STUB}"]\n'
            f'[env]\nTEST_ROOT_MARK = "{tmp_path}"\n[server]\nport = {free_port}\nmodel-path = "m"\n{more}\n'
        )

    def words(*more: str) -> list[str]:
        return [sys.executable, "-m", "specdash", "--config", str(tmp_path / "config.toml"), *more]

    yield words
    _end_marked(tmp_path)


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path)}


def go(words: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, env=env, capture_output=True, text=True, timeout=100, stdin=subprocess.DEVNULL
    )


@pytest.mark.slow
def test_a_night_in_small(desk: Callable[..., list[str]], env: dict[str, str]) -> None:
    asked = ("try", "good", "dies", "--over", "base", *FAST)
    refused = go(desk(*asked), env)
    assert (
        refused.returncode == 4
        and "nobody is here" in refused.stderr
        and "Expected downtime" in refused.stderr
    )
    assert go(desk("--read-only", *asked, "--yes"), env).returncode == 4
    plan = go(desk(*asked, "--dry-run", "--json"), env)
    assert json.loads(plan.stdout)["kind"] == "queue" and "Launch base" in plan.stdout
    assert json.loads(go(desk("runs", "box", "--json"), env).stdout)["runs"] == [], "nothing was started yet"
    done = go(desk(*asked, "--yes", "--json"), env)
    assert done.returncode == Exit.WARNING, (done.stdout, done.stderr)
    data = json.loads(done.stdout)
    assert (
        data["schema"] == "specdash.try/1" and data["best"] == "good" and data["serving"]["profile"] == "good"
    )
    rows = {row["profile"]: row for row in data["rows"]}
    assert [rows[name]["outcome"] for name in ("base", "good", "dies")] == ["served", "served", "rolled_back"]
    assert rows["good"]["tok_s_over_base"] > 1.1 and rows["dies"]["tok_s"] is None
    assert rows["dies"]["why"] and str(STUB) not in done.stderr.split("Queue try-")[1]
    again = go(desk("try", "--resume", data["id"]), env)
    assert again.returncode == 3 and "has ended" in again.stderr


@pytest.mark.slow
def test_interrupted_it_leaves_a_healthy_server_and_goes_on(
    desk: Callable[..., list[str]], env: dict[str, str], tmp_path: Path
) -> None:
    words = desk("try", "long", "good", "--over", "base", *FAST, "--yes")
    noise = tmp_path / "err"
    with noise.open("wb") as file:
        process = subprocess.Popen(
            words, env=env, stdout=subprocess.PIPE, stderr=file, stdin=subprocess.DEVNULL
        )
    until = time.monotonic() + 60
    while b"long is loading" not in noise.read_bytes():
        assert time.monotonic() < until and process.poll() is None, noise.read_text()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    said = noise.read_text()
    assert process.returncode == 130 and "goes on" in said and "Traceback" not in said, said
    assert b"base (base)" in out and b"not tried" in out
    ident = said.split("--resume ")[1].split()[0]
    kept = tmp_path / "state" / "specdash" / "queues" / f"{ident}.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert go(desk("--read-only", "try", "--resume", ident), env).returncode == 4
    done = go(desk("try", "--resume", ident, "--json"), env)
    assert done.returncode == 0, (done.stdout, done.stderr)
    data = json.loads(done.stdout)
    assert [row["outcome"] for row in data["rows"]] == ["served"] * 3 and data["serving"]["profile"] == "long"
    listed = json.loads(go(desk("runs", "box", "--json"), env).stdout)["runs"]
    assert [run["profile"] for run in listed if run["alive"]] == ["long"]


@pytest.mark.parametrize(
    "words",
    [["try", "a"], ["try", "--over", "base"], ["try", "--resume", "nope"], ["try", "a", "--resume", "x"]],
    ids=" ".join,
)
def test_usage_is_3(words: list[str], desk: Callable[..., list[str]], env: dict[str, str]) -> None:
    done = go(desk(*words), env)
    assert done.returncode == 3 and done.stderr.startswith("specdash: ") and done.stderr.count("\n") == 1


def queue(*outcomes: str, serving: str | None = "base", leave: str = "best") -> Queue:
    rows = []
    for at, outcome in enumerate(outcomes):
        name = "base" if at == 0 else f"d{at}"
        spec = {"profile": name, "host": "x", "python": "p", "launcher": []}
        rows.append(Row(name, spec, at == 0, outcome, 10.0 * (at + 1) if outcome == "served" else None))
    left = next((row for row in rows if row.profile == serving), None)
    serves = Serving("run", left.profile, left.spec) if left else None
    return Queue("try-1", "x", leave, rows, serves, ended="All were tried.")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "code"),
    [
        (queue("served", "served", serving="d1"), Exit.OK),
        (queue("served", "rolled_back"), Exit.WARNING),
        (queue("served", "blocked"), Exit.WARNING),
        (queue("served", "served", serving="base"), Exit.ROLLED_BACK),
        (queue("served", "served", serving="base", leave="base"), Exit.OK),
        (queue("served", "not_tried"), Exit.ROLLED_BACK),
        (queue("served", "failed", serving=None), Exit.CRITICAL),
    ],
)
def test_exit_codes(one: Queue, code: Exit) -> None:
    assert try_verb.exit_of(one) is code


def test_the_table_has_dashes_for_what_was_not_measured_and_no_control_characters() -> None:
    one = queue("served", "rolled_back")
    one.rows[1].why = "died\x1b[2J of\nit"
    text = "\n".join(try_verb.table(one))
    assert "\x1b" not in text and len(text.splitlines()) == 3
    assert text.splitlines()[1].split()[:4] == ["base", "(base)", "served", "(best)"]
    assert text.splitlines()[2].split()[:6] == ["d1", "rolled", "back", "-", "-", "-"]
