"""Real wheels: the readers give exactly what the real parsers gave (tests/data/oracles). Downloads; slow."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specdash.sglang import architectures, reading
from specdash.sglang.tree import Source
from specdash.sglang.versions import release
from tests.sglang_static import real_parser
from tests.sglang_static.make_flag_tables import table_of
from tests.sglang_static.wheels import ROOT, WheelTree, library, unpacked, wheel

ORACLES = sorted((ROOT / "tests" / "data" / "oracles").glob("*.json"))
OTHERS = (
    "0.4.3.post4", "0.4.9.post4", "0.5.3.post3", "0.5.6.post2", "0.5.8.post1", "0.5.13.post1", "0.5.18", "0.5.22",
)  # fmt: skip
"""Versions without an answer at hand: there the real parser is run, with stand-ins for what it needs."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def tree(version: str) -> WheelTree:
    found = wheel(version)
    if isinstance(found, str):
        pytest.skip(found)
    return WheelTree(found)


@pytest.mark.parametrize("oracle", ORACLES, ids=lambda p: p.stem)
def test_the_wheel_says_what_the_real_parser_said(oracle: Path) -> None:
    known = json.loads(oracle.read_text())
    read = reading.read(tree(known["sglang"]))
    assert sorted(read.flags.by_string) == sorted(known["option_strings"])
    assert list(read.algorithms.members) == known["algorithms"]["members"]
    assert read.algorithms.aliases == known["algorithms"]["aliases"]
    absent = known["algorithms"]["kind"] == "absent"
    assert (read.algorithms.style == "absent") == absent
    assert read.version == known["sglang"] and not read.unread
    assert read.flags.complete


@pytest.mark.parametrize("version", OTHERS)
def test_other_versions_as_their_real_parser(version: str, tmp_path: Path) -> None:
    missing = unpacked(version, tmp_path)
    if missing:
        pytest.skip(missing)
    paths = [str(Path(real_parser.__file__).parent)]
    if (release(version) or ()) >= (0, 5, 20):  # its options are fields of msgspec's own kind of class
        found = library("msgspec")
        if isinstance(found, str):
            pytest.skip(found)
        paths.append(str(found))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HOME": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", real_parser.__file__, str(tmp_path)]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    real = json.loads(done.stdout.splitlines()[-1])
    assert real["version"] == version and not any(
        name.startswith(real_parser.REAL) for name in real["replaced"]
    )
    read = reading.read(tree(version))
    assert sorted(read.flags.by_string) == real["option_strings"]
    assert list(read.algorithms.members) == real["algorithms"]
    assert read.version == version and not read.unread
    assert {**read.algorithms.aliases, **real["aliases"]} == read.algorithms.aliases


@pytest.mark.parametrize(
    "file", sorted((ROOT / "tests" / "data" / "flag_tables").glob("*.gz")), ids=lambda p: p.name[:-8]
)
def test_vendored_flag_tables_are_what_the_reader_gives(file: Path) -> None:
    stored = json.loads(gzip.decompress(file.read_bytes()))
    assert json.loads(json.dumps(table_of(tree(file.name[:-8])))) == stored


def test_models_and_capture_of_0_5_23() -> None:
    source = Source(tree("0.5.23"))
    known = architectures.read(source.tree, source)
    assert known.known("LlamaForCausalLMEagle3") and known.known("NoSuchModel") is False
    wanted = {"LlamaForCausalLM": True, "DeepseekV3ForCausalLM": True, "BertModel": False}
    for name, has in wanted.items():
        assert architectures.has_method(source, known, name, architectures.EAGLE3_METHOD) is has
