"""Drafter fit: the facts of the field, each as a pair of configs. Numbers come from public model cards."""

from __future__ import annotations

from typing import Any

import pytest

from specdash.sglang import architectures, drafter_card, fit, fit_shapes
from specdash.sglang import modelconfig as mc
from specdash.sglang.gpus import compute_capability

DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168, "num_hidden_layers": 61, "vocab_size": 129280,
    "max_position_embeddings": 163840, "num_nextn_predict_layers": 1,
}  # fmt: skip
KIMI = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "text_config": {**DEEPSEEK, "architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 163840, "num_nextn_predict_layers": 0},
    "vision_config": {"hidden_size": 1152},
}  # fmt: skip
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 128256,
    "max_position_embeddings": 131072, "num_attention_heads": 32, "num_key_value_heads": 8,
}  # fmt: skip
EAGLE3 = {
    "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 4096, "num_hidden_layers": 1, "vocab_size": 128256,
    "draft_vocab_size": 32000, "max_position_embeddings": 131072,
}  # fmt: skip


def pair(target: dict[str, Any], draft: dict[str, Any] | None, algorithm: str, **known: Any) -> fit.FitReport:
    return fit.fit(target, draft, fit.Context(algorithm, **known))


def kimi_drafter(*ids: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 7168, "num_hidden_layers": 1, "vocab_size": 163840,
        "draft_vocab_size": 32000, "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(ids)},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("ids", "verdict", "category"),
    [
        ((2, 30, 58), "ok", ""),
        ((2, 30, 60), "warn", "aux_layer_ids_unusual"),
        ((2, 30, 61), "warn", "aux_layer_ids_unusual"),
        ((2, 30, 62), "block", "aux_layer_ids_out_of_range"),
        ((-1, 30, 58), "block", "aux_layer_ids_out_of_range"),
        ((58, 30, 2), "warn", "aux_layer_ids_unusual"),
    ],
)
def test_aux_layers_of_a_61_layer_target(ids: tuple[int, ...], verdict: str, category: str) -> None:
    report = pair(KIMI, kimi_drafter(*ids), "EAGLE3", captures=True)
    assert (report.verdict, report.category) == (verdict, category)
    assert report.numbers["target_layers"] == 61 and report.aux_layer_ids == list(ids)


def test_four_aux_layers_need_0_5_13() -> None:
    for version, verdict in (("0.5.9", "block"), ("0.5.13.post1", "ok")):
        assert pair(KIMI, kimi_drafter(2, 20, 40, 58), "EAGLE3", version=version).verdict == verdict


@pytest.mark.parametrize(
    ("config", "version", "verdict", "category"),
    [
        ({"eagle_aux_hidden_state_layer_ids": "2,16,29"}, "0.5.23", "block", "aux_layer_ids_malformed"),
        (
            {"eagle_aux_hidden_state_layer_ids": ["2", "16", "29"]},
            "0.5.9",
            "block",
            "aux_layer_ids_malformed",
        ),
        ([2, 16, 29], "0.5.9", "warn", "aux_layer_ids_malformed"),
        ([2, 16, 29], "0.5.23", "block", "aux_layer_ids_malformed"),
        ({"eagle_aux_hidden_state_layer_ids": []}, "0.5.23", "block", "aux_layer_ids_count"),
    ],
)
def test_malformed_aux_layers_stop_the_engine_unless_it_swallows_them(
    config: Any, version: str, verdict: str, category: str
) -> None:
    report = pair(LLAMA, {**EAGLE3, "eagle_config": config}, "EAGLE3", version=version)
    assert (report.verdict, report.category) == (verdict, category)


@pytest.mark.parametrize(
    ("ids", "verdict", "category"),
    [
        ([5, 10, 20], "warn", "aux_layer_ids_ignored"),
        ([1, 15, 28], "ok", ""),  # what SGLang captures by itself
        ([5, 10, 40], "block", "aux_layer_ids_out_of_range"),
    ],
)
def test_layer_ids_beside_eagle_config_are_not_read_by_sglang(
    ids: list[int], verdict: str, category: str
) -> None:
    report = pair(LLAMA, {**EAGLE3, "eagle_aux_hidden_state_layer_ids": ids}, "EAGLE3", version="0.5.23")
    assert (report.verdict, report.category) == (verdict, category)


