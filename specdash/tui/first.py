"""Nothing is configured yet: offer the hosts of ~/.ssh/config, this machine, and the demo."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rich.style import Style
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message

from specdash.errors import SpecdashError
from specdash.tui import themes
from specdash.tui.cells import cut_line, fit, heading, wrap
from specdash.tui.paint import styles_for
from specdash.tui.panels import Row
from specdash.tui.terminal import ascii_only
from specdash.tui.words import Line, one_line

if TYPE_CHECKING:
    from specdash.config.hosts import Host
    from specdash.verbs.context import Context

DEMO = "\0demo"
LOOK_S = 15.0
TOUR = (
    "specdash watches SGLang servers on GPU hosts over SSH, and launches, stops and switches them.",
    "Left: hosts and launch profiles. Top: GPUs. Middle: the server and whether its drafter pays. Below: its log.",
    "l launches the chosen profile, w switches, s stops: each shows a plan first, and Cancel has the focus.",
    "? lists the keys, Ctrl-P all actions. Quitting leaves every server as it is.",
)


@dataclass(frozen=True)
class Offer:
    """Something to start with. `name` is a host's name, or DEMO."""

    name: str
    title: str
    words: str


async def servers_here() -> list[str]:
    """SGLang servers that run on this machine now, in words. Starts nothing, changes nothing."""
    from specdash.config.hosts import LOCAL, Host
    from specdash.control import adopt
    from specdash.host.open import open_link

    link = await open_link(Host(name=LOCAL))
    try:
        found, _ = await adopt.find(link)
    finally:
        await link.close()
    return [
        " ".join(
            word
            for word in (
                one.model.rsplit("/", 1)[-1] or "SGLang",
                f"({one.algorithm})" if one.algorithm else "",
                f"port {one.port}" if one.port else "",
                f"pid {one.pid} of {one.user}",
            )
            if word
        )
        for one in found
    ]


def offers(aliases: Sequence[str], local: bool, demo: bool) -> list[Offer]:
    found = (
        [Offer(DEMO, "demo", "a simulated host with eight GPUs, over a real SSH connection")] if demo else []
    )
    if local:
        found.append(Offer("local", "local", "this machine, without SSH"))
    return found + [Offer(alias, alias, "from ~/.ssh/config") for alias in aliases]


