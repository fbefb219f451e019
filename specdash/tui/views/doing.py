"""A running or ended plan: its steps, live, and its outcome, loud when it failed or rolled back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdash.monitor.state import ActionState, HostState, ServerState
from specdash.tui.cells import clip, cut_line, heading, width_of, wrap
from specdash.tui.views.story import cause_of
from specdash.tui.words import Line, Span, age, one_line

STEP_GLYPH = {
    "running": ("▶", "warn"),
    "done": ("✓", "ok"),
    "failed": ("✗", "bad-strong"),
    "skipped": ("·", "dim"),
    "": ("·", "dim"),
    "waiting": ("·", "dim"),
}
STATUS = {
    "running": ("▶ running", "warn"),
    "done": ("✓ done", "ok"),
    "failed": ("✗ FAILED", "bad-strong"),
    "refused": ("✗ refused", "bad"),
    "aborted": ("✗ aborted", "warn"),
    "rolled_back": ("⚠ rolled back", "warn-strong"),
    "stands_still": ("⚠ stands still", "bad-strong"),
}
MOST_ROWS = 7


TITLES = {
    "measure": "Pulse of the present server",
    "warm": "Read its files into the page cache",
    "stop": "Close it and stop it, with proof",
    "launch": "Launch the next one",
    "ready": "Wait for a real generation",
    "pulse": "Pulse on fixed prompts",
    "watch": "It has to live for a while",
    "rollback": "Go back",
    "rollback_stop": "Stop what was tried",
    "rollback_launch": "Launch the previous one again",
    "rollback_ready": "Wait for a real generation of it",
    "rollback_pulse": "Pulse of the previous one",
    "back": "The old weights go in again",
}
"""Steps that no plan lists: the way back, and those of a switch that another specdash began."""
BACK = ("rollback", "back")


STANDS = "Its program on the host was killed. u goes on with it, or takes it back."


def outcome(action: ActionState) -> str:
    """Its status; `rolled_back` for a switch that failed but brought back what served before."""
    special = ("rolled_back", "stands_still")
    return action.final if action.status == "failed" and action.final in special else action.status


def title_of(step: Mapping[str, Any]) -> str:
    name, title = str(step.get("name") or ""), str(step.get("title") or "")
    return TITLES.get(name, one_line(name).replace("_", " ")) if title in ("", name) else one_line(title)


def height_of(action: ActionState | None, width: int, told: bool = False) -> int:
    """Rows that the panel would like. `told`: the server panel says already why it failed."""
    if action is None:
        return 0
    return min(MOST_ROWS, 1 + len(_steps(action, width, told)) + len(_words(action, width, told)))


def shown_action(host: HostState | None, read: frozenset[str]) -> ActionState | None:
    """The running plan, else the newest ended one that the operator has not put away."""
    if host is None:
        return None
    newest = sorted(host.actions, key=lambda action: action.changed, reverse=True)
    running = (action for action in newest if action.status == "running")
    ended = (
        action
        for action in newest
        if action.status in ("failed", "refused", "aborted") and action.id not in read
    )
    return next(running, None) or next(ended, None)


def told_above(action: ActionState | None, server: ServerState | None) -> bool:
    """The server panel says already why it failed: a launch whose run is the one that is shown, with its cause."""
    return (
        action is not None
        and action.kind == "launch"
        and server is not None
        and server.status.ended_boot_s is not None
        and one_line(server.run.profile) in action.title.split()
        and cause_of(server) is not None
    )


def _steps(action: ActionState, width: int, told: bool) -> list[Line]:
    """All steps while it runs; afterwards those that say what went wrong and what was done about it."""
    out: list[Line] = []
    over = action.status != "running"
    for step in action.steps:
        status, name = str(step.get("status") or ""), str(step.get("name") or "")
        if name in BACK and outcome(action) == "rolled_back":
            status = "done"
        if over and status != "failed" and not (name in BACK and status):
            continue
        glyph, role = STEP_GLYPH.get(status, ("·", "dim"))
        line: Line = [(f" {glyph} ", role), (title_of(step), "")]
        sentence = one_line(step.get("sentence") or "")
        if sentence and not (told and over) and sentence != one_line(action.sentence):
            line.append((f"  {sentence}", role if status == "failed" else "dim"))
        out.append(cut_line(line, width))
    return out


def _words(action: ActionState, width: int, told: bool) -> list[Line]:
    if action.status == "running" or told or not action.sentence:
        return []
    role = STATUS.get(outcome(action), ("", ""))[1]
    return [[(" " + row, role)] for row in wrap(one_line(action.sentence), width - 2)]


def doing_rows(
    action: ActionState | None, now: float, width: int, height: int, told: bool = False
) -> list[Line]:
    """The plan in at most `height` rows. `told`: the server panel says already why it failed."""
    if action is None or height < 1:
        return []
    word, role = STATUS.get(outcome(action), (action.status, ""))
    right: Line = [(word, role), (f" {age(now - action.since)}", "dim")]
    title = one_line(action.title)
    if action.status != "running":
        away: Span = (" Esc: put away", "dim")
        # How long it took gives way to the names, the way to put it away does not.
        right = [*right, away] if width_of([*right, away]) + len(title) + 8 <= width else [right[0], away]
    steps, words = _steps(action, width, told), _words(action, width, told)
    room = max(0, height - 1 - min(len(words), 3))
    if len(steps) > room:
        current = next((i for i, s in enumerate(action.steps) if s.get("status") in ("running", "failed")), 0)
        first = max(0, min(current - room // 2, len(steps) - room))
        steps = steps[first : first + room]
    rows = [heading([(title, "strong")], right, width), *steps]
    return [*rows, *clip(words, height - len(rows), width)][:height]
