"""New draft weights in a living, real SGLang, over a real sshd. One story in order; `pytest -m engine -n 0`."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import struct
import threading
import time
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from specdash.config.hosts import Host
from specdash.control import hot_switch
from specdash.host.open import open_link
from specdash.host.remote import hots, journal
from tests.support import engine as engines
from tests.support.clients import Clients
from tests.support.engine import Desk

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine"), pytest.mark.timeout(900)]

STATE: dict[str, Any] = {}
QUICK = ("--no-measure", "--no-pulse", "--yes")


def randomised(source: Path, target: Path, seed: int) -> Path:
    """The same drafter with other weights: config, names, shapes and dtypes as they were (BF16 throughout)."""
    shutil.copytree(source, target)
    path = target / "model.safetensors"
    data = bytearray(path.read_bytes())
    noise = random.Random(seed)
    for at in range(8 + struct.unpack("<Q", data[:8])[0], len(data), 2):
        data[at : at + 2] = struct.pack("<f", noise.gauss(0, 0.02))[2:]
    path.write_bytes(data)
    return target


@contextmanager
def steady(port: int, pause_s: float = 0.0) -> Iterator[Clients]:
    """One client, one request after the other, each told apart by how it ended."""
    with Clients(port, ("plain",), tokens=32, pause_s=pause_s) as clients:
        yield clients


def lost(client: Clients) -> list[str]:
    """Whatever was not answered whole: a hot switch refuses and cuts nothing."""
    return [f"{one.how} {one.detail}" for one in client.asked if one.how != "finished"]


def length(desk: Desk) -> tuple[float, str]:
    """(accept length by meta_info, text) of one greedy answer."""
    answer = desk.generate(tokens=96)
    meta = answer["meta_info"]
    return meta["completion_tokens"] / meta["spec_verify_ct"], answer["text"]


def run_folder(desk: Desk) -> Path:
    return next((desk.home / "host").glob(f"hosts/*/runs/{STATE['run']}"))


def history(desk: Desk) -> list[dict[str, Any]]:
    return list(journal.last(str(run_folder(desk) / "hot.jsonl"), 4 << 20))


def healthy(desk: Desk) -> None:
    """It serves, no update is open, nothing of ours lies in shared memory."""
    assert desk.generate()["meta_info"]["completion_tokens"] > 0
    with pytest.raises(urllib.error.HTTPError):
        engines.post(desk.port, {}, "/end_weight_update")
    assert not [n for n in os.listdir("/dev/shm") if n.startswith(f"specdash-{lock(desk)}")]


def lock(desk: Desk) -> str:
    from specdash.host.remote import folder

    return folder.run_lock(str(run_folder(desk)))[:16]


@pytest.fixture(scope="module")
def drafters(desk: Desk) -> dict[str, Path]:
    """Three folders: the kit's own drafter, one with other weights, one with a tensor of another shape."""
    a = desk.home / "drafters/a"
    shutil.copytree(desk.engine / "models/eagle3", a)
    b = randomised(a, desk.home / "drafters/b", 1)
    bad = desk.home / "drafters/bad"
    shutil.copytree(a, bad)
    data = (bad / "model.safetensors").read_bytes()
    changed = data.replace(b'"shape":[64,192]', b'"shape":[192,64]', 1)
    assert changed != data
    (bad / "model.safetensors").write_bytes(changed)
    for name, path in (("hot-a", a), ("hot-b", b)):
        (desk.home / f"profiles/{name}.toml").write_text(
            f'extends = "engine-base"\n[speculation]\nalgorithm = "EAGLE3"\ndraft-model-path = "{path}"\n'
            "num-steps = 3\neagle-topk = 1\nnum-draft-tokens = 4\n"
        )
    return {"a": a, "b": b, "bad": bad}


