"""Real wheels: the readers give exactly what the real parsers gave (tests/data/oracles). Downloads; slow."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from specdash.sglang import algorithms, architectures, flags, reading
from specdash.sglang.tree import Source
from tests.sglang_static.make_flag_tables import table_of
from tests.sglang_static.wheels import ROOT, WheelTree, wheel

ORACLES = sorted((ROOT / "tests" / "data" / "oracles").glob("*.json"))
OTHERS = {
    # version: (option strings without --help and -h, algorithms in file order), from the fact sheet's own runs
    # of the real parsers with stand-ins for heavy modules.
    "0.4.3.post4": (111, ["NONE", "EAGLE"]),
    "0.5.3.post3": (271, ["NONE", "EAGLE", "EAGLE3", "STANDALONE", "NGRAM"]),
    "0.5.8.post1": (336, ["EAGLE", "EAGLE3", "STANDALONE", "NGRAM", "NONE"]),
    "0.5.13.post1": (419, ["DFLASH", "EAGLE", "EAGLE3", "FROZEN_KV_MTP", "STANDALONE", "NGRAM", "NONE"]),
    "0.5.18": (506, ["DFLASH", "DSPARK", "EAGLE", "EAGLE3", "FROZEN_KV_MTP", "STANDALONE", "NGRAM", "NONE"]),
}
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
def test_other_versions(version: str) -> None:
    count, members = OTHERS[version]
    found = tree(version)
    assert len(flags.read(found).by_string) == count + 2
    assert list(algorithms.read(found).members) == members


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
