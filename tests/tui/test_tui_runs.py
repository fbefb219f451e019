"""Runs, past and present: how each ended, and two or more side by side."""

from __future__ import annotations

import json
from pathlib import Path

from specdash.host.remote import folder
from specdash.monitor.events import Event, LinkChanged, RunRecorded, RunsListed
from specdash.monitor.reduce import reduce
from specdash.monitor.state import FleetState
from specdash.tui.views.link import server_word

CRASHED = (
    {"event": "started", "pid": 7, "start": 1, "boot_s": 100.0},
    {"event": "exited", "code": None, "signal": 9, "boot_s": 109.0, "stop_asked": False},
    {"event": "stop_asked", "by": "a switch that clears up", "boot_s": 110.0},
    {"event": "stopped", "proof": {"processes": []}, "boot_s": 111.0},
)


def test_a_crash_that_a_switch_cleared_up_after_is_no_stop(tmp_path: Path) -> None:
    (tmp_path / folder.EVENTS).write_text("".join(json.dumps(row) + "\n" for row in CRASHED))
    head = folder.headline(str(tmp_path))
    assert head["phase"] == "exited" and head["stop_asked"] is False and head["exit_signal"] == 9
    listed = {"id": "r", "run": {"profile": "p", "created_unix": 1.0}, "head": head, "alive": False}
    bodies = (LinkChanged("up"), RunsListed((listed,)), RunRecorded(CRASHED))
    state = FleetState()
    for at, body in enumerate(bodies):
        state = reduce(state, Event(float(at), "h", body, "r" if at == 2 else ""))
        server = state.hosts["h"].servers.get("r")
        assert server is None or server_word(server) == "failed"
    assert server is not None
