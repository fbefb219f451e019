"""A running or ended plan: its steps, live, and its outcome, loud when it failed or rolled back."""

from __future__ import annotations

from specdash.monitor.state import ActionState, HostState
from specdash.tui.cells import cut, cut_line, heading, wrap
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
}


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


def doing_rows(action: ActionState | None, now: float, width: int, height: int) -> list[Line]:
    if action is None or height < 2:
        return []
    word, role = STATUS.get(action.status, (action.status, ""))
    right: Line = [(word, role), (f" {age(now - action.since)}", "dim")]
    if action.status != "running":
        right.append((" Esc: put away", "dim"))
    rows = [heading([(one_line(action.title), "strong")], right, width)]
    steps: list[Line] = []
    for step in action.steps:
        status = str(step.get("status") or "")
        glyph, step_role = STEP_GLYPH.get(status, ("·", "dim"))
        line: Line = [(f" {glyph} ", step_role), (one_line(step.get("title") or step.get("name") or ""), "")]
        sentence = one_line(step.get("sentence") or "")
        if sentence:
            line.append((f"  {sentence}", step_role if status == "failed" else "dim"))
        steps.append(cut_line(line, width))
    words = (
        [[(" " + row, role)] for row in wrap(one_line(action.sentence), width - 2)]
        if action.sentence and action.status != "running"
        else []
    )
    room = height - 1 - len(words[:2])
    if len(steps) > room:
        current = next((i for i, s in enumerate(action.steps) if s.get("status") in ("running", "failed")), 0)
        first = max(0, min(current - room // 2, len(steps) - room))
        steps = steps[first : first + max(0, room)]
    return [*rows, *steps, *words[: max(1, height - 1 - len(steps))]][:height]


def action_word(action: ActionState, width: int) -> str:
    return cut(one_line(f"{action.title}: {action.step}"), width)
