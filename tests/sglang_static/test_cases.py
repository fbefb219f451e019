"""The vendored cases conclude as expected, through the runner that anybody can start; the mapping stays a mapping."""

from __future__ import annotations

import collections
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cases import __main__ as runner
from tests.sglang_static.wheels import ROOT

SERVER_INFO = json.dumps(
    {
        "version": "0.5.23",
        "internal_states": [
            {"last_gen_throughput": 0.0, "effective_max_running_requests_per_dp": 24},
            {
                "last_gen_throughput": 310.0,
                "avg_spec_accept_length": 2.31,
                "effective_max_running_requests_per_dp": 24,
            },
        ],
    }
)
MISMATCH = {
    "command": "nvidia-smi",
    "stdout": "",
    "stderr": "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.107\n",
    "exit_code": 18,
    "proc_driver_nvidia_version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31\n",
}
LOST = {
    "command": "nvidia-smi",
    "stderr": "Unable to determine the device handle for GPU 0000:0B:00.0: GPU is lost.  Reboot the system.\n",
    "exit_code": 15,
}
FISH = {
    "command": "x=1; echo $x",
    "stderr": "fish: Unsupported use of '='. In fish, please use 'set x 1'.\n",
    "exit_code": 127,
}
CUT = {"command": "kill 1", "error": "Connection lost"}


def test_static_cases_pass() -> None:
    command = [sys.executable, "-m", "tests.cases", "tests/data/cases"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"\d+ passed, 0 failed", lines[-1]), done.stdout + done.stderr
    mine = [line for line in lines if re.match(r"C(30[1246]|312|316|318|40\d|41[125]) ", line)]
    assert len(mine) == 16
    assert all(" pass expected " in line for line in mine), "\n".join(mine)


@pytest.mark.parametrize(
    ("kind", "data", "expect"),
    [
        ("server_info", SERVER_INFO, {"accept_len_per_dp": [None, 2.31], "max_running_total": 48}),
        (
            "exec_result",
            MISMATCH,
            {"category": "driver_mismatch", "versions": {"library": "550.107", "kernel_module": "550.90.07"}},
        ),
        ("exec_result", LOST, {"category": "gpu_lost", "bus_id": "0000:0B:00.0", "alarm": True}),
        ("exec_result", FISH, {"category": "remote_shell_not_posix", "shell": "fish"}),
        ("exec_result", CUT, {"category": "connection_lost", "result": "unknown"}),
    ],
)
def test_kinds_whose_shared_cases_came_without_their_inputs(
    tmp_path: Path, kind: str, data: Any, expect: dict[str, Any]
) -> None:
    (tmp_path / "X1.input.json").write_text(data if isinstance(data, str) else json.dumps(data))
    sidecar = {"id": "X1", "kind": kind, "input": "X1.input.json", "expect": expect}
    unmapped: collections.Counter[str] = collections.Counter()
    checked, wrong, got = runner.run(tmp_path / "X1.json", sidecar, unmapped)
    assert sorted(checked) == sorted(expect) and not wrong, (wrong, got)


def test_a_case_whose_input_is_its_own_file_is_not_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sidecar = {"id": "X1", "kind": "server_info", "input": "X1.json", "expect": {"max_running_total": None}}
    (tmp_path / "X1.json").write_text(json.dumps(sidecar))
    assert runner.main([str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "no input of their own" in out and out.endswith("0 passed, 0 failed\n")


def test_the_mapping_knows_no_case_and_stays_small() -> None:
    text = (ROOT / "tests" / "cases" / "adapter.py").read_text()
    assert len(text.splitlines()) <= 150
    assert not re.search(r"\bC\d{3,4}\b|import re\b|\bre\.|startswith|endswith", text)
    assert not re.search(r'\.expect\b|"expect"', text)
