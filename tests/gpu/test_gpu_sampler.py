"""The sampler against tools that lie, hang and vanish: a scripted nvidia-smi, a scripted NVML."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specdash.host.remote import gpu, gpu_board, gpu_smi, gpu_who

TOOL = """#!{python} -S
import os, sys, time
here = os.path.dirname(os.path.abspath(__file__))
open(here + "/calls", "a").write(str(os.getpid()) + " " + " ".join(sys.argv[1:]) + "\\n")
query = sys.argv[1].split("=")[1].split(",")
exec(open(here + "/plan").read())
"""
ROWS = """
values = {"index": "%d", "uuid": "GPU-%d", "name": "NVIDIA H200", "pci.bus_id": "00000000:0%d:00.0", "memory.used": "%d MiB",
          "memory.total": "143771 MiB", "utilization.gpu": "98 %%", "power.draw": "[N/A]", "driver_version": "580.1"}
def show(cards):
    for i in cards:
        row = [values.get(q, "[N/A]") for q in query]
        print(", ".join(c % ((i,) if "%d" in c else ()) if "used" not in q else "%d MiB" % (1000 * (i + 1))
                        for c, q in zip(row, query)), flush=True)
"""


@pytest.fixture
def tool(tmp_path: Path) -> Callable[[str], Path]:
    def make(plan: str) -> Path:
        path = tmp_path / "nvidia-smi"
        path.write_text(TOOL.format(python=sys.executable))
        path.chmod(0o755)
        (tmp_path / "plan").write_text(ROWS + plan)
        return path

    return make


@pytest.fixture
def smi(tool: Callable[[str], Path]) -> Iterator[Callable[..., gpu_smi.Smi]]:
    made: list[gpu_smi.Smi] = []

    def make(plan: str, patience_s: float = 5.0) -> gpu_smi.Smi:
        made.append(gpu_smi.Smi(str(tool(plan)), patience_s, interval_ms=400))
        return made[-1]

    yield make
    for one in made:
        one.close()


def calls(one: gpu_smi.Smi) -> list[str]:
    return calls_at(Path(one.path))


def calls_at(path: Path) -> list[str]:
    return (path.parent / "calls").read_text().splitlines()


LOOP = """
if "compute-apps" in sys.argv[1]:
    print("GPU-0, %d, python3, 900 MiB" % os.getppid()); sys.exit()
while True:
    show(range(8)); time.sleep(0.4)
"""


def test_one_loop_process_serves_all_samples(smi: Callable[..., gpu_smi.Smi]) -> None:
    one = smi(LOOP)
    for _ in range(3):
        found = one.sample()
        assert [g["index"] for g in found] == list(range(8))
    assert found[7]["memory_used_mib"] == 8000 and found[7]["power_w"] is None
    assert found[0]["processes"][0]["pid"] == os.getpid()
    assert found[1]["processes"] is None, "memory in use and nobody listed: hidden"
    assert one.driver == "580.1"
    assert len([c for c in calls(one) if "query-gpu" in c]) == 1


@pytest.mark.parametrize("variable", ["SPECDASH_PY38", ""])
def test_the_sampler_runs_in_the_hosts_oldest_python(tool: Callable[[str], Path], variable: str) -> None:
    """`-I -S` as bare as a host's python3: no pynvml, nvidia-smi found in PATH."""
    named = (
        os.environ.get(variable, "/root/.pyenv/versions/3.8.18/bin/python3.8") if variable else sys.executable
    )
    python = named if os.path.exists(named) else shutil.which("python3.8")
    if python is None:
        pytest.skip("no Python 3.8 here: set SPECDASH_PY38")
    path = tool(LOOP)
    root = Path(gpu.__file__).parents[3]
    code = (
        f"import sys, json; sys.path.insert(0, {str(root)!r})\n"
        "from specdash.host.remote import gpu\n"
        "print(json.dumps(gpu.SAMPLES['gpu']({'wait_s': 10}), allow_nan=False))\n"
    )
    env = {"PATH": f"{path.parent}:/usr/bin:/bin"}
    done = subprocess.run(
        [python, "-I", "-S", "-c", code], env=env, capture_output=True, timeout=60, check=True
    )
    sample = json.loads(done.stdout)
    assert sample["source"] == f"nvidia-smi loop ({path})" and sample["driver"] == "580.1"
    assert [g["memory_used_mib"] for g in sample["gpus"]] == [1000.0 * (i + 1) for i in range(8)]
    (pid, *_) = (int(line.split()[0]) for line in calls_at(path) if "query-gpu" in line)
    end = time.monotonic() + 5
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < end:
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{pid}"), "the loop ends with the program that reads it"


