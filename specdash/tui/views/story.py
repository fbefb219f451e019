"""Reads the parser's `Story` for the load view: which phases were, which is now, and why it failed."""

from __future__ import annotations

from specdash.monitor import story_view
from specdash.monitor.reduce_link import boot_now
from specdash.monitor.state import HostState, ServerState
from specdash.sglang.causes import Cause
from specdash.sglang.phases import Phase, position
from specdash.tui.views.link import server_word
from specdash.tui.views.load import USUAL, CauseRow, PhaseRow
from specdash.tui.words import one_line


def phases_of(server: ServerState, now: float) -> list[PhaseRow]:
    """Phases that were, in order, the one that is now, and those that usually follow."""
    story = server.story
    word = server_word(server)
    ended = word in ("failed", "stopped")
    rows: list[PhaseRow] = []
    for index, phase in enumerate(story_view.phases(server)):
        if phase.name in ("unknown", "serving", "exited"):
            continue
        last = index == len(story.phases) - 1
        status = "done"
        if last and phase.ended is None and phase.ended_at is None:
            status = "failed" if word == "failed" else "done" if ended or phase.name == "ready" else "now"
        row = PhaseRow(phase.name, status, _seconds(phase, server, now, status), note=phase.sub)
        if status in ("now", "failed") and story.progress is not None:
            bar = story.progress
            row = PhaseRow(row.name, status, row.seconds, bar.done, bar.total, _note(phase.sub, bar.unit))
        rows.append(row)
    if not rows:
        rows.append(PhaseRow("starting", "failed" if word == "failed" else "now"))
    if not ended:
        reached = max(position(row.name) for row in rows)
        rows += [PhaseRow(name, "next") for name in USUAL if position(name) > reached]
    return rows


def _note(sub: str, unit: str) -> str:
    return " ".join(part for part in (unit, f"({sub})" if sub else "") if part)


def _seconds(phase: Phase, server: ServerState, now: float, status: str) -> float | None:
    if phase.seconds is not None:
        return phase.seconds
    if status == "now" and phase.began_at is not None:
        return max(0.0, now - phase.began_at)
    return None


def elapsed_of(host: HostState, server: ServerState, now: float) -> float | None:
    """Seconds since the launch by the host's own boot clock; to its end when it ended, to ready when it got so."""
    status = server.status
    if status.started_boot_s is None:
        return None
    end = status.ended_boot_s if status.ended_boot_s is not None else status.ready_boot_s
    if end is None:
        end = boot_now(host, now)
    return None if end is None else max(0.0, end - status.started_boot_s)


def cause_of(server: ServerState) -> CauseRow | None:
    """The first cause of a failure, as the log tells it."""
    if server_word(server) != "failed":
        return None
    key = (server.run.id, server.story.size, server.status.exit_code, server.status.exit_signal)
    if key not in _CAUSES:
        if len(_CAUSES) > 64:
            _CAUSES.clear()
        found = story_view.causes(server, True)
        _CAUSES[key] = _row(found[0]) if found and found[0].sentence else None
    return _CAUSES[key]


_CAUSES: dict[tuple[object, ...], CauseRow | None] = {}
"""Judging reads the whole evidence: once per ended run, not once per frame."""


def _row(cause: Cause) -> CauseRow:
    lines = tuple(one_line(item) for item in cause.evidence) or tuple(
        one_line(row) for row in cause.traceback[-3:]
    )
    return CauseRow(one_line(cause.sentence), lines, one_line(" ".join(cause.advice[:2])))
