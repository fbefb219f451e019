"""--format prometheus, -o and --watch: parsed by Prometheus' own parser, written whole, one line for each change."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from specdash.check import Finding, Result, State, prometheus, watch
from specdash.errors import UsageError
from specdash.monitor.state import Reading
from specdash.verbs.check import replace_whole
from tests.check.test_check import cli


def result(name: str = "box", *findings: Finding, **values: float | None) -> Result:
    readings = {key: Reading(value) for key, value in values.items()}
    return Result(
        name, "host", findings, {"stub": readings} if readings else {}, {"rtt_ms": 2.0, "gpus": None}
    )


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation and family.type == "gauge", family
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"{key} twice"
            found[key] = sample.value
    return found


def test_values_are_in_base_units_and_missing_ones_have_no_line() -> None:
    one = result("box", Finding(State.WARNING, "break-even", "x"), accept=2.5, kv=None)
    found = samples(prometheus.text([one], 5.0))
    assert found["specdash_check_time_seconds", ()] == 5.0
    assert found["specdash_link_rtt_seconds", (("target", "box"),)] == pytest.approx(0.002)
    assert found["specdash_check_state", (("kind", "host"), ("target", "box"))] == 1.0
    labels = (("finding", "break-even"), ("target", "box"))
    assert found["specdash_check_finding_state", labels] == 1.0
    assert found["specdash_server_accept_length", (("server", "stub"), ("target", "box"))] == 2.5
    assert not [name for name, _ in found if name in ("specdash_server_kv_used_ratio", "specdash_gpus")]


def test_names_that_hosts_give_cannot_break_the_text() -> None:
    nasty = 'a"b\\c\nd\x1b{} # HELP x'
    found = samples(prometheus.text([result(nasty, accept=1.0), result(nasty, accept=2.0)], 0.0))
    targets = {dict(labels).get("target") for _, labels in found}
    assert 'a"b\\c d {} # HELP x' in targets, "one line, and every other character as it was"
    worst = [Finding(State.CRITICAL, "gpu", "x"), Finding(State.WARNING, "gpu", "y")]
    found = samples(prometheus.text([result("box", *worst)], 0.0))
    assert found["specdash_check_finding_state", (("finding", "gpu"), ("target", "box"))] == 2.0


def test_only_what_changed_is_news() -> None:
    seen: watch.Seen = {}
    well, slow = result(), result("box", Finding(State.WARNING, "threshold", "tok/s 39 < 40"))
    assert [one.state for one in watch.changes(seen, [well])] == [State.OK]
    assert not list(watch.changes(seen, [well]))
    assert [one.state for one in watch.changes(seen, [slow])] == [State.WARNING]
    other_number = result("box", Finding(State.WARNING, "threshold", "tok/s 38 < 40"))
    assert not list(watch.changes(seen, [other_number])), "a number that moves is no news"
    hot = result("box", Finding(State.WARNING, "gpu", "GPU 0 is slowed down"))
    assert list(watch.changes(seen, [hot])), "another problem of the same state is"
    assert "\n" not in watch.line(result("box", Finding(State.CRITICAL, "x", "a\nb")), 0.0)


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "specdash.prom"
    target.write_text("old")
    old = target.stat().st_ino
    replace_whole(str(target), "new\n")
    assert target.read_text() == "new\n" and target.stat().st_ino != old
    assert target.stat().st_mode & 0o777 == 0o644
    for bad in (tmp_path, tmp_path / "no" / "such"):
        with pytest.raises(UsageError):
            replace_whole(str(bad), "x")
    assert os.listdir(tmp_path) == ["specdash.prom"]


@pytest.mark.slow
async def test_a_real_run_as_prometheus_text_in_a_file(
    link: Any, start_run: Any, config: Path, tmp_path: Path
) -> None:
    await start_run(link)
    target = tmp_path / "specdash.prom"
    words = ("check", "--all", "--format", "prometheus", "-o", str(target))
    done = await asyncio.to_thread(cli, *words, config=config)
    assert done.returncode == 0 and done.stdout == "", (done.stdout, done.stderr)
    found = samples(target.read_text())
    assert found["specdash_check_state", (("kind", "host"), ("target", "box"))] == 0.0
    assert found["specdash_server_running_requests", (("server", "stub"), ("target", "box"))] == 0.0


def test_usage(config: Path, tmp_path: Path) -> None:
    for words in (
        ("--json", "--format", "prometheus"),
        ("-o", str(tmp_path / "no" / "x")),
        ("--watch", "--generate", "--interval", "5"),
        ("--format", "xml"),
        ("--interval", "0", "--watch"),
    ):
        done = cli("check", "box", *words, config=config)
        assert done.returncode == 3 and done.stderr.count("\n") == 1, (words, done.stderr)


@pytest.mark.slow
async def test_watch_tells_a_death_once_and_ends_with_130(
    link: Any, start_run: Any, config: Path, tmp_path: Path
) -> None:
    run = await start_run(link)
    out = tmp_path / "out"
    words = [sys.executable, "-m", "specdash", "--config", str(config), "--check", "box", "--watch", "--json"]
    with out.open("wb") as file:
        process = subprocess.Popen([*words, "--interval", "0.2", "--window", "0"], stdout=file)  # noqa: ASYNC220
    try:
        await _until(lambda: out.read_bytes().count(b"\n") == 1)
        (record,) = (await link.call("runs.list", {"base": link.hello["base"]}))["runs"]
        os.kill(record["pid"], signal.SIGKILL)
        await _until(lambda: b"signal 9" in out.read_bytes())
    finally:
        process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(process.wait, 20) == 130
    told = [json.loads(line) for line in out.read_text().splitlines()]
    assert told[0]["state"] == "OK" and told[-1]["state"] == "WARNING"
    assert len(told) <= 3 and all(one["schema"].startswith("specdash.check/") for one in told), run


async def _until(check: Any, seconds: float = 40.0) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "it did not come to it"
        await asyncio.sleep(0.1)
