"""Preflight: on this machine over a real link, and its conclusions from made-up facts of other machines."""

from __future__ import annotations

import socket
import sys
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specdash.config.hosts import local_host
from specdash.control import preflight, preflight_host
from specdash.control.plans import Check
from specdash.control.preflight_facts import Facts, internal_ports
from specdash.control.probe import Probe
from specdash.host.link import Link
from specdash.host.open import open_link
from specdash.sglang import reading
from specdash.sglang.commandline import LaunchSpec
from tests.sglang_static import trees
from tests.sglang_static.hosttree import DRAFT, TARGET, model, safetensors, sglang

GOOD_SPEC = (
    ("--speculative-num-steps", 3),
    ("--speculative-eagle-topk", 1),
    ("--speculative-num-draft-tokens", 4),
)


@pytest.fixture
async def link(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Link]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    opened = await open_link(local_host())
    yield opened
    await opened.close()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture
def spec(tmp_path: Path) -> LaunchSpec:
    sglang(tmp_path)
    target, draft = model(tmp_path / "target", TARGET, shards=2), model(tmp_path / "draft", DRAFT)
    flags = (
        ("--model-path", str(target)),
        ("--device", "cpu"),
        ("--port", free_port()),
        ("--enable-metrics", True),
        ("--max-running-requests", 8),
        ("--speculative-algorithm", "EAGLE3"),
        ("--speculative-draft-model-path", str(draft)),
        *GOOD_SPEC,
    )
    launcher = ("-m", "sglang.launch_server")
    return LaunchSpec(
        "t",
        "local",
        sys.executable,
        launcher,
        flags,
        {},
        str(tmp_path),
        algorithm="EAGLE3",
        drafter=str(draft),
    )


def with_flags(spec: LaunchSpec, **changes: Any) -> LaunchSpec:
    """`model_path=…` replaces `--model-path`; None takes it away."""
    given = {"--" + name.replace("_", "-"): value for name, value in changes.items()}
    kept = [(name, given.pop(name, value)) for name, value in spec.flags]
    flags = tuple((name, value) for name, value in (*kept, *given.items()) if value is not None)
    named = dict(flags)
    return replace(
        spec,
        flags=flags,
        algorithm=str(named.get("--speculative-algorithm") or ""),
        drafter=str(named.get("--speculative-draft-model-path") or ""),
    )


def blocks(checks: tuple[Check, ...]) -> list[str]:
    return [check.category for check in checks if check.status == "block"]


async def test_a_good_profile_is_not_blocked(link: Link, spec: LaunchSpec) -> None:
    checks = await preflight.preflight(link, spec)
    assert blocks(checks) == [], [c for c in checks if c.status == "block"]
    said = {c.name: c for c in checks}
    assert said["sglang"].sentence == "SGLang 0.5.23." and said["speculation"].sentence.endswith(
        "4 draft tokens."
    )
    assert "LlamaForCausalLM has set_eagle3" in " ".join(said["drafter fit"].evidence)
    assert said["clock"].status == "ok" and said["port"].status == "ok"


@pytest.mark.parametrize(("asked", "told"), [((), True), ((("--max-running-requests", 64),), False)])
def test_the_cap_of_running_requests_is_a_note_and_no_warning(asked: Any, told: bool) -> None:
    """Else no speculative profile would ever leave with 0, and 1 would say nothing."""
    given = facts((("--speculative-algorithm", "EAGLE3"), *asked))
    given = replace(given, spec=replace(given.spec, algorithm="EAGLE3"))
    (check,) = [c for c in preflight.algorithm(given) if c.name == "side effects"]
    assert check.status == "ok"
    assert (check.category == "capped_by_speculation") == told
    assert ("Caps running requests at 48 unless --max-running-requests is set." in check.sentence) == told


@pytest.mark.parametrize(
    ("changes", "category"),
    [
        ({"speculative_algorithm": "MEDUSA"}, "unknown_algorithm"),
        ({"speculative_algorithm": "NONE"}, "unknown_algorithm"),
        ({"speculative_model": "x"}, "unknown_flag"),
        ({"model_path": "/nowhere/at/all"}, "model_path_missing"),
        ({"model_path": None}, "missing_flag"),
        ({"speculative_draft_model_path": "/nowhere/drafter"}, "drafter_path_missing"),
        ({"speculative_draft_model_path": None}, "missing_flag"),
        ({"speculative_eagle_topk": None}, "flag_conflict"),
        ({"mem_fraction_static": 85}, "bad_flag_value"),
        ({"host": "198.51.100.7"}, "no_such_address"),
        ({"tp_size": 100000}, "bad_flag_value"),
        ({"context_length": 4097}, "context_too_long"),
        (
            {"context_length": 4097, "speculative_algorithm": None, "speculative_draft_model_path": None},
            "context_too_long",
        ),
    ],
)
async def test_each_block_and_its_remedy(
    link: Link, spec: LaunchSpec, changes: dict[str, Any], category: str
) -> None:
    checks = await preflight.preflight(link, with_flags(spec, **changes))
    assert category in blocks(checks), checks


