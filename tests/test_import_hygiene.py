"""What the command line may import, how long it may take, and how it fails: in child processes."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

MODULES = """
import atexit, json, sys
def tell():
    with open(sys.argv[0] if False else {path!r}, "w") as file:
        json.dump(sorted(sys.modules), file)
atexit.register(tell)
from specdash.cli import main
sys.exit(main({words!r}))
"""
HEAVY = ("textual", "rich", "pydantic", "asyncssh", "httpx", "tomlkit", "asyncio", "argparse", "platformdirs")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "SPECDASH", "LC_", "PYTHONIOENC"))
    }
    return {**kept, "HOME": str(tmp_path), "LANG": "C.UTF-8"}


def imported(words: list[str], env: dict[str, str], tmp_path: Path) -> set[str]:
    path = tmp_path / "modules.json"
    code = MODULES.format(path=str(path), words=words)
    subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, timeout=60, cwd=tmp_path)
    return {name.partition(".")[0] for name in json.loads(path.read_text())}


@pytest.mark.parametrize(
    "words",
    [
        ["--version"],
        ["--help"],
        ["profile", "list"],
        ["--check", "local"],
        ["hosts"],
        ["completion", "bash"],
        ["nope"],
    ],
    ids=" ".join,
)
def test_the_headless_half_never_imports_textual(
    words: list[str], env: dict[str, str], tmp_path: Path
) -> None:
    assert not {"textual", "rich"} & imported(words, env, tmp_path)


def test_version_and_help_import_nothing_heavy(env: dict[str, str], tmp_path: Path) -> None:
    assert not set(HEAVY) & imported(["--version"], env, tmp_path)
    assert not (set(HEAVY) - {"argparse"}) & imported(["--help"], env, tmp_path)
    assert not {"asyncssh", "httpx"} & imported(["profile", "list"], env, tmp_path)


def test_version_is_fast(env: dict[str, str]) -> None:
    best = 9.0
    for _ in range(5):
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "specdash", "--version"], env=env, capture_output=True, timeout=30
        )
        best = min(best, time.perf_counter() - start)
        assert done.stdout.startswith(b"specdash ")
    assert best < 0.150, f"{best * 1000:.0f} ms"


def run(words: list[str], env: dict[str, str], **kwargs: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "specdash", *words], env=env, capture_output=True, timeout=60, stdin=subprocess.DEVNULL,
        **kwargs,
    )  # type: ignore[call-overload]  # fmt: skip


def test_without_a_terminal_the_dashboard_points_at_check(env: dict[str, str]) -> None:
    done = run([], env)
    assert (
        done.returncode == 3
        and b"--check" in done.stderr
        and done.stderr.count(b"\n") == 1
        and not done.stdout
    )


@pytest.mark.parametrize(
    "words",
    [["--nope"], ["nope"], ["profile"], ["profile", "show"], ["hosts", "--nope"], ["completion", "csh"]],
    ids=" ".join,
)
def test_usage_errors_are_3_and_one_line(words: list[str], env: dict[str, str]) -> None:
    done = run(words, env)
    assert done.returncode == 3 and done.stderr.startswith(b"specdash: ") and done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    "setting", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]
)
def test_output_is_ascii_where_the_encoding_is(
    setting: dict[str, str], env: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "p.toml").write_text('description = "été → ✓"\n', encoding="utf-8")
    for words in (["--help"], ["profile", "show", "./p.toml"], ["profile", "show", "é→"]):
        done = run(words, {**env, **setting}, cwd=tmp_path)
        assert done.returncode in (0, 3)
        assert (done.stdout + done.stderr).isascii() and b"Traceback" not in done.stderr
        assert b"\x1b" not in done.stdout + done.stderr


def test_an_unexpected_error_is_one_line_and_a_private_file(env: dict[str, str], tmp_path: Path) -> None:
    code = (
        "import sys; from specdash import cli\n"
        "def boom(words): raise ZeroDivisionError('a\\nb')\n"
        "cli._main = boom; sys.exit(cli.main(['hosts']))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, timeout=60)
    assert done.returncode == 3 and done.stderr.count(b"\n") == 1 and b"ZeroDivisionError" in done.stderr
    (trace,) = (tmp_path / ".local/state/specdash/errors").iterdir()
    assert (
        str(trace).encode() in done.stderr
        and "boom" in trace.read_text()
        and trace.stat().st_mode & 0o077 == 0
    )


def test_interrupt_is_130(env: dict[str, str]) -> None:
    code = "import sys; from specdash import cli\ndef stop(words): raise KeyboardInterrupt\ncli._main = stop; sys.exit(cli.main(['hosts']))"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, timeout=60)
    assert done.returncode == 130 and b"Traceback" not in done.stderr


def test_a_reader_that_leaves_is_no_error(env: dict[str, str]) -> None:
    line = f"{sys.executable} -m specdash profile schema | head -c 10 >/dev/null; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], env=env, capture_output=True, timeout=60)
    assert b"Traceback" not in done.stderr and done.stderr == b""


def test_on_a_terminal_a_bad_config_is_a_sentence(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("them = 1")
    parent, child = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "specdash", "--config", str(tmp_path / "c.toml")],
        env=env, stdin=child, stdout=child, stderr=subprocess.PIPE, timeout=60,
    )  # fmt: skip
    os.close(parent)
    os.close(child)
    assert done.returncode == 3 and b'Did you mean "theme"' in done.stderr
