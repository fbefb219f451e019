"""Reading algorithms from every shape; what cannot be read is unknown, never none."""

from __future__ import annotations

import json

import pytest

from specdash.sglang import algorithms, architectures, locate, offer, plugins, probe_json, reading
from specdash.sglang.tree import DictTree, Source
from tests.sglang_static import trees


def test_absent_speculation_is_not_a_broken_install() -> None:
    found = algorithms.read(trees.tree(server_args="class ServerArgs:\n    pass\n"))
    assert (found.names, found.style, found.unread) == ((), "absent", ())


def test_a_missing_file_beside_a_speculation_flag_is_unknown() -> None:
    found = algorithms.read(trees.tree(server_args=trees.ARGPARSE))
    assert found.names is None and found.unread


@pytest.mark.parametrize(
    ("parts", "names", "aliases", "style"),
    [
        ({"spec_info": trees.INT_ENUM}, ("EAGLE", "EAGLE3"), {}, "int_enum"),
        ({"spec_info": trees.REGISTERED}, ("EAGLE", "NGRAM"), {"NEXTN": "EAGLE"}, "register_calls"),
        (
            {"spec_info": trees.ENUM_AND_REGISTRY, "spec_registry": trees.REGISTRY, "hook": trees.HOOK},
            ("EAGLE", "EAGLE3"),
            {"NEXTN": "EAGLE"},
            "enum_plus_registry",
        ),
    ],
)
def test_shapes(parts: dict[str, str], names: tuple[str, ...], aliases: dict[str, str], style: str) -> None:
    found = algorithms.read(trees.tree(**parts))
    assert (found.names, found.aliases, found.style) == (names, aliases, style)
    assert "NONE" in found.members
    assert all(found.where(name).startswith("sglang/srt/speculative/spec_info.py:") for name in names)


def test_an_alias_whose_target_no_file_tells_is_kept_without_one() -> None:
    found = algorithms.read(trees.tree(spec_info=trees.ENUM_AND_REGISTRY, spec_registry=trees.REGISTRY))
    assert found.aliases == {"NEXTN": None}


def test_a_definition_that_moved_within_the_tree_is_followed() -> None:
    files = {
        "sglang/srt/speculative/spec_info.py": b"from sglang.srt.speculative.kinds import SpeculativeAlgorithm\n",
        "sglang/srt/speculative/kinds.py": trees.INT_ENUM.encode(),
    }
    found = algorithms.read(DictTree(files))
    assert found.names == ("EAGLE", "EAGLE3")
    assert found.where("EAGLE").startswith("sglang/srt/speculative/kinds.py:")


@pytest.mark.parametrize(
    "text",
    [
        "def broken(:\n",
        "x = 1\n",
        "class SpeculativeAlgorithm:\n    pass\n",
        "\0",
        "(" * 3000,
        "-" * 100000 + "1",
    ],
)
def test_unreadable_is_unknown_and_says_why(text: str) -> None:
    found = algorithms.read(trees.tree(spec_info=text, server_args=trees.COLLECTED))
    assert found.names is None
    assert found.unread[0].reason


def test_a_name_built_at_run_time_makes_the_list_incomplete() -> None:
    text = trees.REGISTERED + "\nSpeculativeAlgorithm.register(make_name())\n"
    read = reading.read(
        trees.tree(
            spec_info=text,
            server_args=trees.ARGPARSE.replace('choices=["EAGLE", "EAGLE3", "NEXTN"]', "help='x'"),
        )
    )
    assert read.names == ("EAGLE", "NGRAM")
    assert offer.judge_algorithm(read, "OTHER")[0] == "not_checked"


PLUGIN = {
    "fast_spec-1.0.dist-info/entry_points.txt": b"[sglang.srt.plugins]\nfast = fast_spec.plugin:setup\n",
    "fast_spec/__init__.py": b"",
    "fast_spec/plugin.py": b"def setup():\n    from fast_spec import kinds\n",
    "fast_spec/kinds.py": (
        b"from sglang.srt.speculative.spec_info import SpeculativeAlgorithm as Kinds\n"
        b'NAME = "FAST"\n'
        b"@Kinds.register(NAME, supports_overlap=True)\n"
        b"def factory(server_args):\n    return None\n"
    ),
}


