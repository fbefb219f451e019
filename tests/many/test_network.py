"""The agent's half: real listeners and connections, a journal with one driver, runs that never started; and the gate."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specdash.host.gate import Gate
from specdash.host.remote import network, ranks
from specdash.host.remote.journal import Journal
from specdash.host.remote.readiness import Readiness
from specdash.host.remote.wire import CallError


def call(name: str, **params: Any) -> Any:
    return {**network.CALLS, **ranks.CALLS}[name](params, b"")


@pytest.fixture
def listener() -> Iterator[int]:
    port = call("network.listen", address="127.0.0.1", port=0, word="w-1")["port"]
    yield port
    call("network.unlisten", word="w-1")


def test_a_connection_proves_the_way_to_our_own_listener(listener: int) -> None:
    found = call("network.connect", address="127.0.0.1", port=listener, word="w-1", source="127.0.0.1")
    assert found["ok"] and found["source"] == "127.0.0.1"
    other = call("network.connect", address="127.0.0.1", port=listener, word="w-2")
    assert other["problem"] == "stranger"
    with pytest.raises(CallError, match="cannot be listened on: Address already in use"):
        call("network.listen", address="127.0.0.1", port=listener, word="w-3")


def test_what_does_not_connect_says_why() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    assert call("network.connect", address="127.0.0.1", port=port, word="w")["problem"] == "refused"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        asked = {"address": "127.0.0.1", "port": silent.getsockname()[1], "word": "w", "timeout": 0.2}
        assert call("network.connect", **asked)["problem"] == "timeout"
    assert "is no address" in call("network.connect", address="no.such.invalid", port=1, word="w")["problem"]
    with pytest.raises(CallError, match=r"192\.0\.2\.7"):
        call("network.listen", address="192.0.2.7", port=0, word="w")


def test_the_look_has_loopback_and_our_own_listener(listener: int) -> None:
    found = call("network.look", toward=["127.0.0.1"])
    lo = next(one for one in found["interfaces"] if one["loopback"])
    assert lo["up"] and "127.0.0.1" in lo["addresses"]
    assert listener in found["listening"] and found["machine"]
    assert found["toward"] == {"127.0.0.1": "127.0.0.1"}


def test_when_a_listener_was_ended_its_port_can_be_bound_at_once() -> None:
    for turn in range(20):
        port = call("network.listen", address="127.0.0.1", port=0, word=f"w-{turn}")["port"]
        assert call("network.connect", address="127.0.0.1", port=port, word=f"w-{turn}", timeout=1)["ok"]
        assert call("network.unlisten", word=f"w-{turn}") == {"was": True}
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", port))
            sock.listen(1)
    assert call("network.unlisten", word="w-0") == {"was": False}


def test_a_journal_has_one_driver_until_it_is_quiet_or_let_go(tmp_path: Path) -> None:
    def save(driver: str, **more: Any) -> Any:
        return call(
            "ranks.save",
            **{"base": str(tmp_path), "id": "to-x", "driver": driver, "state": {"step": 1}, **more},
        )

    save("me")
    with pytest.raises(CallError, match="driven by me"):
        save("you")
    save("me", state=None)
    assert call("ranks.load", base=str(tmp_path), id="to-x")["journals"][0]["state"] == {"step": 1}
    save("you", stale_s=0.0)
    save("you", release=True)
    save("me")
    assert [one["id"] for one in call("ranks.load", base=str(tmp_path))["journals"]] == ["to-x"]
    with pytest.raises(CallError, match="no switch id"):
        call("ranks.load", base=str(tmp_path), id="../x")


def test_only_a_run_that_never_started_is_discarded(tmp_path: Path) -> None:
    run = {"id": "p-r0", "argv": ["true"]}
    call("ranks.prepare", base=str(tmp_path), run=run, files={})
    folder = tmp_path / "runs" / "p-r0"
    assert folder.is_dir()
    Journal(str(folder / "events.jsonl")).add(event="started", pid=1, start=1, boot_id="x")
    assert call("ranks.discard", base=str(tmp_path), id="p-r0") == {"gone": False}
    (folder / "events.jsonl").unlink()
    assert call("ranks.discard", base=str(tmp_path), id="p-r0") == {"gone": True}
    assert not folder.exists()


def test_files_of_a_model_by_size_and_hash(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "w.safetensors").write_bytes(b"1234")
    (tmp_path / "link.json").symlink_to(tmp_path / "config.json")
    (tmp_path / "gone.json").symlink_to(tmp_path / "nothing")
    found = call("ranks.files", paths=[str(tmp_path), str(tmp_path / "no")])["folders"]
    told = found[str(tmp_path)]
    assert told["w.safetensors"] == {"size": 4, "sha256": None}
    assert told["config.json"] == told["link.json"] and len(told["config.json"]["sha256"]) == 64
    assert "gone.json" not in told and found[str(tmp_path / "no")] == {}


@pytest.mark.parametrize("together", [True, False])
def test_a_rank_above_0_waits_for_rank_0(tmp_path: Path, together: bool) -> None:
    (tmp_path / "server.log").write_text("Dummy health check server started in background thread at x\n")
    events = Journal(str(tmp_path / "events.jsonl"))
    run = {"rules": "specdash.sglang.ready", "http": {"port": 1}, "node_rank": 1}
    one = Readiness(str(tmp_path), {**run, **({"together": {"id": "p"}} if together else {})}, events)
    one.look([])
    one.look([])
    told = [line for line in (tmp_path / "events.jsonl").read_text().splitlines() if line]
    assert one.ready is not together and len(told) == 1
    assert ("rank_loaded" in told[0]) is together
    one.serves_by("p-r0")
    assert one.ready


def test_a_loaded_rank_asks_rank_0_itself_where_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specdash.host.remote import readiness

    asked: list[Any] = []

    def ask(where: Any, request: Any, timeout: float) -> dict[str, Any]:
        asked.append((where["host"], where["port"], request["path"]))
        body = b'{"meta_info": {"completion_tokens": 2}}' if len(asked) > 1 else b""
        return {"status": 200 if body else None, "body": body, "took_s": 0.1, "problem": ""}

    monkeypatch.setattr(readiness.httpask, "ask", ask)
    (tmp_path / "server.log").write_text("Dummy health check server started in background thread at x\n")
    zero = {"host": "10.0.0.1", "port": 30000}
    run = {"rules": "specdash.sglang.ready", "http": {"port": 1}, "node_rank": 1, "together": {"zero": zero}}
    one = Readiness(str(tmp_path), run, Journal(str(tmp_path / "events.jsonl")))
    end = time.monotonic() + 10
    while not one.ready:
        assert time.monotonic() < end
        one.look([])
        if not one.probing:
            one.probed_at = -1e9  # as if its time had passed
        time.sleep(0.01)
    assert asked == [("10.0.0.1", 30000, "/generate")] * 2


async def test_a_gate_lets_few_through_and_a_dead_host_gives_its_turn_up() -> None:
    gate, inside, most = Gate(at_once=2, hold_s=0.05), 0, 0

    async def living() -> None:
        nonlocal inside, most
        async with gate.turn():
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.01)
            inside -= 1

    await asyncio.gather(*(living() for _ in range(10)))
    assert most == 2

    async def dead() -> None:
        async with gate.turn():
            await asyncio.sleep(30)

    stuck = [asyncio.create_task(dead()) for _ in range(6)]
    await asyncio.sleep(0)
    await asyncio.wait_for(living(), 5)
    for task in stuck:
        task.cancel()
    await asyncio.gather(*stuck, return_exceptions=True)
    await asyncio.wait_for(asyncio.gather(living(), living()), 5)
