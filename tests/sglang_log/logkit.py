"""The captured logs of real servers, vendored as one archive, and small helpers."""

from __future__ import annotations

import json
import tarfile
from functools import lru_cache
from pathlib import Path
from unittest import mock

from specdash.sglang.story import Story, feed, finish
from specdash.sglang.telling import Teller

DATA = Path(__file__).parent.parent / "data"


@lru_cache
def captures() -> dict[str, bytes]:
    """`0.5.23-cpu/base` → its server.log."""
    return {name: data for name, (data, _) in _all().items()}


@lru_cache
def exit_codes() -> dict[str, int | None]:
    """The exit code that the harness saw, where it did."""
    return {name: code for name, (_, code) in _all().items()}


@lru_cache
def _all() -> dict[str, tuple[bytes, int | None]]:
    files: dict[str, bytes] = {}
    with tarfile.open(DATA / "logs" / "captures.tar.xz") as archive:
        for member in archive:
            stream = archive.extractfile(member)
            if stream is not None:
                files[member.name.removeprefix("./")] = stream.read()
    found = {}
    for name, data in files.items():
        if name.endswith("/server.log"):
            folder = name.removesuffix("/server.log")
            rows = files.get(f"{folder}/events.jsonl", b"").splitlines()
            code = json.loads(rows[-1]).get("rc") if rows else None
            found[folder.removeprefix("sglang-")] = (data, code)
    return found


def told(text: str | bytes) -> Story:
    """The story of a whole log."""
    return finish(feed(Story(), text.encode() if isinstance(text, str) else text))


def cut(data: bytes, sizes: list[int]) -> Story:
    """The story of the same bytes in chunks of these sizes, over and over."""
    story, start, i = Story(), 0, 0
    while start < len(data):
        size = sizes[i % len(sizes)]
        story = feed(story, data[start : start + size])
        start, i = start + size, i + 1
    return story


def line_by_line(data: bytes) -> Story:
    """The story without what is remembered of the shapes of lines: every one is read by the rules."""
    with mock.patch.object(Teller, "quick", lambda self: False):
        return feed(Story(), data)
