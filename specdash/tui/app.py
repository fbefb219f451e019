"""The application: one screen that is kept open all night, and the screens that open over it.

Workers never touch a widget: the hub's callback sets a flag, and one timer, at most four times a second, takes the
newest state and gives it to the panels, each of which repaints only the rows that differ.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from rich.style import Style
from textual import on
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import Screen
from textual.widgets import Input

from specdash.errors import SpecdashError
from specdash.monitor.state import ActionState, FleetState, HostState, ServerState
from specdash.tui import keymap, themes
from specdash.tui.actions import ACTIONS, Action
from specdash.tui.alerts import Hook
from specdash.tui.doing import Doing
from specdash.tui.footer import Keys
from specdash.tui.kept import Kept
from specdash.tui.lay import lay_out, show_log
from specdash.tui.logview import LogView
from specdash.tui.messages import Adoptable, Decide, Told
from specdash.tui.notices import Notices
from specdash.tui.paint import styles_for, to_ascii
from specdash.tui.panels import Panel, Row
from specdash.tui.ports import HubLike, Operator, ProfileRow
from specdash.tui.side import Side
from specdash.tui.terminal import ascii_only
from specdash.tui.views.doing import STANDS, doing_rows, shown_action, told_above
from specdash.tui.views.gpus import board_rows
from specdash.tui.views.header import header_row
from specdash.tui.views.link import is_living, newest_server
from specdash.tui.views.server import server_rows
from specdash.tui.views.side import host_items, profile_items
from specdash.tui.words import one_line

UPDATE_S = 0.25
"""Nothing that arrives is drawn more often than this; keys are answered at once."""

TOAST_MOST = 130
"""Characters of a toast."""


class SpecdashApp(App[int]):
    CSS_PATH = "style.tcss"
    TITLE = "specdash"
    ENABLE_COMMAND_PALETTE = True
    COMMAND_PALETTE_BINDING = "ctrl+p"
    BINDINGS: ClassVar[list[BindingType]] = [action.binding() for action in ACTIONS]
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012 - Textual declares it as an instance variable
        (0, "-narrow"),
        (72, "-normal"),
        (110, "-wide"),
        (170, "-huge"),
    ]

    def __init__(
        self,
        hub: HubLike,
        operator: Operator,
        *,
        read_only: bool = False,
        theme: str = "",
        keys: dict[str, str] | None = None,
        chosen_profile: str = "",
        wall_clock: bool = True,
        bell: bool = True,
        alert_command: Sequence[str] = (),
        kept: Path | None = None,
    ) -> None:
        super().__init__()
        self.hub = hub
        self.operator = operator
        self.read_only = read_only
        self.fleet: FleetState = hub.state
        self.profile_rows: tuple[ProfileRow, ...] = ()
        self.host_name = ""
        self.run_id = ""
        self.pinned = False
        """The shown run was chosen by the operator, so it stays when it ends."""
        self.profile_name = chosen_profile
        self.notices = Notices()
        self.put_away: frozenset[str] = frozenset()
        self.ascii_only = ascii_only()
        self.set_class(self.ascii_only, "-ascii")
        self.role_styles: dict[str, Style] = {}
        self._keys = dict(keys or {})
        self.kept = Kept(kept)
        self._wanted_theme = theme or self.kept.word("theme")
        self._dirty = True
        self.shown_log: tuple[str, str] = ("", "")
        self.log_size = (-1, 0)
        self._wall_clock = wall_clock
        self._asking: str = ""
        self.bell_on = bell
        self.alerts = Hook(alert_command, lambda said: self.tell(said, "warning"))
        self.doing = Doing(self)

    # Building -----------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        yield Row(self._draw_header, id="header")
        with Horizontal(id="body"):
            with Vertical(id="side"):
                yield Side(id="hosts")
                yield Side(id="profiles")
            with Vertical(id="main"):
                yield Panel(self._draw_gpus, id="gpus")
                yield Panel(self.draw_server, id="server")
                yield Row(self._draw_doing, id="doing")
                yield LogView(id="log")
                yield Input(id="prompt", select_on_focus=False)
        yield Keys(self.why_not, id="keys")

    def on_mount(self) -> None:
        for theme in themes.ALL:
            self.register_theme(theme)
        self.theme = self._wanted_theme if self._wanted_theme in self.available_themes else themes.DARK.name
        if os.environ.get("SSH_CONNECTION"):
            # A slow link pays for every frame of an animation.
            self.animation_level = "none"
        self._restyle()
        for said in keymap.unknown(self._keys):
            self.tell(said, "warning")
        self.set_keymap(self._keys)
        self.query_one(Keys).keymap = self._keys
        log = self.query_one(LogView)
        log.redact = self.operator.redact
        log.restore(self.kept.table("log"))
        self.reload_profiles()
        self.hub.subscribe(self._state_came)
        # After ctrl-z and fg the terminal is empty, and Textual repaints only what changed.
        self.app_resume_signal.subscribe(self, lambda _: self.call_later(self.refresh, layout=True))
        self.set_interval(UPDATE_S, self._tick)
        self.query_one("#hosts").focus()
        self._tick()

    def _watch_theme(self, theme_name: str) -> None:
        super()._watch_theme(theme_name)
        self._restyle()

    def _restyle(self) -> None:
        variables = {**self.get_css_variables(), **self.theme_variables}
        self.role_styles = styles_for(variables)
        # The chosen row keeps its roles' colours on a panel-coloured ground.
        self.role_styles["pick"] = (
            Style(bgcolor=variables.get("panel"))
            if variables.get("panel", "").startswith("#")
            else Style(reverse=True)
        )

    def reload_profiles(self) -> None:
        try:
            self.profile_rows = tuple(self.operator.profiles())
        except SpecdashError as problem:
            self.tell(str(problem), "warning")
        names = [row.name for row in self.profile_rows]
        if self.profile_name not in names:
            self.profile_name = names[0] if names else ""
        self.screen_stack[0].query_one("#profiles", Side).key = ("profile", "", self.profile_name)

    # State in -----------------------------------------------------------------------------------------

    def _state_came(self, *_: Any) -> None:
        self._dirty = True

    def _tick(self) -> None:
        """At most four times a second: newest state to the panels, a slice of log work."""
        if not self.is_running:
            return
        log = self.query_one(LogView)
        if self._dirty:
            self._dirty = False
            self.fleet = self.hub.state
            self.notices.take(self.fleet)
            self._choose_defaults()
            self._show()
        show_log(self, log)
        self.doing.tick()

    def _choose_defaults(self) -> None:
        if self.host_name not in self.fleet.hosts:
            self.host_name = next(iter(self.fleet.hosts), "")
            self.run_id = ""
        host = self.host
        server = self.server
        if host is not None and (server is None or not (self.pinned or is_living(server))):
            # Nobody asked for this run by name: show what lives now, e.g. what a switch has just launched.
            newest = newest_server(host)
            self.run_id = newest.run.id if newest else ""

    @property
    def host(self) -> HostState | None:
        return self.fleet.hosts.get(self.host_name)

    @property
    def server(self) -> ServerState | None:
        return self.host.servers.get(self.run_id) if self.host else None

    @property
    def action_shown(self) -> ActionState | None:
        found = shown_action(self.host, self.put_away)
        standing = self.doing.standing.get(self.host_name)
        if (
            found is not None
            and standing is not None
            and standing.id == found.id
            and found.status == "failed"
        ):
            # Nothing failed: it waits for a word.
            return replace(found, final="stands_still", sentence=STANDS)
        return found

    def _show(self) -> None:
        main = self.screen_stack[0]
        hosts, profiles = main.query_one("#hosts", Side), main.query_one("#profiles", Side)
        width = max(10, main.query_one("#side").size.width - 2)
        hosts.show_items(host_items(self.fleet, width))
        profiles.show_items(profile_items(self.fleet, self.profile_rows, width))
        lay_out(self)
        for panel in main.query(Panel):
            panel.update()
        main.query_one(Keys).update()

    def on_resize(self) -> None:
        self._dirty = True
        self.call_after_refresh(self._tick)

    # Drawing ------------------------------------------------------------------------------------------

    def _draw_header(self, width: int, height: int, focused: bool) -> list[Any]:
        clock = time.strftime("%H:%M") if self._wall_clock else ""
        read_only = self.read_only or bool(self.host_name and self.operator.can_change(self.host_name))
        return [
            header_row(
                self.host,
                self.fleet.now,
                width,
                read_only=read_only,
                unread=self.notices.unread,
                worst=self.notices.worst,
                clock=clock,
            )
        ]

    def _draw_gpus(self, width: int, height: int, focused: bool) -> list[Any]:
        return board_rows(self.host, self.fleet.now, width, height, focused)

    def draw_server(self, width: int, height: int, focused: bool) -> list[Any]:
        return server_rows(self.host, self.server, self.fleet.now, width, height, focused, self.ascii_only)

    def _draw_doing(self, width: int, height: int, focused: bool) -> list[Any]:
        action = self.action_shown
        return doing_rows(action, self.fleet.now, width, height, self.told_above(action))

    def told_above(self, action: ActionState | None) -> bool:
        return told_above(action, self.server)

    # Choosing -----------------------------------------------------------------------------------------

    @on(Side.Moved)
    def _moved(self, message: Side.Moved) -> None:
        kind, host, name = message.item.key
        if kind == "profile":
            self.profile_name = name
        else:
            self.host_name = host
            self.pinned = kind == "run"
            if kind == "run":
                self.run_id = name
            else:
                state = self.host
                newest = newest_server(state) if state else None
                self.run_id = newest.run.id if newest else ""
        self._dirty = True
        self._tick()

    @on(Side.Opened)
    async def _opened(self, message: Side.Opened) -> None:
        kind, _, name = message.item.key
        if kind == "profile":
            self.profile_name = name
            await self.run_action("launch")
        else:
            self.screen_stack[0].set_focus(self.screen_stack[0].query_one(LogView))

    def on_descendant_focus(self) -> None:
        self.show_log_keys()

    def show_log_keys(self) -> None:
        keys = self.screen_stack[0].query_one(Keys)
        keys.log_focused = isinstance(self.focused, LogView)
        keys.log_narrowed = self.screen_stack[0].query_one(LogView).table.filter.narrow
        keys.update()

    # Asking and telling -------------------------------------------------------------------------------

    def tell(self, sentence: str, severity: str = "info") -> None:
        """A message that is kept; a toast shows its beginning where the operator looks. Markup is never read."""
        self.notices.add(sentence, severity, self.fleet.now)
        level: Any = {"critical": "error", "warning": "warning"}.get(severity, "information")
        shown = one_line(sentence)
        if len(shown) > TOAST_MOST:
            # What is under a toast is not seen: two rows or three, the rest is on the page of messages.
            shown = f"{shown[: TOAST_MOST - 20].rstrip()}… (! shows all)"
        if self.ascii_only:
            shown = to_ascii(shown)
        self.notify(shown, severity=level, markup=False, timeout=6)
        self._dirty = True

    def why_not(self, action: Action) -> str:
        """Empty when the action can be done now, else the reason in words."""
        return self.doing.why_not(action)

    @on(Told)
    def _told(self, message: Told) -> None:
        self.tell(message.sentence, message.severity)
        self.notices.rang = self.notices.rang or message.ring

    @on(Decide)
    def _decide(self, message: Decide) -> None:
        self.doing.decide(message)

    @on(Adoptable)
    def _adoptable(self, message: Adoptable) -> None:
        self.doing.adoptable(message)

    @on(LogView.Asked)
    def _log_asked(self, message: LogView.Asked) -> None:
        self.doing.log_asked(message.what, message.text)

    def ask(self, what: str, label: str, text: str = "") -> None:
        """Open the prompt row under the log."""
        prompt = self.screen_stack[0].query_one("#prompt", Input)
        self._asking = what
        prompt.placeholder = label
        prompt.value = text
        prompt.add_class("open")
        # At once: the next key typed is already the first of the answer.
        self.screen_stack[0].set_focus(prompt)

    def _close_prompt(self) -> None:
        prompt = self.screen_stack[0].query_one("#prompt", Input)
        prompt.remove_class("open")
        self.screen_stack[0].set_focus(self.screen_stack[0].query_one(LogView))

    @on(Input.Submitted, "#prompt")
    def _answered(self, message: Input.Submitted) -> None:
        self._close_prompt()
        self.doing.answered(self._asking, message.value)

    def key_escape(self) -> None:
        prompt = self.screen_stack[0].query_one("#prompt", Input)
        if prompt.has_class("open"):
            self._close_prompt()
            return
        log = self.screen_stack[0].query_one(LogView)
        action = self.action_shown
        if log.mark is not None:
            log.mark = None
            log.redraw()
        elif log.finder.pattern is not None:
            log.search("")
        elif action is not None and action.status != "running":
            self.put_away = self.put_away | {action.id}
            self._dirty = True
            self._tick()

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        return keymap.commands(self.why_not, self._keys, self.run_action)

    def __getattr__(self, name: str) -> Any:
        # action_launch, action_stop, … live in `tui.doing`, loaded with the dialogs they open.
        if name.startswith("action_"):
            found = getattr(self.__dict__.get("doing"), name, None)
            if found is not None:
                return found
        raise AttributeError(name)