def test_plugin_algorithms_are_read_without_importing_them() -> None:
    (plugin,) = plugins.read([DictTree(PLUGIN)])
    assert plugin.algorithms == ("FAST",) and plugin.enabled and not plugin.dynamic
    assert plugin.evidence == ("fast_spec/kinds.py:3",)


@pytest.mark.parametrize(
    ("source", "hidden"),
    [
        ("register = SpeculativeAlgorithm.register\nregister('LOOKAHEAD')\n", True),
        ("getattr(SpeculativeAlgorithm, 'register')('LOOKAHEAD')\n", True),
        ("def go():\n    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm as S\n    S.register('X')\n", True),
        ("import atexit\natexit.register(print)\n", False),
        ("SpeculativeAlgorithm.register('FAST')\n", False),
    ],
)  # fmt: skip
def test_a_plugin_that_registers_in_another_way_leaves_names_open(source: str, hidden: bool) -> None:
    start = "from sglang.srt.speculative.spec_info import SpeculativeAlgorithm\n"
    (plugin,) = plugins.read([DictTree({**PLUGIN, "fast_spec/kinds.py": (start + source).encode()})])
    assert plugin.dynamic is hidden


def test_plugins_count_only_where_sglang_loads_them() -> None:
    read = reading.read(trees.NEWEST, [DictTree(PLUGIN)])
    assert read.names == ("EAGLE", "EAGLE3", "FAST")
    left_out = reading.read(trees.NEWEST, [DictTree(PLUGIN)], enabled_plugins="other")
    assert left_out.names == ("EAGLE", "EAGLE3")
    status, category, sentence, _ = offer.judge_algorithm(left_out, "fast")
    assert (status, category) == ("block", "unknown_algorithm") and "SGLANG_PLUGINS" in sentence


def test_a_plugin_with_a_dynamic_name_or_no_files_leaves_unknown_names_open() -> None:
    dynamic = {**PLUGIN, "fast_spec/kinds.py": PLUGIN["fast_spec/kinds.py"].replace(b'"FAST"', b"make()")}
    gone = {"fast_spec-1.0.dist-info/entry_points.txt": PLUGIN["fast_spec-1.0.dist-info/entry_points.txt"]}
    for files in (dynamic, gone):
        read = reading.read(trees.NEWEST, [DictTree(files)])
        assert offer.judge_algorithm(read, "FAST")[0] == "not_checked"
        assert any("deep probe" in u.reason for u in read.unread)


def test_judging_names() -> None:
    read = reading.read(trees.NEWEST)
    assert offer.judge_algorithm(read, "nextn")[0] == "ok"
    assert offer.judge_algorithm(read, "NONE")[0] == "block"
    status, category, _, near = offer.judge_algorithm(read, "EAGEL3")
    assert (status, category, near[0]) == ("block", "unknown_algorithm", "EAGLE3")


def test_the_reading_survives_its_json() -> None:
    read = reading.read(trees.NEWEST, [DictTree(PLUGIN)])
    data = probe_json.as_json(read)
    assert probe_json.as_json(reading.from_wire(json.loads(json.dumps(reading.to_wire(read))))) == data
    assert data["version"] == "0.5.23"
    assert data["algorithm_notes"]["EAGLE3"]["draft"] == "needs"
    assert data["algorithm_notes"]["FAST"] == {"evidence": "", "from_plugin": True, "known": False}


def test_theory_answers_with_evidence() -> None:
    answers = {a.technique: a for a in reading.read(trees.NEWEST).theory}
    assert answers["EAGLE 3"].status == "in_build" and answers["EAGLE 3"].evidence[0].endswith(
        "spec_info.py:7"
    )
    assert answers["Medusa"].status == "not_in_build"
    assert answers["Medusa"].evidence == ("sglang/srt/speculative/spec_info.py:6",)
    assert answers["MTP / NextN (multi-token prediction)"].status == "in_build"
    broken = {a.status for a in reading.read(trees.tree(spec_info="x = 1\n")).theory}
    assert broken == {"unknown"}


