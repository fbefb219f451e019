"""Hot switches on real processes: there, back, refused, killed at each step, cut off. The engine is simulated."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import hot_kit
import pytest
from control_helpers import events_of, until, up

from specdash.config.hosts import Host
from specdash.config.secrets import Secret
from specdash.control import hostruns, hot_switch, remote_hot, switch, tune
from specdash.errors import Refused, RemoteError
from specdash.host.open import open_link
from specdash.host.remote import hots, hotstate, hotweights, journal, procs
from specdash.sglang import hot_fit
from specdash.sglang.commandline import LaunchSpec


@pytest.fixture
def spec(root, free_port):
    """A simulated engine on drafter `a`; more flags by `spec.flags`."""
    a = hot_kit.drafter(root / "a", b"\1")
    hot_kit.drafter(root / "b", b"\3")
    site = hot_kit.site(root / "site")
    flags = {
        "--port": free_port,
        "--host": "127.0.0.1",
        "--speculative-algorithm": "EAGLE3",
        "--speculative-draft-model-path": str(a),
        "--gate": str(root / "gate"),
    }
    return LaunchSpec(
        "eagle",
        "local",
        sys.executable,
        ("-B", str(hot_kit.STUB)),
        tuple(flags.items()),
        env={"TEST_ROOT_MARK": str(root), "PYTHONPATH": str(site)},
        algorithm="EAGLE3",
        drafter=str(a),
    )


async def served(link, spec, **more: Any) -> str:
    plan, events = await up(link, spec, **more)
    assert events[-1].final == "done", events[-1]
    hot_kit.prove(hostruns.run_folder(link, plan.id), Path(spec.drafter), sys.executable)
    return plan.id


def post(spec, path: str, body: dict[str, Any], key: str = "") -> tuple[int, dict[str, Any]]:
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    request = urllib.request.Request(
        f"http://127.0.0.1:{spec.flag('--port')}{path}", json.dumps(body).encode(), headers
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def accept_length(spec) -> float:
    meta = post(spec, "/generate", {"text": "x", "sampling_params": {"max_new_tokens": 230}})[1]["meta_info"]
    return meta["completion_tokens"] / meta["spec_verify_ct"]


def nothing_open(spec) -> bool:
    """The engine's own word: an end is refused because nothing is open."""
    return post(spec, "/end_weight_update", {})[0] == 400


def leftovers(link, run_id: str) -> list[str]:
    prefix = hotweights.prefix(hostruns.run_folder(link, run_id))
    return [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]


async def healthy(link, spec, run_id: str, length: float) -> None:
    record = await hostruns.record(link, run_id)
    assert record["alive"] and record["phase"] == "ready"
    assert nothing_open(spec) and leftovers(link, run_id) == []
    assert accept_length(spec) == pytest.approx(length, abs=0.05)


@pytest.mark.slow
async def test_there_and_back_with_checksums_and_who_and_since_when(link, spec, root):
    run_id = await served(link, spec)
    there = await hot_switch.plan(link, run_id, str(root / "b"), pulse=False)
    assert not there.blocked, there.blocked
    events = await events_of(hot_switch.run(link, there))
    assert events[-1].final == "done", events[-1]
    await healthy(link, spec, run_id, 1.0)
    record = await hostruns.record(link, run_id)
    assert record["drafter"] == str(root / "a"), "the command line does not tell"
    assert record["drafter_now"]["drafter"] == str(root / "b")
    assert record["drafter_now"]["by"] == hostruns.operator() and record["drafter_now"]["boot_s"]
    back = await hot_switch.plan(link, run_id, str(root / "a"))
    assert back.title == "Hot switch b → a on local"
    events = await events_of(hot_switch.run(link, back))
    assert events[-1].final == "done", events[-1]
    await healthy(link, spec, run_id, 2.3)
    kept = os.path.join(hostruns.run_folder(link, run_id), "hot", back.id)
    await until(lambda: sorted(os.listdir(kept)) == ["plan.json", "state.jsonl"])  # the programs go
    sent = journal.last(os.path.join(hostruns.run_folder(link, run_id), hotstate.HISTORY))
    assert [one["drafter"] for one in sent] == [str(root / "b"), str(root / "a")]
    assert sent[0]["before"] == sent[1]["after"] != sent[0]["after"] == sent[1]["before"]