def test_fields_that_this_driver_does_not_know_are_left_out(smi: Callable[..., gpu_smi.Smi]) -> None:
    one = smi(
        """
for bad in ("clocks_event_reasons.active", "mig.mode.current"):
    if bad in query:
        print('Field "%s" is not a valid field to query.' % bad); sys.exit(2)
"""
        + LOOP
    )
    assert len(one.sample()) == 8
    assert "clocks_throttle_reasons.active" in one.query and "mig.mode.current" not in one.query


def test_a_card_off_the_bus_leaves_the_others_and_is_an_alarm(
    smi: Callable[..., gpu_smi.Smi], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_smi, "bus_ids", lambda: ["0000:00:00.0", "0000:01:00.0", "0000:02:00.0"])
    one = smi(
        """
if "-i" not in sys.argv:
    print("Unable to determine the device handle for GPU0000:01:00.0: Unknown Error"); sys.exit(15)
if "compute-apps" in sys.argv[1]: sys.exit()
while True:
    show([0, 2]); time.sleep(0.4)
"""
    )
    board = gpu_board.Board()
    board.smi = one
    found, about = board.take()
    assert found is not None
    lost = {g["index"]: g for g in found}[1]
    assert sorted(g["index"] for g in found) == [0, 1, 2]
    assert "0000:01:00.0" in lost["problem"] and lost["memory_used_mib"] is None
    assert about["category"] == "gpu_lost" and lost["problem"] in about["problem"]


def test_driver_mismatch_gives_no_gpus_and_a_reason(smi: Callable[..., gpu_smi.Smi]) -> None:
    one = smi(
        """
print("Failed to initialize NVML: Driver/library version mismatch\\nNVML library version: 550.107"); sys.exit(18)
"""
    )
    board = gpu_board.Board()
    board.smi = one
    found, about = board.take()
    assert found is None and about["gpus"] is None
    assert about["category"] == "driver_mismatch" and about["versions"]["library"] == "550.107"
    board.take()
    assert len(calls(one)) == 1, "the next try waits"


def test_a_stuck_tool_is_ended_and_never_two(smi: Callable[..., gpu_smi.Smi]) -> None:
    one = smi("time.sleep(60)", patience_s=1.0)
    for turn in range(1, 3):
        with pytest.raises(gpu_smi.SmiError) as e:
            one.sample()
        assert e.value.stuck
        pids = [int(line.split()[0]) for line in calls(one)]
        assert len(pids) == turn
        assert not any(os.path.exists(f"/proc/{pid}") for pid in pids), "our own stuck poll was ended"


def test_while_one_cannot_be_killed_no_other_starts(smi: Callable[..., gpu_smi.Smi]) -> None:
    one = smi(LOOP)

    class Undead:
        pid = 4242

        def poll(self) -> None:
            return None

    one.undead.append(Undead())  # type: ignore[arg-type]
    with pytest.raises(gpu_smi.SmiError, match="4242"):
        one.sample()
    assert not (Path(one.path).parent / "calls").exists()