class FirstRun(App[tuple[list[str], bool] | None]):
    """Ends with (names, write a config?) or None. Changes nothing itself."""

    CSS_PATH = "style.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("space", "mark", "mark"),
        Binding("enter", "accept(False)", "open"),
        Binding("w", "accept(True)", "open and write a config"),
        Binding("q,escape", "leave", "quit"),
    ]

    class Looked(Message):
        """What runs on this machine; None when it could not be looked at."""

        def __init__(self, found: list[str] | None) -> None:
            super().__init__()
            self.found = found

    def __init__(
        self, found: Sequence[Offer], config: str, look: Callable[[], Awaitable[list[str]]] | None = None
    ) -> None:
        super().__init__()
        self.look = look
        self.looking = look is not None
        self.found = list(found)
        self.config = config
        self.at = 0
        self.moved = False
        self.marked: set[str] = set()
        self.ascii_only = ascii_only()
        self.role_styles: dict[str, Style] = {}

    def compose(self) -> ComposeResult:
        yield Row(self._draw, id="first")

    def on_mount(self) -> None:
        for theme in themes.ALL:
            self.register_theme(theme)
        self.theme = themes.DARK.name
        variables = {**self.get_css_variables(), **self.theme_variables}
        self.role_styles = styles_for(variables)
        self.role_styles["pick"] = Style(bgcolor=variables.get("panel"))
        row = self.query_one(Row)
        row.styles.height = "1fr"
        self.call_after_refresh(row.update)
        if self.look is not None:
            self.run_worker(self._look(), exclusive=True)

    async def _look(self) -> None:
        found: list[str] | None = None
        if self.look is not None:
            with contextlib.suppress(SpecdashError, OSError, TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    found = await self.look()
        self.post_message(self.Looked(found))

    def on_first_run_looked(self, message: Looked) -> None:
        """Where servers run already is the likeliest wish: it goes first, and takes the cursor if nobody moved it."""
        self.looking = False
        if message.found:
            here = Offer("local", "local", f"runs {', '.join(message.found)}")
            chosen = self.found[self.at].name if self.found and self.moved else "local"
            self.found = [here, *(offer for offer in self.found if offer.name != "local")]
            self.at = next((i for i, offer in enumerate(self.found) if offer.name == chosen), 0)
        self.query_one(Row).update()

    def _draw(self, width: int, height: int, focused: bool) -> list[Line]:
        rows: list[Line] = [
            heading([("specdash", "title")], [("nothing is configured yet", "dim")], width),
            [("", "")],
        ]
        for sentence in TOUR:
            rows += [[(" " + row, "")] for row in wrap(sentence, width - 2)]
        note: Line = [("looking for servers on this machine…", "dim")] if self.looking else []
        rows += [[("", "")], heading([("Where to look", "title")], note, width)]
        if not self.found:
            rows.append([(" Nothing to offer: write hosts into the config file.", "dim")])
        wide = min(24, max((len(offer.title) for offer in self.found), default=0) + 1)
        room = max(3, height - len(rows) - 6)
        first = max(0, min(self.at - room // 2, len(self.found) - room))
        for index, offer in enumerate(self.found[first : first + room], first):
            extra = "+pick" if index == self.at else ""
            mark = "◆ " if offer.name in self.marked else "  "
            line: Line = [("▸" if index == self.at else " ", "focus"), (mark, "warn" + extra)]
            line += [(fit(one_line(offer.title), wide) + " ", "strong" + extra), (offer.words, "dim" + extra)]
            rows.append(cut_line(line, width))
        if (
            self.found
            and self.found[self.at].name == "local"
            and self.found[self.at].words.startswith("runs ")
        ):
            words = f"This machine {self.found[self.at].words}. Open it, and A adopts one by name; until then it is only looked at."
            rows += [[("", "")], *([(" " + row, "")] for row in wrap(one_line(words), width - 2))]
        rows += [[]] * max(0, height - len(rows) - 2)
        rows.append([(f" Config file: {self.config}", "dim")])
        keys: Line = []
        for key, word in (
            ("Enter", "open"),
            ("Space", "mark several"),
            ("w", "open and write the config"),
            ("q", "quit"),
        ):
            keys += [(f" {key}", "key"), (f" {word} ", "")]
        rows.append(keys)
        return [cut_line(row, width) for row in rows][:height]

    def action_move(self, by: int) -> None:
        self.moved = True
        self.at = max(0, min(self.at + by, len(self.found) - 1))
        self.query_one(Row).update()

    def action_mark(self) -> None:
        if self.found and self.found[self.at].name != DEMO:
            self.marked ^= {self.found[self.at].name}
            self.query_one(Row).update()

    def action_accept(self, write: bool) -> None:
        if self.found:
            names = [offer.name for offer in self.found if offer.name in self.marked]
            self.exit((names or [self.found[self.at].name], write))

    def action_leave(self) -> None:
        self.exit(None)


def choose(context: Context) -> list[Host] | None:
    """Hosts to open, or None when the operator left. Choosing the demo does not return."""
    from specdash.config import paths, sshconfig

    found = offers(sshconfig.aliases(), sys.platform == "linux", True)
    look = servers_here if sys.platform == "linux" else None
    answer = FirstRun(found, str(paths.config_file()), look).run()
    if answer is None:
        return None
    names, write = answer
    if DEMO in names:
        # The demo is a verb of its own that the screen does not know: this process becomes it.
        os.execv(sys.executable, [sys.executable, "-m", "specdash", "demo"])
    if write:
        import argparse

        from specdash.verbs import config_verb

        config_verb.run(argparse.Namespace(action="init", host=names, force=False), context)
    return [context.settings.host(name) for name in names]