async def test_weights_are_looked_at(link: Link, spec: LaunchSpec, tmp_path: Path) -> None:
    first = tmp_path / "target" / "model-00001-of-00002.safetensors"
    data = first.read_bytes()
    first.write_bytes(data[:-10])
    assert blocks(await preflight.preflight(link, spec)) == ["checkpoint_corrupt"]
    first.unlink()
    assert blocks(await preflight.preflight(link, spec)) == ["shards_missing"]
    safetensors(first)
    (tmp_path / "target" / "config.json").write_text("{")
    assert "config_unreadable" in blocks(await preflight.preflight(link, spec))


async def test_who_holds_the_port(link: Link, spec: LaunchSpec) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        checks = await preflight.preflight(link, with_flags(spec, port=sock.getsockname()[1]))
    (port,) = [c for c in checks if c.name == "port"]
    assert (port.status, port.category) == ("block", "http_port_in_use") and "pid" in port.sentence


async def test_an_interpreter_that_is_missing_blocks_and_the_rest_is_not_checked(
    link: Link, spec: LaunchSpec
) -> None:
    checks = await preflight.preflight(link, replace(spec, python="/nowhere/python3"))
    assert blocks(checks)[0] == "no_interpreter"
    assert {c.name for c in checks if c.status == "not_checked"} >= {"flags", "clock"}
    (told,) = [c.sentence for c in checks if "drafter fit" in (c.name, c.sentence) or "models" in c.sentence]
    assert "without the interpreter" in told and "target's config" not in str(checks)


# From here on: facts of machines that are not there.


def facts(flags: tuple[tuple[str, Any], ...] = (), env: dict[str, str] | None = None, **more: Any) -> Facts:
    spec = LaunchSpec(
        "t", "gpu1", "python3", ("-m", "sglang.launch_server"), (("--model-path", "/m"), *flags), env or {}
    )
    read = reading.read(trees.NEWEST)
    sizes = {"/m": {"kind": "folder", "size_bytes": more.pop("weights", None), "config": TARGET}}
    host = more.pop("host_facts", {})
    probe = Probe("gpu1", "3.11", "/usr/bin/python3", read, models=sizes, facts=host, now_unix=1000.0)
    hello = {
        "user": "me",
        "uid": 1000,
        "mem_available_kb": 100_000_000,
        "mem_total_kb": 200_000_000,
        **more.pop("hello", {}),
    }
    return Facts(spec, hello, probe, **more)


def gpu(index: int, used_gib: float = 0.0, total_gib: float = 80.0, **more: Any) -> dict[str, Any]:
    return {
        "index": index, "uuid": f"GPU-{index}abcdef", "name": "NVIDIA H100", "memory_used_mib": used_gib * 1024,
        "memory_total_mib": total_gib * 1024, "processes": [], "problem": "", **more,
    }  # fmt: skip


def named(checks: Iterable[Check], name: str) -> Check:
    return next(c for c in checks if c.name == name)


def test_too_few_gpus_and_cuda_visible_devices() -> None:
    board = {"gpus": [gpu(i) for i in range(8)]}
    tp8 = (("--tp-size", 8),)
    assert named(preflight_host.gpus(facts(tp8, gpu=board)), "gpus").status == "ok"
    few = preflight_host.gpus(facts(tp8, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, gpu=board))
    assert few[0].category == "gpu_missing" and "4 are visible" in few[0].sentence
    gone = preflight_host.gpus(facts((("--tp-size", 2),), {"CUDA_VISIBLE_DEVICES": "7,9,1"}, gpu=board))
    assert gone[0].category == "gpu_missing"
    by_uuid = facts((), {"CUDA_VISIBLE_DEVICES": "GPU-3abc"}, gpu=board)
    assert [g["index"] for g in preflight_host.wanted_gpus(by_uuid) or []] == [3]
    assert (
        preflight_host.gpus(facts(gpu={"gpus": None, "problem": "nvidia-smi is missing."}))[0].status
        == "not_checked"
    )


def test_who_holds_the_gpus_with_user_command_memory_and_run() -> None:
    busy = gpu(
        0,
        70.0,
        processes=[{"pid": 50, "memory_mib": 70 * 1024, "user": "ann", "command": "sglang::scheduler"}],
    )
    table = ({"pid": 50, "ppid": 40, "user": "ann"}, {"pid": 40, "ppid": 1, "user": "ann"})
    runs = ({"id": "r1", "pid": 40, "phase": "ready"},)
    check = named(preflight_host.gpus(facts(gpu={"gpus": [busy]}, processes=table, runs=runs)), "gpu holders")
    assert check.status == "warn"
    assert check.evidence == ("GPU 0: pid 50 (ann) 70.0 GiB: sglang::scheduler, run r1",)
    hidden = named(preflight_host.gpus(facts(gpu={"gpus": [gpu(0, 70.0)]})), "gpu holders")
    assert "hidden" in hidden.evidence[0]


