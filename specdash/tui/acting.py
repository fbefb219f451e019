"""What every part of `doing` stands on: the app, its main screen, and whether an action can be done now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdash.control.plans import Danger
from specdash.monitor.state import ActionState
from specdash.tui.actions import BY_ID, Action
from specdash.tui.logview import LogView
from specdash.tui.views.link import is_living, server_word

if TYPE_CHECKING:
    from specdash.control.plans import Plan
    from specdash.tui.app import SpecdashApp

SERVES = ("ready", "idle", "busy")


class Acting:
    def __init__(self, app: SpecdashApp) -> None:
        self.app = app
        self.standing: dict[str, Plan] = {}
        """Host → a switch whose program there was killed before its end."""

    @property
    def main(self) -> Any:
        return self.app.screen_stack[0]

    @property
    def log(self) -> LogView:
        return self.main.query_one(LogView)  # type: ignore[no-any-return]

    def refresh(self) -> None:
        self.app._dirty = True
        self.app.call_after_refresh(self.app._tick)

    def why_not(self, action: Action) -> str:
        app = self.app
        if action.danger is not Danger.NONE:
            if app.read_only:
                return "specdash runs with --read-only."
            host = app.host
            if host is None:
                return "no host is chosen."
            refused = app.operator.can_change(host.name)
            if refused:
                return refused
            if host.link.status != "up":
                return f"{host.name} is not connected."
            running = self._running()
            if action.id == "abort":
                return "" if running is not None else "nothing runs that could be taken back."
            if running is not None:
                return f"“{running.title}” is still running."
            if action.id == "attach":
                return "" if host.name in self.standing else "no switch stands still here."
        server = app.server
        if action.id == "launch" and not app.profile_name:
            return "no profile is chosen; choose one at the left."
        if action.id == "stop" and (server is None or not is_living(server)):
            return "no server is running here."
        if action.id == "switch":
            if server is None or not is_living(server):
                return "no server is running here; l launches one."
            if not app.profile_name:
                return "no profile to switch to; choose one at the left."
        if action.id == "hot":
            if server is None or not is_living(server):
                return "no server is running here; l launches one."
            if not server.run.algorithm:
                return "this server has no drafter; w switches to a profile that has one."
        if action.id in ("pulse", "stacks"):
            if app.host is None or app.host.link.status != "up":
                return "the host is not connected."
            if server is None or not is_living(server):
                return "no server is running here."
            if action.id == "pulse" and server_word(server) not in SERVES:
                return "this server does not serve now."
        if action.id == "retry":
            if app.host is None:
                return "no host is chosen."
            if app.host.link.status == "up":
                return f"{app.host.name} is connected."
        if action.id in ("info",) and server is None:
            return "no server is chosen."
        if action.id == "search" and not app.run_id:
            return "there is no log here."
        return ""

    def _running(self) -> ActionState | None:
        host = self.app.host
        return next((a for a in host.actions if a.status == "running"), None) if host else None

    def _may(self, name: str) -> bool:
        why = self.why_not(BY_ID[name])
        if why:
            # Kept on the page of messages, but it is no trouble that waits to be read.
            self.app.tell(f"{BY_ID[name].title.capitalize()}: {why}")
        return not why
