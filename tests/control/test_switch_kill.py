"""kill -9 of specdash, and a cut link, at each step of a switch, on the demo host: it ends healthy, as A or as B.

The steps are those that a switcher can name (`switchstate.FORWARD`, `BACK`): it refuses to name another one, so a new
step has its row here by itself. The next specdash, a command of its own, says where it stands, which serves and why.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specdash.demo.session import DemoSession, start
from specdash.host.open import open_link
from specdash.host.remote import switchstate
from tests.support.cutlink import Cuttable

ROOT = Path(__file__).parents[2]
BESIDE = ("launch", "ready", "rollback_stop")


class Bench:
    """A demo host behind a link that can be cut, and specdash as a command; A serves from the first test on."""

    def __init__(self, session: DemoSession, home: Path) -> None:
        self.session, self.home = session, home
        self.way = Cuttable(session.host.port or 0)
        known = (
            Path(session.host.known_hosts or "")
            .read_text()
            .replace(f":{session.host.port} ", f":{self.way.port} ")
        )
        (home / "known_hosts").write_text(known)
        text = session.config_file.read_text()
        text = re.sub(rf"(?m)^port = {session.host.port}$", f"port = {self.way.port}", text)
        text = text.replace(session.host.known_hosts or "", str(home / "known_hosts"))
        (session.folder / "config" / "cuttable.toml").write_text(text)
        base = Path(session.profile("demo-base"))
        base.write_text(base.read_text() + '\n[env]\nSPECDASH_DEMO_PACE = "20"\n')
        self.config = session.folder / "config" / "cuttable.toml"
        self.serves = ""

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "specdash", "--config", str(self.config), *words]

    def popen(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*words),
            env={
                **os.environ,
                "XDG_STATE_HOME": str(self.home),
                "HOME": str(self.home),
                "PYTHONPATH": str(ROOT),
            },
            cwd=self.home,  # a `profiles` folder where we stand would win over the demo's
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str) -> tuple[int, str, str]:
        process = self.popen(*words)
        out, err = process.communicate(timeout=150)
        return process.returncode, out, err

    def switches(self) -> list[Path]:
        return sorted(self.session.folder.glob("home/.specdash/hosts/*/switches/*/state.jsonl"))

    def listed(self) -> list[dict[str, Any]]:
        code, out, err = self.run("switch", "--list", "--host", "demo", "--json")
        assert code == 0, err
        found: list[dict[str, Any]] = json.loads(out)["switches"]
        return found

    def port_of(self, run: dict[str, Any]) -> int:
        return int(run["http"]["port"])

    def runs(self) -> list[dict[str, Any]]:
        code, out, err = self.run("runs", "demo", "--json")
        assert code == 0, err
        return [run for run in json.loads(out)["runs"] if run["alive"]]


def until(check: Callable[[], Any], seconds: float = 60.0) -> Any:
    end = time.monotonic() + seconds
    while True:
        found = check()
        if found:
            return found
        assert time.monotonic() < end, "it did not come to it"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    home = tmp_path_factory.mktemp("bench")
    with start(60, join=False) as session:
        one = Bench(session, home)
        yield one
        one.way.close()


def generates(port: int) -> bool:
    body = json.dumps({"text": "1 2 3", "sampling_params": {"max_new_tokens": 4}}).encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/generate", body, 30) as answer:
        return bool(json.loads(answer.read())["meta_info"]["completion_tokens"] == 4)


def began_step(state: Path, step: str) -> bool:
    return any(
        record.get("event") == "step" and record.get("step") == step
        for record in map(json.loads, state.read_text().splitlines())
    )


def go(bench: Bench, step: str, how: str, b: str, *words: str) -> tuple[str, dict[str, Any]]:
    """Switch A → B, and end specdash or its link as `step` begins. (the switch's id, its record at the end)"""
    if not bench.runs():
        code, _, err = bench.run("launch", "demo-base", "--wait", "--yes")
        assert code == 0, err
    a = bench.runs()[0]
    before = {path.parent.name for path in bench.switches()}
    asked = ("switch", a["id"], b, "--host", "demo", "--yes", "--confirm", a["profile"], "--settle", "1")
    process = bench.popen(*asked, "--slower", "keep", *words)
    try:
        new = until(
            lambda: [p for p in bench.switches() if p.parent.name not in before] or process.poll() is not None
        )
        assert isinstance(new, list), process.communicate()
        until(lambda: began_step(new[0], step) or process.poll() is not None)
        assert began_step(new[0], step), process.communicate()
        if how == "kill":
            process.kill()
        else:
            bench.way.cut()
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    ident = new[0].parent.name
    if how == "cut" and process.returncode == 5:
        assert "goes on" in err or ident in err, f"it says what becomes of the switch: {err}"
    # The next specdash: it finds it, follows it to its end, and says which serves and why.
    code, out, err = bench.run("switch", "--attach", ident, "--host", "demo")
    assert code in (0, 6), out + err
    for raw in switchstate.TITLES:
        assert f"] {raw}:" not in err, f"a raw step id is shown: {err}"
    one = next(one for one in bench.listed() if one["id"] == ident)
    assert one["end"] and one["end"]["sentence"] in out, (one["end"], out)
    return ident, one


def healthy(bench: Bench, one: dict[str, Any], final: str) -> None:
    assert one["end"]["final"] == final, one["end"]
    living = bench.runs()
    assert [run["id"] for run in living] == [one["end"]["serves"]], (
        "one server, and it is the one that it names"
    )
    assert living[0]["phase"] == "ready" and generates(bench.port_of(living[0]))


EVERY = bool(os.environ.get("SPECDASH_MATRIX"))


def rows(steps: Iterable[str], stride: int) -> list[Any]:
    """Each step by kill and by cut with SPECDASH_MATRIX=1 (eight minutes); else each `stride`-th of those."""
    ways = ("kill", "cut")
    every = [(step, ways[(turn + way) % 2]) for turn, step in enumerate(steps) for way in range(2)]
    return [
        pytest.param(step, how, id=f"{step}-{how}") for step, how in (every if EVERY else every[::stride])
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("step", "how"), rows(switchstate.FORWARD, 4))
def test_forward(bench: Bench, step: str, how: str) -> None:
    there = [run["profile"] for run in bench.runs()]
    b = "demo-ngram" if there and there[0] != "demo-ngram" else "demo-eagle3"
    _, one = go(bench, step, how, b, "--warm", "2000")
    healthy(bench, one, "done")
    assert one["plan"]["names"][one["end"]["serves"]] == b


@pytest.mark.slow
@pytest.mark.parametrize(("step", "how"), rows(switchstate.BACK, 6))
def test_on_the_way_back(bench: Bench, step: str, how: str) -> None:
    _, one = go(bench, step, how, "demo-broken")
    healthy(bench, one, "rolled_back")
    assert "demo-broken" in one["end"]["sentence"] and "Why:" in one["end"]["sentence"]


@pytest.mark.slow
@pytest.mark.parametrize(("step", "how"), rows(BESIDE, 6))
def test_side_by_side_where_both_do_not_fit(bench: Bench, step: str, how: str) -> None:
    """The simulated GPUs have no room for two: what served is never touched. (Both up: test_switch_beside.py.)"""
    a = bench.runs()[0] if bench.runs() else None
    b = "demo-ngram" if a and a["profile"] != "demo-ngram" else "demo-eagle3"
    _, one = go(bench, step, how, b, "--side-by-side", "--force", "--no-measure")
    healthy(bench, one, "rolled_back")
    assert "never stopped" in one["end"]["sentence"] and (a is None or one["end"]["serves"] == a["id"])


async def steps_of_the_plan(session: DemoSession) -> set[str]:
    from specdash.config.settings import load
    from specdash.control import launch, profiles, switch

    link = await open_link(session.host)
    try:
        settings = load(session.config_file)
        a = profiles.resolve("demo-base", settings)
        plan = await launch.plan(link, a, precheck=False)
        async for _ in launch.run(link, plan):
            pass
        b = profiles.resolve("demo-ngram", settings)
        return {step.name for step in (await switch.plan(link, plan.id, b, warm_mb_s=100)).steps}
    finally:
        await link.close()


@pytest.mark.slow
def test_the_plan_and_the_switcher_name_the_same_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start(60, join=False) as session:
        monkeypatch.setenv("SPECDASH_CONFIG", str(session.config_file))
        assert asyncio.run(steps_of_the_plan(session)) == set(switchstate.FORWARD)


def test_a_switcher_names_no_step_that_is_not_in_the_table(tmp_path: Path) -> None:
    from specdash.host.remote.switcher import Switcher

    plan = {"base": str(tmp_path), "a": "a", "b": "b", "restore": "c", "pulse_rules": "specdash.sglang.pulse"}
    one = Switcher(str(tmp_path), plan)
    with pytest.raises(ValueError, match="no step"):
        one.say("new_step", "running", "")
