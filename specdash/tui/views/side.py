"""Hosts with their servers, and profiles: what the left panel lists, as items with a stable key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from specdash.monitor.state import FleetState
from specdash.tui.cells import cut, cut_middle, spread
from specdash.tui.ports import ProfileRow
from specdash.tui.views.link import (
    LINK_GLYPH,
    is_living,
    is_stale,
    letters,
    link_word,
    run_name,
    server_spans,
    server_word,
)
from specdash.tui.words import Line, age, number, one_line

SHOWN_RUNS = 3
"""Ended runs listed below a host; all of them are on the runs screen."""


@dataclass(frozen=True)
class Item:
    """A row. `kind` is "head", "host", "run", "profile" or "note"; heads and notes cannot be chosen."""

    kind: str
    key: tuple[str, str, str]
    """(kind, host, run or profile)."""
    line: Line

    @property
    def selectable(self) -> bool:
        return self.kind in ("host", "run", "profile")


def host_items(fleet: FleetState, width: int) -> list[Item]:
    """Hosts, each with its living servers and the newest ended ones."""
    rows: list[Item] = [Item("head", ("head", "", "hosts"), [("HOSTS", "title")])]
    for host in fleet.hosts.values():
        glyph, _, role = LINK_GLYPH.get(host.link.status, ("?", "", "dim"))
        stale = is_stale(host, fleet.now)
        right: Line = []
        if host.link.status != "up":
            right = [(link_word(host.link), role)]
        elif stale and host.link.last_up is not None:
            right = [(f"{age(fleet.now - host.link.last_up)} old", "stale")]
        elif host.label:
            right = [(one_line(host.label), "warn")]
        name: Line = [(f"{glyph} ", role), (one_line(host.name), "strong")]
        rows.append(Item("host", ("host", host.name, ""), spread(name, right, width)))
        names = letters(host)
        ended = 0
        for run, server in host.servers.items():
            if server_word(server) == "prepared":
                continue
            if not is_living(server):
                ended += 1
                if ended > SHOWN_RUNS or (ended > 1 and len(fleet.hosts) > 3):
                    continue
            letter = names.get(run, " ")
            state = server_spans(server, stale)
            if cell_len(run_name(server)) + cell_len(state[0][0]) + 5 > width:
                # The glyph tells the state alone where the word would cost the name.
                state = [(state[0][0][:1], state[0][1])]
            line: Line = [
                (f"  {letter} ", letter if letter in "ABC" else "dim"),
                (
                    cut_middle(run_name(server), max(6, width - 6 - len(state[0][0]))),
                    "stale" if stale else "",
                ),
            ]
            rows.append(Item("run", ("run", host.name, run), spread(line, state, width)))
        if not host.servers and host.link.status == "up":
            rows.append(Item("note", ("note", host.name, ""), [("    no server", "dim")]))
    if not fleet.hosts:
        rows.append(Item("note", ("note", "", "hosts"), [("  none configured", "dim")]))
    return rows


def profile_items(fleet: FleetState, profiles: Sequence[ProfileRow], width: int) -> list[Item]:
    """Profiles, those that serve somewhere marked."""
    rows: list[Item] = [Item("head", ("head", "", "profiles"), [("PROFILES", "title")])]
    serving = {
        server.run.profile
        for host in fleet.hosts.values()
        for server in host.servers.values()
        if is_living(server)
    }
    for profile in profiles:
        mark = ("● ", "ok") if profile.name in serving else ("  ", "")
        word = one_line(profile.algorithm) or "base"
        role = "dim"
        if profile.problem:
            word, role = "✗ unreadable", "bad"
        left: Line = [mark, (cut_middle(one_line(profile.name), max(8, width - 3 - min(len(word), 10))), "")]
        rows.append(
            Item(
                "profile",
                ("profile", "", profile.name),
                spread(left, [(cut(word, 12), role)], width),
            )
        )
    if not profiles:
        rows.append(Item("note", ("note", "", "profiles"), [("  none found", "dim")]))
    return rows


def rate_hint(fleet: FleetState, host: str) -> str:
    """tok/s of a host's first living server, for the fleet table."""
    state = fleet.hosts[host]
    for server in state.servers.values():
        if is_living(server):
            return "idle" if server.numbers.idle else number(server.numbers.decode_tok_s.value)
    return ""
