"""Nothing that a file, a config or a profile can hold makes a reader or a rule raise."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdash.sglang import drafter_card, fit, flagcheck, locate, modelconfig, offer, probe_json, reading
from specdash.sglang.tree import DictTree
from tests.sglang_static import trees
from tests.support.examples import examples
from tests.support.flag_tables import flag_table

SOURCES = (
    trees.INT_ENUM, trees.REGISTERED, trees.ENUM_AND_REGISTRY, trees.REGISTRY, trees.HOOK, trees.ARGPARSE,
    trees.ANNOTATED, trees.FIELDS, trees.COLLECTED, 'EntryClass = [A, "b", *c]\n', "EntryClass = (\n",
    '__version__ = "x"\n__version__ = 3\n', "A = A\nB = [*B]\nclass SpeculativeAlgorithm(A, B): X = Y = auto()\n",
)  # fmt: skip
PATHS = (
    "sglang/srt/speculative/spec_info.py",
    "sglang/srt/speculative/spec_registry.py",
    "sglang/srt/server_args.py",
    "sglang/srt/arg_groups/speculative_hook.py",
    "sglang/srt/arg_groups/fields/spec.py",
    "sglang/srt/arg_groups/choices.py",
    "sglang/srt/models/llama.py",
    "sglang/version.py",
    "p-1.dist-info/entry_points.txt",
    "p/plugin.py",
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A source with pieces cut, doubled, moved or replaced, at lines and at bytes."""
    data = draw(st.sampled_from(SOURCES)).encode()
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(("cut", "double", "bytes", "lines", "word")))
        a, b = sorted((draw(st.integers(0, len(data))), draw(st.integers(0, len(data)))))
        if kind == "cut":
            data = data[:a] + data[b:]
        elif kind == "double":
            data = data[:b] + data[a:b] + data[b:]
        elif kind == "bytes":
            data = data[:a] + draw(st.binary(max_size=8)) + data[b:]
        elif kind == "lines":
            data = b"\n".join(draw(st.permutations(data.split(b"\n")[:30])))
        else:
            data = data.replace(
                draw(st.sampled_from((b"auto", b"Arg", b"choices", b"=", b'"', b"A["))),
                draw(st.sampled_from((b"x", b"[", b"None", b"lambda: 0", b"{**a}", b"f'{x}'"))),
            )
    return data


@given(st.dictionaries(st.sampled_from(PATHS), mutated(), max_size=6))
@settings(max_examples=examples(120), deadline=None)
def test_mutated_trees_never_raise(files: dict[str, bytes]) -> None:
    read = reading.read(DictTree(files))
    data = probe_json.as_json(read)
    text = json.dumps(data, sort_keys=True)
    assert (
        json.dumps(
            probe_json.as_json(reading.from_wire(json.loads(json.dumps(reading.to_wire(read))))),
            sort_keys=True,
        )
        == text
    )
    if read.algorithms.names is None:
        assert read.algorithms.unread
    flagcheck.check([("--model-path", "x"), ("--speculative-algo", "EAGLE")], read.flags)
    offer.judge_algorithm(read, "EAGLE")


@pytest.mark.parametrize(
    "text",
    [
        "x = " + "[" * 500 + "]" * 500,
        "x = " + "+".join("1" * 3000),
        "a" * 2_000_000,
        "class A:\n" + " " * 50000 + "x=1",
        "f(" * 90 + ")" * 90,
        "\nEntryClass = [A" + " " * 500_000,
        "\nEntryClass = [" + "A, " * 20_000,
        "\nEntryClass = " + "A" * 500_000 + "!",
    ],
)
def test_hostile_sources_cost_little(text: str) -> None:
    files = {path: text.encode() for path in PATHS}
    reading.read(DictTree(files))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["fp8", "LlamaForCausalLMEagle3"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "hidden_size",
                    "factor",
                    "block_size",
                    "quant_method",
                    "markov_rank",
                    "eagle_aux_hidden_state_layer_ids",
                ]
            )
            | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
KEYS = [
    "architectures", "hidden_size", "target_hidden_size", "num_hidden_layers", "vocab_size", "draft_vocab_size",
    "text_config", "eagle_config", "dflash_config", "dspark_config", "rope_scaling", "quantization_config",
    "max_position_embeddings", "num_attention_heads", "num_key_value_heads", "num_nextn_predict_layers", "block_size",
    "target_layer_ids", "mask_token_id", "torch_dtype", "num_target_layers", "num_aux_hidden_states",
]  # fmt: skip
configs = st.dictionaries(st.sampled_from(KEYS), json_values, max_size=10)
algorithms = st.sampled_from(
    ["EAGLE", "NEXTN", "EAGLE3", "STANDALONE", "NGRAM", "DFLASH", "DSPARK", "UNO", "FROZEN_KV_MTP", "", "NEW"]
)
versions = st.sampled_from(
    ["", "0.4.1", "0.4.6.post5", "0.5.5", "0.5.9.dev3+gabc", "0.5.23", "9.9"]
) | st.text(max_size=6)
flag_values = json_values | st.just(True)
pairs = st.lists(
    st.tuples(st.sampled_from(sorted(flag_table("0.5.23").by_string)) | st.text(max_size=8), flag_values),
    max_size=6,
)


@given(configs, st.none() | configs, algorithms, versions, pairs)
@settings(max_examples=examples(200), deadline=None)
def test_any_pair_of_configs_gets_a_verdict(
    target: dict[str, Any],
    draft: dict[str, Any] | None,
    algorithm: str,
    version: str,
    flags: list[tuple[str, Any]],
) -> None:
    report = fit.fit(
        target, draft, fit.Context(algorithm, version, tuple(flags), gpu_compute_cap="8.0", captures=None)
    )
    assert report.verdict in ("ok", "warn", "block")
    assert report.verdict == "ok" or report.category
    assert all(f.sentence for f in report.findings)
    drafter_card.lines(drafter_card.card(draft or {}))


@given(pairs, st.sampled_from(["0.4.6.post5", "0.5.9", "0.5.23"]))
@settings(max_examples=examples(100), deadline=None)
def test_any_flags_get_checked(flags: list[tuple[str, Any]], version: str) -> None:
    for problem in flagcheck.check(flags, flag_table(version)):
        assert problem.status in ("block", "warn", "not_checked") and problem.sentence


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_any_bytes_as_config(data: bytes) -> None:
    config, problem = modelconfig.parse(data)
    assert (config is None) == bool(problem)
    locate.version(DictTree({"sglang/version.py": data, "sglang-1.dist-info/METADATA": data}))
