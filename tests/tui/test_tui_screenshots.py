"""The saved screenshots still show what the screen shows: its headings and its keys."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from specdash.tui.actions import ACTIONS

FOLDER = Path(__file__).parents[2] / "docs" / "screenshots"


def words(name: str) -> str:
    svg = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    return html.unescape(re.sub(r"<[^>]*>", "", svg)).replace("\xa0", " ")


@pytest.mark.parametrize("name", ["ready", "loading"])
def test_main_screens(name: str) -> None:
    text = words(name)
    shown = [action.title for action in ACTIONS if action.show]
    missing = [
        word
        for word in ("simulated", "HOSTS", "PROFILES", "GPUs", "SERVER", "LOG", *shown)
        if word not in text
    ]
    assert not missing, f"{name}.svg is stale: run benchmarks/screenshots.py ({missing})"


def test_ready_shows_the_numbers_that_matter() -> None:
    text = words("ready")
    assert "break-even" in text and "accept length" in text and "tok/s" in text


def test_compare_shows_what_the_comparison_has() -> None:
    text = words("compare")
    rows = (
        "tok/s",
        "accept length",
        "requests at once",
        "seen over",
        "start to ready",
        "from the first decode line on",
    )
    missing = [
        word for word in (*rows, "graph capture", "Break-even accept length by these two") if word not in text
    ]
    assert not missing, f"compare.svg is stale: run benchmarks/screenshots.py ({missing})"


def test_the_plan_shows_its_answers() -> None:
    for name in ("launch", "switch"):
        text = words(name)
        assert "▸ Cancel" in text or "to confirm" in text, (
            f"{name}.svg is stale: run benchmarks/screenshots.py"
        )


def test_help_lists_every_action() -> None:
    text = words("help")
    for action in ACTIONS[:6]:
        assert action.help in text, f"help.svg is stale: run benchmarks/screenshots.py ({action.id})"
