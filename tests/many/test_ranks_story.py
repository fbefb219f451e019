"""Ranks as one story: the slowest leads, the first failure is named, echoes are folded. And what must be the same."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from specdash.control import ranks_compare, ranks_wires
from specdash.control.preflight_facts import Facts
from specdash.control.probe import Probe
from specdash.control.ranks import Init, Network, Rank, Ranks
from specdash.control.ranks_story import RankView, merge
from specdash.control.ranks_wires import Wire
from specdash.sglang.causes import Cause, first_cause
from specdash.sglang.commandline import LaunchSpec
from specdash.sglang.story import Story, feed, finish


def view(rank: int, host: str, **more: Any) -> RankView:
    return RankView(rank, host, f"x-r{rank}", **more)


def died(rank: int, host: str, category: str, at: float, sentence: str = "It broke.") -> RankView:
    return view(
        rank, host, ended=True, ended_unix=at, how="exited with code 1", cause=Cause(category, sentence)
    )


def test_the_slowest_rank_leads() -> None:
    views = [
        view(0, "a", phase="kv_alloc"),
        view(1, "b", phase="loading_weights", detail="3/62"),
        view(2, "c", phase="loaded"),
    ]
    found = merge(views)
    assert found.phase == "loading_weights" and found.slowest is views[1]
    assert found.sentence.startswith("loading weights 3/62: rank 1 on b is the slowest")
    assert "rank 2 on c: loaded, waits for rank 0" in found.sentence


def test_a_rank_above_0_is_never_the_servers_readiness() -> None:
    assert merge([view(0, "a", phase="graph_capture"), view(1, "b", ready=True)]).phase == "graph_capture"
    assert merge([view(0, "a", ready=True), view(1, "b", phase="loaded")]).phase == "ready"


def test_echoes_are_folded_under_the_first_failure_even_when_they_came_earlier() -> None:
    views = [
        died(0, "a", "peer_rank_gone", 10.0, "The process at the other end went away."),
        died(1, "b", "oom_kv_pool", 10.4, "Not enough memory."),
        view(2, "c", phase="loading_weights"),
    ]
    found = merge(views)
    assert found.first is views[1]
    assert found.sentence.startswith("Rank 1 on b failed first: Not enough memory.")
    assert found.folded == ("Rank 0 on a ended after it: it lost its peer.",)
    assert [one.rank for one in found.rest] == [2]


def test_of_two_own_causes_the_earlier_is_first() -> None:
    views = [died(0, "a", "oom_kv_pool", 12.0), died(1, "b", "disk_full", 11.0)]
    assert merge(views).first is views[1]


def test_an_engine_that_kills_itself_after_its_peer_is_folded_by_time() -> None:
    killed = Cause("killed", "Killed by signal 9: the OOM killer, perhaps.", signal=9)
    views = [
        view(0, "a", ended=True, ended_unix=15.2, how="was ended by signal 9", cause=killed),
        view(1, "b", ended=True, ended_unix=10.0, how="was ended by signal 9", cause=killed),
    ]
    found = merge(views)
    assert found.first is views[1]
    assert found.folded == ("Rank 0 on a ended 5 s after it: it was ended by signal 9.",)


def test_when_all_only_lost_a_peer_the_host_out_of_reach_is_the_story() -> None:
    views = [died(0, "a", "peer_rank_gone", 10.0), view(1, "b", away="no answer for 15 s")]
    found = merge(views)
    assert found.first is views[1]
    assert "b is out of reach, and the other ranks lost rank 1 on b" in found.sentence


def test_a_rank_that_was_stopped_is_no_failure() -> None:
    assert merge([view(0, "a", ready=True), view(1, "b", ended=True, stop_asked=True)]).first is None


GLOO = b"""[2026-11-29 10:00:00 TP1] Scheduler hit an exception: Traceback (most recent call last):
  File "/v/sglang/srt/managers/scheduler.py", line 3000, in run_scheduler_process
    scheduler.event_loop_normal()
RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.5]:41234
"""


def test_what_gloo_says_of_a_lost_peer_is_an_echo() -> None:
    cause = first_cause(finish(feed(Story(), GLOO)), exit_code=1)
    views = [
        view(0, "a", ended=True, ended_unix=9.0, how="exited with code 1", cause=cause),
        view(
            1, "b", ended=True, ended_unix=9.5, how="was ended by signal 9", cause=Cause("killed", "Killed.")
        ),
    ]
    assert merge(views).first is views[1]


# --- what must be the same ---


def facts(version: str = "0.5.23", python: str = "3.11.7", skew: float = 0.0) -> Facts:
    spec = LaunchSpec("p", "a", "python3", ("-m", "sglang.launch_server"), (("--device", "cpu"),))
    reading: Any = SimpleNamespace(version=version)  # all that is compared of it
    probe = Probe("a", python, "/v/python", reading)
    return Facts(spec, {}, probe, skew_s=skew, skew_within_s=0.1)


def one(checks: list[Any], name: str) -> Any:
    found = [check for check in checks if check.name == name]
    assert len(found) == 1, checks
    return found[0]


def test_versions_and_pythons_must_agree() -> None:
    good = ranks_compare.sglang({"a": facts(), "b": facts(python="3.11.2")})
    assert [check.status for check in good] == ["ok", "ok"]
    bad = ranks_compare.sglang({"a": facts(), "b": facts("0.5.22", "3.12.1")})
    assert one(bad, "same sglang").status == "block"
    assert "0.5.23 on a, 0.5.22 on b" in one(bad, "same sglang").sentence
    assert one(bad, "same python").status == "warn"
    unread = ranks_compare.sglang({"a": facts(), "b": Facts(facts().spec, {}, None)})
    assert one(unread, "same sglang").status == "not_checked"


def test_model_files_are_compared_by_name_size_and_hash() -> None:
    whole = {"config.json": {"size": 5, "sha256": "x"}, "w.safetensors": {"size": 9, "sha256": None}}
    readme = {**whole, "README.md": {"size": 1, "sha256": None}}
    two = {"a": facts(), "b": facts()}
    assert (
        one(
            ranks_compare.models({"a": {"target": whole}, "b": {"target": readme}}, two), "same target"
        ).status
        == "ok"
    )
    for other, says in (
        (
            {**whole, "config.json": {"size": 5, "sha256": "y"}},
            "config.json has the same size but other content",
        ),
        ({**whole, "w.safetensors": {"size": 8, "sha256": None}}, "w.safetensors has 9 bytes on a, 8 on b"),
        ({"config.json": whole["config.json"]}, "w.safetensors is missing on b"),
    ):
        check = one(
            ranks_compare.models({"a": {"target": whole}, "b": {"target": other}}, two), "same target"
        )
        assert check.status == "block" and says in check.sentence
    gone = one(ranks_compare.models({"a": {"target": whole}, "b": {}}, two), "same target")
    assert gone.status == "not_checked"


def test_clocks_are_compared_with_each_other() -> None:
    assert ranks_compare.clocks({"a": facts(skew=100.0), "b": facts(skew=100.5)})[0].status == "ok"
    late = ranks_compare.clocks({"a": facts(skew=-3.0), "b": facts(skew=4.0)})[0]
    assert late.status == "warn" and "b is 7 s ahead of a's" in late.sentence
    assert ranks_compare.clocks({"a": facts(), "b": Facts(facts().spec, {}, None)})[0].status == "not_checked"


# --- the wires ---


def two_ranks(env: dict[str, str] | None = None, device: str = "cuda", tp: int = 16) -> Ranks:
    flags = (("--device", device), ("--tp-size", tp))
    made = [
        Rank(n, host, LaunchSpec("p", host, "python3", ("-m", "x"), flags, env=env or {}))
        for n, host in enumerate("ab")
    ]
    return Ranks("p", tuple(made), Init("10.0.0.1", 20000, "eth0 of a"))


def test_a_way_that_does_not_work_names_both_ends_and_why() -> None:
    wires = [
        Wire("init", "a", "a", "10.0.0.1", 20000, over="10.0.0.1"),
        Wire("init", "b", "a", "10.0.0.1", 20000, "timeout"),
        Wire("pair", "a", "b", "10.0.0.2", 4000, "refused"),
    ]
    init, pair = ranks_wires.judge(two_ranks(), wires)
    assert init.status == pair.status == "block"
    assert "b cannot reach 10.0.0.1:20000 on a: no answer" in init.sentence
    assert "a cannot reach 10.0.0.2 on b on a port that the kernel picked: refused" in pair.sentence
    assert ranks_wires.judge(two_ranks(), [])[0].status == "not_checked"
    assert ranks_wires.judge(two_ranks(), wires[:1])[0].status == "ok"


NIC = {"name": "eth0", "up": True, "loopback": False, "addresses": ["10.0.0.1"]}


@pytest.mark.parametrize(
    ("env", "nets", "status", "says"),
    [
        ({}, {"named": "10.0.0.1"}, "ok", "their own choice"),
        ({}, {"named": "127.0.1.1", "default": "10.0.0.1"}, "block", 'interface = "eth0"'),
        ({"GLOO_SOCKET_IFNAME": "eth0"}, {"named": "127.0.1.1"}, "ok", ""),
        ({"GLOO_SOCKET_IFNAME": "eth1"}, {"named": "127.0.1.1"}, "block", "names eth1, which is not there"),
        ({"NCCL_SOCKET_IFNAME": "eth"}, {"named": "10.0.0.1"}, "ok", ""),
        ({"NCCL_SOCKET_IFNAME": "=eth"}, {"named": "10.0.0.1"}, "block", "names eth, which is not there"),
        ({"NCCL_SOCKET_IFNAME": "^docker0"}, {"named": "10.0.0.1"}, "ok", ""),
        (
            {},
            {"named": "10.0.0.1", "interfaces": (NIC, {**NIC, "name": "ib0", "addresses": ["10.1.0.1"]})},
            "warn",
            "NCCL chooses among eth0, ib0",
        ),
    ],
)
def test_the_interfaces_that_nccl_and_gloo_would_use(env: Any, nets: Any, status: str, says: str) -> None:
    networks = {h: Network(**{"interfaces": (NIC,), "machine": h, **nets}) for h in "ab"}
    found = ranks_wires.interfaces(two_ranks(env), networks)
    assert {check.status for check in found} == {status}
    assert says in found[0].sentence + found[0].remedy


def test_parallel_sizes_must_divide_by_the_hosts() -> None:
    assert [c.status for c in ranks_compare.layout(two_ranks())] == ["ok", "ok"]
    assert [c.status for c in ranks_compare.layout(two_ranks(tp=7))] == ["ok", "ok", "block"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((("--tp", 16),), "tensor parallel 16: 8 GPU(s) on each of 2 hosts."),
        (
            (("--tp-size", 8), ("--pp-size", 4)),
            "tensor parallel 8, pipeline of 4 stages: 16 GPU(s) on each of 2 hosts, 2 whole stage(s) a host.",
        ),
        (
            (("--tp-size", 16), ("--dp-size", 16), ("--enable-dp-attention", True), ("--ep-size", 16)),
            "tensor parallel 16, data parallel 16 in attention, on the same GPUs, expert parallel 16: "
            "8 GPU(s) on each of 2 hosts.",
        ),
        ((("--tp-size", 4), ("--dp-size", 4)), "data parallel 4, each a copy: 8 GPU(s)"),
    ],
)
def test_parallel_sizes_are_said_for_what_they_are(flags: Any, says: str) -> None:
    assert says in ranks_compare.parallel((*flags, ("--nnodes", 2)), 2)
