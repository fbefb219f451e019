"""A running or ended plan: its steps, live, and its outcome, loud when it failed or rolled back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdash.monitor.state import ActionState, HostState
from specdash.tui.cells import cut, cut_line, heading, width_of, wrap
from specdash.tui.words import Line, age, one_line

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


def outcome(action: ActionState) -> str:
    """Its status; `rolled_back` for a switch that failed but brought back what served before."""
    return action.final if action.status == "failed" and action.final == "rolled_back" else action.status


def title_of(step: Mapping[str, Any]) -> str:
    name, title = str(step.get("name") or ""), str(step.get("title") or "")
    return TITLES.get(name, one_line(name).replace("_", " ")) if title in ("", name) else one_line(title)


def height_of(action: ActionState | None, told: bool = False) -> int:
    """Rows that the panel would like. `told`: the server panel says already why it failed."""
    if action is None:
        return 0
    if told and action.status != "running":
        return 2
    return min(MOST_ROWS, 1 + len(action.steps) + bool(action.sentence and action.status != "running"))


def shown_action(host: HostState | None, read: frozenset[str]) -> ActionState | None:
    """The running plan, else the newest ended one that the operator has not put away."""
    if host is None:
        return None
    for action in sorted(host.actions, key=lambda a: a.changed, reverse=True):
        if action.status == "running":
            return action
    for action in sorted(host.actions, key=lambda a: a.changed, reverse=True):
        if action.status in ("failed", "refused", "aborted") and action.id not in read:
            return action
    return None


def doing_rows(
    action: ActionState | None, now: float, width: int, height: int, told: bool = False
) -> list[Line]:
    """The plan in at most `height` rows. `told`: the server panel says already why it failed."""
    if action is None or height < 1:
        return []
    word, role = STATUS.get(outcome(action), (action.status, ""))
    right: Line = [(word, role), (f" {age(now - action.since)}", "dim")]
    if action.status != "running":
        right.append((" Esc: put away", "dim"))
    title = one_line(action.title)
    if width_of(right) + len(title) + 8 > width:
        # The outcome matters more than the names of both sides, which the rows below repeat.
        right = right[:1] if action.status != "running" else right
    rows = [heading([(title, "strong")], right, width)]
    steps: list[Line] = []
    for step in action.steps:
        status = str(step.get("status") or "")
        if told and action.status != "running" and status != "failed":
            continue
        name = str(step.get("name") or "")
        if name in BACK and outcome(action) == "rolled_back":
            status = "done"
        glyph, step_role = STEP_GLYPH.get(status, ("·", "dim"))
        line: Line = [(f" {glyph} ", step_role), (title_of(step), "")]
        sentence = one_line(step.get("sentence") or "")
        if sentence and not (told and action.status != "running"):
            line.append((f"  {sentence}", step_role if status == "failed" else "dim"))
        steps.append(cut_line(line, width))
    words = (
        [[(" " + row, role)] for row in wrap(one_line(action.sentence), width - 2)]
        if action.sentence and action.status != "running" and not told
        else []
    )
    room = max(0, height - 1 - len(words[:2]))
    if len(steps) > room:
        current = next((i for i, s in enumerate(action.steps) if s.get("status") in ("running", "failed")), 0)
        first = max(0, min(current - room // 2, len(steps) - room))
        steps = steps[first : first + room]
    return [*rows, *steps, *words[: max(1, height - 1 - len(steps))]][:height]


def action_word(action: ActionState, width: int) -> str:
    return cut(one_line(f"{action.title}: {action.step}"), width)