def test_there_and_back_while_a_client_is_served(desk: Desk, drafters: dict[str, Path]) -> None:
    done = desk.json("launch", "hot-a", "--wait", "--yes", timeout=400)
    assert done["outcome"] == "done"
    STATE["run"] = desk.json("runs", "gpu")["runs"][0]["id"]
    first, text = length(desk)
    with steady(desk.port) as client:
        began = time.monotonic()
        there = desk.json("switch", "--hot", "hot-a", "hot-b", *QUICK, timeout=400)
        STATE["whole_s"] = time.monotonic() - began
        worse, same = length(desk)
        shown = desk.json("runs", "gpu")["runs"][0]["drafter_now"]
        back = desk.json("switch", "--hot", "hot-a", str(drafters["a"]), *QUICK, timeout=400)
        again, once_more = length(desk)
    assert there["outcome"] == back["outcome"] == "done"
    assert lost(client) == [] and client.served() > 0
    assert first > 1.8 and worse < 1.15 and again == pytest.approx(first, abs=0.4)
    assert text == same == once_more, "the target checks each token"
    assert shown["drafter"] == str(drafters["b"]) and shown["by"]
    sent = history(desk)
    assert sent[0]["before"] == sent[1]["after"] != sent[0]["after"]
    STATE.update(
        first=first, worse=worse, again=again, served=client.served(), swaps=[one["swap_s"] for one in sent]
    )
    healthy(desk)


def test_what_would_kill_the_server_is_refused(desk: Desk, drafters: dict[str, Path]) -> None:
    plan = desk.run("switch", "--hot", "hot-a", str(drafters["bad"]), "--dry-run")
    assert plan.returncode == 4 and "has shape" in plan.stdout, plan.stdout + plan.stderr
    done = desk.run("switch", "--hot", "hot-a", str(drafters["bad"]), "--yes")
    assert done.returncode == 4 and "ordinary switch" in done.stderr, done.stderr
    for profile, why in (
        ("engine-ngram", "has no drafter"),
        ("engine-standalone", "more than"),
        ("engine-eagle3", ""),
    ):
        other = desk.run("switch", "--hot", "hot-a", profile, "--dry-run")
        assert (other.returncode == 4) == (profile != "engine-eagle3"), other.stdout + other.stderr
        assert other.returncode == 0 or why in other.stderr
    healthy(desk)


def test_tuned_without_a_restart_and_undone(desk: Desk) -> None:
    key = "pp_max_micro_batch_size"
    there = {row["key"]: row["value"] for row in desk.json("tune", "hot-a")["keys"]}
    before = there[key]
    assert desk.json("tune", "hot-a", key, "3", "--yes")["outcome"] == "done"
    assert {r["key"]: r["value"] for r in desk.json("tune", "hot-a")["keys"]}[key] == 3
    refused = desk.json("tune", "hot-a", key, "100000", "--yes", code=2)
    assert refused["outcome"] == "failed"
    assert desk.json("tune", "hot-a", key, f"{before:g}", "--yes")["outcome"] == "done"


async def linked(desk: Desk) -> Any:
    import sys

    host = Host(
        name="gpu",
        ssh="127.0.0.1",
        port=desk.sshd.port,
        user="root",
        identity=str(desk.sshd.identity),
        known_hosts=str(desk.sshd.known_hosts),
        python=sys.executable,
        run_root=str(desk.home / "host"),
    )
    return await open_link(host)


async def one(link: Any, drafter: Path) -> str:
    plan = await hot_switch.plan(link, STATE["run"], str(drafter), measure=False, pulse=False)
    final = ""
    async for event in hot_switch.run(link, plan):
        final = event.final
    return final


