"""Profiles: duplicate, edit with $EDITOR, and the installed SGLang's word on the flags right after."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from specdash.tui.ports import ProfileRow
from tests.support.fakehub import FakeOperator
from tests.support.tuikit import screen, settle, text_of


class Files(FakeOperator):
    """Profiles as files of a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        (folder / "a.toml").write_text('extends = "b"\n')

    def profiles(self) -> Sequence[ProfileRow]:
        return [ProfileRow(path.stem, path=str(path)) for path in sorted(self.folder.glob("*.toml"))]


async def test_duplicate_writes_a_new_file_and_never_over_one(tmp_path: Path) -> None:
    async with screen("ready", (120, 40), operator=Files(tmp_path)) as (app, pilot):
        await pilot.press("P", "D")
        await settle(app, pilot)
        await pilot.press("enter")
        await settle(app, pilot)
        assert (tmp_path / "a-2.toml").read_text() == 'extends = "b"\n'
        assert app.screen.chosen == "a-2"
        await pilot.press("D")
        app.screen.query_one("#ask-name").value = "a"
        await pilot.press("enter")
        await settle(app, pilot)
        assert "is there already" in app.notices.all[-1].sentence
        await pilot.press("D", "slash", "x", "enter")
        await settle(app, pilot)
        assert "no name for a profile" in app.notices.all[-1].sentence
        assert {row.name for row in app.profile_rows} == {"a", "a-2"}


async def test_after_the_editor_the_flags_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv(
        "EDITOR", f'{sys.executable} -c \'import sys; open(sys.argv[1], "a").write("#edited")\''
    )
    async with screen("ready", (120, 40), operator=Files(tmp_path)) as (app, pilot):
        await pilot.press("P", "E")
        await settle(app, pilot)
        await app.workers.wait_for_complete([w for w in app.workers if w.group == "check"])
        await pilot.pause()
        assert "--tp-sise is no flag of SGLang 0.5.23. Did you mean --tp-size?" in text_of(app)


async def test_without_a_connection_it_says_not_checked() -> None:
    async with screen("stale", (120, 40)) as (app, pilot):
        await pilot.press("P", "v")
        await settle(app, pilot)
        assert "Not checked: the host is not connected." in text_of(app)
