"""Runs of a host, past and present, newest first; Enter shows one on the main screen."""

from __future__ import annotations

import time

from specdash.monitor.state import ServerState
from specdash.tui.cells import cut, fit
from specdash.tui.dialogs.base import ListPage
from specdash.tui.views.link import is_living, run_name, server_spans
from specdash.tui.views.numbers import accept_spans
from specdash.tui.views.story import cause_of
from specdash.tui.words import DASH, Line, clock, number, one_line


class RunsScreen(ListPage[str]):
    live = True

    def __init__(self, host: str) -> None:
        super().__init__()
        self.host_name = host
        self.title_words = f"Runs of {one_line(host)}"

    def choices(self, width: int) -> list[tuple[str, Line]]:
        host = self.host_app.fleet.hosts.get(self.host_name)
        if host is None or not host.servers:
            return [("", [("no run so far", "dim")])]
        head: Line = [
            (
                f"{'profile':<22}{'algorithm':<12}{'state':<12}{'started':<14}{'took':>9}  {'tok/s':>8}  accept",
                "dim",
            )
        ]
        out: list[tuple[str, Line]] = [("", head)]
        for run, server in host.servers.items():
            out.append((run, self._row(server)))
        return out

    def _row(self, server: ServerState) -> Line:
        created = server.run.created_unix
        started = time.strftime("%d %b %H:%M", time.localtime(created)) if created else DASH
        status = server.status
        took = None
        if status.started_boot_s is not None and status.ended_boot_s is not None:
            took = status.ended_boot_s - status.started_boot_s
        state = server_spans(server)
        n = server.numbers
        return [
            (fit(run_name(server), 21) + " ", "strong"),
            (fit(one_line(server.run.algorithm) or "base", 11) + " ", "dim"),
            (fit(state[0][0], 12), state[0][1]),
            (f"{started:<14}", "dim"),
            (f"{clock(took) if took is not None else DASH:>9}  ", ""),
            (f"{number(n.decode_tok_s.value):>8}  ", ""),
            (number(n.accept_length.value, 2), ""),
        ]

    def below(self, width: int) -> list[Line]:
        host = self.host_app.fleet.hosts.get(self.host_name)
        server = host.servers.get(self.chosen) if host else None
        if server is None:
            return []
        run = server.run
        rows: list[Line] = [
            [("", "")],
            [(f"  {run_name(server)}", "strong"), (f"  {one_line(run.id)}", "dim")],
        ]
        facts = [
            ("target", run.target),
            ("drafter", server.drafter.path or run.drafter),
            ("started by", run.started_by),
            ("log", run.log_path),
            ("folder", run.folder),
            ("verdict", server.verdict.sentence),
        ]
        cause = cause_of(server)
        if cause:
            facts.append(("cause", cause.sentence))
        if is_living(server):
            rows.append([("  accept       ", "dim"), *accept_spans(server, self.host_app.fleet.now, False)])
        rows += [
            [(f"  {name:<13}", "dim"), (cut(one_line(value), width - 16), "")]
            for name, value in facts
            if value
        ]
        return rows
