"""What is new since the last check of the same command line: errors in the log, and tokens that did not move."""

from __future__ import annotations

import time
from collections.abc import Iterator

from specdash.check.marks import BEFORE, Mark
from specdash.check.states import Finding, State
from specdash.errors import RemoteError
from specdash.host.link import Link
from specdash.monitor import memory
from specdash.monitor.liveness import DEAF_S, GAUGE_LAG_S
from specdash.monitor.state import ServerState
from specdash.sglang.story import Story, feed
from specdash.sglang.storytypes import Evidence

MOST_NEW = 4 << 20
"""Bytes of log between two checks that are read for errors; of more, the newest."""
LONGEST_S = 86400.0
"""A counter that stood still between two checks further apart than this proves nothing."""


def log_news(
    mark: Mark, now_unix: float, data: bytes, left_out: int, said: str
) -> tuple[int, tuple[Finding, ...]]:
    """(number of errors in what was written since the mark, what to say of it). `said` goes before each sentence."""
    story = feed(Story(), data)
    if not story.errors:
        return 0, ()
    count = f"{story.errors} error{'s' if story.errors > 1 else ''}"
    since = f"since the last check, {_ago(now_unix - mark.at_unix)} ago"
    first = _first(story)
    more = f" ({left_out >> 20} MiB before that were not read)" if left_out else ""
    found = Finding(
        State.WARNING,
        "log-errors",
        f"{said}{count} in the log {since}{more}" + (f", the first: {first}" if first else ""),
        tuple(_words(one) for one in story.all_evidence[:5]),
        "See: specdash logs, specdash explain",
    )
    return story.errors, (found,)


def _first(story: Story) -> str:
    told = [(one.offset, _words(one)) for one in story.all_evidence]
    told += [(note.offset, note.text) for note in story.notes if note.kind == "error"]
    return min(told, default=(0, ""))[1][:160]


def _words(one: Evidence) -> str:
    return one.errors[-1] if one.errors else one.head


def _ago(seconds: float) -> str:
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


async def new_log(link: Link, path: str, mark: Mark, end: int, timeout: float) -> tuple[bytes, int]:
    """(whole lines from the mark to `end`, bytes left out before them). Nothing where the file is another one now."""
    begin = max(mark.offset, end - MOST_NEW)
    lead = min(BEFORE, mark.offset) if begin == mark.offset else 0
    try:
        got = await link.call(
            "file.read",
            {"path": path, "offset": begin - lead, "max_bytes": end - begin + lead},
            timeout=timeout,
        )
    except RemoteError:
        return b"", 0
    data = bytes(got.get("blob", b""))
    if not mark.same_file(got.get("device"), got.get("inode")):
        return b"", 0
    if lead and data[:lead].hex() != mark.before[-2 * lead :]:
        return b"", 0
    data = data[lead:]
    if begin > mark.offset:
        data = data[data.find(b"\n") + 1 :]
    return data[: data.rfind(b"\n") + 1], begin - mark.offset


def still(server: ServerState, mark: Mark, now_unix: float, said: str) -> Iterator[Finding]:
    """Requests ran at the last check and run now, and no token came between: what one short look cannot see."""
    counts = memory.of(server).counts
    if not counts or server.health.state in ("down", "hung_suspected"):
        return
    newest, apart = counts[-1], now_unix - mark.at_unix
    if not newest.running or not mark.running or newest.tokens is None or newest.tokens != mark.tokens:
        return
    if not GAUGE_LAG_S <= apart <= LONGEST_S:
        return
    kept = memory.of(server)
    if any(at is not None and at >= newest.at - apart for at in (kept.last_decode, kept.last_prefill)):
        return  # the log saw batches since
    sentence = f"{said}{newest.running:.0f} requests run and no token has moved since the last check, {_ago(apart)} ago"
    yield Finding(
        State.CRITICAL, "tokens-frozen", sentence, (f"token counter {newest.tokens:.0f} then and now",)
    )


def deaf(server: ServerState, word: str, seconds: float, said: str) -> Finding:
    """A port that gave no answer though nothing else speaks against the server: one look proves little, two do."""
    port = server.run.http_port
    if seconds >= DEAF_S:
        sentence = f"{said}port {port} gives no answer ({word}), since {_ago(seconds)}"
        return Finding(State.CRITICAL, "deaf", sentence, step="See: specdash stacks, specdash logs")
    return Finding(State.WARNING, "deaf", f"{said}port {port} gave no answer ({word})")


def now_unix() -> float:
    return time.time()
