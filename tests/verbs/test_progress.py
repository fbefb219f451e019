"""The load that `launch --wait` shows: one line drawn over itself on a terminal, a line a phase in a pipe."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from typing import Any

import pytest

from specdash.control.plans import StepEvent
from specdash.sglang.story import Story, feed
from specdash.verbs import progress
from specdash.verbs.context import Context

LOG = [
    b"[2026-11-29 12:00:00 TP0] Init torch distributed begin.\n",
    b"[2026-11-29 12:00:01 TP0] Load weight begin. avail mem=70.00 GB\n",
    b"Loading safetensors checkpoint shards:  43% Completed | 12/28 [00:05<00:06,  2.5it/s]\r",
    b"\n[2026-11-29 12:00:09 TP0] Load weight end. type=X, dtype=bf16, avail mem=9.00 GB, mem usage=60 GB.\n",
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Log:
    """A link whose run's log grows by one piece a look."""

    def __init__(self) -> None:
        self.hello = {"base": "/b"}
        self.looks = 0
        self.asked = asyncio.Event()

    async def call(self, method: str, params: dict[str, Any], **_: object) -> dict[str, Any]:
        if method == "runs.read":
            return {"record": {"folder": "/r"}}
        self.looks += 1
        if self.looks > len(LOG) + 1:
            self.asked.set()
        return {"blob": b"".join(LOG[: self.looks])[params["offset"] :]}


async def drive(err: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[StepEvent]]:
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    link = Log()

    async def events() -> AsyncIterator[StepEvent]:
        yield StepEvent("p", "ready", "running", "Loading.")
        await asyncio.wait_for(link.asked.wait(), 10)
        yield StepEvent("p", "ready", "done", "It is ready.", final="done")

    context = Context(err=err)
    seen = []
    async for event in progress.shown(context, link, "r", events()):  # type: ignore[arg-type]
        context.say(event.sentence)
        seen.append(event)
    return err.getvalue(), seen


async def test_on_a_terminal_one_line_is_drawn_over_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    text, seen = await drive(Terminal(), monkeypatch)
    assert [event.sentence for event in seen] == ["Loading.", "It is ready."]
    assert "loading weights [##########..............] 12/28 shards, 0 s" in text
    assert text.count("\n") == 2, "only what was said has an end of line"
    assert text.endswith("\r\x1b[KIt is ready.\n"), "the bar is gone before the next words"


async def test_in_a_pipe_each_phase_is_one_plain_line(monkeypatch: pytest.MonkeyPatch) -> None:
    text, _ = await drive(io.StringIO(), monkeypatch)
    lines = text.splitlines()
    assert lines[0] == "Loading." and lines[-1] == "It is ready." and "\x1b" not in text and "\r" not in text
    assert "[running] loading weights" in lines and len(lines) == len(set(lines)) < 8


def test_nothing_of_a_log_can_draw_on_the_terminal() -> None:
    story = feed(
        Story(), b"[2026-11-29 12:00:01 TP0] Load weight begin. avail mem=70.00 GB\n\x1b[2J" + b"x" * 5000
    )
    assert progress.line(story, 1e9).isascii() and len(progress.line(story, 1e9)) <= 79
