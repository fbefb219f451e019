"""Two or more runs of a host side by side, read from their whole logs as these come in."""

from __future__ import annotations

import time
from collections.abc import Sequence

from specdash.tui.dialogs.base import Page
from specdash.tui.loghistory import History
from specdash.tui.views.compare import Compared, compare_rows
from specdash.tui.words import Line, one_line

SLICE = 1_000
BUDGET_S = 0.02
"""Seconds of reading between two looks at the keys."""
EVERY_S = 0.1


class CompareScreen(Page[None]):
    live = True

    def __init__(self, host: str, runs: Sequence[str]) -> None:
        super().__init__()
        self.host_name, self.runs = host, tuple(runs)
        self.title_words = f"{len(self.runs)} runs of {one_line(host)}"
        self.histories: dict[str, History] = {}

    def on_mount(self) -> None:
        for run in self.runs:
            self.host_app.hub.want(self.host_name, run)
        super().on_mount()
        self.set_interval(EVERY_S, self.read)
        self.read()

    def read(self) -> None:
        """A slice of the logs."""
        end = time.perf_counter() + BUDGET_S
        for run in self.runs:
            history = self.histories.get(run)
            source = self.host_app.hub.log(self.host_name, run)
            if source is None:
                continue
            if history is None or history.source is not source:
                history = self.histories[run] = History(source)
            while history.scan(SLICE):
                if time.perf_counter() > end:
                    return

    def rows(self, width: int) -> Sequence[Line]:
        app = self.host_app
        host = app.fleet.hosts.get(self.host_name)
        sides = []
        for letter, run in zip("ABCD", self.runs, strict=False):
            server = host.servers.get(run) if host else None
            if server is not None and run in self.histories:
                sides.append(Compared(letter, server, self.histories[run], self._read(run, server.log.size)))
        if host is None or not sides:
            return [[(" these runs are not on the host any longer", "dim")]]
        return compare_rows(host, sides, app.fleet.now, width)

    def _read(self, run: str, on_host: int) -> float | None:
        """Share of the log on the host that has been fetched and looked at; None when it is not known how long it is."""
        history = self.histories[run]
        here = int(getattr(history.source, "size", 0))
        lines = max(1, history.source.line_count)
        if not on_host and not history.source.line_count:
            return None
        fetched = min(1.0, here / on_host) if on_host and here else 1.0
        return fetched * min(1.0, (history.scanned + 1) / lines)
