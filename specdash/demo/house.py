"""The demo host's home folder: a real interpreter with the simulated SGLang, models that look their size, tools."""

from __future__ import annotations

import json
import math
import struct
import sys
from pathlib import Path
from typing import Any

from specdash.demo import tree

ENV = "ml-env"
TARGET_GB, TARGET_SHARDS = 547, 64

TARGET: dict[str, Any] = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "text_config": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "kimi_k2",
        "hidden_size": 7168,
        "num_hidden_layers": 61,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "vocab_size": 163840,
        "max_position_embeddings": 262144,
        "n_routed_experts": 384,
        "num_experts_per_tok": 8,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized"},
    },
}
DRAFTER: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": 7168,
    "num_hidden_layers": 1,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "intermediate_size": 18432,
    "vocab_size": 163840,
    "draft_vocab_size": 32000,
    "max_position_embeddings": 262144,
    "target_hidden_size": 7168,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 58], "use_aux_hidden_state": True},
    "torch_dtype": "bfloat16",
}
DRAFTERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "k2-eagle3-good": (DRAFTER, {"accept_length": 2.35, "cycle_ms": 28.8}),
    "k2-eagle3-weak": (DRAFTER, {"accept_length": 1.5, "cycle_ms": 28.8}),
    "k2-eagle3-broken": (DRAFTER, {"fail": "draft_load"}),
    "k2-eagle3-misfit": ({**DRAFTER, "hidden_size": 4096, "target_hidden_size": 4096}, {}),
}
"""Drafter folder → (config.json, simulate.json)."""


def build(home: Path, speed: float = 1.0) -> None:
    """Everything below `home`. Raises OSError."""
    home.mkdir(mode=0o700, exist_ok=True)
    (home / ".sim" / "gpus").mkdir(parents=True)
    (home / ".sim" / "speed").write_text(f"{speed}\n")
    _interpreter(home)
    _target(home / "data" / "models" / "Kimi-K2.5-INT4")
    for name, (config, simulate) in DRAFTERS.items():
        _drafter(home / "data" / "eagle3" / name, config, simulate)
    _tool(
        home / "bin" / "nvidia-smi",
        home,
        "from sglang.simulated.smi import main\nsys.exit(main(sys.argv[1:]))\n",
    )


def python(home: Path) -> Path:
    return home / ENV / "bin" / "python3"


def _interpreter(home: Path) -> None:
    """A venv in the shape that Python itself makes, without running ensurepip (0.2 s and a subprocess)."""
    base = Path(getattr(sys, "_base_executable", "") or sys.executable)
    env = home / ENV
    (env / "bin").mkdir(parents=True)
    for name in ("python", "python3", f"python3.{sys.version_info.minor}"):
        (env / "bin" / name).symlink_to(base)
    version = ".".join(map(str, sys.version_info[:3]))
    (env / "pyvenv.cfg").write_text(
        f"home = {base.parent}\ninclude-system-site-packages = false\nversion = {version}\n"
    )
    tree.install(env / "lib" / f"python3.{sys.version_info.minor}" / "site-packages")


Tensors = dict[str, tuple[str, list[int]]]
"""Name → (dtype, shape)."""
BYTES = {"BF16": 2, "I64": 8, "BOOL": 1}


def _target(folder: Path) -> None:
    """The target's 64 shards: one tensor each, of the whole shard's size."""
    each = (TARGET_GB << 30) // TARGET_SHARDS // 2
    where = {}
    folder.mkdir(parents=True)
    for number in range(TARGET_SHARDS):
        name = f"model-{number + 1:05d}-of-{TARGET_SHARDS:06d}.safetensors"
        tensor = f"language_model.model.layers.{number}.mlp.experts.weight"
        _safetensors(folder / name, {tensor: ("BF16", [each])})
        where[tensor] = name
    index = {"metadata": {"total_size": 2 * each * TARGET_SHARDS}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    _config(folder, TARGET)


def _drafter(folder: Path, config: dict[str, Any], simulate: dict[str, Any]) -> None:
    """An EAGLE3 head with the tensors that such heads have, in the shapes that its config means."""
    folder.mkdir(parents=True)
    wide, inner, draft = config["hidden_size"], config["intermediate_size"], config["draft_vocab_size"]
    shapes: dict[str, list[int]] = {
        "fc.weight": [wide, 3 * config["target_hidden_size"]],
        "lm_head.weight": [draft, wide],
        "norm.weight": [wide],
        "midlayer.hidden_norm.weight": [wide],
        "midlayer.input_layernorm.weight": [wide],
        "midlayer.post_attention_layernorm.weight": [wide],
        "midlayer.mlp.down_proj.weight": [wide, inner],
        "midlayer.mlp.gate_proj.weight": [inner, wide],
        "midlayer.mlp.up_proj.weight": [inner, wide],
        "midlayer.self_attn.o_proj.weight": [wide, wide],
        **{f"midlayer.self_attn.{x}_proj.weight": [wide, 2 * wide] for x in "qkv"},
    }
    tensors: Tensors = {name: ("BF16", shape) for name, shape in shapes.items()}
    tensors["d2t"] = ("I64", [draft])
    tensors["t2d"] = ("BOOL", [config["vocab_size"]])
    _safetensors(folder / "model.safetensors", tensors)
    _config(folder, config)
    (folder / "simulate.json").write_text(json.dumps(simulate))


def _config(folder: Path, config: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}\n')


def _safetensors(path: Path, tensors: Tensors) -> None:
    """A sparse file with a valid header: it shows its size and takes none."""
    header, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = BYTES[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + end)


def _tool(path: Path, home: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\n"exec" "{python(home)}" "-I" "$0" "$@"\nimport sys\n{text}')
    path.chmod(0o755)