@pytest.mark.slow
async def test_weights_that_are_not_accepted_go_back_by_themselves(link, spec, root):
    run_id = await served(link, spec)
    plan = await hot_switch.plan(link, run_id, str(root / "b"))
    assert any("below 1.05" in note for note in plan.notes)
    events = await events_of(hot_switch.run(link, plan))
    assert events[-1].final == "rolled_back" and "1.00" in events[-1].sentence, events[-1]
    await healthy(link, spec, run_id, 2.3)
    assert (await hostruns.record(link, run_id))["drafter_now"]["drafter"] == str(root / "a")


@pytest.mark.slow
async def test_worse_than_asked_goes_back_too(link, spec, root):
    run_id = await served(link, spec)
    plan = await hot_switch.plan(link, run_id, str(root / "a"), at_least=2.5)
    events = await events_of(hot_switch.run(link, plan))
    assert events[-1].final == "rolled_back" and "below 2.50" in events[-1].sentence
    await healthy(link, spec, run_id, 2.3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hold", "after", "final"),
    [
        ("/begin_weight_update", False, "failed"),
        ("/begin_weight_update", True, "failed"),
        ("/update_weights_from_tensor", False, "rolled_back"),
        ("/update_weights_from_tensor", True, "rolled_back"),
        ("/end_weight_update", False, "rolled_back"),
        ("/end_weight_update", True, "rolled_back"),
    ],
)
@pytest.mark.parametrize("both", [False, True])
async def test_a_killed_sender_leaves_nothing_open(link, spec, root, hold, after, final, both):
    more = (("--hold", hold), *((("--after", True),) if after else ()))
    spec = replace(spec, flags=(*spec.flags, *more))
    run_id = await served(link, spec)
    plan = await hot_switch.plan(link, run_id, str(root / "b"), measure=False, pulse=False)
    gate = root / "gate"
    gate.touch()
    stream = hot_switch.run(link, plan)
    await anext(stream)
    follower = await anext(stream)
    assert follower is not None
    await until(lambda: (root / "gate.reached").exists())
    worker = hots.holder(hostruns.run_folder(link, run_id))
    assert worker is not None
    row = procs.stat(worker["pid"])
    assert row is not None
    watcher = int(row["ppid"])
    if both:
        os.kill(watcher, signal.SIGKILL)
    os.kill(worker["pid"], signal.SIGKILL)
    gate.unlink()
    if both:
        events = await events_of(stream)
        assert events[-1].data.get("lost") is True, events[-1]
        with pytest.raises(Refused, match="left an update open"):
            await hot_switch.plan(link, run_id, str(root / "b"))
        stream = hot_switch.attach(link, run_id, plan.id)
    events = await events_of(stream)
    # An update that waits before it acts may come after our end, and then be refused: both are right.
    overtaken = hold.startswith("/update") and not after
    assert events[-1].final in ((final, "failed") if overtaken else (final,)), events[-1]
    await healthy(link, spec, run_id, 2.3)


@pytest.mark.slow
async def test_a_cut_link_changes_nothing(link, spec, root):
    spec = replace(spec, flags=(*spec.flags, ("--hold", "/update_weights_from_tensor")))
    run_id = await served(link, spec)
    (root / "gate").touch()
    host = Host(name="local", run_root=str(root / "specdash"), python=sys.executable)
    other = await open_link(host)
    plan = await hot_switch.plan(other, run_id, str(root / "b"), measure=False, pulse=False)
    stream = hot_switch.run(other, plan)
    await anext(stream)
    await anext(stream)
    await until(lambda: (root / "gate.reached").exists())
    await other.close()
    (root / "gate").unlink()
    events = await events_of(hot_switch.attach(link, run_id, plan.id))
    assert events[-1].final == "done", events[-1]
    await healthy(link, spec, run_id, 1.0)