@pytest.mark.slow
@pytest.mark.parametrize("at", ["prepared_by", "opening", "update", "sent"])
def test_a_sender_killed_at_each_step(desk: Desk, drafters: dict[str, Path], at: str) -> None:
    """kill -9 of the program that sends; the one that watches it closes what is open."""
    if at == "prepared_by":
        (run_folder(desk) / "hot-proof.json").unlink()  # killed while the engine's own code reads the payload

    async def story() -> str:
        link = await linked(desk)
        try:
            plan = await hot_switch.plan(link, STATE["run"], str(drafters["b"]), measure=False, pulse=False)
            state = run_folder(desk) / "hot" / plan.id / "state.jsonl"
            killer = threading.Thread(target=kill_at, args=(state, at), daemon=True)
            killer.start()
            final = ""
            async for event in hot_switch.run(link, plan):
                final = event.final
            killer.join(1)
            assert b'"resumed"' in state.read_bytes(), "it was killed in the middle"
            return final
        finally:
            await link.close()

    def kill_at(state: Path, word: str) -> None:
        end = time.monotonic() + 120
        while time.monotonic() < end:
            if state.exists() and f'"event":"{word}"'.encode() in state.read_bytes():
                found = hots.holder(str(run_folder(desk)))
                if found:
                    os.kill(found["pid"], signal.SIGKILL)
                return
            time.sleep(0.001)

    with steady(desk.port, 0.2) as client:
        final = asyncio.run(story())
    assert lost(client) == []
    healthy(desk)
    now, _ = length(desk)
    if at == "sent":
        assert final == "done" and now < 1.15
        assert desk.json("switch", "--hot", "hot-a", str(drafters["a"]), *QUICK)["outcome"] == "done"
    else:
        assert final in ("rolled_back", "failed") and now > 1.8
    assert length(desk)[0] > 1.8


@pytest.mark.slow
def test_a_cut_link_does_not_stop_it(desk: Desk, drafters: dict[str, Path]) -> None:
    (run_folder(desk) / "hot-proof.json").unlink(missing_ok=True)  # so that there is time to cut it

    async def story() -> str:
        link = await linked(desk)
        plan = await hot_switch.plan(link, STATE["run"], str(drafters["b"]), measure=False, pulse=False)
        stream = hot_switch.run(link, plan)
        await anext(stream)
        await anext(stream)
        desk.sshd.kill_sessions()
        link = await linked(desk)
        final = ""
        async for event in hot_switch.attach(link, STATE["run"], plan.id):
            final = event.final
        await link.close()
        return final

    assert asyncio.run(story()) == "done"
    assert length(desk)[0] < 1.15
    healthy(desk)
    assert desk.json("switch", "--hot", "hot-a", str(drafters["a"]), *QUICK)["outcome"] == "done"


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_hundred_in_a_row_under_load(desk: Desk, drafters: dict[str, Path]) -> None:
    async def story() -> list[str]:
        link = await linked(desk)
        try:
            return [await one(link, drafters["ab"[turn % 2 == 0]]) for turn in range(100)]
        finally:
            await link.close()

    began = len(history(desk))
    with steady(desk.port, 0.1) as client:
        finals = asyncio.run(story())
    assert finals == ["done"] * 100
    assert lost(client) == [] and client.served() > 100
    sent = history(desk)[began:]
    assert len({one["after"] for one in sent if one["drafter"] == str(drafters["a"])}) == 1
    assert length(desk)[0] == pytest.approx(STATE["first"], abs=0.4)
    healthy(desk)
    STATE["hundred"] = sorted(one["swap_s"] for one in sent)
    STATE["hundred_served"] = client.served()