@pytest.mark.parametrize(("layers", "verdict"), [(4, "block"), (6, "block"), (7, "ok"), (32, "ok")])
def test_a_shallow_target_has_not_three_layers_to_capture_by_default(layers: int, verdict: str) -> None:
    assert pair({**LLAMA, "num_hidden_layers": layers}, EAGLE3, "EAGLE3").verdict == verdict


def test_a_whole_model_under_eagle_is_said_unless_it_has_mtp_layers() -> None:
    known = architectures.from_names(
        ["LlamaForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV3ForCausalLMNextN"]
    )
    whole = pair(LLAMA, LLAMA, "EAGLE", architectures=known)
    assert (whole.verdict, whole.category) == ("warn", "algorithm_does_not_fit_drafter")
    assert pair(DEEPSEEK, DEEPSEEK, "EAGLE", architectures=known).verdict == "ok"
    assert pair(LLAMA, LLAMA, "EAGLE").verdict == "ok"  # without the list of models nobody knows


def test_the_frozen_cache_wants_a_gemma_assistant() -> None:
    assert pair(LLAMA, EAGLE3, "FROZEN_KV_MTP").category == "algorithm_does_not_fit_drafter"
    assistant = {**LLAMA, "architectures": ["Gemma4AssistantForCausalLM"]}
    assert pair(LLAMA, assistant, "FROZEN_KV_MTP").verdict == "ok"


def test_dspark_needs_a_markov_rank_and_a_target_that_hands_out_its_states() -> None:
    draft = {
        "architectures": ["DSparkDraftModel"], "hidden_size": 4096, "vocab_size": 128256, "block_size": 7,
        "mask_token_id": 3, "max_position_embeddings": 131072,
    }  # fmt: skip
    assert pair(LLAMA, draft, "DSPARK").category == "drafter_config"
    ranked = {**draft, "text_config": {**draft, "markov_rank": 64}}
    assert pair(LLAMA, ranked, "DSPARK", captures=True).verdict == "ok"
    assert pair(LLAMA, ranked, "DSPARK", captures=False).category == "algorithm_does_not_fit_target"


def test_a_dflash_key_makes_no_dflash_drafter_of_an_eagle3_one() -> None:
    assert pair(LLAMA, {**EAGLE3, "dflash_config": {}}, "EAGLE3").verdict == "ok"


def test_pages_ask_for_the_attention_backend_only() -> None:
    numbers = (
        ("--speculative-num-steps", "3"), ("--speculative-eagle-topk", "4"), ("--speculative-num-draft-tokens", "8"),
        ("--page-size", "16"), ("--attention-backend", "fa3"),
    )  # fmt: skip
    for decode, verdict in (("flashinfer", "ok"), ("flashmla", "ok"), ("trtllm_mha", "block")):
        flags = (*numbers, ("--decode-attention-backend", decode))
        assert pair(LLAMA, EAGLE3, "EAGLE3", version="0.5.23", flags=flags).verdict == verdict


def test_positions_beyond_any_float_are_no_exception() -> None:
    draft = {**EAGLE3, "max_position_embeddings": 10**400, "rope_scaling": {"type": "linear", "factor": 2.0}}
    assert pair(LLAMA, draft, "EAGLE3").verdict == "ok"


