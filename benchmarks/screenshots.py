"""Makes the screenshots of README and docs from the demo: `python benchmarks/screenshots.py [docs/screenshots]`.

Starts the demo host, opens the real dashboard on it without a terminal, drives it by keys and saves SVGs. Times and
numbers differ from run to run; `tests/tui/test_tui_screenshots.py` fails when the saved ones no longer show what the
screen shows (headings, keys, rows of the comparison), so they cannot go stale unnoticed.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specdash.demo.session import start
from specdash.tui.start import configured, make

SPEED = 8.0
SIZE = (120, 40)


async def until(pilot: Any, true: Callable[[], bool], what: str, limit_s: float = 120.0) -> None:
    end = time.monotonic() + limit_s
    while not true():
        if time.monotonic() > end:
            raise SystemExit(f"gave up waiting for: {what}")
        await pilot.pause(0.2)


def save(app: Any, folder: Path, name: str) -> None:
    """The SVG with ids that do not change from run to run."""
    svg = app.export_screenshot(title="specdash")
    found = re.search(r"terminal-(\d+)-", svg)
    if found:
        svg = svg.replace(f"terminal-{found[1]}-", "specdash-")
    (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
    print(folder / f"{name}.svg")


async def launch(app: Any, pilot: Any, profile: str) -> None:
    app.doing._choose(profile)
    await pilot.pause(0.3)
    await pilot.press("l")
    await until(pilot, lambda: getattr(app.screen, "plan", None) is not None, f"the plan of {profile}")


async def main(folder: Path) -> None:
    from specdash.config.settings import load

    settings = load()
    app = make(settings, configured(settings))

    def state() -> str:
        return app.server.health.state if app.server else ""

    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await until(
            pilot, lambda: bool(app.host and app.host.link.status == "up" and app.host.gpus), "the link"
        )
        await launch(app, pilot, "demo-base")
        await pilot.pause(0.5)
        save(app, folder, "launch")
        await pilot.press("right", "enter")
        await until(pilot, lambda: bool(app.server and app.server.story.progress), "weights")
        await pilot.pause(0.6)
        save(app, folder, "loading")
        await until(pilot, lambda: state() in ("busy", "idle", "ready"), "ready")
        # Long enough for a base measurement, which break-even needs.
        await pilot.pause(40)
        app.doing._choose("demo-eagle3")
        await pilot.press("w")
        await until(pilot, lambda: getattr(app.screen, "plan", None) is not None, "the switch plan")
        await pilot.pause(0.5)
        save(app, folder, "switch")
        await pilot.press("escape")
        await pilot.press("p")
        await until(pilot, lambda: getattr(app.screen, "view", None) is not None, "the probe")
        await pilot.pause(0.5)
        save(app, folder, "probe")
        await pilot.press("escape", "question_mark")
        await pilot.pause(0.5)
        save(app, folder, "help")
        await pilot.press("escape", "s")
        await until(pilot, lambda: getattr(app.screen, "plan", None) is not None, "the stop plan")
        if app.screen.plan.typed_name:
            app.screen.set_focus(app.screen.query_one("#typed"))
            await pilot.press(*app.screen.plan.typed_name, "enter", "enter")
        else:
            await pilot.press("right", "enter")
        await until(pilot, lambda: not app.doing._running() and state() in ("", "down"), "the stop")
        await launch(app, pilot, "demo-eagle3")
        await pilot.press("right", "enter")
        await until(pilot, lambda: state() in ("busy", "idle"), "ready again")
        await until(pilot, lambda: app.server.breakeven.break_even is not None, "break-even")
        await pilot.pause(45)
        save(app, folder, "ready")
        await pilot.press("r")
        await pilot.pause(0.5)
        await pilot.press("space", "down", "space", "C")
        await until(pilot, lambda: type(app.screen).__name__ == "CompareScreen", "the runs side by side")
        told = app.screen.histories
        await until(pilot, lambda: len(told) == 2 and all(one.lines for one in told.values()), "both logs")
        await pilot.pause(2)
        save(app, folder, "compare")


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/screenshots").absolute()
    target.mkdir(parents=True, exist_ok=True)
    with start(SPEED, False) as session:
        os.environ.update(session.environment())
        asyncio.run(main(target))
