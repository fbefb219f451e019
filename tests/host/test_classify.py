"""What one command's result means. Words are those of real shells and of OpenSSH."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from specdash.host.classify import (
    Category,
    ExecResult,
    Outcome,
    between,
    judge,
    session_limit,
    silent_death,
)

FOREIGN = [
    ("fish", b"fish: Unsupported use of '='. In fish, please use 'set GPUS 8'.\n", 127),
    ("fish", b"~/.config/fish/config.fish (line 3): Missing end to balance this if statement\n", 127),
    ("csh", b"Illegal variable name.\n", 1),
    ("csh", b"if: Expression Syntax.\n", 1),
    ("nushell", b"Error: nu::parser::shell_andand\n", 1),
    ("powershell", b"The term 'export' is not recognized as the name of a cmdlet, function\n", 1),
]


@pytest.mark.parametrize(("shell", "stderr", "code"), FOREIGN)
def test_a_shell_that_is_not_posix_is_not_a_missing_tool(shell: str, stderr: bytes, code: int):
    verdict = judge(ExecResult("X=1 nvidia-smi -L && echo 'a'", stderr=stderr, code=code))
    assert (verdict.category, verdict.detail["shell"]) == (Category.SHELL_NOT_POSIX, shell)
    assert verdict.detail["fix"].startswith("/bin/sh -c '")


@pytest.mark.parametrize("shell", [name for name in ("fish", "tcsh") if shutil.which(name)])
@pytest.mark.parametrize(
    "command", ["X=$(nvidia-smi); echo ${X}", "if [ 1 = 1 ]; then echo x; fi", "echo $((1+2))"]
)
def test_real_foreign_shells_are_recognised(shell: str, command: str):
    done = subprocess.run([shell, "-c", command], capture_output=True, timeout=20)
    verdict = judge(ExecResult(command, done.stdout, done.stderr, done.returncode))
    assert verdict.category == Category.SHELL_NOT_POSIX


@pytest.mark.parametrize("shell", [name for name in ("bash", "dash", "zsh", "fish") if shutil.which(name)])
def test_a_missing_tool_in_real_shells(shell: str):
    done = subprocess.run([shell, "-c", "no-such-tool-x"], capture_output=True, timeout=20)
    verdict = judge(ExecResult("no-such-tool-x", done.stdout, done.stderr, done.returncode))
    assert verdict.category == Category.NOT_FOUND and verdict.sentence.startswith("no-such-tool-x ")
    found = judge(
        ExecResult("nvidia-smi", b"", b"sh: 1: nvidia-smi: not found\n", 127),
        ["/usr/local/nvidia/bin/nvidia-smi"],
    )
    assert found.category == Category.PATH and found.detail["tool"] == "/usr/local/nvidia/bin/nvidia-smi"


@pytest.mark.parametrize(
    "result",
    [
        ExecResult("kill -TERM 1", b"", b"", None),
        ExecResult("kill -TERM 1", b"partial", b"", None, error="Connection lost"),
        ExecResult("kill -TERM 1", error="Connection reset by peer", code=0),
    ],
)
def test_a_lost_connection_is_never_success_nor_stopped(result: ExecResult):
    verdict = judge(result)
    assert (verdict.outcome, verdict.category) == (Outcome.UNKNOWN, Category.CONNECTION_LOST)
    assert verdict.detail["action"] == "reconnect with back-off"


def test_refused_sessions_are_busy():
    verdict = judge(ExecResult("x", error="open failed"))
    assert verdict.category == Category.MAX_SESSIONS and verdict.detail["shown_as"] == "busy, retrying"
    many = session_limit(["ok"] * 10 + ["open failed"] * 2)
    assert (many.category, many.detail["limit_to"], many.detail["retry"]) == (Category.MAX_SESSIONS, 8, True)
    assert session_limit(["ok", "open failed"]).detail["limit_to"] == 1
    assert session_limit(["ok"] * 3).detail["limit_to"] is None
    assert session_limit(["Connection lost"] * 3).category == Category.CONNECTION_LOST


def test_done_and_plain_failures():
    assert judge(ExecResult("true", code=0)).outcome == Outcome.DONE
    assert (
        judge(ExecResult("cat /x", b"", b"cat: /x: No such file or directory\n", 1)).category == Category.NONE
    )
    assert judge(ExecResult("/x", b"", b"sh: 1: /x: No such file or directory\n", 127)).sentence.startswith(
        "/x "
    )
    failed = judge(ExecResult("x", b"", b"first\nlast words\n", 3))
    assert (failed.outcome, failed.category, failed.sentence) == (Outcome.FAILED, Category.NONE, "last words")
    assert judge(ExecResult("x", code=None, signal="KILL")).outcome == Outcome.FAILED


@pytest.mark.parametrize(
    ("output", "inner"),
    [
        (b"Welcome! 3, 99\r\nB\r\n0, 512\r\n1, 101044\r\nE\r\nbye 2, 7\r\n", b"0, 512\n1, 101044\n"),
        (b"B\nE\n", b""),
        (b"echo B\nB\nx\nE", b"x\n"),
        (b"B\nold\nB\nx\nE\n", b"x\n"),
        (b"B\nx\n", None),
        (b"x\nE\n", None),
        (b"set -x prints B E\n", None),
    ],
)
def test_only_what_stands_between_the_markers_counts(output: bytes, inner: bytes | None):
    assert between(output, b"B", b"E") == inner


def test_who_may_have_ended_a_process_without_a_word():
    suspects = silent_death({"linger": False, "kill_user_processes": True, "user": "ml"})
    assert suspects.category == Category.DIED_SILENTLY and "enable-linger ml" in suspects.step
    assert suspects.detail["suspects"] == [
        "site kills detached processes after logout",
        "cgroup/session manager",
        "host OOM killer",
    ]
    assert silent_death({}, out_of_memory=True).detail["suspects"][0] == "host OOM killer"
