"""Found by trying to break it: what a check is given, where its output goes, and names that come twice."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from specdash.check import (
    Finding,
    Options,
    Result,
    State,
    Target,
    check,
    marks,
    parse,
    prometheus,
    render,
    watch,
)
from specdash.check.findings import limit_of
from specdash.check.marks import Mark, Marks
from specdash.config.hosts import Host
from specdash.config.settings import load
from specdash.config.thresholds import CheckSettings
from specdash.errors import ConfigError, UsageError
from specdash.monitor.state import Reading
from specdash.verbs.check import replace_whole
from tests.check.test_check import cli
from tests.support.http_fake import HttpFake


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config file without hosts, and nothing of this machine's state."""
    for name in ("STATE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    path = tmp_path / "config.toml"
    path.write_text("")
    return path


def result(target: str, state: State, kind: str = "url") -> Result:
    found = (Finding(state, "health", "x"),)
    return Result(target, kind, found, took_s=1.0 if state else 0.5)


@pytest.mark.parametrize("words", [("",), ("  ",), ("127.0.0.1:1", "--all"), ("http://127.0.0.1:0",)])
def test_a_target_that_would_be_overlooked_is_refused(words: tuple[str, ...], alone: Path) -> None:
    """An empty macro of a monitoring system, or a name beside --all, must not give the OK of something else."""
    done = cli("check", *words, config=alone)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1), done


def test_a_watch_does_not_generate_more_often_because_the_config_asks_for_it(alone: Path) -> None:
    alone.write_text("[check]\ngenerate = true\n")
    done = cli("check", "127.0.0.1:1", "--watch", "--interval", "1", config=alone)
    assert done.returncode == 3 and "every 30 s" in done.stderr, done


@pytest.mark.parametrize("args", [(), ("--json",)])
def test_the_state_is_told_by_the_exit_code_though_nobody_reads(args: tuple[str, ...], alone: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    words = [sys.executable, "-m", "specdash", "--config", str(alone), "--check", "127.0.0.1:1", *args]
    done = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (2, b"")


def test_a_pipe_is_written_to_and_a_link_stays(tmp_path: Path) -> None:
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()), daemon=True)
    reader.start()
    replace_whole(str(pipe), "text\n")
    reader.join(10)
    assert got == ["text\n"] and pipe.is_fifo()
    real, link = tmp_path / "real.prom", tmp_path / "link.prom"
    real.write_text("old")
    link.symlink_to("real.prom")
    replace_whole(str(link), "new\n")
    assert link.is_symlink() and real.read_text() == "new\n"
    assert sorted(os.listdir(tmp_path)) == ["link.prom", "pipe", "real.prom"]


def test_targets_that_are_called_the_same_are_news_once_each() -> None:
    seen: watch.Seen = {}
    both = [result("h:1", State.OK), result("h:1", State.CRITICAL), result("h:1", State.OK, "host")]
    assert len(list(watch.changes(seen, both))) == 3
    assert not list(watch.changes(seen, both)), "nothing has changed"
    worse = [both[0], both[1], result("h:1", State.WARNING, "host")]
    assert list(watch.changes(seen, worse)) == [worse[2]]


@pytest.mark.parametrize("turned", [False, True])
def test_of_targets_that_are_called_the_same_prometheus_sees_the_worst(turned: bool) -> None:
    states = [State.UNKNOWN, State.CRITICAL, State.WARNING, State.OK]
    results = [result("h:1", state) for state in (reversed(states) if turned else states)]
    found = {
        sample.name: sample.value
        for family in text_string_to_metric_families(prometheus.text(results, 0.0))
        for sample in family.samples
    }
    assert found["specdash_check_state"] == found["specdash_check_finding_state"] == 2.0
    assert found["specdash_check_duration_seconds"] == results[0].took_s, "of the others the first"


def test_text_of_a_host_cannot_turn_or_break_the_line() -> None:
    found = Finding(State.CRITICAL, "log-errors", "a\u2028b\u2029c \u202egnp.exe\u2066 d\u200b\ufeff \x85|e")
    line = render.line([Result("box", "host", (found,), took_s=1.0)])
    assert " ".join(line.split()) == "SPECDASH CRITICAL: box: a b c gnp.exe d e | 'time'=1s;;;0"
    assert len(line.splitlines()) == 1


def test_a_label_of_perfdata_comes_once() -> None:
    line = render.line([result("h:1", State.CRITICAL), result("h:1", State.OK)])
    assert line.count("'h:1 time'=") == 1 and "'h:1 time'=1s" in line


async def test_a_profiles_own_timeout_holds_and_the_command_lines_comes_first() -> None:
    async def hang(host: Host, *, ask: object = None, timeout_s: float = 15.0) -> None:
        given.append(timeout_s)
        await asyncio.sleep(60)

    given: list[float] = []
    target = Target("p", "profile", Host(name="far", ssh="far"), settings=CheckSettings(timeout_s=0.4))
    began = time.monotonic()
    (one,) = await check([target], Options(), open_link=hang)  # type: ignore[arg-type]
    assert one.state is State.CRITICAL and "0.4 s" in render.line([one])
    await check([target], Options(timeout_s=0.2), open_link=hang)  # type: ignore[arg-type]
    assert time.monotonic() - began < 5
    assert given == pytest.approx([0.32, 0.16]), "a tenth for telling, and a tenth for the link to say why"


