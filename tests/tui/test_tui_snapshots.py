"""Each state of the main screen, and each screen over it, as plain text. Look at the files: they are the screen."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fakehub import STATES, FakeOperator
from tests.support.tuikit import screen, settle, text_of

CASES = [
    # Wide screens differ in layout, not in state: some of them run by default, the others in the slow suite.
    pytest.param(state, size, id=f"{state}-{size[0]}x{size[1]}", marks=[pytest.mark.slow] if seldom else [])
    for state in STATES
    for size, seldom in (
        ((80, 24), False),
        ((120, 40), state in ("connecting", "refused", "empty", "base", "idle", "gpu_lost", "slow")),
        ((200, 60), True),
    )
    if size != (200, 60) or state in ("ready", "loading", "stale")
]


@pytest.mark.parametrize("state, size", CASES)
async def test_state(state: str, size: tuple[int, int], same: Any) -> None:
    async with screen(state, size) as (app, _):
        same(f"{state}-{size[0]}x{size[1]}", text_of(app))


PAGES = {
    "launch": ["l"],
    "stop": ["s"],
    "switch": ["tab", "down", "w"],
    "help": ["question_mark"],
    "probe": ["p"],
    "profiles": ["P", "d", "down"],
    "fleet": ["H"],
    "runs": ["r"],
    "sources": ["i"],
    "messages": ["exclamation_mark"],
}


@pytest.mark.parametrize("page", PAGES)
async def test_page(page: str, same: Any) -> None:
    async with screen("failed" if page == "messages" else "ready") as (app, pilot):
        for key in PAGES[page]:
            await pilot.press(key)
        await settle(app, pilot)
        same(f"page-{page}-80x24", text_of(app))


OVER = {
    # name: state, keys, what the operator's fake gives
    "stacks": ("stalled", ["K"], {}),
    "pulse": ("ready", ["m"], {}),
    "blocked": ("ready", ["l"], {"blocked": True}),
    "typed-wrong": ("ready", ["s", "x", "enter"], {"typed": "kimi-k2.5-eagle3"}),
    "adopt": ("empty", ["A"], {}),
    "take-back": ("switching", ["x"], {}),
    "fleet-stale": ("stale", ["H"], {}),
    "runs-failed": ("failed", ["r"], {}),
    "one-line": ("ready", ["tab", "tab", "tab", "tab", "enter"], {}),
}


SELDOM = ("pulse", "adopt", "take-back", "fleet-stale", "one-line")
"""What other tests ask for by its words."""


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.slow] if page in SELDOM else []) for page in OVER]
)
async def test_over_the_screen(page: str, same: Any) -> None:
    state, keys, more = OVER[page]
    async with screen(state, operator=FakeOperator(**more)) as (app, pilot):
        for key in keys:
            await pilot.press(key)
            await settle(app, pilot)
        same(f"over-{page}-80x24", text_of(app))


async def test_read_only_is_said(same: Any) -> None:
    async with screen("ready", read_only=True) as (app, _):
        text = text_of(app)
        assert "READ-ONLY" in text
        same("read-only-80x24", text)


async def test_ascii_only(same: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDASH_ASCII", "1")
    async with screen("ready", (120, 40)) as (app, _):
        text = text_of(app)
        assert text.isascii()
        same("ascii-120x40", text)


@pytest.mark.parametrize("theme", ["specdash-light", "specdash-contrast", "ansi-dark"])
async def test_themes_draw_the_same_text(theme: str) -> None:
    async with screen("ready") as (app, _):
        plain = text_of(app)
    async with screen("ready", theme=theme) as (app, _):
        assert app.theme == theme
        assert text_of(app) == plain


@pytest.mark.parametrize("size", [(20, 6), (40, 10), (71, 18), (300, 100)], ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize(
    "state",
    ["ready", "rolled_back", *(pytest.param(s, marks=pytest.mark.slow) for s in ("loading", "gpu_lost"))],
)
async def test_any_size_draws(state: str, size: tuple[int, int]) -> None:
    async with screen(state, size) as (app, pilot):
        await pilot.resize_terminal(80, 24)
        await settle(app, pilot)
        assert "h200-a" in text_of(app)


@pytest.mark.slow
async def test_messages_plans_and_pages_are_ascii_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan's frame, a toast's bar and the scroll bar of a page were blocks and lines."""
    monkeypatch.setenv("SPECDASH_ASCII", "1")
    async with screen("ready", (80, 24)) as (app, pilot):
        app.tell("It says “no” — again…", "warning")
        await settle(app, pilot)
        assert "It says " in text_of(app) and text_of(app).isascii()
        for keys in (["l"], ["question_mark"], ["P"], ["r"], ["H"]):
            await pilot.press(*keys)
            await settle(app, pilot)
            assert {char for char in text_of(app) if not char.isascii()} == set(), keys
            await pilot.press("escape")
            await settle(app, pilot)
