"""A fast log must not keep the loop from keys and samples: it is told in pieces that cost little, with turns between."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from specdash.host.link import TailChunk
from specdash.monitor import follow_run
from specdash.monitor.events import Event, LogRead
from specdash.monitor.follow_run import LEAST_PIECE, MOST_BUSY_S, MOST_PIECE, TURNS, RunFollower
from specdash.monitor.logstore import LogStore

DATA = bytes(range(256)) * 1024


class Reader:
    """A follower whose events cost `s_per_byte` of CPU, on a clock of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, s_per_byte: float) -> None:
        self.clock = 0.0
        self.cost = s_per_byte
        self.told: list[LogRead] = []
        self.turns = 0
        self.turns_at: list[int] = []
        monkeypatch.setattr(follow_run.time, "thread_time", lambda: self.clock)
        self.follower = RunFollower("h", "r", self.emit, lambda run: None, LogStore("h", "r", folder))

    def emit(self, event: Event) -> None:
        assert isinstance(event.body, LogRead)
        self.told.append(event.body)
        self.turns_at.append(self.turns)
        self.clock += len(event.body.data) * self.cost

    async def tell(self, times: int) -> None:
        async def count() -> None:
            while True:
                await asyncio.sleep(0)
                self.turns += 1

        other = asyncio.create_task(count())
        for turn in range(times):
            chunk = TailChunk(DATA, turn * len(DATA), times * len(DATA), 1, 2, 3, "")
            await self.follower._tell(chunk, turn * len(DATA))
        other.cancel()
        self.follower.store.close()


async def test_a_log_that_is_dear_to_read_comes_in_small_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(tmp_path, monkeypatch, 1e-7)  # 10 MB/s: a whole chunk would take 26 ms
    await reader.tell(3)
    told = reader.told
    assert b"".join(piece.data for piece in told) == DATA * 3
    ends = [piece.offset + len(piece.data) for piece in told]
    assert [piece.offset for piece in told] == [0, *ends[:-1]]
    assert {piece.size for piece in told} == {3 * len(DATA)} and {piece.generation for piece in told} == {1}
    assert all(len(piece.data) * reader.cost <= MOST_BUSY_S for piece in told[-4:])
    between = [b - a for a, b in zip(reader.turns_at, reader.turns_at[1:], strict=False)]
    assert min(between) >= TURNS - 1, "others have their turns between two pieces"


async def test_pieces_grow_again_and_stay_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(tmp_path, monkeypatch, 1e-5)
    await reader.tell(2)
    assert reader.follower._piece == LEAST_PIECE
    reader.cost = 1e-9
    await reader.tell(2)
    assert reader.follower._piece == MOST_PIECE
    assert len(reader.told[-1].data) == len(DATA), "one piece a chunk again"
