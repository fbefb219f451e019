"""How far a load is, on stderr: one line drawn over itself on a terminal, a line for each phase in a pipe."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING

from specdash.errors import RemoteError

if TYPE_CHECKING:
    from specdash.control.plans import StepEvent
    from specdash.host.link import Link
    from specdash.sglang.story import Story
    from specdash.verbs.context import Context

EVERY_S = 0.5
PIECE = 1 << 20
BAR = 24


async def shown(
    context: Context, link: Link, run_id: str, events: AsyncIterator[StepEvent]
) -> AsyncIterator[StepEvent]:
    """The events as they are; between them, from the first of step "ready" on, the load of the run is shown."""
    drawing: asyncio.Task[None] | None = None
    lines = Lines(context)
    try:
        async for event in events:
            if event.final and drawing is not None:
                drawing.cancel()
            lines.clear()
            yield event
            if drawing is None and event.step == "ready" and event.status == "running":
                drawing = asyncio.create_task(_watch(link, run_id, lines))
    finally:
        if drawing is not None:
            drawing.cancel()
            with suppress(
                asyncio.CancelledError, Exception
            ):  # a load that cannot be shown goes on all the same
                await drawing
        lines.clear()


class Lines:
    """What is on the terminal now. `clear` before anything else is written there."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._live = context.err.isatty() and os.environ.get("TERM") != "dumb"
        self._phase = ""
        self._drawn = False
        self._began = time.monotonic()

    def show(self, story: Story) -> None:
        from specdash.sglang.phases import TITLES

        if self._live:
            self._context.err.write("\r\x1b[K" + line(story, time.monotonic() - self._began))
            self._context.err.flush()
            self._drawn = True
        elif story.phase != self._phase and story.phase != "unknown":
            self._context.say(f"[running] {TITLES.get(story.phase, story.phase)}")
            self._phase = story.phase

    def clear(self) -> None:
        if self._drawn:
            self._context.err.write("\r\x1b[K")
            self._context.err.flush()
            self._drawn = False


def line(story: Story, seconds: float) -> str:
    """`loading weights [######......] 12/28 shards, 35 s`: at most 79 columns, ASCII."""
    from specdash.sglang.phases import TITLES

    bar, words = story.bar, TITLES.get(story.phase, story.phase)
    if bar is not None and bar.phase == story.phase and bar.total > 0 and 0 <= bar.done <= bar.total:
        full = BAR * bar.done // bar.total
        words += f" [{'#' * full}{'.' * (BAR - full)}] {bar.done}/{bar.total} {bar.unit}"
    text = f"  {words}, {seconds:.0f} s"
    return "".join(char if " " <= char <= "~" else "?" for char in text)[:79]


async def _watch(link: Link, run_id: str, lines: Lines) -> None:
    """Reads the run's log as it grows, until cancelled."""
    from specdash.sglang.story import Story, feed

    story, offset, path = Story(), 0, ""
    while True:
        with suppress(RemoteError, TimeoutError):
            if not path:
                base = {"base": link.hello["base"], "id": run_id, "positions": {}}
                record = (await link.call("runs.read", base))["record"]
                path = str(record.get("log_path") or f"{record['folder']}/server.log")
            got = await link.call("file.read", {"path": path, "offset": offset, "max_bytes": PIECE})
            data = bytes(got["blob"])
            offset += len(data)
            story = feed(story, data)
            lines.show(story)
        await asyncio.sleep(EVERY_S)
