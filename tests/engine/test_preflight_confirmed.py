"""Each block that preflight can give on this engine is confirmed: forced, the engine dies of that cause.

What cannot be confirmed on a machine without GPUs is listed in docs/preflight.md.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from specdash.config.hosts import local_host
from specdash.control import preflight
from specdash.host.open import open_link
from tests.engine import force
from tests.engine.pairs import PAIRS, Pair
from tests.support.engine import folder

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600), pytest.mark.xdist_group("engine")]


# Every third with each change, all of them by hand: a launch that dies takes about ten seconds.
ROWS = [pytest.param(pair, marks=[pytest.mark.slow] if at % 3 else []) for at, pair in enumerate(PAIRS)]


@pytest.mark.parametrize("pair", ROWS, ids=[pair.name for pair in PAIRS])
async def test_preflight_blocks_what_the_engine_dies_of(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = folder()
    if engine is None:
        pytest.skip("SPECDASH_ENGINE names no engine")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with force.launch_of(pair, engine, tmp_path) as spec:
        link = await open_link(local_host())
        try:
            checks = await preflight.preflight(link, spec)
        finally:
            await link.close()
        blocked = [check for check in checks if check.status == "block"]
        assert pair.category in [check.category for check in blocked], checks
        end = force.run(spec, pair.cause)
    assert end.how in ("exited", "dying"), f"{end.how} after {end.took_s:.0f} s:\n{end.text[-3000:]}"
    assert end.code != 0
    assert re.search(pair.cause, end.text), end.text[-3000:]


async def test_a_good_launch_is_not_blocked_and_gets_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = folder()
    if engine is None:
        pytest.skip("SPECDASH_ENGINE names no engine")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    from tests.engine.pairs import EAGLE3

    with force.launch_of(Pair("good", "", "", EAGLE3, "eagle3"), engine, tmp_path) as spec:
        link = await open_link(local_host())
        try:
            checks = await preflight.preflight(link, spec)
        finally:
            await link.close()
        assert not [check for check in checks if check.status == "block"], checks
        assert force.run(spec, "no such cause").how == "alive"