@pytest.mark.parametrize(
    ("target", "algorithm", "version", "verdict", "category"),
    [
        (DEEPSEEK, "NEXTN", "0.5.23", "ok", ""),
        ({**DEEPSEEK, "num_nextn_predict_layers": 0}, "NEXTN", "0.5.23", "block", "no_mtp_layers"),
        (KIMI, "EAGLE", "0.5.23", "block", "no_mtp_layers"),
        (
            {**DEEPSEEK, "architectures": ["Glm4MoeForCausalLM"]},
            "EAGLE",
            "0.4.6.post5",
            "warn",
            "missing_flag",
        ),
        (LLAMA, "EAGLE", "0.5.23", "block", "missing_flag"),
        (LLAMA, "EAGLE3", "0.5.23", "block", "missing_flag"),
        (LLAMA, "STANDALONE", "0.5.23", "block", "missing_flag"),
        (LLAMA, "DFLASH", "0.5.23", "block", "missing_flag"),
        (LLAMA, "DSPARK", "0.5.23", "block", "missing_flag"),
        ({**LLAMA, "dspark_block_size": 7}, "DSPARK", "0.5.23", "ok", ""),
        (LLAMA, "NGRAM", "0.5.23", "ok", ""),
        (LLAMA, "UNO", "0.5.23", "block", "missing_flag"),
    ],
)
def test_no_drafter(
    target: dict[str, Any], algorithm: str, version: str, verdict: str, category: str
) -> None:
    report = pair(target, None, algorithm, version=version)
    assert (report.verdict, report.category) == (verdict, category)


@pytest.mark.parametrize(
    ("draft", "algorithm", "verdict"),
    [
        (EAGLE3, "EAGLE3", "ok"),
        (EAGLE3, "EAGLE", "block"),
        (EAGLE3, "STANDALONE", "block"),
        (EAGLE3, "DFLASH", "block"),
        ({**EAGLE3, "architectures": ["LlamaForCausalLM"]}, "EAGLE3", "block"),
        ({**LLAMA, "architectures": ["LlamaForCausalLMEagle"]}, "EAGLE", "ok"),
        ({**LLAMA, "architectures": ["LlamaForCausalLMEagle"]}, "EAGLE3", "block"),
        (LLAMA, "STANDALONE", "ok"),
        ({**LLAMA, "architectures": ["Gemma4AssistantForCausalLM"]}, "EAGLE3", "block"),
        ({**LLAMA, "architectures": ["Gemma4AssistantForCausalLM"]}, "NEXTN", "ok"),
        (
            {**LLAMA, "architectures": ["DFlashDraftModel"], "dflash_config": {"mask_token_id": 5}},
            "DFLASH",
            "ok",
        ),
        (
            {**LLAMA, "architectures": ["DFlashDraftModel"], "dflash_config": {"mask_token_id": 200000}},
            "DFLASH",
            "block",
        ),
    ],
)
def test_algorithm_and_drafter(draft: dict[str, Any], algorithm: str, verdict: str) -> None:
    flags = (("--speculative-num-draft-tokens", 16),) if algorithm == "DFLASH" else ()
    report = pair(LLAMA, draft, algorithm, version="0.5.23", flags=flags)
    assert report.verdict == verdict, report.findings[0]


def test_standalone_vocabulary_and_nested_sizes() -> None:
    assert pair(LLAMA, {**LLAMA, "vocab_size": 32000}, "STANDALONE").category == "drafter_mismatch_vocab"
    target = {"text_config": LLAMA, "vision_config": {"hidden_size": 1280}}
    assert mc.hidden_size(target) == 4096
    assert mc.hidden_size({"vision_config": {"hidden_size": 1280}}) is None


def test_d2t_map_is_looked_for_when_the_tensors_are_known() -> None:
    assert pair(LLAMA, EAGLE3, "EAGLE3", draft_tensors=("d2t", "fc.weight")).verdict == "ok"
    assert pair(LLAMA, EAGLE3, "EAGLE3", draft_tensors=("fc.weight",)).category == "drafter_d2t_missing"


