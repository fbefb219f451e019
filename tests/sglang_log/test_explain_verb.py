"""`specdash explain FILE|-`, through the real command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from specdash.sglang.explain import kind_of
from tests.sglang_log.logkit import captures


def specdash(*words: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "specdash", "explain", *words], input=data, capture_output=True, timeout=60
    )


def test_a_failure_in_plain_text(tmp_path: Path) -> None:
    file = tmp_path / "server.log"
    file.write_bytes(captures()["0.5.15.post1-h200/misfit"])
    done = specdash(str(file))
    text = done.stdout.decode()
    assert done.returncode == 2
    for words in (
        "graph capture (draft)",
        "The drafter does not fit the target: hidden size 2048 against 1024.",
        "line 47",
        "48 running requests (set by speculation)",
    ):
        assert words in text
    assert "\x1b" not in text


def test_standard_input_as_json() -> None:
    done = specdash("-", "--json", data=captures()["0.5.23-cpu/eagle3"])
    body = json.loads(done.stdout)
    assert done.returncode == 0
    assert body["schema"] == "specdash.explain/1" and body["cause"]["category"] == "stopped_on_request"
    assert body["accept_length"]["lines"] == 260 and len(body["accept_length"]["series"]) <= 48
    assert body["ready_seen"] and body["phases"][-1]["phase"] == "exited"


def test_the_exit_code_that_somebody_knows() -> None:
    log = b"[2026-05-04 09:13:10 TP0] Load weight begin. avail mem=78.50 GB\n"
    assert json.loads(specdash("-", "--json", data=log).stdout)["cause"] is None
    body = json.loads(specdash("-", "--json", "--exit-code", "137", data=log).stdout)
    assert body["cause"]["category"] == "killed_by_signal" and body["phase"] == "exited"


def test_secrets_do_not_come_out() -> None:
    log = b"[2026-05-04 09:13:00] server_args=ServerArgs(model_path='/m', api_key='sEcReT-1')\n[2026-05-04 09:13:01] WARNING: api_key='sEcReT-1' is short\n"
    for words in (("-",), ("-", "--json")):
        done = specdash(*words, data=log)
        assert b"sEcReT-1" not in done.stdout + done.stderr


def test_a_missing_file_is_a_sentence(tmp_path: Path) -> None:
    done = specdash(str(tmp_path / "nope.log"))
    assert done.returncode == 3 and b"cannot be read" in done.stderr and b"Traceback" not in done.stderr


def test_an_empty_log() -> None:
    done = specdash("-", data=b"")
    assert done.returncode == 0 and b"unknown" in done.stdout


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"# HELP sglang:num_running_reqs x\n# TYPE sglang:num_running_reqs gauge\n", "metrics"),
        (b'{"internal_states": [], "version": "0.5.23"}', "server_info"),
        (b'{"asctime": "2026-05-04 18:46:45", "levelname": "INFO", "message": "x"}\n', "log"),
        (b"index, name, memory.used [MiB]\n0, NVIDIA H200, 5 MiB\n", "nvidia_smi"),
        (b"[2026-05-04 09:13:00] x\n", "log"),
        (b"", "log"),
    ],
)
def test_kind_of_file(data: bytes, kind: str) -> None:
    assert kind_of(data) == kind
