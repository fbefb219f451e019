"""Runs of a host, past and present, newest first. Enter shows one on the main screen; two or more can be compared."""

from __future__ import annotations

import time
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.timer import Timer

from specdash.monitor.state import ServerState
from specdash.tui.cells import cut_line, cut_middle, fit, wrap
from specdash.tui.dialogs.base import ListPage
from specdash.tui.views.link import is_living, run_name, server_spans, server_word
from specdash.tui.views.numbers import accept_spans
from specdash.tui.views.story import cause_of
from specdash.tui.words import DASH, Line, clock, number, one_line

MOST_COMPARED = 4
REST_S = 0.7
"""A run on which the cursor rests for so long is looked at."""


class RunsScreen(ListPage[str]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "mark", "mark", id="runs.mark"),
        Binding("C", "compare", "compare", id="runs.compare"),
    ]
    live = True

    def __init__(self, host: str) -> None:
        super().__init__()
        self.host_name = host
        self.title_words = f"Runs of {one_line(host)}"
        self.marked: list[str] = []
        self._resting: Timer | None = None

    def on_mount(self) -> None:
        super().on_mount()
        self._resting = self.set_timer(REST_S, self._look)

    @property
    def servers(self) -> dict[str, ServerState]:
        host = self.host_app.fleet.hosts.get(self.host_name)
        return (
            {run: one for run, one in host.servers.items() if server_word(one) != "prepared"} if host else {}
        )

    def right(self) -> Line:
        return [(f"{len(self.marked)} marked: C compares them", "strong")] if len(self.marked) > 1 else []

    def choices(self, width: int) -> list[tuple[str, Line]]:
        if not self.servers:
            return [("", [("no run so far", "dim")])]
        name = max(14, min(34, width - 62))
        head = f"  {'profile':<{name}} {'algorithm':<9} {'state':<12}{'started':<13}{'lasted':>8} {'tok/s':>7} accept"
        return [
            ("", [(head, "dim")]),
            *((run, self._row(run, one, name)) for run, one in self.servers.items()),
        ]

    def _row(self, run: str, server: ServerState, name: int) -> Line:
        created = server.run.created_unix
        started = time.strftime("%d %b %H:%M", time.localtime(created)) if created else DASH
        status = server.status
        took = None
        if status.started_boot_s is not None and status.ended_boot_s is not None:
            took = status.ended_boot_s - status.started_boot_s
        state = server_spans(server)
        n = server.numbers
        return [
            ("◆ " if run in self.marked else "  ", "warn"),
            (fit(cut_middle(run_name(server), name), name) + " ", "strong"),
            (fit(one_line(server.run.algorithm) or "base", 9) + " ", ""),
            (fit(state[0][0], 12), state[0][1]),
            (f"{started:<13}", "dim"),
            (f"{clock(took) if took is not None else DASH:>8} ", ""),
            (f"{number(n.decode_tok_s.value):>7} ", ""),
            (f"{number(n.accept_length.value, 2):>6}", ""),
        ]

    def action_pick(self, by: int) -> None:
        super().action_pick(by)
        if self._resting is not None:
            self._resting.stop()
        self._resting = self.set_timer(REST_S, self._look)

    def _look(self) -> None:
        """Its records and its log tell how a run ended: read for the one that is looked at, not for all passed by."""
        if self.chosen:
            self.host_app.hub.want(self.host_name, self.chosen)

    def action_mark(self) -> None:
        if not self.chosen:
            return
        if self.chosen in self.marked:
            self.marked.remove(self.chosen)
        elif len(self.marked) < MOST_COMPARED:
            self.marked.append(self.chosen)
        else:
            self.app.notify(f"At most {MOST_COMPARED} runs side by side.", markup=False, timeout=3)
        self.update()

    def action_compare(self) -> None:
        from specdash.tui.dialogs.compare import CompareScreen

        runs = [run for run in self.marked if run in self.servers]
        if len(runs) < 2:
            self.app.notify("Mark two or more runs with Space first.", markup=False, timeout=3)
            return
        # Older first: what was tried later is judged against it.
        order = list(self.servers)
        self.app.push_screen(CompareScreen(self.host_name, sorted(runs, key=order.index, reverse=True)))

    def below(self, width: int) -> list[Line]:
        server = self.servers.get(self.chosen)
        if server is None:
            return []
        run = server.run
        rows: list[Line] = [
            [("", "")],
            [(f"  {run_name(server)}", "strong"), (f"  {one_line(run.id)}", "dim")],
        ]
        cause = cause_of(server)
        facts = [
            ("cause" if cause else "verdict", cause.sentence if cause else server.verdict.sentence),
            ("next step", cause.step if cause else ""),
            ("target", run.target),
            ("drafter", server.drafter.path or run.drafter),
            ("started by", run.started_by),
            ("log", run.log_path),
        ]
        if is_living(server):
            spans = accept_spans(server, self.host_app.fleet.now, False)
            rows.append(cut_line([("  accept       ", "dim"), *spans], width))
        for name, value in facts:
            for index, piece in enumerate(wrap(one_line(value), width - 16)[:3]):
                role = "bad" if name == "cause" else ""
                rows.append([(f"  {name if not index else '':<13}", "dim"), (piece, role)])
        return rows
