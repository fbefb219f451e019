"""Every verb keeps the same manners: --json is JSON also when it fails, codes are of one enum, read-only refuses effects."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from specdash import cli
from specdash.exits import Exit
from tests.monitor.conftest import _end_marked, free_port  # noqa: F401  (fixtures)

STUB = Path(__file__).parents[1] / "support" / "engine_stub.py"
LINE = "python3 -m sglang.launch_server --model-path m/x --port 30000"

WELL: list[tuple[list[str], int]] = [
    (["hosts"], 0),
    (["profile", "list"], 0),
    (["profile", "show", "base"], 0),
    (["profile", "check", "base"], 0),
    (["profile", "command", "base"], 0),
    (["profile", "diff", "base", "fast"], 0),
    (["profile", "schema"], 0),
    (["profile", "import", LINE], 0),
    (["profile", "import", "--name", "mine", "--to", "imported", LINE], 0),
    (["profile", "new", "other", "--extends", "base", "--to", "made"], 0),
    (["config", "show"], 0),
    (["config", "path"], 0),
    (["config", "schema"], 0),
    (["completion", "bash"], 0),
    (["completion", "names", "profiles"], 0),
    (["explain", "server.log"], 2),
    (["check", "127.0.0.1:9"], 2),
]
"""Words that need no host, and their exit code."""

FAILING: list[tuple[list[str], int]] = [
    (["status", "nosuch"], 5),
    (["launch", "nosuch"], 3),
    (["logs", "nosuch", "--host", "nosuch"], 5),
    (["stop", "nosuch", "--host", "nosuch"], 5),
    (["switch", "nosuch", "base", "--host", "nosuch"], 5),
    (["try", "nosuch"], 3),
    (["tune", "nosuch", "--host", "nosuch"], 5),
    (["runs", "nosuch"], 5),
    (["show", "nosuch", "--host", "nosuch"], 5),
    (["pulse", "nosuch", "--host", "nosuch"], 5),
    (["stacks", "nosuch", "--host", "nosuch"], 5),
    (["adopt", "nosuch"], 3),
    (["probe", "nosuch"], 3),
    (["preflight", "nosuch"], 3),
    (["fit", "nosuch", "nosuch"], 3),
    (["explain", "/nowhere"], 3),
    (["serve", "--host", "0.0.0.0"], 4),
    (["profile", "show", "nosuch"], 3),
    (["config", "nosuch"], 3),
    (["hosts", "--nosuch"], 3),
    (["demo"], 3),
    (["doctor", "nosuch"], 5),
    (["completion", "csh"], 3),
    (["check", "nosuch"], 3),
]
"""Each verb with what cannot be done."""

EFFECTS: list[list[str]] = [
    ["launch", "base", "--force"],
    ["stop", "RUN", "--host", "box"],
    ["switch", "RUN", "fast", "--host", "box", "--force"],
    ["try", "fast", "--over", "base", "--force"],
    ["adopt", "PID", "--host", "box"],
]
"""What changes a host: refused with 4 where read-only is on."""


@pytest.fixture
def place(tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: F811
    (tmp_path / "config.toml").write_text(
        f'[hosts.box]\nssh = ""\npython = "{sys.executable}"\nrun-root = "{tmp_path}/runs"\n[defaults]\nhost = "box"\n'
    )
    (tmp_path / "profiles").mkdir()
    for name, more in {"base": "tok-s = 3000", "fast": "tok-s = 4500\naccept = 2.5"}.items():
        (tmp_path / "profiles" / f"{name}.toml").write_text(
            f'host = "box"\npython = "{sys.executable}"\nlauncher = ["-B", "{STUB}"]\n'
            f'[env]\nTEST_ROOT_MARK = "{tmp_path}"\n[server]\nport = {free_port}\nmodel-path = "m"\nload = 0.1\n{more}\n'
        )
    (tmp_path / "server.log").write_text(
        "[2026-11-29 12:00:00] Scheduler hit an exception: Traceback (most recent call last):\nValueError: x\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECDASH_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    return tmp_path


def outcome(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = cli.main(words)
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    assert code in set(Exit), f"{code} is no documented code"
    return code, told.out, told.err


def test_no_verb_is_left_out() -> None:
    seen = {words[0] for words, _ in FAILING}
    assert seen == set(cli.available())


@pytest.mark.parametrize(
    ("words", "code"), WELL, ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else ""
)
def test_json_is_one_document(
    words: list[str], code: int, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    got, out, _ = outcome([*words, "--json"], capsys)
    data = json.loads(out)
    assert got == code, out
    assert isinstance(data, dict) and ("schema" in data or "$schema" in data)


@pytest.mark.parametrize(
    ("words", "code"), FAILING, ids=lambda value: value[0] if isinstance(value, list) else ""
)
def test_a_failure_is_a_sentence_and_json_where_it_was_asked_for(
    words: list[str], code: int, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    got, out, err = outcome([*words, "--json"], capsys)
    data = json.loads(out)
    assert got == code, err
    assert data["schema"] == "specdash.error/1" and data["code"] == code
    assert data["error"]["sentence"] and data["error"]["kind"]
    assert err.startswith("specdash: ") and err.count("\n") == 1 and data["error"]["sentence"][:30] in err
    got, out, err = outcome(words, capsys)
    assert (got, out) == (code, "") and err.count("\n") == 1


@pytest.mark.slow
def test_verbs_about_a_host_and_a_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One story: nothing there, a run, and it stopped; each verb's JSON on the way."""

    def told(*words: str, code: int = 0) -> dict[str, Any]:
        got, out, err = outcome([*words, "--json"], capsys)
        assert got == code, (words, out, err)
        data: dict[str, Any] = json.loads(out)
        assert data["schema"]
        return data

    try:
        assert told("runs")["runs"] == []
        for words in (["status", "box"], ["adopt", "--host", "box"], ["doctor", "box"]):
            got, out, err = outcome([*words, "--json"], capsys)
            assert got in (0, 1, 2) and json.loads(out)["schema"], (words, err)
        assert told("show", "base", "--host", "box", code=3)["error"]["sentence"]
        told("launch", "base", "--wait", "--force", "--yes")
        (run,) = told("runs")["runs"]
        for words in (
            ["status", "box"],
            ["show", run["id"], "--host", "box"],
            ["pulse", run["id"], "--host", "box"],
            ["stacks", run["id"], "--host", "box"],
            ["check", "base"],
        ):
            told(*words)
        got, out, _ = outcome(["logs", run["id"], "--host", "box", "--json"], capsys)
        lines = [json.loads(line)["line"] for line in out.splitlines()]
        assert got == 0 and any("fired up" in line for line in lines)
        for words in EFFECTS:
            real = [{"RUN": run["id"], "PID": str(run["pid"])}.get(word, word) for word in words]
            got, out, err = outcome(["--read-only", *real, "--yes", "--confirm", run["id"], "--json"], capsys)
            assert got == Exit.REFUSED, (real, out, err)
            error = json.loads(out[out.index('{"schema": "specdash.error/1"') :])
            assert "read-only" in error["error"]["sentence"]
        assert [r["id"] for r in told("runs")["runs"] if r.get("alive")] == [run["id"]], "nothing was changed"
        got, out, err = outcome(["stop", run["id"], "--host", "box", "--json"], capsys)
        assert got == Exit.REFUSED and "nobody is here to confirm" in err
        told("stop", run["id"], "--host", "box", "--yes", "--confirm", run["id"])
    finally:
        _end_marked(place)
