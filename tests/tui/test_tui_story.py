"""The real program in a real terminal through its whole story, by keys alone. Captures stay in artefacts/story/."""

from __future__ import annotations

import shutil
import sys

import pytest

from benchmarks.story import SIZES, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.xdist_group("story"),
    pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the demo host needs Linux"),
]


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
def test_story(size: tuple[int, int]) -> None:
    run(size)
