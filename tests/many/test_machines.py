"""The command over two real sshd servers in networks of their own, with simulated ranks: what needs no engine to be shown."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.many.desk import ManyDesk
from tests.many.machines import NIC
from tests.many.test_engine import last, story

pytestmark = [pytest.mark.sshd, pytest.mark.slow, pytest.mark.timeout(240)]
STUB = Path(__file__).parent / "rank_stub.py"


@pytest.fixture(scope="module")
def desk(two: ManyDesk) -> Iterator[ManyDesk]:
    two.profile(
        "many-stub",
        f'hosts = ["both"]\ninterface = "{NIC}"\npython = "{sys.executable}"\nlauncher = ["-B", "{STUB}"]\n'
        f'[server]\nport = {two.port}\nhost = "0.0.0.0"\ntp-size = 2\ndevice = "cpu"\n',
    )
    two.profile("many-slow", 'extends = "many-stub"\n[server]\nload = 60\n')
    yield two


def test_no_sglang_is_a_block_and_names_the_hosts(desk: ManyDesk) -> None:
    done = desk.run("preflight", "many-stub")
    assert done.returncode == 4
    assert f"{desk.machines['a'].address}:20000 is reached by every host" in done.stdout
    assert "SGLang of a, b could not be read" in done.stdout


def test_started_within_a_second_and_stopped_with_proof(desk: ManyDesk) -> None:
    answer = desk.json("launch", "many-stub", "--wait", "--yes", "--force")
    start = next(step for step in answer["steps"] if step["step"] == "start" and step["status"] == "done")
    assert start["data"]["apart_s"] < 1.0
    told = desk.json("status", "--all")["together"]
    assert [one["phase"] for one in told] == ["ready"]
    assert told[0]["sentence"] == "many-stub is one server over a, b: rank 0 on a generates."
    elsewhere = desk.run("stop", f"{answer['together']}-r1", "--host", "b", "--yes")
    assert elsewhere.returncode == 0, elsewhere.stderr
    assert "Nothing of it is left on any of the 2 hosts: a, b." in elsewhere.stdout
    assert not desk.left(answer["together"])


def test_a_way_that_is_closed_blocks_and_says_which(desk: ManyDesk) -> None:
    a, b = desk.machines["a"], desk.machines["b"]
    a.run("ip", "route", "add", "unreachable", f"{b.address}/32")
    try:
        done = desk.run("preflight", "many-stub")
    finally:
        a.run("ip", "route", "del", "unreachable", f"{b.address}/32")
    assert done.returncode == 4
    assert re.search(r"b cannot reach [\d.]+:20000 on a: no answer", done.stdout)
    assert re.search(
        r"a cannot reach [\d.]+ on b on a port that the kernel picked: there is no route", done.stdout
    )


def test_a_cut_cable_leaves_an_unproven_rank_that_is_finished_later(desk: ManyDesk) -> None:
    b = desk.machines["b"]
    words = ("launch", "many-slow", "--wait", "--yes", "--force", "--lost-after", "3")
    try:
        answer, code = story(desk, words, r"\[done\] Start all ranks", b.cut)
        assert code == 2 and "Out of reach while it was loading: b" in last(answer)
        assert f"The rest is left as it is: rank 0 on a. Stop it: specdash stop {answer['together']}" in last(
            answer
        )
        assert len(desk.left(answer["together"])) == 2
        stopped = desk.run("stop", answer["together"], "--yes", "--deadline", "3")
        assert (
            stopped.returncode == 2
            and "Not proven on b" in stopped.stdout
            and "Proven on a" in stopped.stdout
        )
    finally:
        b.mend()
    assert desk.run("stop", "--unproven", "--yes").returncode == 0
    assert not desk.left(answer["together"])
    assert "No stop is unproven." in desk.run("stop", "--unproven").stdout