@pytest.mark.slow
async def test_two_at_once_are_not_possible(link, spec, root):
    spec = replace(spec, flags=(*spec.flags, ("--hold", "/update_weights_from_tensor")))
    run_id = await served(link, spec)
    first = await hot_switch.plan(link, run_id, str(root / "b"), measure=False, pulse=False)
    second = await hot_switch.plan(link, run_id, str(root / "b"), measure=False, pulse=False)
    (root / "gate").touch()
    stream = hot_switch.run(link, first)
    await anext(stream)
    await anext(stream)
    await until(lambda: (root / "gate.reached").exists())
    with pytest.raises(Refused, match="changes this server already"):
        await hot_switch.plan(link, run_id, str(root / "b"))
    events = await events_of(hot_switch.run(link, second))
    assert events[-1].final == "failed" and hostruns.operator() in events[-1].sentence
    (root / "gate").unlink()
    assert (await events_of(stream))[-1].final == "done"
    await healthy(link, spec, run_id, 1.0)


@pytest.mark.slow
async def test_an_update_that_others_left_open_is_ended(link, spec, root):
    run_id = await served(link, spec)
    assert post(spec, "/begin_weight_update", {"selector": "draft"})[0] == 200
    plan = await hot_switch.plan(link, run_id, str(root / "b"), measure=False, pulse=False)
    events = await events_of(hot_switch.run(link, plan))
    assert events[-1].final == "done", events[-1]
    assert any("others left open" in event.sentence for event in events)
    await healthy(link, spec, run_id, 1.0)


@pytest.mark.slow
async def test_files_that_change_after_the_plan_are_not_sent(link, spec, root):
    run_id = await served(link, spec)
    plan = await hot_switch.plan(link, run_id, str(root / "b"), measure=False, pulse=False)
    wide = {**hot_kit.TABLE, "fc.weight": ("BF16", [4, 24])}
    hot_kit.drafter(root / "b", b"\3", table=wide)
    events = await events_of(hot_switch.run(link, plan))
    assert events[-1].final == "failed" and "Nothing was changed" in events[-1].sentence
    assert "has changed" in events[-1].sentence
    await healthy(link, spec, run_id, 2.3)


