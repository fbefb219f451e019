"""Reading flags from the three generations, and checking a profile's against them."""

from __future__ import annotations

import argparse
import re

import pytest

from specdash.sglang import envcheck, flagcheck, flags
from tests.sglang_static import trees
from tests.support.flag_tables import flag_table

CHOICES = 'FORMATS = ["auto", "dummy"]\n'


def test_argparse_generation() -> None:
    table = flags.read(trees.tree(server_args=trees.ARGPARSE))
    assert table.complete
    tp = table.get("--tp-size")
    assert tp is not None and tp.strings == ("--tensor-parallel-size", "--tp-size") and tp.default == 1
    assert table.get("--load-format").choices == ("auto", "dummy", "gguf")  # type: ignore[union-attr]
    assert table.get("--parser-name").choices_dynamic  # type: ignore[union-attr]
    assert table.get("--trust-remote-code").takes == "nothing"  # type: ignore[union-attr]
    assert table.get("--numbers").takes == "many"  # type: ignore[union-attr]
    old = table.get("--old-thing")
    assert old is not None and old.deprecated and old.takes == "nothing"
    assert table.get("--model").required and table.get("-h") is not None  # type: ignore[union-attr]


def test_annotated_generation() -> None:
    table = flags.read(trees.tree(server_args=trees.ANNOTATED, choices=CHOICES))
    assert set(table.by_string) == {
        "--model-path", "--model", "--tp-size", "--tensor-parallel-size", "--load-format", "--trust-remote-code",
        "--mode", "--numbers", "--fused", "--no-fused", "--even-name", "--config", "--help", "-h",
    }  # fmt: skip
    assert table.get("--load-format").choices == ("auto", "dummy")  # type: ignore[union-attr]
    assert table.get("--mode").choices == ("a", "b")  # type: ignore[union-attr]
    assert table.get("--numbers").takes == "many" and table.get("--numbers").type == "int"  # type: ignore[union-attr]
    assert table.get("--even-name").dest == "odd_name"  # type: ignore[union-attr]


def test_collected_generation_takes_only_the_listed_classes() -> None:
    table = flags.read(trees.NEWEST)
    assert "--speculative-num-steps" in table.by_string
    assert "--not-an-option" not in table.by_string


def test_one_broken_file_leaves_the_others_readable() -> None:
    table = flags.read(trees.tree(server_args=trees.COLLECTED, fields="class Spec(: A["))
    assert table.get("--model-path") is not None and not table.complete
    (problem,) = flagcheck.check([("--model-path", "x"), ("--anything", "y")], table)
    assert (problem.kind, problem.status) == ("not_checked", "not_checked")


def test_nothing_readable_says_nothing_about_any_flag() -> None:
    (problem,) = flagcheck.check([("--anything", "y")], flags.read(trees.tree(version="x")))
    assert problem.status == "not_checked"


def test_json_has_every_option_string_as_a_key() -> None:
    table = flags.read(trees.tree(server_args=trees.ARGPARSE))
    data = flags.as_json(table)
    assert set(data) == set(table.by_string)
    assert flags.as_json(flags.from_json(data)) == data


def kinds(pairs: list[tuple[str, object]], version: str = "0.5.23") -> list[tuple[str, str, str, str]]:
    given = [("--model-path", "/m"), *pairs]
    return [(p.flag, p.kind, p.status, p.use) for p in flagcheck.check(given, flag_table(version))]


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([("--tp", 8), ("--dp", 1)], []),
        ([("--speculative-algo", "EAGLE")], [("--speculative-algo", "abbreviation", "warn", "--speculative-algorithm")]),
        ([("--cuda-graph-max-bs", 8)], [("--cuda-graph-max-bs", "ambiguous_abbreviation", "block", "--cuda-graph-max-bs-decode")]),
        ([("--speculative-model", "x")], [("--speculative-model", "unknown", "block", "--speculative-draft-model-path")]),
        ([("--max-model-len", 1)], [("--max-model-len", "unknown", "block", "--context-length")]),
        ([("--port", "x")], [("--port", "wrong_type", "block", "")]),
        ([("--port", 70000)], [("--port", "out_of_range", "block", "")]),
        ([("--mem-fraction-static", 85)], [("--mem-fraction-static", "out_of_range", "block", "")]),
        ([("--load-format", "dumy")], [("--load-format", "wrong_choice", "block", "dummy")]),
        ([("--trust-remote-code", "yes")], [("--trust-remote-code", "wrong_count", "block", "--trust-remote-code")]),
        ([("--port", True)], [("--port", "wrong_count", "block", "")]),
        ([("--reasoning-parser", "x")], [("--reasoning-parser", "not_checked", "not_checked", "")]),
        ([("--context-length", 1), ("--context-length", 2)], [("--context-length", "repeated", "warn", "")]),
        ([("--json-model-override-args", {"a": 1})], []),
    ],
)  # fmt: skip
def test_a_profile_is_checked_exactly(pairs: list[tuple[str, object]], expected: list[object]) -> None:
    assert kinds(pairs) == expected


