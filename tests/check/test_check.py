"""`--check` on real runs of the simulated engine: perfdata, JSON, thresholds, time. Which state gives which line: states.toml."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specdash.check import Options, State, Target, check, render, worst
from specdash.config.hosts import Host
from specdash.config.thresholds import CheckSettings

PERF = re.compile(r"'[^'=]+'=-?[0-9.]+(?:s|ms|%|B|KB|MB|c)?(?:;[^;\s]*){0,4}\Z")


def perf_of(line: str) -> list[str]:
    return re.findall(r"'[^']+'=\S+", line.partition(" | ")[2])


async def one(target: Target, **options: object):
    (result,) = await check([target], Options(**options))  # type: ignore[arg-type]
    return result


def profile(host: Host, port: int, **rules: object) -> Target:
    return Target("stub", "profile", host, "stub", "127.0.0.1", port, False, CheckSettings(**rules))


async def test_a_healthy_run_is_ok(link, start_run, host: Host, free_port: int) -> None:
    await start_run(link)
    result = await one(profile(host, free_port))
    assert result.state is State.OK, result.findings
    line = render.line([result])
    assert line.startswith("SPECDASH OK: stub: ")
    assert "idle" in line
    assert perf_of(line)
    assert all(PERF.match(item) for item in perf_of(line)), perf_of(line)


async def test_the_host_of_it_is_ok_too_and_names_the_server(link, start_run, host: Host) -> None:
    await start_run(link)
    result = await one(Target("box", "host", host))
    assert result.state is State.OK, result.findings
    assert "stub" in render.line([result])


async def test_requests_that_run_without_tokens_are_looked_at_twice(
    link, start_run, host: Host, free_port: int
) -> None:
    await start_run(link, "--requests=3")
    began = time.monotonic()
    result = await one(profile(host, free_port), window_s=0.5)
    assert time.monotonic() - began < 5
    assert result.values["stub"]["running"].value == 3
    assert result.state is State.OK  # half a second of stillness proves nothing


async def test_thresholds(link, start_run, host: Host, free_port: int) -> None:
    await start_run(link, "--requests=3")
    result = await one(profile(host, free_port), window_s=0.0, warn=("running>2",), crit=("running>5",))
    assert result.state is State.WARNING
    line = render.line([result])
    assert "running 3 > 2" in line
    assert "'running'=3;~:2;~:5" in line
    result = await one(profile(host, free_port, crit=("running>=3",)), window_s=0.0)
    assert result.state is State.CRITICAL
    result = await one(profile(host, free_port), window_s=0.0, warn=("acept<1",))
    assert result.state is State.UNKNOWN and "acept" in render.line([result])


async def test_a_host_that_hangs_in_the_handshake_ends_in_time() -> None:
    async def hang(host: Host, *, ask: object = None, timeout_s: float = 15.0):
        await asyncio.Event().wait()

    began = time.monotonic()
    targets = [Target(f"h{i}", "host", Host(name=f"h{i}", ssh="h")) for i in range(32)]
    results = await check(targets, Options(timeout_s=0.5), open_link=hang)  # type: ignore[arg-type]
    assert time.monotonic() - began < 2.5
    assert {r.state for r in results} == {State.CRITICAL}
    assert "connecting to h3" in render.line([results[3]])


async def test_many_targets_are_asked_at_once_and_the_worst_leads(free_port: int, host: Host) -> None:
    targets = [Target("box", "host", host), Target("gone", "port", None, "", "127.0.0.1", free_port)]
    results = await check(targets, Options())
    line = render.line(results)
    assert line.startswith("SPECDASH CRITICAL: gone: ")
    assert "(1 of 2 OK)" in line
    assert worst(r.state for r in results) is State.CRITICAL


def test_nothing_in_a_name_can_break_the_line() -> None:
    from specdash.check.run import Result
    from specdash.check.states import Finding

    result = Result(
        "a|b\n'c=", "host", (Finding(State.CRITICAL, "x", "bad | worse\r\n\x1b[31mred"),), took_s=0.5
    )
    line = render.line([result])
    assert line.count("|") == 1 and "\n" not in line and "\x1b" not in line


def test_unknown_is_worse_than_warning_and_better_than_critical() -> None:
    assert worst([State.OK, State.WARNING, State.UNKNOWN]) is State.UNKNOWN
    assert worst([State.UNKNOWN, State.CRITICAL]) is State.CRITICAL
    assert worst([]) is State.OK


def cli(*words: str, config: Path, **env: str) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys; from specdash.cli import main; rc = main(sys.argv[1:]);"
        "assert 'textual' not in sys.modules, 'textual'; sys.exit(rc)"
    )
    return subprocess.run(
        [sys.executable, "-c", code, "--config", str(config), *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **env},
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--check", "nosuchhost"], 3),
        (["--check", "--nosuchflag"], 3),
        (["--check", "http://127.0.0.1:9"], 2),
        (["--check"], 0),
    ],
)
def test_exit_codes_of_the_command(words: list[str], code: int, config: Path) -> None:
    done = cli(*words, config=config)
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    if code == 3:
        assert done.stdout == "" and done.stderr.count("\n") == 1
    else:
        assert done.stdout.count("\n") == 1 and done.stdout.startswith("SPECDASH ")


def test_json_is_the_documented_document(config: Path) -> None:
    done = cli("--check", "box", "--json", config=config)
    data = json.loads(done.stdout)
    assert data["schema"] == "specdash.check/1"
    assert (data["state"], data["code"]) == ("OK", 0)
    assert data["targets"][0]["findings"]
    assert set(data["targets"][0]) >= {
        "target",
        "kind",
        "state",
        "code",
        "sentence",
        "took_s",
        "findings",
        "servers",
        "host",
    }
