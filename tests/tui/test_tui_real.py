"""The keys that change a serving engine (h, u), on real processes: the real hub, operator, control and host programs.

The engines are simulated; everything between the key and their ports is not.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from specdash.config.hosts import Host
from specdash.config.settings import load
from specdash.control import hostruns, launch, profiles, switch
from specdash.host.open import open_link
from specdash.tui.app import SpecdashApp
from specdash.tui.start import make
from tests.support.tuikit import settle, text_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a host of runs is Linux"),
]
SUPPORT = Path(__file__).parents[1] / "support"


def _free() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Place:
    """This machine as a host with a run root of its own, and profiles on simulated engines."""

    def __init__(self, root: Path) -> None:
        self.root, self.port = root, _free()
        (root / "profiles").mkdir()
        self.host = Host(name="local", run_root=str(root / "specdash"), python=sys.executable)
        words = [f'run-root = "{root / "specdash"}"', f'python = "{sys.executable}"']
        (root / "config.toml").write_text("\n".join(["[hosts.local]", *words]) + "\n")
        self.settings = load(root / "config.toml")

    def profile(
        self, name: str, stub: str, flags: dict[str, Any], speculation: str = "", env: str = ""
    ) -> None:
        lines = [
            f'python = "{sys.executable}"',
            f'launcher = ["-B", "{SUPPORT / stub}"]',
            "[server]",
            f"port = {self.port}",
            'host = "127.0.0.1"',
            *(f'"{key}" = {value}' for key, value in flags.items()),
            *([speculation] if speculation else []),
            "[env]",
            f'TEST_ROOT_MARK = "{self.root}"',
            *([env] if env else []),
        ]
        (self.root / "profiles" / f"{name}.toml").write_text("\n".join(lines) + "\n")

    async def serve(self, name: str) -> str:
        """Launch it, wait until it serves; its run id."""
        link = await open_link(self.host)
        try:
            plan = await launch.plan(link, profiles.resolve(name, self.settings), precheck=False)
            events = [event async for event in launch.run(link, plan)]
            assert events[-1].final == "done", events[-1]
            return plan.id
        finally:
            await link.close()

    def end(self) -> None:
        """Only processes whose environment names this test's own folder."""
        from specdash.host.remote import procs

        for pid in procs.pids():
            env, line = procs.environ(pid) or {}, procs.read_bytes(f"/proc/{pid}/cmdline", 65536) or b""
            mine = env.get(b"TEST_ROOT_MARK") == str(self.root).encode() or str(self.root).encode() in line
            if pid != os.getpid() and mine:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("STATE", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("SPECDASH_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("SPECDASH_PROFILES", str(tmp_path / "profiles"))
    one = Place(tmp_path)
    yield one
    one.end()


@asynccontextmanager
async def dashboard(place: Place) -> AsyncIterator[tuple[SpecdashApp, Any]]:
    app = make(place.settings, [place.host])
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await until(app, pilot, lambda: bool(app.host and app.host.link.status == "up"))
        yield app, pilot


async def until(app: SpecdashApp, pilot: Any, true: Callable[[], Any], limit_s: float = 60.0) -> Any:
    end = time.monotonic() + limit_s
    while True:
        app._dirty = True
        app._tick()
        await pilot.pause()
        found = true()
        if found:
            return found
        assert time.monotonic() < end, text_of(app)
        await asyncio.sleep(0.05)


async def confirm(app: SpecdashApp, pilot: Any, words: str) -> None:
    """The plan with these words, confirmed as it asks for it."""
    await until(app, pilot, lambda: getattr(app.screen, "plan", None) is not None)
    assert words in text_of(app) and not app.screen.plan.blocked, text_of(app)  # type: ignore[attr-defined]
    typed = app.screen.plan.typed_name  # type: ignore[attr-defined]
    await pilot.press(*((*typed, "enter", "enter") if typed else ("right", "enter")))


def ended(app: SpecdashApp, words: str) -> bool:
    return words in last(app)


def drafts(app: SpecdashApp, path: str) -> bool:
    return app.server is not None and app.server.drafter.path == path


def last(app: SpecdashApp) -> str:
    return app.notices.all[-1].sentence if app.notices.all else ""


async def test_h_changes_the_draft_weights_of_a_serving_engine_and_changes_them_back(place: Place) -> None:
    sys.path.insert(0, str(SUPPORT.parent / "control"))
    import hot_kit

    site = hot_kit.site(place.root / "site")
    for name, fill in (("a", b"\1"), ("b", b"\3"), ("c", b"\1")):
        path = hot_kit.drafter(place.root / name, fill)
        speculation = f'[speculation]\nalgorithm = "EAGLE3"\ndraft-model-path = "{path}"'
        place.profile(name, "hot_stub.py", {}, speculation, f'PYTHONPATH = "{site}"')
    run = await place.serve("a")
    link = await open_link(place.host)
    hot_kit.prove(hostruns.run_folder(link, run), place.root / "a", sys.executable)
    async with dashboard(place) as (app, pilot):
        await until(app, pilot, lambda: app.server and app.server.health.state in ("ready", "idle", "busy"))
        # The same weights from another folder stay; others, which are never accepted, are taken back by themselves.
        for name, ending, serves in (("c", "done", "c"), ("b", "rolled back", "c"), ("a", "done", "a")):
            app.doing._choose(name)
            await settle(app, pilot)
            await pilot.press("h")
            await confirm(app, pilot, "Hot switch")
            await until(app, pilot, partial(ended, app, ending))
            record = await hostruns.record(link, run)
            assert record["alive"] and record["drafter_now"]["drafter"] == str(place.root / serves)
            await until(app, pilot, partial(drafts, app, str(place.root / serves)))
            text = text_of(app)
            assert ("⚠ rolled back" in text) == (name == "b") and "FAILED" not in text
            app.notices.all.clear()
            await pilot.press("escape")
    await link.close()


@pytest.mark.parametrize("word", ["abort", "go_on"])
async def test_u_ends_a_switch_whose_program_was_killed(place: Place, word: str) -> None:
    place.profile("old", "engine_stub.py", {"load": 0.1, "tok-s": 4000})
    place.profile("new", "engine_stub.py", {"load": 4.0, "tok-s": 4000})
    run = await place.serve("old")
    link = await open_link(place.host)
    plan = await switch.plan(
        link,
        run,
        profiles.resolve("new", place.settings),
        drain_s=0.0,
        deadline_s=5.0,
        settle_s=0.2,
        hold_s=0.5,
    )
    killed = False
    async for event in switch.run(link, plan):
        if event.step == "launch" and event.status == "done" and not killed:
            listed = await link.call("switches.list", {"base": hostruns.base(link)})
            os.kill(int(listed["running"]["pid"]), signal.SIGKILL)
            killed = True
    assert killed
    async with dashboard(place) as (app, pilot):
        # Another specdash began it; this one finds it and says what to do.
        await until(app, pilot, lambda: "u goes on with it" in last(app))
        await pilot.press("u")
        await until(app, pilot, lambda: "stands still." in text_of(app))
        await pilot.press(*(["right", "right", "enter"] if word == "abort" else ["right", "enter"]))
        await until(app, pilot, lambda: ("rolled back" if word == "abort" else "done") in last(app))
        assert last(app).startswith("Switch old → new on local")
        runs = (await link.call("runs.list", {"base": hostruns.base(link)}))["runs"]
        living = [one["profile"] for one in runs if one["alive"]]
        assert living == ["old" if word == "abort" else "new"]
    await link.close()


def test_a_hang_up_ends_the_screen_and_leaves_the_server(place: Place) -> None:
    """The terminal of the real program goes away while it watches: it is gone within 2 s, the server serves on."""
    from tests.tui.test_tui_terminal import Terminal

    place.profile("old", "engine_stub.py", {"load": 0.1, "tok-s": 4000})
    run = asyncio.run(place.serve("old"))
    root = Path(__file__).parents[2]
    argv = ["-m", "specdash", "--config", str(place.root / "config.toml")]
    terminal = Terminal(argv, PYTHONPATH=str(root), SPECDASH_CONFIG=str(place.root / "config.toml"))
    try:
        terminal.read_until("● idle".encode(), 60)
        began = time.monotonic()
        terminal.hang_up()
        terminal.ended(4)
        assert time.monotonic() - began < 2.5
    finally:
        terminal.close()

    async def alive() -> bool:
        link = await open_link(place.host)
        try:
            record = await hostruns.record(link, run)
            return bool(record["alive"] and record["phase"] == "ready" and not record["stop_asked"])
        finally:
            await link.close()

    assert asyncio.run(alive())
