"""Opens the dashboard: settings to hub to screen; asks about host keys there; leaves cleanly on a hang-up.

`run(context)` is what the command line calls; the demo calls `run(context, hosts=[…])` with its own host.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from textual.message import Message

from specdash.exits import Exit
from specdash.tui.app import SpecdashApp
from specdash.tui.operator import ControlOperator

if TYPE_CHECKING:
    from specdash.config.hosts import Host
    from specdash.config.settings import Settings
    from specdash.monitor.hub import Hub
    from specdash.verbs.context import Context

HANGUP_S = 1.5
"""After a hang-up nobody reads what we draw: the rest of a clean end has this long."""


class HostKeyAsked(Message):
    """A host showed a key that was never seen; `answer` waits for yes or no."""

    def __init__(self, host: str, fingerprint: str, answer: asyncio.Future[bool]) -> None:
        super().__init__()
        self.host = host
        self.fingerprint = fingerprint
        self.answer = answer


class DashboardApp(SpecdashApp):
    """The screen with the hub's life inside: connects after the first paint, closes all links at the end."""

    def __init__(self, hub: Hub, operator: ControlOperator, **more: Any) -> None:
        super().__init__(hub, operator, **more)
        self.real_hub = hub

    def on_mount(self) -> None:
        super().on_mount()
        self.call_after_refresh(self._connect)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGHUP, signal.SIGTERM):
            with contextlib.suppress(NotImplementedError, RuntimeError):
                loop.add_signal_handler(number, self.hang_up, number)
        if "SPECDASH_SERVED" in os.environ:
            # No terminal hangs up when `specdash serve` is killed: its end is seen by who our parent is.
            self._served_by = os.getppid()
            self.set_interval(1.0, self._look_for_parent)

    def _look_for_parent(self) -> None:
        if os.getppid() != self._served_by:
            self.hang_up(signal.SIGHUP)

    async def _connect(self) -> None:
        await self.real_hub.start()

    async def on_unmount(self) -> None:
        self.alerts.close()
        with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
            await asyncio.wait_for(self.real_hub.close(), 2.0)

    def hang_up(self, number: int) -> None:
        """The terminal went away, or we were asked to end. Servers go on; only we leave, and soon."""
        watchdog = threading.Timer(HANGUP_S, os._exit, (128 + number,))
        watchdog.daemon = True
        watchdog.start()
        self.exit(128 + number)

    async def ask_host_key(self, host: str, fingerprint: str) -> bool:
        """For the hub: asked from its task, answered by the dialog."""
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.post_message(HostKeyAsked(host, fingerprint, answer))
        return await answer

    def on_host_key_asked(self, message: HostKeyAsked) -> None:
        from specdash.tui.dialogs.hostkey import HostKeyDialog

        def done(yes: bool | None) -> None:
            if not message.answer.done():
                message.answer.set_result(bool(yes))

        self.push_screen(HostKeyDialog(message.host, message.fingerprint), done)


def make(settings: Settings, hosts: Sequence[Host], *, read_only: bool = False) -> DashboardApp:
    """The app on a hub for these hosts, nothing started yet."""
    from specdash.config import paths
    from specdash.monitor.hub import Hub

    asked: list[DashboardApp] = []

    async def ask(host: str, fingerprint: str) -> bool:
        return await asked[0].ask_host_key(host, fingerprint)

    read_only = read_only or settings.read_only
    hub = Hub(hosts, ask=ask, read_only=read_only)
    app = DashboardApp(
        hub,
        ControlOperator(hub, settings, read_only=read_only),
        read_only=read_only,
        theme=settings.theme,
        keys=dict(settings.keys),
        chosen_profile=settings.defaults.profile,
        bell=settings.alerts.bell,
        alert_command=settings.alerts.command,
        kept=paths.state_dir() / "screen.json",
    )
    asked.append(app)
    return app


def run(context: Context, hosts: Sequence[Host] | None = None) -> int:
    """The dashboard until the operator leaves it. Returns an exit code.

    Without `hosts`, those of the config; with none configured, the first-run screen offers some.
    """
    settings = context.settings
    chosen = list(hosts) if hosts is not None else configured(settings)
    if not chosen:
        from specdash.tui.first import choose

        picked = choose(context)
        if picked is None:
            return int(Exit.OK)
        chosen = picked
    code = make(settings, chosen, read_only=context.read_only).run()
    return int(code or 0)


def configured(settings: Settings) -> list[Host]:
    """Hosts of the config, the default host first: also when that is this machine, which needs no table."""
    hosts = list(settings.hosts.values())
    if settings.defaults.host and settings.defaults.host not in settings.hosts:
        hosts.append(settings.host(settings.defaults.host))
    return sorted(hosts, key=lambda host: host.name != settings.defaults.host)