@pytest.mark.parametrize(
    ("version", "flags", "env", "verdict"),
    [
        ("0.5.23", (), {}, "block"),
        ("0.5.23", (("--context-length", 2048),), {}, "ok"),
        ("0.5.23", (), {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}, "warn"),
        ("0.4.9.post6", (), {}, "warn"),
        ("", (), {}, "block"),
    ],
)
def test_drafter_positions(version: str, flags: Any, env: dict[str, str], verdict: str) -> None:
    draft = {**EAGLE3, "max_position_embeddings": 2048}
    report = pair(LLAMA, draft, "EAGLE3", version=version, flags=flags, env=env)
    assert report.verdict == verdict
    assert (report.numbers["target_context"], report.numbers["draft_context"]) == (131072, 2048)


def test_rope_scaling_counts_where_sglang_counts_it() -> None:
    from specdash.sglang.fit_shapes import context_of

    assert (
        context_of({"max_position_embeddings": 32768, "rope_scaling": {"type": "yarn", "factor": 4.0}})
        == 131072
    )
    llama3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
    assert context_of({"max_position_embeddings": 131072, "rope_scaling": llama3}) == 131072
    assert context_of({"rope_scaling": {"factor": float("nan")}}) is None


def test_layers_and_heads() -> None:
    two = {**EAGLE3, "num_hidden_layers": 2}
    assert pair(LLAMA, two, "EAGLE3", version="0.5.9").category == "drafter_too_deep"
    assert pair(LLAMA, two, "EAGLE3", version="0.5.15").verdict == "ok"
    odd = {**EAGLE3, "num_attention_heads": 12, "num_key_value_heads": 3}
    assert pair(LLAMA, odd, "EAGLE3", flags=(("--tp-size", 8),)).category == "tp_does_not_divide"


def test_quantization_goes_to_the_drafter_too() -> None:
    awq = (("--quantization", "awq"),)
    assert pair(LLAMA, EAGLE3, "EAGLE3", flags=awq, version="0.5.23").category == "quantization_mismatch"
    apart = (*awq, ("--speculative-draft-model-quantization", "unquant"))
    assert pair(LLAMA, EAGLE3, "EAGLE3", flags=apart).verdict == "ok"
    assert pair(LLAMA, EAGLE3, "EAGLE3", flags=(("--quantization", "fp8"),)).verdict == "warn"


def test_fp8_on_old_gpus() -> None:
    draft = {**EAGLE3, "quantization_config": {"quant_method": "fp8"}}
    for name, verdict in (
        ("NVIDIA A100-SXM4-80GB", "warn"),
        ("NVIDIA H200", "ok"),
        ("NVIDIA L40S", "ok"),
        ("", "ok"),
    ):
        assert (
            pair(LLAMA, draft, "EAGLE3", gpu_compute_cap=compute_capability(name), gpu_name=name).verdict
            == verdict
        )


def test_target_without_capture_and_unknown_architectures() -> None:
    assert pair(LLAMA, EAGLE3, "EAGLE3", captures=False).category == "algorithm_does_not_fit_target"
    known = architectures.from_names(["LlamaForCausalLM"])
    assert pair(LLAMA, EAGLE3, "EAGLE3", architectures=known).category == "architecture_unknown_on_host"
    draft = {**EAGLE3, "eagle_config": {"use_aux_hidden_state": False}}
    assert pair(LLAMA, draft, "EAGLE3", captures=False).verdict == "ok"


def test_override_args_hit_the_drafter() -> None:
    flags = (("--json-model-override-args", '{"num_hidden_layers": 4}'),)
    assert pair(LLAMA, EAGLE3, "EAGLE3", flags=flags).category == "override_hits_drafter"


def test_what_cannot_be_compared_is_not_checked() -> None:
    report = pair({}, {}, "EAGLE")
    assert report.verdict == "ok" and {f.status for f in report.findings} == {"not_checked"}
    assert report.numbers["target_hidden"] is None


def test_the_card_says_what_a_drafter_is() -> None:
    card = drafter_card.card(kimi_drafter(2, 30, 58), "/d", 5_000_000_000)
    assert (card.algorithm, card.aux_layer_ids, card.draft_vocab_size) == ("EAGLE3", (2, 30, 58), 32000)
    assert ("size on disk", "5.00 GB") in drafter_card.lines(card)
    assert drafter_card.card({}).layers is None


