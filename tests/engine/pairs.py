"""What preflight blocks, and how the real engine dies of it when it is started all the same.

A pair changes a good launch in one way: `flags` replaces or adds (None takes a flag away), `drafter` and
`target` change a copy of the model's config (or files). `category` is preflight's; `cause` is in the log.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Change = Callable[[Path], None]
EAGLE3 = {
    "--speculative-algorithm": "EAGLE3",
    "--speculative-num-steps": 3,
    "--speculative-eagle-topk": 1,
    "--speculative-num-draft-tokens": 4,
}
STANDALONE = {**EAGLE3, "--speculative-algorithm": "STANDALONE"}


@dataclass(frozen=True)
class Pair:
    name: str
    category: str
    cause: str
    """A regular expression found in the output of the engine that was forced to start."""
    flags: Mapping[str, Any] = field(default_factory=dict)
    drafter: str = ""
    """`eagle3` or `draft`: which model is the drafter; empty: none."""
    draft_config: Mapping[str, Any] = field(default_factory=dict)
    target_config: Mapping[str, Any] = field(default_factory=dict)
    change: Change | None = None
    """Changes the copied target folder."""
    draft_change: Change | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    listener: bool = False
    """Something holds the port."""


def cut_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-5000])


def lose_shard(folder: Path) -> None:
    index = '{"metadata": {}, "weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors"}}'
    (folder / "model.safetensors.index.json").write_text(index)
    (folder / "model.safetensors").unlink()


def double_vocabulary(folder: Path) -> None:
    """The drafter's own weights for twice the vocabulary: rows of embedding and head are repeated."""
    file = folder / "model.safetensors"
    data = file.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    rows = json.loads((folder / "config.json").read_text())["vocab_size"] // 2
    out: dict[str, Any] = {}
    parts: list[bytes] = []
    at = 0
    for name, entry in header.items():
        if name == "__metadata__":
            out[name] = entry
            continue
        start, end = entry["data_offsets"]
        wide = entry["shape"][0] == rows
        part = body[start:end] * (2 if wide else 1)
        shape = [entry["shape"][0] * (2 if wide else 1), *entry["shape"][1:]]
        out[name] = {**entry, "shape": shape, "data_offsets": [at, at + len(part)]}
        parts.append(part)
        at += len(part)
    text = json.dumps(out).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def break_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"')


