"""Launch, stop and switch with a real SGLang (CPU, tiny model): what the simulated engine only imitates."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from control_helpers import down, events_of, until, up

from specdash.config.secrets import Secret
from specdash.control import hostruns, pulse, switch
from specdash.host.remote import procs
from specdash.sglang.commandline import LaunchSpec

ENGINE = Path(os.environ.get("SPECDASH_ENGINE") or "/nowhere")
SHIMS = Path(__file__).parents[1] / "engine_kit" / "shims"

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not (ENGINE / "venv/bin/python").exists(), reason="SPECDASH_ENGINE names no engine"),
    pytest.mark.xdist_group("engine"),
]


@pytest.fixture
def base(root, free_port) -> LaunchSpec:
    env = {
        "SGLANG_USE_CPU_ENGINE": "1",
        "PYTHONPATH": str(SHIMS),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "",
        "TEST_ROOT_MARK": str(root),
    }
    flags = {
        "--model-path": str(ENGINE / "models/base"),
        "--device": "cpu",
        "--attention-backend": "intel_amx",
        "--host": "127.0.0.1",
        "--port": free_port,
        "--max-total-tokens": 16384,
        "--mem-fraction-static": 0.1,
        "--grammar-backend": "none",
        "--cuda-graph-backend-decode": "disabled",
        "--cuda-graph-backend-prefill": "disabled",
        "--enable-metrics": True,
    }
    return LaunchSpec(
        "base",
        "local",
        str(ENGINE / "venv/bin/python"),
        ("-m", "sglang.launch_server"),
        tuple(flags.items()),
        env=env,
    )


def family(pid: int) -> list[int]:
    return procs.tree(pid, procs.snapshot())


async def test_ready_with_a_secret_key_then_int_leaves_nothing(link, base):
    spec = replace(base, secret_flags={"--api-key": "env:KEY"})
    plan, events = await up(link, spec, resolve=lambda reference: Secret(reference, value="top-secret"))
    assert events[-1].final == "done", events[-1]
    record = await hostruns.record(link, plan.id)
    assert b"top-secret" not in (procs.read_bytes(f"/proc/{record['pid']}/cmdline") or b"")
    pids = family(record["pid"])
    assert len(pids) >= 3
    result = await pulse.measure(link, plan.id)
    assert result["ok"] and result["tok_s"] > 1 and result["accept_length"] is None
    said = await down(link, plan.id, deadline_s=60)
    assert said[-1].data["proven"], said[-1]
    assert not any(event.step == "kill" and event.data for event in said), "it ended by itself"
    assert not [pid for pid in pids if procs.stat(pid)]
    ended = await hostruns.record(link, plan.id)
    assert ended["exit_code"] == 0 or ended["exit_signal"] == signal.SIGINT, "a clean end of INT"


async def test_int_while_it_loads_leaves_nothing(link, base):
    plan, _ = await up(link, base, wait=False)
    record = await hostruns.record(link, plan.id)
    await until(lambda: len(family(record["pid"])) >= 3, 90)
    pids = family(record["pid"])
    said = await down(link, plan.id, deadline_s=30)
    assert any("SIGINT" in event.sentence for event in said)
    assert said[-1].data["proven"] and not [pid for pid in pids if procs.stat(pid)]


async def test_switch_to_a_drafter_and_back_from_one_that_does_not_exist(link, base):
    plan, events = await up(link, base)
    assert events[-1].final == "done"
    spec = replace(
        base,
        profile="eagle3",
        algorithm="EAGLE3",
        flags=(
            *base.flags,
            ("--speculative-algorithm", "EAGLE3"),
            ("--speculative-draft-model-path", str(ENGINE / "models/eagle3")),
            ("--speculative-num-steps", 3),
            ("--speculative-eagle-topk", 1),
            ("--speculative-num-draft-tokens", 4),
        ),
    )
    first = await switch.plan(link, plan.id, spec, settle_s=2, deadline_s=60, on_slower="keep")
    events = await events_of(switch.run(link, first))
    assert events[-1].final == "done", events[-1]
    told = next(event.data["pulse"] for event in events if event.step == "pulse" and event.status == "done")
    assert told["accept_length"] > 1.5 and told["verify_steps"] >= 200
    bad = replace(spec, profile="nonsense", flags=(*base.flags, ("--speculative-algorithm", "NONSENSE")))
    second = await switch.plan(link, first.spec["switch"]["b"], bad, settle_s=2, deadline_s=60, measure=False)
    events = await events_of(switch.run(link, second))
    assert events[-1].final == "rolled_back", events[-1]
    back = second.spec["switch"]["restore"]
    assert (await down(link, back, deadline_s=60))[-1].data["proven"]