@pytest.mark.parametrize(
    ("flags", "env", "version", "status"),
    [
        ({"--context-length": "131073"}, {}, "0.5.23", "block"),
        ({"--context-length": "131073"}, {}, "0.4.9.post4", "warn"),
        ({"--context-length": "131073"}, {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "Y"}, "0.5.23", "warn"),
        ({"--context-length": "131072"}, {}, "0.5.23", ""),
        ({"--context-length": "128Ki"}, {}, "0.5.23", ""),
        ({"--context-length": "1M"}, {}, "0.5.23", "block"),
        ({}, {}, "0.5.23", ""),
        (
            {"--context-length": "262144", "--json-model-override-args": '{"max_position_embeddings": 262144}'},
            {},
            "0.5.23",
            "",
        ),
    ],
)  # fmt: skip
def test_the_target_has_positions_too(
    flags: dict[str, str], env: dict[str, str], version: str, status: str
) -> None:
    context = fit.Context("", version, tuple(flags.items()), env)
    found = fit_shapes.served_context(LLAMA, context)
    assert [(f.status, f.category) for f in found] == ([(status, "context_too_long")] if status else [])


def test_overridden_positions_are_not_compared() -> None:
    flags = (("--json-model-override-args", '{"max_position_embeddings": 8192}'),)
    report = pair(LLAMA, {**EAGLE3, "max_position_embeddings": 2048}, "EAGLE3", flags=flags)
    assert report.category == "override_hits_drafter"


@pytest.mark.parametrize(
    ("scaling", "positions"),
    [
        ({"rope_type": "llama3", "factor": 8.0}, 131072),
        ({"rope_type": "yarn", "factor": 4.0}, 524288),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        ({"rope_type": "linear", "factor": "4"}, 131072),
    ],
)
def test_context_length_as_sglang_derives_it(scaling: dict[str, Any], positions: int) -> None:
    assert fit_shapes.context_of({**LLAMA, "rope_scaling": scaling}) == positions


@pytest.mark.parametrize(("tp", "verdict"), [(2, "ok"), (4, "ok"), (8, "ok"), (3, "block"), (64, "block")])
def test_fewer_key_value_heads_than_ranks_are_repeated(tp: int, verdict: str) -> None:
    draft = {**EAGLE3, "num_attention_heads": 32, "num_key_value_heads": 4}
    assert pair(LLAMA, draft, "EAGLE3", flags=(("--tp", tp),)).verdict == verdict


def test_quantization_has_an_older_name_too() -> None:
    for key in ("quantization_config", "compression_config"):
        assert mc.quantization({key: {"quant_method": "FP8"}}) == "fp8"


@pytest.mark.parametrize(
    ("version", "word"), [("0.5.6.post2", "leave"), ("0.5.8", "unquant"), ("", "unquant")]
)
def test_the_remedy_for_an_inherited_quantization_exists_in_that_version(version: str, word: str) -> None:
    report = pair(LLAMA, EAGLE3, "EAGLE3", version=version, flags=(("--quantization", "awq"),))
    assert report.worst is not None and word in report.worst.remedy


@pytest.mark.parametrize(
    ("asked", "verdict"), [("8k", "ok"), ("8Ki", "ok"), ("8.1k", "ok"), ("9k", "block"), ("9kb", "block")]
)
def test_a_context_length_may_have_a_suffix(asked: str, verdict: str) -> None:
    draft = {**EAGLE3, "max_position_embeddings": 8192}
    flags = (("--context-length", asked),)
    assert pair(LLAMA, draft, "EAGLE3", version="0.5.23", flags=flags).verdict == verdict


def test_an_algorithm_of_a_plugin_is_said_to_be_unknown() -> None:
    for name, unknown in (("LOOKAHEAD", True), ("NEXTN", False), ("eagle3", False), ("", False)):
        findings = pair(LLAMA, EAGLE3, name).findings
        assert any("knows nothing of" in f.sentence for f in findings) is unknown
