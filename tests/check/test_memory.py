"""What a check remembers: bounded, whole or nothing, one command line's own; and what it makes of a log."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from specdash.check import marks, news
from specdash.check.marks import Mark, Marks
from specdash.check.runlogs import LogSeen
from specdash.check.states import State


def test_a_mark_comes_back_and_is_its_command_lines_own(tmp_path: Path) -> None:
    mark = Mark(5.0, 1, 2, 300, "ab" * 64, 3.0, 12.0, 4.0)
    cron = Marks(tmp_path / "check", "cron")
    assert cron.get("h/r") is None
    cron.put("h/r", mark)
    assert cron.get("h/r") == mark and cron.get("h/other") is None
    assert Marks(tmp_path / "check", "by hand").get("h/r") is None
    assert (tmp_path / "check").stat().st_mode & 0o077 == 0
    Marks(None).put("h/r", mark)
    assert Marks(None).get("h/r") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"at_unix": "x"}',
        '{"at_unix": -1}',
        '{"at_unix": 1, "offset": true}',
        "{}",
        "\xff",
    ],
)
def test_what_is_no_mark_counts_as_none(text: str, tmp_path: Path) -> None:
    one = Marks(tmp_path)
    one.put("k", Mark(1.0))
    (path,) = tmp_path.iterdir()
    path.write_text(text, "latin-1")
    assert one.get("k") is None
    one.put("k", Mark(2.0))
    assert one.get("k") == Mark(2.0) and len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    one = Marks(tmp_path / "file" / "check")
    one.put("k", Mark(1.0))
    assert one.get("k") is None


def test_it_never_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "MOST_FILES", 5)
    one = Marks(tmp_path)
    for number in range(20):
        one.put(f"k{number}", Mark(float(number)))
        (newest,) = [p for p in tmp_path.iterdir() if json.loads(p.read_text())["at_unix"] == number]
        os.utime(newest, (time.time() - 1000 + number,) * 2)
    assert len(list(tmp_path.iterdir())) == 5
    assert one.get("k19") is not None and one.get("k0") is None
    for path in tmp_path.iterdir():
        os.utime(path, (1.0, 1.0))
    one.put("new", Mark(1.0))
    assert len(list(tmp_path.iterdir())) == 1, "what nobody looked at for a month is gone"


def test_errors_are_counted_by_the_grammar_of_the_log() -> None:
    old = Mark(time.time() - 400)
    quiet = b"[2026-11-29 12:00:00] INFO: all is well\n[2026-11-29 12:00:01] Error rate is 0\n" * 20
    assert news.log_news(old, time.time(), quiet, 0, "") == (0, ())
    trace = (
        b"[2026-11-29 12:00:02 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        b'  File "x.py", line 1, in f\nRuntimeError: CUDA error: an illegal memory access was encountered\n'
    )
    count, (found,) = news.log_news(old, time.time(), quiet + trace, 3 << 20, "kimi: ")
    assert count == 1
    assert found.state is State.WARNING
    assert found.sentence.startswith("kimi: 1 error in the log since the last check, 7 min ago (3 MiB before")
    assert "illegal memory access" in found.sentence


def test_where_the_last_look_ended() -> None:
    seen = LogSeen(1, 2, 100, b"one\ntwo\nthr")
    assert seen.end == 108
    assert seen.before(108) == b"one\ntwo\n" and seen.before(104) == b"one\n" and seen.before(100) == b""
    assert LogSeen(1, 2, 0, b"no end of a line").end == 0