@pytest.mark.parametrize(
    ("weights_gb", "used_gib", "flags", "status", "category"),
    [
        (60, 0, (), "ok", ""),
        (60, 40, (), "block", "oom_load"),
        (60, 40, (("--tp-size", 2),), "ok", ""),
        (160, 0, (("--tp-size", 2), ("--mem-fraction-static", 0.5)), "block", "oom_kv_pool"),
        (60, 40, (("--quantization", "fp8"),), "warn", "oom_load"),
        (None, 0, (), "not_checked", ""),
    ],
)
def test_weights_against_free_memory(
    weights_gb: int | None, used_gib: float, flags: tuple[tuple[str, Any], ...], status: str, category: str
) -> None:
    weights = weights_gb * 10**9 if weights_gb is not None else None
    board = {"gpus": [gpu(0, used_gib, 85), gpu(1, used_gib, 85)]}
    if weights_gb == 160:
        board = {"gpus": [gpu(0, 0, 90), gpu(1, 0, 90)]}
    check = named(preflight_host.gpus(facts(flags, gpu=board, weights=weights)), "gpu memory")
    assert (check.status, check.category) == (status, category), check


def test_a_launch_in_progress_names_who_and_since_when() -> None:
    run = {
        "id": "r9",
        "profile": "kimi",
        "phase": "starting",
        "alive": True,
        "started_by": "ann@desk",
        "started_unix": 760.0,
    }
    (check,) = preflight_host.launches(facts(runs=(run,)))
    assert check.status == "block" and "ann@desk is launching kimi, since 4 min" in check.sentence
    apart = {**run, "spec": {"env": {"CUDA_VISIBLE_DEVICES": "0,1"}}}
    (check,) = preflight_host.launches(facts((), {"CUDA_VISIBLE_DEVICES": "2,3"}, runs=(apart,)))
    assert check.status == "warn"
    assert preflight_host.launches(facts(runs=({**run, "alive": False},)))[0].status == "ok"
    locks = [{"kind": "run", "id": "x", "uid": 7, "user": "bob", "pid": 5, "age_s": 120.0}]
    (check,) = preflight_host.launches(facts(host_facts={"locks": locks}))
    assert check.category == "other_operator" and "bob" in check.sentence and "2 min" in check.sentence


def test_logout_pid1_clock_and_small_places() -> None:
    kills = {"kill_user_processes": True, "linger": False}
    (check,) = preflight_host.logout(facts(hello=kills))
    assert check.status == "block" and check.remedy == "loginctl enable-linger me"
    assert preflight_host.logout(facts(hello={**kills, "linger": True}))[0].status == "ok"
    sleeper = {"pid1": {"name": "sleep", "reaps": False, "zombies": 3}}
    (check,) = preflight_host.pid1(facts(hello={"container": True}, host_facts=sleeper))
    assert check.category == "pid1_no_reaper" and "3 zombies" in check.sentence
    (check,) = preflight_host.clock(facts(skew_s=-42.0, skew_within_s=0.5))
    assert check.category == "clock_skew" and "42 s behind" in check.sentence
    assert preflight_host.clock(facts(skew_s=3.0, skew_within_s=4.0))[0].status == "ok"
    disk = {"log": {"path": "/l", "free_bytes": 1000, "writable": True}, "shm": {"free_bytes": 64 << 20}}
    small = preflight_host.disks(facts((("--tp-size", 8),), host_facts={"disk": disk}))
    assert [c.category for c in small] == ["disk_full", "shm_small"]


def test_internal_ports_that_flags_fix() -> None:
    flags = (
        ("--port", 30000),
        ("--nccl-port", 5000),
        ("--dist-init-addr", "10.0.0.1:6000"),
        ("--enable-dp-attention", True),
    )
    spec = LaunchSpec("t", "h", "python3", ("-m", "x"), flags)
    assert [port for port, _ in internal_ports(spec)] == [5000, 6000, 6001, 6002, 6003, 6004, 6005]
    assert internal_ports(LaunchSpec("t", "h", "p", (), (("--port", 30000),))) == ()


def test_lost_gpus_and_driver_mismatch_block() -> None:
    lost = preflight_host.gpus(facts(gpu={"gpus": [gpu(0, problem="GPU 0 has fallen off the bus.")]}))
    assert [c.category for c in lost if c.status == "block"] == ["gpu_lost"]
    broken = {"gpus": None, "problem": "Driver/library version mismatch.", "category": "driver_mismatch"}
    assert preflight_host.gpus(facts(gpu=broken))[0].status == "block"
