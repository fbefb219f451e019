"""How the main screen shares its rows among the panels, and what its log panel is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.tui.logview import LogView
from specdash.tui.side import Side
from specdash.tui.views.doing import height_of
from specdash.tui.views.gpus import wanted_height
from specdash.tui.views.link import link_age, server_word
from specdash.tui.words import age_note, one_line

if TYPE_CHECKING:
    from specdash.tui.app import SpecdashApp


def lay_out(app: SpecdashApp) -> None:
    """Heights of the panels, from the room there is. The log gets what is left, a third at least."""
    main = app.screen_stack[0]
    height = app.size.height - 2
    width = main.query_one("#main").size.width or app.size.width
    gpus = main.query_one("#gpus")
    server = main.query_one("#server")
    doing = main.query_one("#doing")
    wanted = wanted_height(app.host, width, app.size.height)
    action = app.action_shown
    doing.set_class(action is None, "none")
    steps = height_of(action, width, app.told_above(action))
    if doing.styles.height is None or doing.styles.height.value != steps:
        doing.styles.height = max(1, steps)
    left = height - wanted - steps
    share = max(7, left // 2 if left < 40 else round(left * 0.55))
    if left - share < 5:
        share = max(4, left - 5)
    if app.server is None or server_word(app.server) in ("failed", "stopped"):
        # What is over moves no more: it gets what its words need, be that more or less, and the log the rest.
        share = max(4, min(left - 5, len(app.draw_server(width, max(4, left - 5), False))))
    hosts = main.query_one("#hosts", Side)
    listed = min(len(hosts.items) + 1, max(4, height - min(8, len(app.profile_rows) + 2)))
    for widget, rows in ((gpus, wanted), (server, share), (hosts, listed)):
        if widget.styles.height is None or widget.styles.height.value != rows:
            widget.styles.height = rows


def show_log(app: SpecdashApp, log: LogView) -> None:
    """The chosen run's log into the panel, a slice of its work, and what is said beside it."""
    place = (app.host_name, app.run_id)
    if place != app.shown_log:
        app.shown_log = place
        if app.run_id:
            app.hub.want(*place)
        log.set_source(app.hub.log(*place) if app.run_id else None)
        app.log_size = (-1, 0)
    elif log.table.source.line_count == 0 and app.run_id and type(log.table.source).__name__ == "Empty":
        source = app.hub.log(*place)
        if source is not None:
            log.set_source(source)
    count = log.table.source.line_count
    server = app.server
    log.missing = one_line(server.log.missing) if server else ""
    note = age_note(link_age(app.host, app.fleet.now)) if app.host else ""
    if note != log.stale_note:
        log.stale_note = note
        log.refresh()
    log.bytes_behind = server.log.behind if server else 0
    size = (count, getattr(log.table.source, "size", 0))
    if size != app.log_size:
        app.log_size = size
        log.grown()
    if log.table.behind or (log.finder.pattern is not None and log.finder.scanned < log.table.count):
        log.idle()
