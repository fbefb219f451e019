"""Switching a real SGLang (CPU) over a real sshd: the chain in one go, from the command line and from the screen by keys,
killed in the middle, side by side, as a queue, and of a server that others started. `pytest -m engine -n 0`.

Steady clients count what each switch did to them (`tests.support.clients`). With SPECDASH_RESULTS it becomes a page.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import engine as engines
from tests.support.clients import Clients
from tests.support.engine import Desk
from tests.support.screenkeys import Keys
from tests.support.tuikit import text_of

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.xdist_group("engine"),
    pytest.mark.timeout(900),
]
CHAIN = ("engine-base", "engine-ngram", "engine-standalone", "engine-eagle3")
SETTLE = ("--settle", "3", "--slower", "keep")
ROWS: list[str] = []


def wait_for(what: str, seconds: float, check: Callable[[], Any]) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = check()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds} s: {what}")


def serving(desk: Desk) -> dict[str, Any]:
    living = [run for run in desk.json("runs", "gpu")["runs"] if run["alive"]]
    assert len(living) == 1, [(run["id"], run["phase"]) for run in living]
    found: dict[str, Any] = living[0]
    return found


def ensure(desk: Desk, profile: str) -> dict[str, Any]:
    """`profile` serves, and nothing else of ours."""
    for run in [run for run in desk.json("runs", "gpu")["runs"] if run["alive"]]:
        if run["profile"] == profile and run["phase"] == "ready":
            return run  # type: ignore[no-any-return]
        assert (
            desk.run("stop", run["id"], "--host", "gpu", "--yes", "--confirm", run["profile"]).returncode == 0
        )
    assert desk.json("launch", profile, "--wait", "--yes", timeout=300)["outcome"] == "done"
    return serving(desk)


def counted(desk: Desk, clients: Clients, name: str, outcome: str, since: float) -> None:
    """A row of the page; and the requirement: nothing that was accepted is lost."""
    found = clients.count(desk.logs(), since)
    ended = sorted(one.ended for one in clients.asked if one.how == "finished" and one.ended >= since)
    gap = max((b - a for a, b in itertools.pairwise(ended)), default=0.0)
    words = [
        name,
        outcome,
        f"{gap:.0f}",
        *(str(found[kind]) for kind in ("finished", "refused", "unseen", "lost")),
    ]
    ROWS.append(f"| {' | '.join(words)} |")
    lost = clients.lost(desk.logs())
    assert not lost, f"{name}: accepted requests were lost: {lost}"
    assert found["refused"] > 0 and found["finished"] > 5


@pytest.fixture(scope="module", autouse=True)
def page() -> Iterator[None]:
    yield
    folder = os.environ.get("SPECDASH_RESULTS")
    if folder and ROWS:
        write(Path(folder) / "switching.md")


def write(path: Path) -> None:
    lines = [
        "# Switching a real engine under steady clients",
        "",
        "Written by `tests/engine/test_switching.py`; the command is in [testing](../testing.md). Do not edit.",
        "",
        f"SGLang on the CPU, tiny models, over OpenSSH, {time.strftime('%Y-%m-%d')}. Three clients each time: answers in one",
        "piece, streams, and kept connections. *Refused*: nothing listened. *Unseen*: closed before the engine had begun the",
        "request (its log does not name it, no byte of an answer came). *Lost*: begun by the engine and not answered whole.",
        "",
        "| what | outcome | longest time without an answer, s | finished | refused | unseen | lost |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *ROWS,
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def cut_short(desk: Desk) -> str:
    """A profile whose drafter's config and header are right and whose file ends too early: it fails as it loads."""
    folder = desk.home / "drafters" / "short"
    shutil.copytree(desk.engine / "models/eagle3", folder)
    file = folder / "model.safetensors"
    data = file.read_bytes()
    head = struct.unpack("<Q", data[:8])[0]
    table = json.loads(data[8 : 8 + head])
    for name, one in table.items():  # a tensor of the same bytes in another shape: only the loader looks
        if name != "__metadata__" and len(one["shape"]) == 2 and one["shape"][0] != one["shape"][1]:
            one["shape"] = one["shape"][::-1]
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + head :])
    profile = desk.home / "profiles/engine-turned.toml"
    profile.write_text(f'extends = "engine-eagle3"\n[speculation]\ndraft-model-path = "{folder}"\n')
    return "engine-turned"


