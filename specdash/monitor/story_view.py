"""The only place of the monitor that knows how `sglang.story` spells things."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import replace
from functools import lru_cache

from specdash.monitor import memory
from specdash.monitor.state import ServerState
from specdash.sglang import causes as story_causes
from specdash.sglang import story as story_room
from specdash.sglang.batches import Batch
from specdash.sglang.causes import Cause
from specdash.sglang.phases import Phase
from specdash.sglang.story import Story

_COPY = re.compile(r"(?:^| )(?:TP|PP|EP)(\d+)")


def feed(story: Story, data: bytes, at: float, batches: list[Batch] | None = None) -> Story:
    """The story with `data` more; `batches` gets all decode and prefill lines in it."""
    return story_room.feed(story, data, at, batches)


@lru_cache(maxsize=4096)
def counts(rank: str) -> bool:
    """Whether lines of this rank are the numbers of its DP rank; those of other TP ranks are copies.

    With DP attention, DP1 may be TP4: only ranks without a DP part are judged by their TP number.
    """
    return "DP" in rank or all(number == "0" for number in _COPY.findall(rank))


def phases(server: ServerState) -> tuple[Phase, ...]:
    """The phases of a load, the first one from the start of the process (to 2 s, where the samples tell it).

    A log has its first dated line only when the imports are over, 30 to 50 s later on an H200.
    """
    found = tuple(server.story.phases)
    started = server.status.started_boot_s
    if len(found) < 2 or started is None or found[0].ended is None or found[0].seconds is None:
        return found
    was = memory.of(server)
    end = was.log_base + found[1].offset + 1
    if not was.log_clock or end > was.log_clock[-1][0]:
        return found
    took = was.log_clock[bisect_left(was.log_clock, (end, float("-inf")))][1] - started
    if took <= found[0].seconds:
        return found
    return (replace(found[0], began=found[0].ended - took), *found[1:])


def stage(story: Story) -> str:
    """ "starting", "warmup", "ready", "exited", or empty when the log does not tell."""
    phase = story.phase
    if phase in ("", "unknown"):
        return ""
    if phase in ("ready", "serving"):
        return "ready" if not story.false_ready else "starting"
    if phase == "starting_http_or_warmup":
        return "warmup"
    return "exited" if phase == "exited" else "starting"


def causes(server: ServerState, ended: bool) -> tuple[Cause, ...]:
    """The first cause of an ended run, or everything that the log finds wrong with a living one.

    A living one may be past saving: it failed to bind, or a process of it died and it waits for core dumps.
    """
    if not ended:
        found = story_causes.first_cause(server.story, http_port=server.run.http_port)
        conditions = story_causes.all_conditions(server.story)
        return (found, *conditions) if found is not None and found.crashed else conditions
    if not server.log.missing and (not server.log.read or server.log.behind):
        return ()  # "the log names no cause" can be said of a log that was read
    status = server.status
    found = story_causes.first_cause(
        server.story,
        status.exit_code,
        status.exit_signal,
        http_port=server.run.http_port,
    )
    return (found,) if found is not None else ()
