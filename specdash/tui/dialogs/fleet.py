"""All hosts at a glance: link and its age, GPUs, servers, tok/s, accept length against break-even."""

from __future__ import annotations

from typing import Any

from specdash.monitor.state import HostState
from specdash.tui.cells import cut, fit, thin_bar
from specdash.tui.dialogs.base import ListPage
from specdash.tui.views.link import is_living, is_stale, link_spans, run_name, server_spans
from specdash.tui.views.numbers import accept_spans, rate_text
from specdash.tui.words import DASH, Line, gib, one_line


class FleetScreen(ListPage[str]):
    title_words = "Fleet"
    live = True

    def choices(self, width: int) -> list[tuple[str, Line]]:
        app = self.host_app
        out: list[tuple[str, Line]] = []
        for host in app.fleet.hosts.values():
            out += self._host(host, app.fleet.now, width)
        return out or [("", [("no host is configured", "dim")])]

    def _host(self, host: HostState, now: float, width: int) -> list[tuple[str, Line]]:
        stale = is_stale(host, now)
        name: Line = [(fit(one_line(host.name), 18), "strong")]
        if host.label:
            name.append((f" {one_line(host.label)} ", "badge"))
        rows: list[tuple[str, Line]] = [
            (host.name, [*name, (" ", ""), *link_spans(host, now), *_gpus(host, stale)])
        ]
        shown = [server for server in host.servers.values() if is_living(server)] or list(
            host.servers.values()
        )[:1]
        for server in shown:
            line: Line = [
                ("    ", ""),
                (fit(run_name(server), 22), ""),
                *server_spans(server, stale),
                ("  ", ""),
            ]
            if is_living(server) and server.numbers.source:
                rate = rate_text(server.numbers)
                line.append(
                    (rate if rate in ("idle", DASH) else f"{rate} tok/s", "stale" if stale else "strong")
                )
                line += [("  accept ", "dim"), *accept_spans(server, now, stale)]
            elif server.verdict.sentence:
                line.append((cut(one_line(server.verdict.sentence), max(10, width - 44)), "dim"))
            rows.append(("", line))
        if shown:
            rows.append(("", [("", "")]))
        return rows


def _gpus(host: HostState, stale: bool) -> Line:
    board = host.gpus
    if board is None or not board.gpus:
        return [("  GPUs —", "dim")]
    known: list[Any] = [g for g in board.gpus if g.memory_used_mib is not None and g.memory_total_mib]
    used = sum(g.memory_used_mib for g in known)
    total = sum(g.memory_total_mib for g in known)
    filled, rest = thin_bar(used / total if total else None, 10)
    return [
        (f"  {len(board.gpus)} GPUs ", "dim"),
        (filled, "stale" if stale else "bar"),
        (rest, "rule"),
        (f" {gib(used if known else None)}/{gib(total if known else None)} GiB", "stale" if stale else "dim"),
    ]
