"""Probing an interpreter: over a real link to this machine, with packages that must never be imported."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from specdash.config.hosts import local_host
from specdash.control import probe, remote_models
from specdash.errors import RemoteError, UsageError
from specdash.host.link import Link
from specdash.host.open import open_link
from tests.sglang_static.hosttree import sglang


@pytest.fixture
async def link(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Link]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    opened = await open_link(local_host())
    yield opened
    await opened.close()


async def test_reads_without_importing_and_remembers(link: Link, tmp_path: Path) -> None:
    package = sglang(tmp_path)
    first = await probe.probe(link, sys.executable, str(tmp_path))
    assert first.reading is not None and not first.cached
    assert first.reading.version == "0.5.23" and first.reading.names == ("EAGLE", "EAGLE3")
    again = await probe.probe(link, sys.executable, str(tmp_path))
    assert again.cached and again.reading is not None
    before = probe.remembered(link.name)
    assert before is not None and before.names == first.reading.names
    assert probe.remembered("another-host") is None
    (damaged,) = (tmp_path / "state").rglob("probes/*.json")
    kept = damaged.read_text()
    for text in ("{", "[]", kept.replace('"names"', '"nams"'), kept[:-200]):
        damaged.write_text(text)
        assert probe.remembered() is None
        assert not (await probe.probe(link, sys.executable, str(tmp_path))).cached
    assert json.dumps(probe.as_json(again)["flags"]) == json.dumps(probe.as_json(first)["flags"])
    file = package / "srt/speculative/spec_info.py"
    file.write_text(file.read_text().replace("EAGLE3", "OTHER"))
    changed = await probe.probe(link, sys.executable, str(tmp_path))
    assert not changed.cached and changed.reading is not None and changed.reading.names == ("EAGLE", "OTHER")


async def test_copies_on_the_path_and_which_wins(link: Link, tmp_path: Path) -> None:
    sglang(tmp_path / "near", "0.5.20")
    sglang(tmp_path / "far", "0.5.9")
    found = await probe.probe(
        link, sys.executable, str(tmp_path / "near"), {"PYTHONPATH": str(tmp_path / "far")}
    )
    assert [(c.version, c.wins) for c in found.copies] == [("0.5.20", True), ("0.5.9", False)]
    assert found.reading is not None and found.reading.version == "0.5.20"


async def test_a_half_package_in_the_working_directory_is_seen(link: Link, tmp_path: Path) -> None:
    (tmp_path / "near" / "sglang").mkdir(parents=True)  # a clone's folder without __init__.py: a namespace
    sglang(tmp_path / "far")
    found = await probe.probe(
        link, sys.executable, str(tmp_path / "near"), {"PYTHONPATH": str(tmp_path / "far")}
    )
    winner = found.winner
    assert winner is not None and winner.path == str(tmp_path / "far" / "sglang")
    assert any(not c.whole for c in found.copies)


async def test_files_of_the_working_directory_do_not_run(link: Link, tmp_path: Path) -> None:
    sglang(tmp_path)
    for name in ("json", "ast", "socket", "resource", "dataclasses"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('ran')\n")
    found = await probe.probe(link, sys.executable, str(tmp_path))
    assert found.reading is not None and found.reading.version == "0.5.23"


async def test_nothing_to_import(link: Link, tmp_path: Path) -> None:
    found = await probe.probe(link, sys.executable, str(tmp_path))
    assert found.reading is None and "no sglang" in found.problem
    assert probe.as_json(found)["algorithms"] is None
    (tmp_path / "sglang.py").write_text("")
    single = await probe.probe(link, sys.executable, str(tmp_path))
    assert single.reading is None and "single file" in single.problem


async def test_an_interpreter_that_is_not_there(link: Link, tmp_path: Path) -> None:
    with pytest.raises(RemoteError) as caught:
        await probe.probe(link, str(tmp_path / "python3"), str(tmp_path))
    assert caught.value.code == "no_python"


async def test_deep_probe_says_what_the_import_did(link: Link, tmp_path: Path) -> None:
    package = sglang(tmp_path)
    failed = await probe.probe(link, sys.executable, str(tmp_path), deep=True)
    assert failed.deep is not None and failed.deep["algorithms"] is None and failed.deep["problem"]
    for folder in (package, package / "srt", package / "srt/speculative"):
        (folder / "__init__.py").write_text("")
    (package / "srt/speculative/spec_registry.py").write_text(
        "_RESERVED_ALIASES = ()\n_REGISTRY = {'FAST': 1}\n"
    )
    found = await probe.probe(link, sys.executable, str(tmp_path), deep=True)
    assert found.deep is not None and found.deep["algorithms"] == ["EAGLE", "EAGLE3", "FAST"]


@pytest.mark.parametrize("shape", ["", "sglang", "python/sglang"])
async def test_trees_of_this_machine(tmp_path: Path, shape: str) -> None:
    package = sglang(tmp_path / "x")
    root = tmp_path / "root"
    target = root / shape
    target.parent.mkdir(parents=True, exist_ok=True)
    package.rename(target)
    found = await probe.probe_tree(root)
    data = probe.as_json(found)
    assert (data["version"], data["algorithms"], data["aliases"]) == (
        "0.5.23",
        ["EAGLE", "EAGLE3"],
        {"NEXTN": "EAGLE"},
    )
    assert "--speculative-num-steps" in data["flags"] and data["plugins"] == [] and data["unread"] == []


async def test_a_folder_without_sglang_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        await probe.probe_tree(tmp_path)


async def test_a_pipe_in_the_place_of_a_file_makes_nobody_wait(tmp_path: Path) -> None:
    package = sglang(tmp_path)
    for path in ("srt/speculative/spec_info.py", "srt/models/stuck.py"):
        (package / path).unlink(missing_ok=True)
        os.mkfifo(package / path)
    os.mkfifo(tmp_path / "config.json")
    found = await probe.probe_tree(str(tmp_path))
    assert found.reading is not None and found.reading.names is None and found.reading.flags.readable
    assert remote_models.model(str(tmp_path))["problem"] == "there is no config.json"