def test_the_chain_from_the_command_line(desk: Desk) -> None:
    ensure(desk, "engine-base")
    for old, new in itertools.pairwise(CHAIN):
        with Clients(desk.port) as clients:
            clients.wait_served(6)
            began = time.monotonic()
            done = desk.json("switch", old, new, "--yes", "--confirm", old, *SETTLE, timeout=400)
            clients.wait_served(6)
        assert done["outcome"] == "done"
        assert desk.generate()["meta_info"]["spec_verify_ct"] > 0
        counted(desk, clients, f"`switch {old} {new}`", "done", began)
    with Clients(desk.port) as clients:
        clients.wait_served(6)
        began = time.monotonic()
        words = ("--yes", "--confirm", CHAIN[-1], "--force", *SETTLE)
        done = desk.json("switch", CHAIN[-1], "engine-misfit", *words, code=6, timeout=400)
        clients.wait_served(6)
    assert done["outcome"] == "rolled_back"
    assert serving(desk)["profile"] == "engine-eagle3"
    counted(desk, clients, "`switch engine-eagle3 engine-misfit --force`", "rolled back", began)


async def test_the_chain_from_the_screen(desk: Desk, cut_short: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from functools import partial

    from specdash.config import settings as config
    from specdash.control import switch
    from specdash.tui.start import configured, make

    ensure(desk, "engine-base")
    for name, value in desk.env().items():
        monkeypatch.setenv(name, value)
    # The screen has no key for it: two minutes of watching each are cut to three seconds, and slower ones are kept.
    monkeypatch.setattr(switch, "plan", partial(switch.plan, settle_s=3.0, on_slower="keep"))
    settings = config.load(desk.home / "config.toml")
    app = make(settings, configured(settings))
    async with app.run_test(size=(160, 50)) as pilot:
        keys = Keys(app, pilot)
        await keys.until("the host", lambda t: "● up" in t, 60)
        await keys.until("the server", lambda t: "engine-base" in t, 60)
        for old, new in zip((*CHAIN, CHAIN[-1])[:4], (*CHAIN[1:], cut_short), strict=True):
            with Clients(desk.port) as clients:
                clients.wait_served(6)
                began = time.monotonic()
                said = await keys.switch(old, new)
                clients.wait_served(6)
            wanted = "rolled back" if new == cut_short else "done"
            assert wanted in said, said
            counted(desk, clients, f"by keys: {old} → {new}", wanted, began)
        text = text_of(app)
        assert "FAILED" not in text, text
        # What preflight blocks cannot be confirmed.
        await keys.choose("engine-misfit")
        await pilot.press("w")
        await keys.until("the block", lambda t: "blocks this: nothing was changed" in t, 90)
        await pilot.press("escape")
    assert serving(desk)["profile"] == "engine-eagle3"
    assert desk.generate()["meta_info"]["spec_verify_ct"] > 0


@pytest.mark.parametrize(("step", "how"), [("stop", "cut"), ("ready", "kill"), ("rollback_ready", "kill")])
def test_killed_in_the_middle(desk: Desk, step: str, how: str) -> None:
    """kill -9 of specdash, or its link cut: the host ends healthy, and the next specdash says as what, and why."""
    a = ensure(desk, "engine-ngram" if step == "stop" else "engine-eagle3")
    new = {"stop": "engine-eagle3", "ready": "engine-ngram"}.get(step, "engine-misfit")
    there = {path.parent for path in (desk.home / "host").glob("hosts/*/switches/*/state.jsonl")}
    with Clients(desk.port) as clients:
        clients.wait_served(3)
        began = time.monotonic()
        words = (
            "switch",
            a["profile"],
            new,
            "--yes",
            "--confirm",
            a["profile"],
            "--force",
            "--no-measure",
            *SETTLE,
        )
        process = subprocess.Popen(
            desk.command(*words), env=desk.env(), cwd=desk.home, stdin=subprocess.DEVNULL
        )

        def state() -> list[Path]:
            found = (desk.home / "host").glob("hosts/*/switches/*/state.jsonl")
            return [path for path in found if path.parent not in there and f'"{step}"' in path.read_text()]

        path = wait_for(f"step {step}", 200, state)[0]
        if how == "kill":
            process.send_signal(signal.SIGKILL)
        else:
            desk.sshd.kill_sessions()
        code = process.wait(60)
        assert code == (-9 if how == "kill" else 5)
        back = step.startswith("rollback")
        done = desk.json(
            "switch", "--attach", path.parent.name, "--host", "gpu", code=6 if back else 0, timeout=300
        )
        clients.wait_served(3)
    end = done["steps"][-1]
    assert done["outcome"] == ("rolled_back" if back else "done")
    now = serving(desk)
    assert now["id"] == end["data"]["serves"] and now["phase"] == "ready"
    assert (a["profile"] if back else new) in end["sentence"] and ("Why:" in end["sentence"] or not back)
    listed = next(
        s for s in desk.json("switch", "--list", "--host", "gpu")["switches"] if s["id"] == path.parent.name
    )
    assert listed["end"]["sentence"] in end["sentence"]
    counted(
        desk,
        clients,
        f"specdash {'killed' if how == 'kill' else 'cut off'} at `{step}`",
        done["outcome"],
        began,
    )


def test_side_by_side(desk: Desk) -> None:
    a = ensure(desk, "engine-base")
    with Clients(desk.port) as clients:
        clients.wait_served(5)
        words = ("--side-by-side", "--yes", "--confirm", "engine-base", "--force", *SETTLE)
        began = time.monotonic()
        done = desk.json("switch", "engine-base", "engine-eagle3", *words, timeout=400)
        wait_for("refusals", 30, lambda: any(one.how == "refused" for one in clients.asked))
    assert done["outcome"] == "done"
    now = serving(desk)
    assert now["profile"] == "engine-eagle3" and now["http"]["port"] != a["http"]["port"]
    order = [step["step"] for step in done["steps"] if step["status"] == "done"]
    assert order.index("pulse") < order.index("stop")
    counted(desk, clients, "`switch --side-by-side`, clients of the old port", "done", began)


def test_a_queue_leaves_the_best(desk: Desk) -> None:
    ensure(desk, "engine-base")
    with Clients(desk.port) as clients:
        began = time.monotonic()
        names = ("engine-misfit", "engine-eagle3", "engine-ngram")
        words = (
            "try",
            *names,
            "--over",
            "engine-base",
            "--yes",
            "--confirm",
            "engine-base",
            "--force",
            "--settle",
            "2",
        )
        done = desk.json(*words, code=1, timeout=600)
        clients.wait_served(3)
    outcomes = {row["profile"]: row["outcome"] for row in done["rows"]}
    assert outcomes["engine-base"] == "served" and outcomes["engine-misfit"] != "served"
    assert outcomes["engine-eagle3"] == "served"
    fastest = max((row for row in done["rows"] if row["tok_s"]), key=lambda row: row["tok_s"])
    assert serving(desk)["profile"] == done["serving"]["profile"] == fastest["profile"]
    counted(desk, clients, "`try` of three over a base", "the fastest left", began)


def test_a_server_that_others_started_is_drained_too(desk: Desk) -> None:
    for run in [run for run in desk.json("runs", "gpu")["runs"] if run["alive"]]:
        assert (
            desk.run("stop", run["id"], "--host", "gpu", "--yes", "--confirm", run["profile"]).returncode == 0
        )
    log = desk.home / "theirs.log"
    words = [
        engines.python(desk.engine),
        "-m",
        "sglang.launch_server",
        "--model-path",
        "models/base",
        "--device",
        "cpu",
    ]
    words += ["--attention-backend", "intel_amx", "--host", "127.0.0.1", "--port", str(desk.port)]
    words += ["--max-total-tokens", "16384", "--mem-fraction-static", "0.1", "--grammar-backend", "none"]
    words += ["--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled"]
    words += ["--log-requests", "--log-requests-level", "0"]
    with log.open("wb") as out:  # as under `nohup … &`: INT and HUP are ignored when it starts
        theirs = subprocess.Popen(
            words,
            cwd=desk.engine,
            env={**os.environ, **engines.environment()},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: [
                signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGHUP)
            ],
        )
    try:
        wait_for("their server", 120, lambda: b"fired up" in log.read_bytes())
        assert (
            desk.run(
                "adopt", str(theirs.pid), "--host", "gpu", "--yes", "--confirm", str(theirs.pid)
            ).returncode
            == 0
        )
        run = wait_for(
            "ready",
            60,
            lambda: [r for r in desk.json("runs", "gpu")["runs"] if r["alive"] and r["phase"] == "ready"],
        )[0]
        with Clients(desk.port) as clients:
            clients.wait_served(6)
            began = time.monotonic()
            done = desk.json(
                "stop", run["id"], "--host", "gpu", "--drain", "60", "--yes", "--confirm", run["id"]
            )
            wait_for("refusals", 30, lambda: any(one.how == "refused" for one in clients.asked))
        assert done["outcome"] == "done" and theirs.wait(10) is not None
        sent = [step["sentence"] for step in done["steps"] if step["step"] == "signal"]
        assert any("SIGINT" in words for words in sent), sent
        found = clients.count([log], began)
        assert found["lost"] == 0 and found["refused"] > 0, clients.lost([log])
        ROWS.append(
            f"| `stop --drain` of an adopted server | done | - | {found['finished']} | {found['refused']} | {found['unseen']} | 0 |"
        )
    finally:
        if theirs.poll() is None:
            theirs.kill()