def test_a_hang_shows_the_last_value_with_its_age_and_asks_once() -> None:
    asked: list[float] = []
    release = threading.Event()

    def take() -> gpu_board.Taken:
        asked.append(time.monotonic())
        if len(asked) > 1:
            release.wait(20)
        return [{"index": 0, "memory_used_mib": 101044.0}], {
            "source": "x",
            "driver": "",
            "problem": "",
            "category": "",
        }

    sampler = gpu.Sampler(take)
    first = sampler.get(5)
    assert first["age_s"] == 0 and first["problem"] == ""
    for _ in range(4):
        held = sampler.get(0.05)
        assert held["gpus"][0]["memory_used_mib"] == 101044
        assert held["category"] == "stale" and held["age_s"] >= 0.05 and "old" in held["problem"]
    assert len(asked) == 2, "one question in flight, whoever waits"
    release.set()
    assert sampler.get(5)["category"] == ""


def test_stale_says_the_age_and_nothing_known_is_none() -> None:
    held = gpu.stale(
        {"t_boot": 100.0, "gpus": [{"memory_used_mib": 101044}], "problem": ""}, 115.0, "nvidia-smi hangs"
    )
    assert held["age_s"] == 15 and "15 s old" in held["problem"] and "stale" in held["problem"]
    assert gpu.stale({}, 115.0, "nvidia-smi hangs")["gpus"] is None


def test_an_unforeseen_fault_does_not_end_the_sampler() -> None:
    turns = iter([ZeroDivisionError("boom"), None])

    def take() -> gpu_board.Taken:
        trouble = next(turns)
        if trouble:
            raise trouble
        return [], {"source": "x", "driver": "", "problem": "", "category": ""}

    sampler = gpu.Sampler(take)
    failed = sampler.get(5)
    assert failed["gpus"] is None and "boom" in failed["problem"]
    assert sampler.get(5)["gpus"] == []


def fake_nvml(cards: list[dict[str, Any]]) -> types.ModuleType:
    """NVML as nvidia-ml-py shows it; a card's value may be an error number, which is then raised."""
    n: Any = types.ModuleType("pynvml")

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            self.value = value

    n.NVMLError = NVMLError
    n.asked = []

    def answer(card: dict[str, Any], key: str) -> Any:
        n.asked.append(key)
        value = card[key]
        if isinstance(value, NVMLError):
            raise value
        return value

    n.nvmlInit = n.nvmlShutdown = lambda: None
    n.nvmlSystemGetDriverVersion = lambda: b"580.1"
    n.nvmlDeviceGetCount = lambda: len(cards)
    n.nvmlMemory_v2 = 2

    def handle(i: int) -> dict[str, Any]:
        answer(cards[i], "handle")
        return cards[i]

    n.nvmlDeviceGetHandleByIndex = handle
    for name, key in {
        "GetUUID": "uuid",
        "GetName": "name",
        "GetPciInfo": "pci",
        "GetMemoryInfo": "memory",
        "GetUtilizationRates": "rates",
        "GetPowerUsage": "power",
        "GetEnforcedPowerLimit": "limit",
        "GetTemperature": "temp",
        "GetClockInfo": "clock",
        "GetCurrentClocksThrottleReasons": "reasons",
        "GetTotalEccErrors": "ecc",
        "GetMigMode": "mig",
        "GetComputeRunningProcesses": "procs",
        "GetGraphicsRunningProcesses": "graphics",
        "GetPcieThroughput": "pcie",
    }.items():
        setattr(n, "nvmlDevice" + name, lambda card, *a, key=key, **k: answer(card, key))
    return n


def card(**over: Any) -> dict[str, Any]:
    spaces = types.SimpleNamespace
    return {
        "handle": True,
        "uuid": b"GPU-a",
        "name": "NVIDIA H200",
        "pci": spaces(busId="00000000:0B:00.0"),
        "memory": spaces(used=100 << 20, total=1000 << 20),
        "rates": spaces(gpu=5),
        "power": 121160,
        "limit": 700000,
        "temp": 37,
        "clock": 1980,
        "reasons": 4,
        "ecc": 0,
        "mig": (0, 0),
        "procs": [spaces(pid=os.getpid(), usedGpuMemory=90 << 20)],
        "graphics": [],
        "pcie": 2048,
        **over,
    }


