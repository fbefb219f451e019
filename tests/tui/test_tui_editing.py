"""The profile editor: completion, help and checks of the SGLang that is installed where the profile launches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdash.control import profile_text
from specdash.control.profile_text import Known
from specdash.sglang import reading
from specdash.tui.app import SpecdashApp
from specdash.tui.dialogs.editing import EditProfile
from tests.sglang_static import trees
from tests.support.examples import examples
from tests.support.tuikit import screen, settle, text_of
from tests.tui.test_tui_profiles import Files

BUILD = trees.tree(
    spec_info=trees.ENUM_AND_REGISTRY,
    spec_registry=trees.REGISTRY,
    hook=trees.HOOK,
    server_args=trees.ANNOTATED,
    fields=trees.FIELDS,
    choices='FORMATS = ["auto", "dummy"]\n',
    version='__version__ = "0.5.23"\n',
)
KNOWN = Known("gpu1", reading.read(BUILD))
TEXT = '[server]\nmodel-path = "/m"\ntp-sise = 2\n\n[speculation]\n'


class Installed(Files):
    async def flags_of(self, host: str, profile: str) -> Known:
        return KNOWN


async def opened(app: SpecdashApp, pilot: Any) -> None:
    await pilot.press("P", "e")
    await settle(app, pilot)
    await app.workers.wait_for_complete([w for w in app.workers if w.group == "flags"])
    await settle(app, pilot)


async def test_e_edits_from_the_list_of_the_dashboard_too(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(TEXT)
    (tmp_path / "b.toml").write_text(TEXT)
    async with screen("ready", operator=Installed(tmp_path)) as (app, pilot):
        side = app.query_one("#profiles")
        app.query_one("#hosts").focus()
        await pilot.press("e")
        assert app.screen is app.screen_stack[0]  # a host has no text
        side.focus()
        await pilot.press("home", "down")
        chosen = app.profile_name
        assert chosen == "b"
        await pilot.press("e")
        await settle(app, pilot)
        assert isinstance(app.screen, EditProfile) and app.screen.path == tmp_path / "b.toml"
        await pilot.press("#", "ctrl+s", "escape")
        await settle(app, pilot)
        assert (tmp_path / "b.toml").read_text() == "#" + TEXT
        assert app.screen is app.screen_stack[0] and (app.focused, app.profile_name) == (side, chosen)
        (tmp_path / "b.toml").unlink()
        await pilot.press("e")
        await settle(app, pilot)
        assert app.screen is app.screen_stack[0] and "Could not read" in app.notices.all[-1].sentence


async def test_a_flag_is_completed_explained_checked_and_saved_at_80x24(tmp_path: Path) -> None:
    operator = Installed(tmp_path)
    (tmp_path / "a.toml").write_text(TEXT)
    async with screen("ready", operator=operator) as (app, pilot):
        await opened(app, pilot)
        shown = text_of(app)
        assert "SGLang 0.5.23 on gpu1" in shown
        assert "line 3: This version has no --tp-sise. Did you mean --tp-size" in shown
        await pilot.press("down", "down", "end")
        assert "has no --tp-sise" in text_of(app).split("[speculation]")[1]
        await pilot.press("ctrl+u", "l", "o", "a")
        await settle(app, pilot)
        assert "▸ load-format" in text_of(app) and "--load-format: str, default auto." in text_of(app)
        await pilot.press("tab", '"', "d")
        await settle(app, pilot)
        shown = text_of(app)
        assert (
            '▸ "dummy"' in shown
            and "--load-format: str, default auto." in shown
            and "One of auto, dummy." in shown
        )
        await pilot.press("tab")
        await settle(app, pilot)
        assert "nothing is wrong with this file" in text_of(app)
        await pilot.press("ctrl+s")
        await settle(app, pilot)
        assert (tmp_path / "a.toml").read_text() == TEXT.replace("tp-sise = 2", 'load-format = "dummy"')
        await pilot.press("escape")
        await settle(app, pilot)
        assert "Profiles" in text_of(app)


async def test_without_a_probe_it_says_so_and_still_writes(tmp_path: Path) -> None:
    operator = Files(tmp_path)
    (tmp_path / "a.toml").write_text(TEXT)
    async with screen("ready", operator=operator) as (app, pilot):
        await opened(app, pilot)
        assert "Flags unknown: h200-a is not connected" in text_of(app) and "probe it (p)" in text_of(app)
        await pilot.press("down", "down", "end", "backspace", "8", "ctrl+s")
        await settle(app, pilot)
        assert "tp-sise = 8" in (tmp_path / "a.toml").read_text()


async def test_nothing_is_lost_or_overwritten_unasked(tmp_path: Path) -> None:
    operator = Installed(tmp_path)
    file = tmp_path / "a.toml"
    file.write_text(TEXT)
    async with screen("ready", operator=operator) as (app, pilot):
        await opened(app, pilot)
        await pilot.press("#", "escape")
        await settle(app, pilot)
        assert "(not saved)" in text_of(app)
        file.write_text("# theirs\n")
        await pilot.press("ctrl+s")
        assert file.read_text() == "# theirs\n"
        await pilot.press("ctrl+s")
        assert file.read_text() == "#" + TEXT


KEYS = st.sampled_from(
    [
        "[server]",
        "[speculation]",
        "tp-size",
        "mode",
        "=",
        '"',
        "'",
        "[",
        "]",
        "{",
        ",",
        "\n",
        " ",
        "x",
        "#",
        "1",
    ]
)


@given(st.lists(KEYS, max_size=14).map("".join), st.integers(0, 6), st.integers(0, 12))
@settings(max_examples=examples(60), deadline=None)
def test_whatever_is_typed_it_goes_on(text: str, row: int, column: int) -> None:
    for known in (KNOWN, Known("h", None, "Flags unknown: no.")):
        place = profile_text.place(text, row, column)
        profile_text.suggest(known, text, place)
        profile_text.explain(known, place)
        profile_text.problems(known, text, Path("/p/a.toml"))


def at_end(text: str) -> profile_text.Place:
    rows = text.split("\n")
    return profile_text.place(text, len(rows) - 1, len(rows[-1]))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("ho", "host = "),
        ("[ser", "[server]"),
        ("[server]\nmodel", "model-path = "),
        ("[server]\nmode = ", '"a"'),
        ("[server]\ntrust_rem", "trust-remote-code = true"),
        ('[speculation]\nalgorithm = "EAGLE3', '"EAGLE3"'),
        ("[on.gpu2.server]\nnumb", "numbers = "),
    ],
)
def test_what_can_come_next(text: str, wanted: str) -> None:
    build = reading.read(
        trees.tree(spec_info=trees.ENUM_AND_REGISTRY, server_args=trees.ANNOTATED + SPECULATIVE)
    )
    assert wanted in [one.text for one in profile_text.suggest(Known("h", build), text, at_end(text))]


SPECULATIVE = '\n    speculative_algorithm: A[Optional[str], "Any name."] = None\n'


def test_what_is_there_already_is_not_offered_again() -> None:
    text = "[server]\ntp-size = 2\nt"
    offered = [one.text for one in profile_text.suggest(KNOWN, text, at_end(text))]
    assert "trust-remote-code = true" in offered and "tp-size = " not in offered


def test_problems_have_their_lines() -> None:
    path = Path("/p/a.toml")
    (found,) = profile_text.problems(KNOWN, "[server]\nmode = 'c'\n", path)
    assert (found.line, found.status) == (2, "block") and "--mode" in found.sentence
    (broken,) = profile_text.problems(KNOWN, "[server]\nmode = \n", path)
    assert broken.line == 2 and "not TOML" in broken.sentence
    both = profile_text.problems(KNOWN, "[server]\nmode = \nmode-l = 1\ntp-size = 'x'\n", path)
    assert sorted(one.line for one in both) == [2, 3, 4]
    (key,) = profile_text.problems(KNOWN, "hots = 'x'\n", path)
    assert key.line == 1 and "host" in key.sentence
    (unknown,) = profile_text.problems(Known("h", None, "Flags unknown: no."), "[server]\nmode = 'c'\n", path)
    assert unknown.status == "not_checked"