@pytest.mark.parametrize(
    "text",
    [
        "[" * 4000,
        '{"at_unix": Infinity}',
        '{"at_unix": 1, "deaf_unix": NaN}',
        '{"at_unix": 1, "offset": 3.5}',
        '{"at_unix": 1, "tokens": -Infinity}',
    ],
)
def test_a_mark_that_was_edited_by_hand_counts_as_none(text: str, tmp_path: Path) -> None:
    one = Marks(tmp_path)
    one.put("k", Mark(1.0))
    (path,) = tmp_path.iterdir()
    path.write_text(text)
    assert one.get("k") is None
    one.put("k", Mark(2.0))
    assert one.get("k") == Mark(2.0)


def test_a_pipe_in_the_place_of_a_mark_is_not_waited_for(tmp_path: Path) -> None:
    one = Marks(tmp_path)
    one.put("k", Mark(1.0))
    (path,) = tmp_path.iterdir()
    path.unlink()
    os.mkfifo(path)
    got: list[Mark | None] = []
    thread = threading.Thread(target=lambda: got.append(one.get("k")), daemon=True)
    thread.start()
    thread.join(5)
    assert got == [None], "it waits"
    one.put("k", Mark(2.0))
    assert one.get("k") == Mark(2.0) and marks.Marks(None).get("k") is None


def test_a_profile_that_cannot_be_read_is_told_in_a_sentence(
    alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = alone.parent / "profiles"
    folder.mkdir()
    monkeypatch.setenv("SPECDASH_PROFILES", str(folder))
    (folder / "gone.toml").symlink_to("/nowhere")
    with pytest.raises((ConfigError, UsageError), match="gone"):
        parse([], load(alone))
    done = cli("check", "--all", "--json", config=alone)
    assert done.returncode == 3 and json.loads(done.stdout)["error"]["kind"] == "ConfigError", done


@pytest.mark.parametrize(
    ("rule", "limit"),
    [
        ("kv<1.8", "1.8:"),
        ("kv<=40", "40:"),
        ("kv>2000000", "~:2000000"),
        ("kv>=1e7", "~:10000000"),
        ("kv<-1", "-1:"),
        ("kv>1e999", "~:"),
    ],
)
def test_limits_in_perfdata_have_no_exponent(rule: str, limit: str) -> None:
    assert limit_of(("other<1", rule), "kv") == limit
    rules = CheckSettings(warn=(rule,))
    readings = {"s": {"kv": Reading(1150168.0), "cap": Reading(float("nan"))}}
    told = {"gpu_memory_used_mib": 980992, "gpu_memory_total_mib": 1150168}
    line = render.line([Result("box", "host", (), readings, told, rules=rules)])
    assert f"'kv'=1150168;{limit};;0" in line and "'gpu_mem'=980992MB;;;0;1150168" in line
    assert "nan" not in line and "e+" not in line


def _make_older(folder: Path, ago_s: float) -> None:
    (mark,) = folder.iterdir()
    mark.write_text(json.dumps({**json.loads(mark.read_text()), "at_unix": time.time() - ago_s}))


@pytest.mark.parametrize(("ago_s", "state"), [(40, State.CRITICAL), (90000, State.OK)])
async def test_a_counter_that_stood_still_proves_nothing_after_a_day(
    ago_s: int, state: State, tmp_path: Path
) -> None:
    with HttpFake({"/ready": 200}, metrics={"running": 3, "tok_s": 0.0}) as fake:
        target = Target("t", "port", address="127.0.0.1", port=fake.port)
        options = Options(window_s=0.0, memory=tmp_path)
        await check([target], options)
        _make_older(tmp_path, ago_s)
        (one,) = await check([target], options)
    assert one.state is state, one.findings


async def test_a_check_without_the_key_does_not_speak_for_one_that_has_it() -> None:
    class SlowToRefuse(HttpFake):
        def answer(self, request: BaseHTTPRequestHandler) -> None:
            if request.path == "/generate" and request.headers.get("Authorization") != "Bearer sesame":
                refuses.set()
                time.sleep(1.0)
            super().answer(request)

    refuses = threading.Event()
    with SlowToRefuse({"/ready": 200, "/v1/loads": {"loads": []}}, key="sesame") as fake:
        target = Target("t", "port", address="127.0.0.1", port=fake.port)
        wrong = asyncio.ensure_future(check([target], Options(generate=True, api_key="wrong")))
        assert await asyncio.to_thread(refuses.wait, 10)
        (right,) = await check([target], Options(generate=True, api_key="sesame"))
        (refused,) = await wrong
    assert refused.state is State.UNKNOWN, refused.findings
    assert right.state is State.OK and "a generation came back" in render.line([right]), right.findings
    assert fake.generations == 1
