"""A plan, shown before it runs: what dies, every check, each step's exact effect, and the exact command.

Cancel has the focus. What is blocked cannot be confirmed; what is dangerous may ask for a name to be typed, and then
the name has the focus.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import Button, Input

from specdash.control.plans import Danger, Plan
from specdash.errors import SpecdashError
from specdash.tui.cells import cut_line, wrap
from specdash.tui.dialogs.base import Body, Choice, Modal
from specdash.tui.paint import Lines
from specdash.tui.words import Line, age, one_line

CHECK = {"ok": ("✓", "ok"), "warn": ("!", "warn"), "block": ("✗", "bad-strong"), "not_checked": ("?", "dim")}
VERB = {
    "launch": "Launch",
    "stop": "Stop",
    "switch": "Switch",
    "hot_switch": "Hot switch",
    "adopt": "Adopt",
    "tune": "Tune",
    "cleanup": "Clean up",
}


class Name(Input):
    """Where a name is typed. Enter does nothing until it matches, then goes to the button; it never confirms by itself."""

    async def action_submit(self) -> None:
        dialog = self.screen
        if not isinstance(dialog, PlanDialog):
            return
        if dialog.may_go():
            # At once: an Enter typed right after must find the button.
            dialog.set_focus(dialog.query_one("#go"))
        elif dialog.plan is not None:
            wanted = one_line(dialog.plan.typed_name)
            words = (
                f"“{one_line(self.value)}” is not “{wanted}”" if self.value else f"“{wanted}” is to be typed"
            )
            dialog.note(f"✗ {words}: nothing was done. Esc cancels.")


class PlanDialog(Modal[tuple[Plan, str] | None]):
    """Dismissed with (plan, typed name) when confirmed, else None. Nothing on the host changes here."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "cancel", id="plan.cancel"),
        Binding("left,right", "other_button", "other button", show=False),
        Binding("down,j", "scroll(1)", "down", show=False),
        Binding("up,k", "scroll(-1)", "up", show=False),
        Binding("pagedown", "scroll(8)", "page down", show=False),
        Binding("pageup", "scroll(-8)", "page up", show=False),
        Binding("y", "copy", "copy the command", id="plan.copy"),
    ]
    DEFAULT_CSS = """
    PlanDialog .dialog { layout: vertical; }
    PlanDialog #plan-body { height: auto; max-height: 92vh; }
    PlanDialog #typed { display: none; }
    """

    class Made(Message):
        """The plan came, or why there is none."""

        def __init__(self, plan: Plan | None, problem: SpecdashError | None) -> None:
            super().__init__()
            self.plan = plan
            self.problem = problem

    def __init__(
        self,
        words: str,
        make: Callable[[], Awaitable[Plan]],
        *,
        command: str = "",
    ) -> None:
        super().__init__()
        self.words = words
        self.make = make
        self.command = command
        self.plan: Plan | None = None
        self.problem: SpecdashError | None = None

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = ""
            with Body(id="plan-body", can_focus=False):
                yield Lines(id="plan-rows")
            yield Name(id="typed")
            yield Lines(id="typed-note")
            with Horizontal(classes="buttons"):
                yield Choice("Cancel", id="cancel")
                yield Choice("…", id="go", disabled=True)

    def on_mount(self) -> None:
        self.set_focus(self.query_one("#cancel"))
        self.update()
        self.run_worker(self._make(), exclusive=True)

    async def _make(self) -> None:
        try:
            self.post_message(self.Made(await self.make(), None))
        except SpecdashError as problem:
            self.post_message(self.Made(None, problem))

    def on_plan_dialog_made(self, message: Made) -> None:
        self.plan, self.problem = message.plan, message.problem
        go = self.query_one("#go", Choice)
        plan = self.plan
        if plan is None:
            go.display = False
        else:
            go.say(VERB.get(plan.kind, plan.kind.capitalize()))
            go.disabled = bool(plan.blocked)
            go.display = not plan.blocked
            go.set_class(plan.danger is Danger.DESTROYS, "destroys")
            if plan.typed_name and not plan.blocked:
                typed = self.query_one("#typed", Input)
                typed.placeholder = f"type {one_line(plan.typed_name)} to confirm (Esc cancels)"
                typed.display = True
                go.disabled = True
                # Typing just works, and an Enter here is harmless until the name is right.
                self.set_focus(typed)
                self.call_after_refresh(self._still_typing)
        self.update()

    def _still_typing(self) -> None:
        """A layout that was under way when the field appeared takes the focus away again."""
        self.set_focus(self.query_one("#typed"))

    def update(self) -> None:
        width = max(30, self.query_one(".dialog").size.width - 1)
        rows = [cut_line(row, width) for row in self.rows(width)]
        self.query_one("#plan-rows", Lines).show_rows(rows)
        # Said outright: an auto height in an auto height is measured without its limit, and leaves empty rows below.
        below = 6 + (2 if self.plan is not None and self.plan.typed_name else 0)
        self.query_one("#plan-body").styles.height = max(3, min(len(rows), self.size.height - 2 - below))

    def on_resize(self) -> None:
        self.call_after_refresh(self.update)

    def rows(self, width: int) -> list[Line]:
        if self.problem is not None:
            out: list[Line] = [
                [(row, "bad-strong")] for row in wrap("✗ " + one_line(self.problem.sentence), width, "  ")
            ]
            return out + [[(row, "")] for row in wrap(one_line(self.problem.step), width)]
        plan = self.plan
        if plan is None:
            return [[(one_line(self.words), "dim")]]
        out = [
            [
                (one_line(plan.title), "title"),
                (f"   {plan.danger.value}", "warn" if plan.danger is not Danger.NONE else "dim"),
            ]
        ]
        for note in plan.notes:
            out += [[(row, "")] for row in wrap("· " + one_line(note), width, "  ")]
        if plan.blocked:
            count = len(plan.blocked)
            out.append(
                [
                    (
                        f"{count} {'check blocks' if count == 1 else 'checks block'} this: nothing was changed.",
                        "bad-strong",
                    )
                ]
            )
        if plan.checks:
            out += [[("", "")], [(f"Checks ({len(plan.checks)})", "title")]]
            order = {"block": 0, "warn": 1, "not_checked": 2, "ok": 3}
            for check in sorted(plan.checks, key=lambda c: order[c.status]):
                glyph, role = CHECK[check.status]
                words = wrap(f"{one_line(check.name)}: {one_line(check.sentence)}", width - 3)
                out.append(
                    [
                        (f" {glyph} ", role),
                        (words[0] if words else "", role if check.status == "block" else ""),
                    ]
                )
                out += [[("   " + row, "")] for row in words[1:]]
                if check.status != "ok":
                    out += [[("   · " + one_line(item), "dim")] for item in check.evidence[:3]]
                    out += [
                        [("   → " if i == 0 else "     ", "dim"), (row, "")]
                        for i, row in enumerate(wrap(one_line(check.remedy), width - 5))
                    ]
        if plan.steps:
            out += [[("", "")], [("Steps", "title")]]
            for index, step in enumerate(plan.steps, 1):
                deadline = f"  (within {age(step.deadline_s)})" if step.deadline_s else ""
                out.append([(f" {index} ", "dim"), (one_line(step.title), ""), (deadline, "dim")])
                if step.effect:
                    out += [[("   " + row, "dim")] for row in wrap(one_line(step.effect), width - 3)]
        if self.command and plan.kind != "stop":
            out += [[("", "")], [("Exact command", "title"), ("  y copies it", "dim")]]
            out += [[(" " + row, "")] for row in wrap(one_line(self.command), width - 2, "    ")]
        return out

    @on(Button.Pressed, "#cancel")
    def action_cancel(self) -> None:
        self.dismiss(None)

    @on(Button.Pressed, "#go")
    def _go(self) -> None:
        if self.may_go() and self.plan is not None:
            self.dismiss((self.plan, self.plan.typed_name))

    def note(self, words: str) -> None:
        """What an Enter on a wrong name gets; gone with the next letter."""
        self.query_one("#typed-note", Lines).show_rows([[(words, "bad-strong")]] if words else [])

    @on(Input.Changed, "#typed")
    def _typing(self) -> None:
        self.note("")
        self.may_go()

    def may_go(self) -> bool:
        """Whether nothing blocks it and the name, where one is asked, is typed; the button follows."""
        typed = self.query_one("#typed", Input).value
        may = self.plan is not None and not self.plan.blocked and self.plan.confirmed_by(typed)
        self.query_one("#go", Button).disabled = not may
        return may

    def action_other_button(self) -> None:
        go = self.query_one("#go", Button)
        cancel = self.query_one("#cancel", Button)
        # At once, not by `focus()`, which waits its turn: an Enter typed right after must find it.
        self.set_focus(cancel if self.focused is go or go.disabled or not go.display else go)

    def action_scroll(self, by: int) -> None:
        self.query_one("#plan-body", Body).scroll_relative(y=by, animate=False)

    def action_copy(self) -> None:
        if self.command:
            self.app.doing.copy(self.command)  # type: ignore[attr-defined]
