"""Ask about a host key that was never seen. No has the focus; nothing is ever accepted silently."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Button

from specdash.tui.cells import wrap
from specdash.tui.dialogs.base import Modal
from specdash.tui.paint import Lines
from specdash.tui.words import Line, one_line


class HostKeyDialog(Modal[bool]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,n", "no", "no", id="hostkey.no"),
        Binding("left,right", "other", "other button", show=False),
    ]

    def __init__(self, host: str, fingerprint: str) -> None:
        super().__init__()
        self.host_name, self.fingerprint = host, fingerprint

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Lines(id="key-rows")
            with Horizontal(classes="buttons"):
                yield Button("No", id="no", compact=True)
                yield Button("Yes, remember it", id="yes", compact=True, variant="warning")

    def on_mount(self) -> None:
        self.set_focus(self.query_one("#no"))
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        width = max(30, self.query_one(".dialog").size.width - 1)
        rows: list[Line] = [
            [(f"The key of {one_line(self.host_name)} was never seen before.", "title")],
            [("", "")],
        ]
        rows.append([(one_line(self.fingerprint), "strong")])
        rows.append([("", "")])
        text = (
            "Compare it with what the host itself says: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub on it, or ask whoever "
            "runs it. A yes adds the key to known_hosts and connects."
        )
        rows += [[(row, "")] for row in wrap(text, width)]
        self.query_one("#key-rows", Lines).show_rows(rows)

    @on(Button.Pressed, "#no")
    def action_no(self) -> None:
        self.dismiss(False)

    @on(Button.Pressed, "#yes")
    def _yes(self) -> None:
        self.dismiss(True)

    def action_other(self) -> None:
        yes, no = self.query_one("#yes"), self.query_one("#no")
        self.set_focus(no if self.focused is yes else yes)
