"""`specdash switch` as a command: side by side with a port that is found, and hot refusals. The engine is simulated."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from specdash.exits import Exit
from specdash.verbs.switch import listed_line
from tests.monitor.conftest import _end_marked, free_port  # noqa: F401  (fixtures)

STUB = Path(__file__).parents[1] / "support" / "engine_stub.py"


@pytest.fixture
def desk(tmp_path: Path, free_port: int):  # noqa: F811
    (tmp_path / "config.toml").write_text(
        f'[hosts.box]\nssh = ""\npython = "{sys.executable}"\nrun_root = "{tmp_path}/runs"\n'
    )
    (tmp_path / "profiles").mkdir()
    for name, text in {
        "base": "tok-s = 3000",
        "good": 'tok-s = 4500\naccept = 2.5\n[speculation]\nalgorithm = "EAGLE3"\ndraft-model-path = "d"',
        "dies": 'die = 1\n[speculation]\nalgorithm = "EAGLE3"\ndraft-model-path = "d"',
    }.items():
        (tmp_path / "profiles" / f"{name}.toml").write_text(
            f'host = "box"\npython = "{sys.executable}"\nlauncher = ["-B", "{STUB}"]\n'
            f'[env]\nTEST_ROOT_MARK = "{tmp_path}"\nHOME = "{tmp_path}"\n'
            f'[server]\nport = {free_port}\nmodel-path = "m"\nload = 0.1\n{text}\n'
        )

    def go(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "specdash", "--config", str(tmp_path / "config.toml"), *words]
        return subprocess.run(argv, capture_output=True, text=True, timeout=100, stdin=subprocess.DEVNULL)

    yield go
    _end_marked(tmp_path)


@pytest.mark.slow
def test_side_by_side_finds_a_port_and_leaves_a_alone_when_b_dies(desk, free_port: int) -> None:  # noqa: F811
    assert desk("launch", "base", "--wait", "--yes", "--force").returncode == Exit.OK
    fast = (
        "--side-by-side",
        "--force",
        "--yes",
        "--settle",
        "0.2",
        "--drain",
        "0",
        "--deadline",
        "5",
        "--json",
    )
    plan = json.loads(
        desk("switch", "base", "dies", "--side-by-side", "--force", "--dry-run", "--json").stdout
    )
    assert plan["steps"][-1]["name"] == "stop"
    other = int(plan["argv"][plan["argv"].index("--port") + 1])
    assert other != free_port and any(f"on port {other}" in note for note in plan["notes"])
    failed = desk("switch", "base", "dies", *fast)
    assert failed.returncode == Exit.ROLLED_BACK, failed.stdout + failed.stderr
    assert "never stopped" in failed.stdout
    done = desk("switch", "base", "good", *fast)
    assert done.returncode == Exit.OK, done.stdout + done.stderr
    runs = json.loads(desk("runs", "box", "--json").stdout)["runs"]
    assert [run["profile"] for run in runs if run.get("alive")] == ["good"]


@pytest.mark.slow
def test_hot_names_what_is_missing_and_the_ordinary_way(desk) -> None:
    assert desk("launch", "base", "--wait", "--yes", "--force").returncode == Exit.OK
    bare = desk("switch", "--hot")
    assert bare.returncode == Exit.UNKNOWN and "needs the run or profile" in bare.stderr
    none = desk("switch", "--hot", "base")
    assert none.returncode == Exit.UNKNOWN and "needs a drafter" in none.stderr
    more = desk("switch", "--hot", "base", "good", "--yes")
    assert more.returncode == Exit.REFUSED and "more than the drafter" in more.stderr, more.stderr
    assert "specdash switch base good" in more.stderr
    plain = desk("switch", "--hot", "good", "base")
    assert plain.returncode == Exit.UNKNOWN and "No running run" in plain.stderr
    listed = json.loads(desk("switch", "--hot", "base", "--list", "--json").stdout)
    assert listed["hot_switches"] == []


def test_a_switch_is_listed_by_what_it_is_and_where_it_stands() -> None:
    """The record of the end was printed as Python writes a dict, and the title was never there."""
    one = {"id": "s1", "plan": {"title": "Switch a → b"}, "steps": [], "end": None, "alive": True}
    assert listed_line({**one, "steps": [{"step": "stop", "status": "running"}]}) == (
        "s1  Switch a → b  runs, step stop"
    )
    assert "waits for an answer: --answer s1 keep" in listed_line({**one, "question": {"event": "question"}})
    assert "stands still: --attach s1" in listed_line({**one, "alive": False})
    ended = listed_line({**one, "end": {"final": "rolled_back", "sentence": "a serves again.\x1b[31m"}})
    assert ended.startswith("s1  Switch a → b  rolled back: a serves again.") and "\x1b" not in ended