ANOTHER = {**hot_kit.CONFIG, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 3]}}
REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "a shape": ({"table": {**hot_kit.TABLE, "fc.weight": ("BF16", [4, 8])}}, "has shape"),
    "a dtype": ({"table": {**hot_kit.TABLE, "fc.weight": ("F32", [4, 12])}}, "is BF16 now and F32"),
    "an unknown name": ({"table": {**hot_kit.TABLE, "more.weight": ("BF16", [2])}}, "names differ"),
    "a part only": (
        {"table": {k: v for k, v in hot_kit.TABLE.items() if k != "fc.weight"}},
        "names differ",
    ),
    "the vocabulary map": ({"other": {"d2t": b"\7"}}, "read at start: d2t"),
    "the embedding": ({"other": {"embed_tokens.weight": b"\7"}}, "target's own stays"),
    "the config": ({"config": {**hot_kit.CONFIG, "hidden_act": "gelu"}}, "Configs differ"),
    "aux layers": ({"config": ANOTHER}, "Aux layers differ"),
    "quantisation": (
        {"config": {**hot_kit.CONFIG, "quantization_config": {"quant_method": "fp8"}}},
        "quantised",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", REFUSALS)
async def test_what_differs_is_refused_and_nothing_is_sent(link, spec, root, what):
    made, sentence = REFUSALS[what]
    hot_kit.drafter(root / "bad", b"\3", **made)
    run_id = await served(link, spec)
    plan = await hot_switch.plan(link, run_id, str(root / "bad"))
    assert any(sentence in check.sentence for check in plan.blocked), plan.blocked
    assert all("ordinary switch" in check.remedy for check in plan.blocked)
    with pytest.raises(Refused):
        await events_of(hot_switch.run(link, plan))
    await healthy(link, spec, run_id, 2.3)


@pytest.mark.slow
async def test_an_sglang_that_cannot_do_it_is_said(link, spec, root):
    for name, made in (("old", {"selector": False}), ("older", {"routes": False})):
        site = hot_kit.site(root / name, **made)
        one = replace(spec, env={**spec.env, "PYTHONPATH": str(site)})
        run_id = await served(link, one)
        plan = await hot_switch.plan(link, run_id, str(root / "b"))
        assert any(check.category == "hot_not_offered" for check in plan.blocked), plan.checks
        with pytest.raises(Refused):
            await events_of(hot_switch.run(link, plan))
        await healthy(link, one, run_id, 2.3)
        record = await hostruns.record(link, run_id)
        os.killpg(record["pid"], signal.SIGKILL)
        await until(lambda id=run_id: gone(link, id))


async def gone(link, run_id: str) -> bool:
    return not (await hostruns.record(link, run_id))["alive"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("info", "sentence"),
    [
        ({"speculative_algorithm": "NGRAM"}, "runs NGRAM"),
        ({"dp_size": 2}, "data parallelism"),
        ({"nnodes": 2}, "one host"),
        ({"nnodes": None}, "does not tell `nnodes`"),
        ({"weight_cache_mode": "daemon"}, "weight cache"),
        ({"speculative_draft_model_path": "/else"}, "drafts with /else"),
        ({"version": "0.5.24"}, "runs SGLang 0.5.24"),
    ],
)
async def test_a_server_that_is_not_as_proven_is_refused(link, spec, root, info, sentence):
    spec = replace(spec, flags=(*spec.flags, ("--info", json.dumps(info))))
    run_id = await served(link, spec)
    plan = await hot_switch.plan(link, run_id, str(root / "b"))
    assert any(sentence in check.sentence for check in plan.blocked), plan.blocked
    with pytest.raises(Refused):
        await events_of(hot_switch.run(link, plan))
    await healthy(link, spec, run_id, 2.3)


@pytest.mark.slow
async def test_a_server_that_would_not_see_our_files_is_refused(link, spec, root):
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:  # noqa: ASYNC221
        pytest.skip("no new mount namespace may be made here")
    run_id = await served(link, replace(spec, wrapper=("unshare", "-m")))
    plan = await hot_switch.plan(link, run_id, str(root / "b"))
    assert [check.category for check in plan.blocked] == ["hot_stranger"], plan.blocked
    assert "another container" in plan.blocked[0].sentence
    with pytest.raises(Refused):
        await events_of(hot_switch.run(link, plan))
    await healthy(link, spec, run_id, 2.3)


@pytest.mark.slow
async def test_an_ordinary_switch_waits_for_a_hot_one(link, spec, root):
    spec = replace(spec, flags=(*spec.flags, ("--hold", "/update_weights_from_tensor")))
    run_id = await served(link, spec)
    (root / "gate").touch()
    stream = hot_switch.run(
        link, await hot_switch.plan(link, run_id, str(root / "b"), measure=False, pulse=False)
    )
    await anext(stream)
    await anext(stream)
    await until(lambda: (root / "gate.reached").exists())
    ordinary = await switch.plan(link, run_id, replace(spec, profile="next"), measure=False)
    with pytest.raises(Refused, match="changes its draft weights"):
        await events_of(switch.run(link, ordinary))
    (root / "gate").unlink()
    assert (await events_of(stream))[-1].final == "done"
    third = await switch.plan(link, run_id, replace(spec, profile="next"), measure=False)
    assert any("hot-switched drafter" in note for note in third.notes), "what a way back would start"


@pytest.mark.slow
async def test_present_files_that_are_newer_than_the_server_prove_nothing(link, spec, root):
    run_id = await served(link, spec)
    os.utime(root / "a" / "model.safetensors")
    plan = await hot_switch.plan(link, run_id, str(root / "b"))
    assert [check.category for check in plan.blocked] == ["hot_changed"]


@pytest.mark.slow
async def test_the_admin_key_opens_it_and_is_told_nowhere(link, spec, root):
    spec = replace(spec, secret_flags={"--admin-api-key": "env:K"})
    # The stub reads no YAML: it gets the key as a flag of its own, specdash finds it in the run's own file.
    spec = replace(spec, flags=(*spec.flags, ("--admin-api-key", "sesame-42")))
    run_id = await served(link, spec, resolve=lambda reference: Secret(reference, value="sesame-42"))
    plan = await hot_switch.plan(link, run_id, str(root / "b"), measure=False, pulse=False)
    events = await events_of(hot_switch.run(link, plan))
    assert events[-1].final == "done", events[-1]
    folder = os.path.join(hostruns.run_folder(link, run_id), "hot", plan.id)
    assert b"sesame-42" not in (procs.read_bytes(os.path.join(folder, "state.jsonl")) or b"")


@pytest.mark.slow
async def test_abort_after_the_send_goes_back(link, spec, root):
    spec = replace(spec, flags=(*spec.flags, ("--hold", "/end_weight_update"), ("--after", True)))
    run_id = await served(link, spec)
    (root / "gate").touch()
    plan = await hot_switch.plan(link, run_id, str(root / "a"), measure=False)
    stream = hot_switch.run(link, plan)
    await anext(stream)
    await anext(stream)
    await until(lambda: (root / "gate.reached").exists())
    await hot_switch.abort(link, run_id, plan.id)
    (root / "gate").unlink()
    events = await events_of(stream)
    assert events[-1].final == "rolled_back" and "Taken back" in events[-1].sentence
    await healthy(link, spec, run_id, 2.3)
    with pytest.raises(RemoteError):
        await hot_switch.abort(link, run_id, plan.id)


@pytest.mark.slow
async def test_tune_sets_says_the_undo_and_refuses_what_has_none(link, spec):
    run_id = await served(link, spec)
    there = await tune.offered(link, run_id)
    assert [row["key"] for row in there["keys"]] == ["speculative_accept_threshold_single"]
    assert there["hidden"] == ["dspark_force_budget_frac"] and there["corpora"] is False
    plan = await tune.plan(link, run_id, "speculative_accept_threshold_single", "0.5")
    events = await events_of(tune.run(link, plan))
    assert events[-1].final == "done" and events[-1].data["now"] == 0.5
    assert plan.spec["undo"] == f"specdash tune {run_id} speculative_accept_threshold_single 1"
    for key, value in (("dspark_force_budget_frac", "1"), ("nothing", "1")):
        with pytest.raises(Refused, match="cannot be changed"):
            await tune.plan(link, run_id, key, value)
    with pytest.raises(Refused, match="is a number"):
        await tune.plan(link, run_id, "speculative_accept_threshold_single", "nan")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shm", "memory", "sentence"),
    [
        (1 << 40, 1 << 40, ""),
        (1 << 20, 1 << 40, "/dev/shm has"),
        (1 << 40, 1 << 30, "of memory may still be used"),
    ],
)
def test_no_room_is_a_block(root, shm, memory, sentence):
    """The copy lives in memory: a server that is killed for it would be worse than any drafter."""
    a, b = hot_kit.drafter(root / "a", b"\1"), hot_kit.drafter(root / "b", b"\3")
    info = {"speculative_algorithm": "EAGLE3", "dp_size": 1, "pp_size": 1, "nnodes": 1, "tp_size": 1}
    info["speculative_draft_model_path"] = str(a)
    run = {"phase": "ready", "drafter": str(a)}
    able = {"able": True, "missing": [], "evidence": []}
    look = {"capability": able, "now": remote_hot.drafter(str(a)), "new": remote_hot.drafter(str(b))}
    there = {"shm": {"free_bytes": shm}, "memory_bytes": memory, "strangers": [], "started_unix": time.time()}
    blocked = [
        check.sentence for check in hot_switch.judge(run, info, look, there) if check.status == "block"
    ]
    assert (sentence in " ".join(blocked)) if sentence else not blocked


@pytest.mark.slow
@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"\xff" * 40,
        b"\x02\0\0\0\0\0\0\0{}",
        b"\x10\0\0\0\0\0\0\0" + b'{"a":{"dtype":1}}'[:16],
        b"\0" * 8,
    ],
)
def test_a_broken_file_is_a_sentence(root, broken):
    folder = hot_kit.drafter(root / "a")
    (folder / "model.safetensors").write_bytes(broken)
    read = remote_hot.drafter(str(folder))
    assert read["problem"]
    other = remote_hot.drafter(str(hot_kit.drafter(root / "b")))
    found = hot_fit.alike(other, read)
    assert [one.status for one in found] == ["block"] and "new drafter" in found[0].sentence
    assert remote_hot.drafter(str(root / "nowhere"))["problem"]
