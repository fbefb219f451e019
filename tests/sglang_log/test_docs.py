"""docs/slow-or-hung.md says the limits that the code has."""

from __future__ import annotations

from pathlib import Path

from specdash.monitor import follow_run, liveness, logstore
from specdash.sglang import stall, storytypes
from specdash.sglang.phases import TITLES

PAGE = (Path(__file__).parents[2] / "docs" / "slow-or-hung.md").read_text()


def test_the_floors_are_those_of_the_code() -> None:
    for phase, floor in stall.FLOORS.items():
        assert f"| {TITLES[phase]} | {floor:.0f} s |" in PAGE


def test_the_limits_are_those_of_the_code() -> None:
    rows = [row for row in PAGE.splitlines() if row.startswith("| ") and "suspected" in row]
    told = [row.rsplit("|", 2)[1].strip(" *") for row in rows]
    limits = (liveness.FROZEN_S, liveness.GAUGE_LAG_S, liveness.QUEUE_FROZEN_S, liveness.DEAF_S)
    assert told == [f"{limit:.0f} s" for limit in limits]
    assert f"{storytypes.KEEP_DECODES} decode lines" in PAGE and f"{storytypes.KEEP_HISTORY} points" in PAGE
    assert f"{logstore.BLOCK // 1024} kB of log" in PAGE
    assert f"busy for {follow_run.MOST_BUSY_S * 1000:.0f} ms" in PAGE
    assert f"stalled after {stall.STOPPED_S:.0f} s" in PAGE