def test_a_removed_flag_that_would_bind_to_another_one_is_blocked() -> None:
    table = flags.table([flags.Flag(("--mamba-scheduler-strategy-x",), "x", "one"), flags.HELP])
    (problem,) = flagcheck.check([("--mamba-scheduler-strategy", "a")], table)
    assert (problem.status, problem.use) == ("block", "--mamba-radix-cache-strategy")


def test_a_flag_that_the_parser_knows_only_to_refuse() -> None:
    table = flag_table("0.5.18")
    refused = [f for f in table.flags if f.stops]
    assert refused, "0.5.18 has such flags"
    (problem,) = [
        p
        for p in flagcheck.check([("--model-path", "m"), (refused[0].name, True)], table)
        if p.flag == refused[0].name
    ]
    assert (problem.kind, problem.status) == ("refused", "block")


@pytest.mark.parametrize("name", ["--help", "-h"])
def test_help_is_no_launch(name: str) -> None:
    found = flagcheck.check([("--model-path", "/m"), (name, True)], flag_table("0.5.23"))
    assert [(p.kind, p.status) for p in found] == [("refused", "block")]


def test_missing_model_path() -> None:
    (problem,) = flagcheck.check([], flag_table("0.5.23"))
    assert (problem.kind, problem.category) == ("missing", "missing_flag")
    assert not flagcheck.check([("--config", "x.yaml")], flag_table("0.5.23"))


def test_abbreviations_bind_as_argparse_binds_them() -> None:
    table = flag_table("0.5.23")
    parser = argparse.ArgumentParser(exit_on_error=False)
    for flag in table.flags:
        if flag is not flags.HELP and "--help" not in flag.strings:
            parser.add_argument(*flag.strings, dest=flag.dest, nargs="?")
    words = sorted(table.by_string)
    for prefix in {w[:cut] for w in words[::7] for cut in (6, 12, 18, len(w) - 1)} - {"--", "-h"}:
        if prefix in table.by_string or len(prefix) < 3:
            continue
        meant, found = flagcheck._resolve(prefix, "x", table)
        try:
            parser.parse_args([prefix, "x"])
            bound = True
        except (argparse.ArgumentError, SystemExit) as error:
            bound = not re.search("ambiguous", str(error)) and not isinstance(error, SystemExit)
        if bound:
            assert meant is not None, prefix
        else:
            assert found and found[0].status == "block", prefix


def test_from_argv_knows_what_takes_a_value() -> None:
    table = flag_table("0.5.23")
    words = [
        "--trust-remote-code",
        "stray",
        "--port",
        "1",
        "--lora-paths",
        "a",
        "b",
        "--host=::",
        "--random-seed",
        "-5",
    ]
    assert flagcheck.from_argv(words, table) == [
        ("--trust-remote-code", True), ("", "stray"), ("--port", "1"), ("--lora-paths", ["a", "b"]),
        ("--host", "::"), ("--random-seed", "-5"),
    ]  # fmt: skip


def test_gpus_needed_and_visible() -> None:
    assert envcheck.gpus_needed([("--tp", "4"), ("--pp-size", 2)]) == 8
    assert envcheck.gpus_needed([("--tp-size", 8), ("--dp-size", 8), ("--enable-dp-attention", True)]) == 8
    assert envcheck.gpus_needed([("--tp-size", 16), ("--nnodes", 2)]) == 8
    assert envcheck.gpus_needed([("--tp-size", "x")]) is None
    assert envcheck.visible({"CUDA_VISIBLE_DEVICES": "0,1,-1,3"}) == ["0", "1"]
    assert envcheck.visible({}) is None


@pytest.mark.parametrize(
    ("value", "fine"), [("8k", True), ("1.5M", True), ("1T", True), ("8Ki", True), ("8kb", False)]
)
def test_numbers_with_a_suffix_as_sglang_reads_them(value: str, fine: bool) -> None:
    pairs = [("--model-path", "/m"), ("--cuda-graph-prefill-max-context", value)]
    table = flag_table("0.5.23")
    flag = table.get("--cuda-graph-prefill-max-context")
    assert flag is not None and flag.type == "human_readable_int"
    assert (flagcheck.category(flagcheck.check(pairs, table)) == "") is fine
