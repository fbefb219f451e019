"""`specdash probe`, `fit` and `preflight` as commands: JSON, exit codes, no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.sglang_static.hosttree import DRAFT, TARGET, model, sglang
from tests.sglang_static.wheels import ROOT


def command(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "PYTHONPATH": str(ROOT),
    }
    (tmp_path / "config.toml").touch()
    env["SPECDASH_CONFIG"] = str(tmp_path / "config.toml")
    argv = [sys.executable, "-m", "specdash", *words]
    return subprocess.run(
        argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100, check=False
    )


def data(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert "Traceback" not in done.stderr, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_probe_of_a_tree(tmp_path: Path) -> None:
    sglang(tmp_path / "tree")
    done = command(tmp_path, "probe", "--tree", "tree", "--json")
    found = data(done)
    assert done.returncode == 0 and found["version"] == "0.5.23"
    assert {"version", "algorithms", "aliases", "flags", "plugins", "unread"} <= found.keys()
    assert found["flags"]["--speculative-num-steps"]["type"] == "int"
    people = command(tmp_path, "probe", "--tree", "tree")
    assert "EAGLE3" in people.stdout and "Not in this build" in people.stdout
    assert command(tmp_path, "probe", "--tree", ".").returncode == 3
    assert command(tmp_path, "probe").returncode == 3


def test_a_tree_that_is_partly_unreadable_is_a_warning(tmp_path: Path) -> None:
    package = sglang(tmp_path / "tree")
    (package / "srt/speculative/spec_info.py").write_text("class (")
    done = command(tmp_path, "probe", "--tree", "tree", "--json")
    found = data(done)
    assert done.returncode == 1 and found["algorithms"] is None and found["flags"]
    assert found["unread"][0]["path"].endswith("spec_info.py")


def test_fit_of_two_folders(tmp_path: Path) -> None:
    sglang(tmp_path / "tree")
    model(tmp_path / "t", TARGET)
    model(tmp_path / "d", DRAFT)
    words = ("fit", "--target", "t", "--draft", "d/config.json", "--tree", "tree", "--json", "--algorithm")
    done = command(tmp_path, *words, "EAGLE3")
    found = data(done)
    assert (done.returncode, found["verdict"]) == (0, "ok")
    assert found["drafter"]["aux_layer_ids"] == [2, 30, 58] and found["numbers"]["target_layers"] == 61
    wrong = command(tmp_path, *words, "EAGLE")
    assert wrong.returncode == 4 and data(wrong)["category"] == "algorithm_does_not_fit_drafter"
    assert command(tmp_path, *words, "MEDUSA").returncode == 3
    treeless = command(tmp_path, "fit", "--target", "t", "--draft", "d", "--algorithm", "EAGLE33")
    assert treeless.returncode == 3 and "Did you mean EAGLE3" in treeless.stderr
    more = command(tmp_path, *words, "EAGLE3", "--", "--speculative-eagle-topk", "4")
    assert more.returncode == 4 and data(more)["category"] == "flag_conflict"


def test_preflight_of_a_profile(tmp_path: Path) -> None:
    sglang(tmp_path)
    model(tmp_path / "t", TARGET)
    (tmp_path / "profiles").mkdir()
    profile = f'host = "local"\npython = "{sys.executable}"\ncwd = "{tmp_path}"\n[server]\nmodel-path = "t"\ndevice = "cpu"\nport = 0\n'
    text = profile.replace("port = 0", "port = 39871\nenable-metrics = true")
    (tmp_path / "profiles" / "good.toml").write_text(text)
    (tmp_path / "profiles" / "bad.toml").write_text(text.replace('"t"', '"gone"'))
    good = command(tmp_path, "preflight", "good", "--json")
    found = data(good)
    assert found["verdict"] != "block", [c for c in found["checks"] if c["status"] == "block"]
    bad = command(tmp_path, "preflight", "bad", "--json")
    assert bad.returncode == 4
    assert "model_path_missing" in [c["category"] for c in data(bad)["checks"] if c["status"] == "block"]
    people = command(tmp_path, "preflight", "bad")
    assert "BLOCK" in people.stdout and "→" in people.stdout