PAIRS = (
    Pair("unknown algorithm", "unknown_algorithm", r"Unknown speculative algorithm name: DFLASH2", {"--speculative-algorithm": "DFLASH2"}),
    Pair("unknown flag", "unknown_flag", r"unrecognized arguments: --speculative-model", {"--speculative-model": "x"}),
    Pair("renamed flag", "flag_renamed", r"ambiguous option: --cuda-graph-max-bs could match", {"--cuda-graph-max-bs": 8}),
    Pair("ambiguous flag", "flag_abbreviation", r"ambiguous option: --speculative-draft", {"--speculative-draft": "/x/y"}),
    Pair("wrong type", "bad_flag_value", r"argument --random-seed: invalid int value", {"--random-seed": "x"}),
    Pair("wrong choice", "bad_flag_value", r"argument --load-format: invalid choice: 'foo'", {"--load-format": "foo"}),
    Pair("no model path", "missing_flag", r"the following arguments are required: --model-path", {"--model-path": None}),
    Pair("missing target", "model_path_missing", r"(?s)(does not exist|not a local folder|Repo id must|HFValidationError|couldn't connect|Can't load)", {"--model-path": "/nowhere/at/all"}),
    Pair("broken target config", "config_unreadable", r"(JSONDecodeError|not a valid JSON|Expecting)", change=break_config),
    Pair("cut-off weights", "checkpoint_corrupt", r"(SafetensorError|InvalidHeader|MetadataIncompleteBuffer|incomplete metadata)", change=cut_weights),
    Pair("lost shard", "shards_missing", r"(?i)(Cannot find any model weights|missing|No such file|not found|FileNotFoundError)", change=lose_shard),
    Pair("missing drafter", "drafter_path_missing", r"(?s)(does not exist|not a local folder|Repo id must|HFValidationError|couldn't connect|Can't load)", {**EAGLE3, "--speculative-draft-model-path": "/nowhere/drafter"}),
    Pair("no drafter for EAGLE3", "missing_flag", r"has no attribute 'hot_token_id'", EAGLE3),
    Pair("plain model as EAGLE3 drafter", "algorithm_does_not_fit_drafter", r"has no attribute 'hot_token_id'", EAGLE3, "draft"),
    Pair("EAGLE3 drafter of another width", "drafter_mismatch_hidden", r"Attempted to load weight .* into parameter", EAGLE3, "eagle3", {"target_hidden_size": 128}),
    Pair("layer ids beyond the target", "aux_layer_ids_out_of_range", r"(mat1 and mat2 shapes cannot be multiplied|IndexError: |RuntimeError: .*(shape|size))", EAGLE3, "eagle3", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 9], "use_aux_hidden_state": True}}),
    Pair("no layer ids on a shallow target", "aux_layer_ids_out_of_range", r"RuntimeError: mat1 and mat2 shapes cannot be multiplied", EAGLE3, "eagle3", {"eagle_config": {"use_aux_hidden_state": True}}),
    Pair("layer ids as text", "aux_layer_ids_malformed", r"TypeError: can only concatenate str", EAGLE3, "eagle3", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ["0", "1", "2"], "use_aux_hidden_state": True}}),
    Pair("eagle_config is a list", "aux_layer_ids_malformed", r"AttributeError: 'list' object has no attribute 'get'", EAGLE3, "eagle3", {"eagle_config": [0, 1, 2]}),
    Pair("no layer id in the list", "aux_layer_ids_count", r"ValueError: too many values to unpack \(expected 2\)", EAGLE3, "eagle3", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [], "use_aux_hidden_state": True}}),
    Pair("context beyond the target", "context_too_long", r"context_length \(8192\) is greater than the derived context_length \(4096\)", {"--context-length": 8192}),
    Pair("short drafter", "drafter_context_too_short", r"context_length \(4096\) is greater than the derived context_length \(512\)", EAGLE3, "eagle3", {"max_position_embeddings": 512}),
    Pair("drafter architecture unknown", "architecture_unknown_on_host", r"(Model architectures .*NopeForCausalLMEagle3|NopeForCausalLMEagle3.* (is|are) not supported|ValueError: .*NopeForCausalLMEagle3)", EAGLE3, "eagle3", {"architectures": ["NopeForCausalLMEagle3"]}),
    Pair("another vocabulary", "drafter_mismatch_vocab", r"share the same vocabulary", STANDALONE, "draft", {"vocab_size": 2048},
        draft_change=double_vocabulary),
    Pair("steps without topk", "flag_conflict", r"TypeError: .*NoneType", {**EAGLE3, "--speculative-eagle-topk": None, "--speculative-num-draft-tokens": None}, "eagle3"),
    Pair("topk without steps", "flag_conflict", r"AssertionError", {**EAGLE3, "--speculative-num-steps": None}, "eagle3"),
    Pair("more draft tokens than the tree has", "flag_conflict", r"(selected index k out of range|RuntimeError: |IndexError: )", {**EAGLE3, "--speculative-num-steps": 2, "--speculative-eagle-topk": 2, "--speculative-num-draft-tokens": 64}, "eagle3"),
    Pair("torch_native cannot verify", "known_bad", r"not supported in decode attention backend torch_native", {**EAGLE3, "--attention-backend": "torch_native"}, "eagle3"),
    Pair("NGRAM with DP attention", "known_bad", r"ngram speculative decoding does not support dp attention", {"--speculative-algorithm": "NGRAM", "--enable-dp-attention": True, "--dp-size": 2, "--tp-size": 2}),
    Pair("speculation with pipeline", "known_bad", r"(AssertionError|ValueError): .*([Pp]ipeline|pp_size|PP)", {**EAGLE3, "--pp-size": 2}, "eagle3"),
    Pair("NGRAM in pages", "flag_conflict", r"only supported for the 'flashinfer' backend", {"--speculative-algorithm": "NGRAM", "--page-size": 16}),
    Pair("rejection sampling alone", "known_bad", r"speculative-use-rejection-sampling is only supported", {**STANDALONE, "--speculative-use-rejection-sampling": True}, "draft"),
    Pair("sink without window", "known_bad", r"requires --speculative-draft-window-size", {**EAGLE3, "--speculative-draft-sink-size": 4}, "eagle3"),
    Pair("NONE", "unknown_algorithm", r"IndexError: list index out of range", {"--speculative-algorithm": "NONE"}),
    Pair("port taken", "http_port_in_use", r"(?i)(address already in use|Errno 98|error while attempting to bind|not available)", listener=True),
)  # fmt: skip