def nvml_board(monkeypatch: pytest.MonkeyPatch, cards: list[dict[str, Any]]) -> tuple[gpu_board.Board, Any]:
    n = fake_nvml(cards)
    monkeypatch.setitem(sys.modules, "pynvml", n)
    monkeypatch.setattr(gpu_who, "first_namespace", lambda: True)
    return gpu_board.Board(), n


def test_nvml_units_names_and_people(monkeypatch: pytest.MonkeyPatch) -> None:
    board, n = nvml_board(monkeypatch, [card()])
    found, about = board.take()
    assert found is not None and about["source"].startswith("nvml") and about["driver"] == "580.1"
    g = found[0]
    assert (g["memory_used_mib"], g["power_w"], g["power_limit_w"], g["sm_clock_mhz"]) == (
        100,
        121.16,
        700,
        1980,
    )
    assert g["throttle"] == ["power cap"] and g["mig"] is False and g["ecc_uncorrected"] == 0
    (me,) = g["processes"]
    assert me["memory_mib"] == 90 and me["start"] == gpu_who.start_ticks(os.getpid()) and me["user"]
    assert board.pcie_thread is not None
    board.pcie_thread.join(5)
    g = board.take()[0][0]  # type: ignore[index]
    assert (g["pcie_rx_mib_s"], g["pcie_tx_mib_s"]) == (2, 2)
    assert n.asked.count("pcie") == 2, "PCIe counters are read apart, not each second"


def test_nvml_each_field_fails_alone_and_unsupported_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [card(), card()]
    board, n = nvml_board(monkeypatch, cards)
    for broken, error in ((0, "rates"), (1, "memory"), (1, "procs")):
        cards[broken][error] = n.NVMLError(3)
    cards[0]["power"], cards[0]["temp"] = n.NVMLError(4), n.NVMLError(999)
    for _ in range(2):
        found = board.take()[0]
    assert found is not None
    assert (found[0]["utilisation_pct"], found[0]["power_w"], found[0]["temperature_c"]) == (None, None, None)
    assert found[0]["memory_used_mib"] == 100 and found[0]["problem"] == ""
    assert found[1]["memory_kind"] == "unified" and found[1]["processes"] is None
    assert n.asked.count("rates") == 3, "unsupported: once; the other card each time"


def test_nvml_lost_card_is_an_alarm_and_the_rest_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [card(), card(), card()]
    board, n = nvml_board(monkeypatch, cards)
    board.take()
    for key in cards[1]:
        cards[1][key] = n.NVMLError(15)
    cards[2]["rates"] = n.NVMLError(16)
    found, about = board.take()
    assert found is not None
    assert (
        "0B:00.0" in found[1]["problem"]
        and "lost" in found[1]["problem"]
        and found[1]["memory_used_mib"] is None
    )
    assert "reset" in found[2]["problem"] and found[2]["memory_used_mib"] == 100
    assert found[0]["problem"] == "" and about["category"] == "gpu_lost"


def test_in_a_container_a_strangers_pid_is_not_given_our_name(monkeypatch: pytest.MonkeyPatch) -> None:
    board, _ = nvml_board(monkeypatch, [card()])
    monkeypatch.setattr(gpu_who, "first_namespace", lambda: False)
    found = board.take()[0]
    assert found is not None
    (process,) = found[0]["processes"]
    assert process["memory_mib"] == 90 and (process["user"], process["command"], process["start"]) == (
        "",
        "",
        0,
    )


def test_no_tool_at_all_is_a_sentence_and_amd_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(gpu_smi, "find", lambda name="nvidia-smi": None)
    gpus, about = gpu_board.Board().take()
    assert gpus is None and "nvidia-smi" in about["problem"] and about["category"] == "no_tool"
    monkeypatch.setattr(
        gpu_smi, "find", lambda name="nvidia-smi": "/opt/rocm/bin/rocm-smi" if "rocm" in name else None
    )
    assert "AMD" in gpu_board.Board().take()[1]["problem"]