def test_the_last_word_of_a_branch_is_the_alias() -> None:
    text = 'if name == "NEXTN":\n    name = "EAGLE3"\n    if gemma:\n        return "NGRAM"\n    name = "EAGLE"\n'
    source = Source(DictTree({"a.py": text.encode()}))
    assert algorithms.cli_alias(source, "a.py", "NEXTN", ("EAGLE", "EAGLE3", "NGRAM")) == "EAGLE"


def test_an_entry_point_may_name_extras() -> None:
    points = {
        "fast_spec-1.0.dist-info/entry_points.txt": b"[sglang.srt.plugins]\nf = fast_spec.plugin:setup [fast]\n"
    }
    (plugin,) = plugins.read([DictTree({**PLUGIN, **points})])
    assert (plugin.value, plugin.algorithms) == ("fast_spec.plugin:setup", ("FAST",))


def test_the_version_that_the_build_wrote_goes_before_a_computed_one() -> None:
    files = {
        "sglang/_version.py": b"__version__ = version = '0.5.23'\n",
        "sglang/version.py": b"__version__ = '0.0.0'\n",
    }
    assert locate.version(DictTree(files)) == ("0.5.23", "sglang/_version.py")
    assert locate.version(DictTree({"sglang/version.py": files["sglang/version.py"]}))[0] == "0.0.0"


def test_a_class_that_answers_any_name_may_have_the_method() -> None:
    text = b"class Open:\n    def __getattr__(self, name):\n        return 1\n\n\nEntryClass = Open\n"
    source = Source(DictTree({"sglang/srt/models/open.py": text}))
    known = architectures.read(source.tree, source)
    assert architectures.has_method(source, known, "Open", architectures.EAGLE3_METHOD) is None


ENUM = (
    "from enum import Enum, auto\nclass SpeculativeAlgorithm(Enum):\n    NONE = auto()\n    EAGLE = auto()\n"
)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("    Eagle4 = auto()\n", "Eagle4"),
        ("    import os\n    if os.environ.get('X'):\n        MEDUSA = auto()\n", "MEDUSA"),
        ("    for _ in (1,):\n        vars()['MEDUSA'] = auto()\n", "computed"),
        ("    try:\n        MEDUSA = auto()\n    except Exception:\n        pass\n", "MEDUSA"),
        ("    locals().update(MEDUSA=9)\n", "call in the class body"),
        ("    locals()['MEDUSA'] = 9\n", "computed"),
    ],
)
def test_a_member_that_may_be_there_is_unread_and_never_denied(more: str, told: str) -> None:
    found = reading.read(trees.tree(spec_info=ENUM + more))
    assert found.names == ("EAGLE",)
    assert any(told in one.reason for one in found.algorithms.unread)
    for name in ("EAGLE4", "MEDUSA"):
        status, category, sentence, _ = offer.judge_algorithm(found, name)
        assert (status, category) == ("not_checked", "probe_unknown"), sentence
        assert told in sentence or told == "MEDUSA" != name
    assert {one.technique: one.status for one in found.theory}["Medusa"] == "unknown"
    assert offer.judge_algorithm(found, "EAGLE")[0] == "ok"


def test_what_is_no_member_of_an_enum_leaves_nothing_unread() -> None:
    more = """
    EAGLE3, NGRAM = 5, 6
    _ignore_ = ["x"]
    note: str
    short = property(lambda self: self.name.lower())
    is_on = lambda self: self.value > 0
    "a remark"

    def is_none(self):
        here = self.value
        return here
"""
    found = algorithms.read(trees.tree(spec_info=ENUM + more))
    assert (found.names, found.unread) == (("EAGLE", "EAGLE3", "NGRAM"), ())


@pytest.mark.parametrize(
    ("asked", "near"),
    [("MEDUSA", ()), ("EAGEL", "EAGLE"), ("EAGLE2", "EAGLE"), ("NGRAMS", "NGRAM"), ("JACOBI", ())],
)
def test_only_a_near_name_is_proposed(asked: str, near: str) -> None:
    text = ENUM + "    NGRAM = auto()\n    DSPARK = auto()\n"
    found = reading.read(trees.tree(spec_info=text))
    status, _, _, proposed = offer.judge_algorithm(found, asked)
    assert status == "block"
    assert near in proposed if near else not proposed
