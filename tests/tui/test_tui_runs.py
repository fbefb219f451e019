"""Runs, past and present: how each ended, and two or more side by side."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from specdash.host.remote import folder
from specdash.monitor.events import Event, LinkChanged, RunRecorded, RunsListed
from specdash.monitor.reduce import reduce
from specdash.monitor.state import FleetState
from specdash.tui.loghistory import MOST, History
from specdash.tui.views.link import server_word
from tests.support.fakehub import LOADING_LOG, NOW, FakeHub, LogList, host, ready_server, server, story
from tests.support.tuikit import screen, settle, text_of

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


def decode_log(
    count: int, rate: float, accept: float | None, *, running: int = 1, step_s: int = 2, dp: int = 1
) -> list[bytes]:
    """Decode lines every `step_s` seconds from 13:05:00, of `dp` ranks."""
    told = f"accept len: {accept:.2f}, " if accept else ""
    out = []
    for i in range(count):
        second = i * step_s
        stamp = (
            f"2026-11-29 {13 + (300 + second) // 3600:02d}:{(5 + second // 60) % 60:02d}:{second % 60:02d}"
        )
        for rank in range(dp):
            who = f"DP{rank} TP{rank}" if dp > 1 else "TP0"
            out.append(
                f"[{stamp} {who}] Decode batch, #running-req: {running}, #token: {i}, token usage: 0.00, {told}"
                f"cuda graph: True, gen throughput (token/s): {rate:.2f}, #queue-req: 0".encode()
            )
    return out


def whole(lines: list[bytes]) -> History:
    history = History(LogList(lines))
    while history.scan(100):
        pass
    return history


def test_a_history_weighs_lines_by_what_they_stand_for() -> None:
    # Equal numbers of steps at 50 and at 100 tok/s: twice as long at 50, so the mean is 66.7, not 75.
    lines = decode_log(40, 50.0, 2.0) + [
        line.replace(b" 13:", b" 14:").replace(b": 50.00", b": 100.00") for line in decode_log(41, 50.0, 2.0)
    ]
    history = whole(lines)
    assert history.tok_s == pytest.approx(66.7, abs=0.6)
    assert history.accept_length == pytest.approx(2.0) and history.running == pytest.approx(1.0)
    assert history.lines == 81
    # The hour between both is a hole in the curve, and what it ends with is no rate.
    times = [at for at, _ in history.points(False)]
    assert max(b - a for a, b in pairwise(times)) > 3000


def test_dp_ranks_add_up_and_copies_of_tp_ranks_do_not() -> None:
    assert whole(decode_log(30, 60.0, 2.0, dp=2)).tok_s == pytest.approx(120.0)
    copies = [
        line.replace(b"TP0", b"TP%d" % rank) for line in decode_log(30, 60.0, None) for rank in range(8)
    ]
    history = whole(copies)
    assert history.tok_s == pytest.approx(60.0) and history.lines == 30 and history.accept_length is None


def test_a_history_of_any_length_is_bounded() -> None:
    history = whole(decode_log(4000, 60.0, 2.2))
    assert len(history.points(False)) <= MOST and history.width_s >= 16
    assert history.tok_s == pytest.approx(60.0)


SERVES = b"""[2026-11-29 13:04:00 TP0] Load weight end. type=X, avail mem=60.00 GB
[2026-11-29 13:04:10 TP0] KV Cache is allocated. #tokens: 1000, K size: 1.00 GB, V size: 1.00 GB
[2026-11-29 13:04:12 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=9.00 GB
[2026-11-29 13:04:52 TP0] Capture cuda graph end. Time elapsed: 40.00 s. mem usage=1.00 GB. avail mem=8.00 GB.
[2026-11-29 13:05:00] The server is fired up and ready to roll!
"""


class Logs(FakeHub):
    """A log of its own for each run."""

    def __init__(self, state: Any, logs: dict[str, LogList]) -> None:
        super().__init__(state)
        self.by_run = logs

    def log(self, host: str, run: str) -> LogList | None:
        return self.by_run.get(run)


def two(*, running: int = 1) -> Logs:
    """A base run, a drafted one, and one that failed before it served."""
    loaded = story(LOADING_LOG + b"\n" + SERVES)
    base = ready_server(story=loaded)
    base = replace(
        base, run=replace(base.run, id="base", profile="kimi-k2.5-base", algorithm="", created_unix=1.0)
    )
    base = replace(
        base,
        status=replace(base.status, ready_boot_s=413.0, ended_boot_s=900.0, alive=False, stop_asked=True),
    )
    draft = ready_server(story=loaded)
    draft = replace(draft, status=replace(draft.status, ready_boot_s=420.0))
    dead = server("dead", "kimi-k2.5-weak", "EAGLE3")
    dead = replace(dead, status=replace(dead.status, ended_boot_s=130.0, exit_code=1, alive=False))
    servers = {"r1": draft, "base": base, "dead": dead}
    logs = {
        "base": LogList(decode_log(120, 63.6, None)),
        "r1": LogList(decode_log(90, 52.0, 1.5, running=running)),
        "dead": LogList([b"Traceback"]),
    }
    return Logs(FleetState(now=NOW, hosts={"h200-a": host(servers=servers)}), logs)


async def test_runs_are_marked_and_compared(same: Any) -> None:
    hub = two()
    async with screen(hub.state, (80, 46), hub=hub) as (app, pilot):
        await pilot.press("r", "C")
        await settle(app, pilot)
        assert "Mark two or more runs" in text_of(app)
        await pilot.press("space", "down", "space", "C")
        await settle(app, pilot)
        app.screen.read()
        app.screen.update()
        text = text_of(app)
        assert hub.wanted.count(("h200-a", "base")) >= 1
        # DESIGN.md's own numbers: 63.6 tok/s, 52 at accept length 1.5: break-even 1.83.
        assert "63.6" in text and "52.0" in text and "-18 %".replace("-", "−") in text
        assert "Break-even accept length by these two, under the same mean load: 1.83." in text
        assert "5:13" in text and "5:20" in text
        app.clear_notifications()
        await settle(app, pilot)
        same("page-compare-80x46", text_of(app))


async def test_another_load_and_missing_data_are_said() -> None:
    hub = two(running=8)
    async with screen(hub.state, (120, 60), hub=hub) as (app, pilot):
        await pilot.press("r", "space", "down", "space", "down", "space", "C")
        await settle(app, pilot)
        app.screen.read()
        app.screen.update()
        text = text_of(app)
        assert "different loads" in text and "Break-even accept length" not in text
        assert (
            "A has no decode line in its log" in text
            and "never ready" in text
            and "A — nothing known" in text
        )
