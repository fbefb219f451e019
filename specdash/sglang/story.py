"""The story that a server's log tells: `feed` it bytes as they come, in chunks of any size.

    story = feed(Story(), data, at=now)

Parsed once, on arrival. Any cutting of the same bytes gives the same story, and a prefix cut at any byte gives
exactly the story that the whole had at that byte: an incomplete line waits in `story.rest`.
"""

from __future__ import annotations

from typing import List, Optional

from specdash.sglang.batches import Batch
from specdash.sglang.storytypes import DpState, Evidence, HistoryPoint, Note, RankState, Story
from specdash.sglang.telling import tell

__all__ = ["DpState", "Evidence", "HistoryPoint", "Note", "RankState", "Story", "feed", "finish"]

CHUNK = 1 << 20


def feed(
    story: Story, data: bytes, at: Optional[float] = None, batches: Optional[List[Batch]] = None
) -> Story:
    """The story with `data` more of the log.

    `at` is when the bytes arrived, in seconds on any clock of the caller's (the log's own times go by the host's
    wall clock); it goes into phases, decode lines and evidence. `batches` gets every decode and prefill line of
    `data`: a story keeps only the newest ones.
    """
    if len(data) <= CHUNK:
        return tell(story, data, at, batches) if data else story
    for start in range(0, len(data), CHUNK):
        story = tell(story, data[start : start + CHUNK], at, batches)
    return story


def finish(story: Story, at: Optional[float] = None) -> Story:
    """The story of a log that will not grow: its last line counts although no LF ended it."""
    if not story.rest:
        return story
    size = story.size
    whole = tell(story, b"\n", at)
    return Story(**{**vars(whole), "size": size, "lines": whole.lines})
