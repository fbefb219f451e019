"""What runs in the profile's interpreter parses as Python 3.8, and runs there where one is at hand."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from specdash.control.probe import MODULES
from specdash.host.bundle import pack, source
from tests.sglang_static.hosttree import sglang

ALSO_PACKED = ("specdash.sglang.fit", "specdash.sglang.fit_rules", "specdash.sglang.fit_shapes", "specdash.sglang.flagcheck", "specdash.sglang.arithmetic", "specdash.sglang.known_bad", "specdash.sglang.drafter_card", "specdash.sglang.envcheck", "specdash.sglang.replaced", "specdash.sglang.gpus")  # fmt: skip


@pytest.mark.parametrize("module", [*MODULES, *ALSO_PACKED])
def test_syntax_of_3_8(module: str) -> None:
    tree = ast.parse(source(module), feature_version=(3, 8))
    for node in ast.walk(tree):
        assert not isinstance(node, ast.Match)
        if isinstance(node, ast.Call):
            assert not any(k.arg in ("slots", "kw_only") for k in node.keywords)


def pythons() -> list[str]:
    """Interpreters that are here and really start (a pyenv shim can be there without its version)."""
    out = []
    for name in ("python3.8", "/root/.pyenv/versions/3.8.18/bin/python3.8", sys.executable):
        found = shutil.which(name)
        if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
            out.append(found)
    return out


@pytest.mark.parametrize("python", pythons())
def test_the_bundle_reads_a_tree_there(python: str, tmp_path: Path) -> None:
    sglang(tmp_path)
    bundle = tmp_path / "bundle.zip"
    bundle.write_bytes(pack(MODULES))
    code = "import json\nfrom specdash.control import remote_probe\nprint(json.dumps(remote_probe.look()))\n"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(bundle), "HOME": str(tmp_path)}
    done = subprocess.run(
        [python, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=True
    )
    found = json.loads(done.stdout)
    assert (
        found["reading"]["algorithms"]["names"] == ["EAGLE", "EAGLE3"]
        and found["sglang"]["version"] == "0.5.23"
    )
