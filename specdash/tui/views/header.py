"""The top row: who and where, how fresh, whether simulated, whether read-only, what wants attention."""

from __future__ import annotations

from specdash.monitor.state import HostState
from specdash.tui.cells import spread, width_of
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
        left.append((one_line(host.name), "strong"))
        if label:
            left += [(" ", ""), (f" {label} ", "badge")]
        left.append(("  ", ""))
        full = [*left, *link_spans(host, now)]
        fits = width_of(full) + width_of(right) < width
        left = full if fits else [*left, *link_spans(host, now, short=True)]
    return spread(left, right, width)
