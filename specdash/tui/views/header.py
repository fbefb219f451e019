"""The top row: who and where, how fresh, whether simulated, whether read-only, what wants attention."""

from __future__ import annotations

from rich.cells import cell_len

from specdash.monitor.state import HostState
from specdash.tui.cells import cut_middle, spread, width_of
from specdash.tui.views.link import link_spans
from specdash.tui.words import Line, one_line


def header_row(
    host: HostState | None,
    now: float,
    width: int,
    *,
    read_only: bool = False,
    unread: int = 0,
    worst: str = "",
    clock: str = "",
) -> Line:
    left: Line = [(" specdash ", "title")]
    label = one_line(host.label) if host else ""
    right: Line = []
    if unread:
        role = {"critical": "bad-strong", "warning": "warn-strong"}.get(worst, "dim")
        right.append((f"⚠ {unread} to read (!)  " if worst != "info" else f"{unread} to read (!)  ", role))
    if read_only:
        right.append((" READ-ONLY ", "badge"))
        right.append((" ", ""))
    if clock and width >= 100:
        right.append((clock + " ", "dim"))
    if host is None:
        left.append(("no host", "dim"))
    else:
        name = one_line(host.name)
        badge: Line = [(" ", ""), (f" {label} ", "badge")] if label else []
        link: Line = link_spans(host, now)
        more = width_of([*left, *badge, *right]) + 3
        if more + cell_len(name) + width_of(link) > width:
            link = link_spans(host, now, short=True)
        # How fresh it is counts more than the end of a long name.
        name = cut_middle(name, max(8, width - more - width_of(link)))
        left += [(name, "strong"), *badge, ("  ", ""), *link]
    return spread(left, right, width)
