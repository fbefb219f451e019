"""First run: what is offered, servers of this machine first; and which hosts a config opens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from specdash.config.settings import Defaults, Settings
from specdash.errors import LinkLost
from specdash.monitor.state import FleetState
from specdash.tui.first import DEMO, FirstRun, offers
from specdash.tui.start import configured
from tests.support.fakehub import NOW, gpus, host
from tests.support.tuikit import screen, text_of


async def play(look: Callable[[], Awaitable[list[str]]] | None, *keys: str) -> tuple[str, Any]:
    app = FirstRun(offers(["gpu1"], True, True), "/home/ana/.config/specdash/config.toml", look)
    async with app.run_test(size=(80, 24)) as pilot:
        if keys:
            await pilot.press(*keys)
        await app.workers.wait_for_complete()
        await pilot.pause()
        text = text_of(app)  # type: ignore[arg-type]
        await pilot.press("enter")
    return text, app.return_value


async def test_a_server_that_runs_here_is_offered_first() -> None:
    async def look() -> list[str]:
        return ["Kimi-K2.5 (EAGLE3) port 8000 pid 4000 of ana"]

    text, answer = await play(look)
    assert "A adopts one by name" in " ".join(text.split())
    assert "Kimi-K2.5 (EAGLE3) port 8000" in text and "looking for servers" not in text
    assert text.index("Kimi-K2.5") < text.index("simulated host")
    assert answer == (["local"], False)


async def test_what_the_operator_chose_meanwhile_stays_chosen() -> None:
    gate = asyncio.Event()

    async def look() -> list[str]:
        await gate.wait()
        return ["a port 1"]

    app = FirstRun(offers(["gpu1"], True, True), "/c", look)
    async with app.run_test(size=(80, 24)) as pilot:
        assert "looking for servers on this machine" in text_of(app)  # type: ignore[arg-type]
        await pilot.press("down", "down")
        gate.set()
        await app.workers.wait_for_complete()
        await pilot.press("enter")
    assert app.return_value == (["gpu1"], False)


async def test_nothing_found_or_no_look_changes_nothing() -> None:
    async def broken() -> list[str]:
        raise LinkLost("no shell here")

    for look in (None, broken):
        _, answer = await play(look)
        assert answer == ([DEMO], False)


def test_this_machine_as_default_host_needs_no_table() -> None:
    assert [host.name for host in configured(Settings(defaults=Defaults(host="local")))] == ["local"]
    assert configured(Settings()) == []


async def test_a_server_of_others_is_shown_where_ours_would_be() -> None:
    row = {
        "pid": 777,
        "ppid": 1,
        "start": 5,
        "user": "bob",
        "state": "S",
        "container": {},
        "cmdline": [
            "python3",
            "-m",
            "sglang.launch_server",
            "--model-path",
            "/data/other",
            "--port",
            "30000",
        ],
    }
    state = host(gpus=gpus(420.0, "", False), processes={"processes": (row,), "seen_at": NOW})
    async with screen(FleetState(now=NOW, hosts={"h200-a": state})) as (app, _):
        text = text_of(app)
        assert "others run other port 30000 pid 777 of bob" in text and "A adopts one" in text
