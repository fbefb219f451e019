"""A prefill/decode pair as one run of three parts: planned, checked, launched, stopped. The router here is a FAKE one."""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from pathlib import Path

import pytest

from specdash.config import inherit
from specdash.config.settings import Settings
from specdash.control import pd, profiles, ranks_launch, ranks_stop
from specdash.control.ranks import Network
from specdash.errors import ConfigError, Refused
from tests.many.test_together import STUB, Bench, bench, free_port, members_of  # noqa: F401  (fixture)

FAKE = Path(__file__).parent / "fake_router"
TEXT = """
host = "a"
python = "{python}"
launcher = ["-B", "{stub}"]
[server]
port = {port}
[pd.router.env]
PYTHONPATH = "{fake}"
TEST_ROOT_MARK = "{root}"
[env]
TEST_ROOT_MARK = "{root}"
[pd.prefill.server]
port = {one}
[pd.decode.server]
port = {two}
"""


def layout(tmp_path: Path, text: str) -> pd.PairLayout:
    path = tmp_path / "pair.toml"
    path.write_text(text)
    merged = inherit.load(str(path))
    found = pd.layout(merged, profiles.to_spec(merged, Settings()))
    assert found is not None
    return found


def test_three_parts_with_their_addresses(tmp_path: Path) -> None:
    text = (
        'python = "/v/python"\n[server]\nmodel-path = "/m"\nport = 8000\nhost = "0.0.0.0"\n'
        '[pd.prefill]\nhost = "a"\naddress = "10.0.0.1"\n[pd.prefill.env]\nCUDA_VISIBLE_DEVICES = "0,1"\n'
        '[pd.decode]\nhost = "b"\n[pd.router]\nhost = "a"\n[pd.router.server]\npolicy = "cache_aware"\n'
    )
    nic = {"name": "eth0", "up": True, "loopback": False, "addresses": ["10.0.0.2"]}
    found = pd.plan(layout(tmp_path, text), {"b": Network(interfaces=(nic,), default="10.0.0.2")})
    router, prefill, decode = found.ranks
    assert [one.role for one in found.ranks] == ["router", "prefill", "decode"]
    assert [one.host for one in found.ranks] == ["a", "a", "b"]
    assert router.spec.argv() == [
        *("/v/python", "-m", "sglang_router.launch_router", "--pd-disaggregation"),
        *("--prefill", "http://10.0.0.1:8001", "8998", "--decode", "http://10.0.0.2:8002"),
        *("--host", "0.0.0.0", "--port", "8000", "--policy", "cache_aware"),
    ]
    assert prefill.spec.flag("--disaggregation-mode") == "prefill"
    assert prefill.spec.flag("--disaggregation-bootstrap-port") == 8998
    assert (
        prefill.spec.env["CUDA_VISIBLE_DEVICES"] == "0,1" and prefill.spec.env["SGLANG_HOST_IP"] == "10.0.0.1"
    )
    assert decode.spec.flag("--disaggregation-mode") == "decode" and decode.spec.http()[1] == 8002
    assert decode.spec.flag("--disaggregation-bootstrap-port") is None


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is filled in for each part"):
        layout(tmp_path, '[server]\ndisaggregation-mode = "prefill"\n[pd.decode]\nhost = "b"\n')
    with pytest.raises(ConfigError, match="pd and hosts are both given"):
        layout(tmp_path, 'hosts = ["a", "b"]\n[pd.decode]\nhost = "b"\n')
    same = "[pd.prefill.server]\nport = 31000\n[pd.decode.server]\nport = 31000\n"
    with pytest.raises(ConfigError, match="two parts would have one port"):
        pd.plan(layout(tmp_path, same), {})


@pytest.mark.slow
async def test_launched_ready_through_the_router_and_stopped(bench: Bench, tmp_path: Path) -> None:  # noqa: F811
    port, one, two = free_port(), free_port(), free_port()
    text = TEXT.format(
        python=sys.executable, stub=STUB, fake=FAKE, port=port, one=one, two=two, root=bench.root
    )
    found = layout(tmp_path, text)
    parts, checks = await pd.check(bench.party, found)
    by_name = {check.name: check for check in checks}
    assert by_name["router"].status == "ok" and "fake_router" in by_name["router"].sentence
    assert [check.status for check in checks if check.name == "way"] == ["ok"] * 3
    plan = ranks_launch.plan(bench.party, parts)
    events = [event async for event in ranks_launch.run(bench.party, plan)]
    assert events[-1].final == "done", events[-1].sentence
    assert "from router on a" in events[-1].sentence
    body = {"text": "x", "sampling_params": {"max_new_tokens": 3}}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/generate", json.dumps(body).encode())
    answer = await asyncio.to_thread(urllib.request.urlopen, request, timeout=10)
    with answer:
        assert json.loads(answer.read())["meta_info"]["completion_tokens"] == 3
    stop = await ranks_stop.plan(bench.party, plan.spec["together"], "pair", members_of(plan), deadline_s=5)
    assert [step.title.split(",")[0] for step in stop.steps] == [
        *("Stop router on a", "Stop prefill on a", "Stop decode on a")
    ]
    last = [event async for event in ranks_stop.run(bench.party, stop)][-1]
    assert last.final == "done" and bench.alive() == []


@pytest.mark.slow
async def test_without_the_routers_package_it_is_blocked(bench: Bench, tmp_path: Path) -> None:  # noqa: F811
    text = f'host = "a"\npython = "{sys.executable}"\n[pd.decode]\nhost = "a"\n'
    parts, checks = await pd.check(bench.party, layout(tmp_path, text))
    assert next(check for check in checks if check.name == "router").status == "block"
    plan = ranks_launch.plan(bench.party, parts, checks)
    with pytest.raises(Refused, match="has no sglang_router"):
        async for _ in ranks_launch.run(bench.party, plan):
            pass
