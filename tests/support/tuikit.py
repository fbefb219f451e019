"""Drives the screen in tests: a pilot at a fixed size on a `FakeHub`, and what is drawn as plain text."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from specdash.tui.app import SpecdashApp
from tests.support.fakehub import FakeHub, FakeOperator, LogList


def text_of(app: SpecdashApp) -> str:
    """What the screen shows, as plain text."""
    strips = app.screen._compositor.render_strips()
    rows = ["".join(segment.text for segment in strip).rstrip() for strip in strips]
    return "\n".join(rows) + "\n"


async def settle(app: SpecdashApp, pilot: Any) -> None:
    """Newest state drawn, no worker or message left."""
    for _ in range(3):
        await pilot.pause()
        app._dirty = True
        app._tick()
        await app.workers.wait_for_complete(
            [worker for worker in app.workers if worker.group in ("log.seek", "save", "plan", "default")]
        )
    await pilot.pause()


@asynccontextmanager
async def screen(
    state: Any = "ready",
    size: tuple[int, int] = (80, 24),
    *,
    log: LogList | None = None,
    operator: FakeOperator | None = None,
    hub: FakeHub | None = None,
    **more: Any,
) -> AsyncIterator[tuple[SpecdashApp, Any]]:
    app = SpecdashApp(hub or FakeHub(state, log), operator or FakeOperator(), wall_clock=False, **more)
    async with app.run_test(size=size, notifications=True) as pilot:
        await settle(app, pilot)
        yield app, pilot