@pytest.mark.slow
def test_two_ranks_on_one_host(desk: Desk, drafters: dict[str, Path]) -> None:
    """tp 2: each rank reads the same files; there, back, and a tensor of another shape refused."""
    run = desk.json("runs", "gpu")["runs"][0]["id"]
    assert desk.run("stop", run, "--host", "gpu", "--yes", "--confirm", run).returncode == 0
    (desk.home / "profiles/hot-tp2.toml").write_text(
        'extends = "hot-a"\n[server]\ntp-size = 2\n[env]\nSGLANG_CPU_OMP_THREADS_BIND = "0|1"\n'
    )
    try:
        assert desk.json("launch", "hot-tp2", "--wait", "--yes", timeout=400)["outcome"] == "done"
        first, text = length(desk)
        with steady(desk.port, 0.1) as client:
            there = desk.json("switch", "--hot", "hot-tp2", str(drafters["b"]), *QUICK, timeout=400)
            worse, same = length(desk)
            refused = desk.run("switch", "--hot", "hot-tp2", str(drafters["bad"]), "--yes")
            back = desk.json("switch", "--hot", "hot-tp2", str(drafters["a"]), *QUICK, timeout=400)
            again, once_more = length(desk)
        assert there["outcome"] == back["outcome"] == "done" and refused.returncode == 4
        assert lost(client) == [] and client.served() > 0
        assert first > 1.8 and worse < 1.15 and again == pytest.approx(first, abs=0.4)
        assert text == same == once_more
        STATE["ranks"] = [
            ("tp 2: accept length before, other, back", f"{first:.2f}, {worse:.2f}, {again:.2f}")
        ]
    finally:
        run = desk.json("runs", "gpu")["runs"][0]["id"]
        desk.run("stop", run, "--host", "gpu", "--yes", "--confirm", run)
    assert desk.json("launch", "hot-a", "--wait", "--yes", timeout=400)["outcome"] == "done"
    STATE["run"] = desk.json("runs", "gpu")["runs"][0]["id"]


@pytest.mark.slow
def test_beside_the_ordinary_switch(desk: Desk) -> None:
    """The same change the ordinary way; with SPECDASH_RESULTS, what was measured becomes a page."""
    with steady(desk.port) as client:
        began = time.monotonic()
        done = desk.json(
            "switch",
            "hot-a",
            "hot-b",
            "--yes",
            "--settle",
            "0",
            "--no-measure",
            "--slower",
            "keep",
            code=6,
            timeout=600,
        )
        took = time.monotonic() - began
    assert done["outcome"] == "rolled_back", "its accept length is 1.00"
    loads = [
        step["data"].get("took_s")
        for step in done["steps"]
        if step["step"] == "ready" and step["status"] == "done"
    ]
    counted = client.count(desk.logs())
    assert loads and counted["refused"] > 0 and counted["lost"] == 0, (
        "a restart refuses requests, and loses none"
    )
    STATE.update(load_s=loads[0], ordinary_s=took, counted=counted)
    folder = os.environ.get("SPECDASH_RESULTS")
    if folder:
        write(Path(folder) / "hot-switch.md")


def write(path: Path) -> None:
    hundred = STATE.get("hundred") or STATE["swaps"]
    rows = [
        (
            "accept length before, with other weights, back again",
            f"{STATE['first']:.2f}, {STATE['worse']:.2f}, {STATE['again']:.2f}",
        ),
        ("output of the same prompt", "identical in all three"),
        ("checksums there and back", "equal"),
        (
            "first hot switch: update open, whole command",
            f"{STATE['swaps'][0]:.2f} s, {STATE['whole_s']:.0f} s",
        ),
        (
            "a hundred in a row under load: update open, median and worst",
            f"{hundred[len(hundred) // 2]:.3f} s, {hundred[-1]:.3f} s",
        ),
        (
            "requests meanwhile: served, refused, lost",
            f"{STATE.get('hundred_served', STATE['served'])}, 0, 0",
        ),
        ("the same by the ordinary switch: load of the next server alone", f"{STATE['load_s']:.0f} s"),
        (
            "… whole command, with the way back that accept length 1.0 asks for",
            f"{STATE['ordinary_s']:.0f} s",
        ),
        (
            "… requests meanwhile: served, refused, unseen, lost",
            ", ".join(str(STATE["counted"][kind]) for kind in ("finished", "refused", "unseen", "lost")),
        ),
        *STATE.get("ranks", []),
    ]
    lines = [
        "# Hot switch beside the ordinary one",
        "",
        "Written by `tests/engine/test_hot_switch.py`; the command is in [testing](../testing.md). Do not edit.",
        "",
        f"A real SGLang on the CPU, EAGLE3, tp 1, over OpenSSH, {time.strftime('%Y-%m-%d')}.",
        "",
        "| what | measured |",
        "| --- | --- |",
        *(f"| {name} | {value} |" for name, value in rows),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
