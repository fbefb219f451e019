"""status, runs, show and logs as commands, on real runs."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.check.test_check import cli


async def command(*words: str, config: Path) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(cli, *words, config=config)


@pytest.fixture
async def run(link: Any, start_run: Any) -> str:
    return str(await start_run(link, "--load=0.1"))


def log_of(root: Path, run: str) -> bytes:
    (path,) = root.glob(f"specdash/hosts/*/runs/{run}/server.log")
    return path.read_bytes()


async def test_status_shows_the_run_and_json_is_the_same_state(run: str, config: Path) -> None:
    text = await command("status", "box", config=config)
    assert text.returncode == 0, text.stderr
    assert run in text.stdout and "idle" in text.stdout
    done = await command("status", "box", "--json", config=config)
    data = json.loads(done.stdout)
    assert data["schema"] == "specdash.status/1"
    server = data["hosts"]["box"]["servers"][run]
    assert server["verdict"]["kind"] == "ready"
    assert server["numbers"]["running"]["value"] == 0
    assert server["numbers"]["running"]["source"] == "/v1/loads"
    assert server["numbers"]["accept_length"]["value"] is None
    assert "inner" not in server


async def test_status_of_an_unreachable_host_says_so_with_code_5(root: Path) -> None:
    config = root / "far.toml"
    config.write_text('[hosts.far]\nssh = "127.0.0.1"\nport = 9\n')
    done = await command("status", "far", "--timeout", "8", config=config)
    assert done.returncode == 5, (done.stdout, done.stderr)
    assert done.stdout.startswith("far: ")


async def test_runs_lists_it(run: str, config: Path) -> None:
    text = await command("runs", "box", config=config)
    assert text.returncode == 0 and run in text.stdout and "ready" in text.stdout
    data = json.loads((await command("runs", "--json", config=config)).stdout)
    assert [r["id"] for r in data["runs"]] == [run]
    assert data["runs"][0]["host"] == "box"


async def test_show_tells_the_command_and_phases(run: str, config: Path) -> None:
    text = await command("show", "stub", "--host", "box", config=config)
    assert text.returncode == 0, text.stderr
    assert run in text.stdout and "--model-path m/x" in text.stdout
    data = json.loads((await command("show", run, "--host", "box", "--json", config=config)).stdout)
    assert data["schema"] == "specdash.run/1"
    assert data["run"]["id"] == run


async def test_raw_logs_are_the_bytes_of_the_file(run: str, config: Path, root: Path) -> None:
    done = await command("logs", run, "--host", "box", "--raw", config=config)
    assert done.returncode == 0, done.stderr
    assert done.stdout.encode() == log_of(root, run)


async def test_logs_grep_last_lines_and_since(run: str, config: Path, root: Path) -> None:
    whole = log_of(root, run).decode().splitlines()
    all_lines = (await command("logs", run, "--host", "box", config=config)).stdout.splitlines()
    assert all_lines == whole
    last = (await command("logs", run, "--host", "box", "-n", "1", config=config)).stdout.splitlines()
    assert last == whole[-1:]
    found = (
        await command("logs", run, "--host", "box", "--grep", "fired up", config=config)
    ).stdout.splitlines()
    assert found == [line for line in whole if "fired up" in line]
    assert (
        await command("logs", run, "--host", "box", "--since", "1h", config=config)
    ).stdout.splitlines() == whole
    bad = await command("logs", run, "--host", "box", "--since", "soon", config=config)
    assert bad.returncode == 3 and "no time" in bad.stderr


async def test_logs_of_no_such_run_is_a_sentence(run: str, config: Path) -> None:
    done = await command("logs", "nosuch", "--host", "box", config=config)
    assert done.returncode == 3 and done.stdout == "" and run in done.stderr


def test_since_goes_by_the_log_and_lines_without_time_go_along(tmp_path: Path) -> None:
    from specdash.monitor.logstore import LogStore
    from specdash.verbs.logs import Pick

    lines = [
        b"[2026-05-04 10:00:00] old",
        b"Traceback of old",
        b"[2026-05-04 10:09:30] new api_key='sk-secret-secret'",
        b"  continued",
        b"[2026-05-04 10:10:00 TP0] newest",
    ]
    store = LogStore("h", "r", tmp_path)
    store.append(b"\n".join(lines) + b"\n")
    for since in ("1m", "10:09", "2026-05-04 10:09"):
        shown = list(Pick(since, "").choose(lines, store))
        assert len(shown) == 3 and shown[0].startswith("[2026-05-04 10:09:30]")
        assert "sk-secret" not in shown[0]
    assert list(Pick("", "continued").choose(lines, store)) == ["  continued"]
    store.close()
