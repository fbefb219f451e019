"""The alert command: run for what comes, told by environment, bounded in time and number."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from specdash.monitor.state import Alarm, FleetState
from specdash.tui.alerts import MOST_WAITING, Hook
from specdash.tui.notices import Notice
from tests.support.fakehub import NOW, host
from tests.support.tuikit import screen, settle

WRITE = "import os, sys; open(sys.argv[1], 'a').write('|'.join(os.environ['SPECDASH_ALERT_' + k] for k in ('SEVERITY', 'WHERE', 'SENTENCE', 'STEP')) + '\\n')"


async def finished(hook: Hook) -> None:
    assert hook._task is not None
    await asyncio.wait_for(hook._task, 30)


async def test_an_alarm_runs_it_once_with_its_words_in_the_environment(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-c", WRITE, str(out)]
    alarm = Alarm("x", "critical", "--GPU 3 fell; $(touch /x) off the bus.", NOW, "Look at dmesg.")
    async with screen("ready", alert_command=command) as (app, pilot):
        for _ in range(3):
            app.hub.play(FleetState(now=NOW, hosts={"h200-a": host(alarms=(alarm,))}))
            await settle(app, pilot)
        await finished(app.alerts)
    assert out.read_text() == "critical|h200-a|--GPU 3 fell; $(touch /x) off the bus.|Look at dmesg.\n"


async def test_a_command_that_is_not_there_or_fails_is_told_once() -> None:
    for command, words in (
        (["/no/such/thing"], "could not be run"),
        ([sys.executable, "-c", "raise SystemExit(3)"], "exit code 3"),
    ):
        told: list[str] = []
        hook = Hook(command, told.append)
        hook.add(Notice(0.0, "warning", "a"))
        hook.add(Notice(0.0, "warning", "b"))
        await finished(hook)
        assert len(told) == 1 and words in told[0]


async def test_one_that_hangs_is_ended_with_what_it_started() -> None:
    told: list[str] = []
    hook = Hook([sys.executable, "-c", "import time; time.sleep(600)"], told.append, limit_s=0.3)
    hook.add(Notice(0.0, "warning", "a"))
    await finished(hook)
    assert "took longer" in told[0]


async def test_a_flood_is_bounded() -> None:
    hook = Hook(["/no/such/thing"], lambda _: None)
    for index in range(MOST_WAITING + 20):
        hook.add(Notice(0.0, "warning", str(index)))
    assert len(hook.waiting) == MOST_WAITING and hook.dropped == 20
    await finished(hook)


async def test_the_bell_can_be_turned_off() -> None:
    rung: list[int] = []
    alarm = Alarm("x", "critical", "GPU 3 fell off the bus.", NOW)
    async with screen("ready", bell=False) as (app, pilot):
        app.bell = lambda: rung.append(1)  # type: ignore[method-assign]
        app.hub.play(FleetState(now=NOW, hosts={"h200-a": host(alarms=(alarm,))}))
        await settle(app, pilot)
    assert rung == []
