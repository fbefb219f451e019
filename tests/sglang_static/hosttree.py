"""A folder that looks like a machine with SGLang: a package, models, and an interpreter that finds them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from tests.sglang_static import trees

TARGET = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 61, "vocab_size": 1024,
    "max_position_embeddings": 4096,
}  # fmt: skip
DRAFT = {
    "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 64, "num_hidden_layers": 1, "vocab_size": 1024,
    "draft_vocab_size": 1024, "max_position_embeddings": 4096,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 58]},
}  # fmt: skip
MODELS = """
class LlamaForCausalLM:
    def set_eagle3_layers_to_capture(self, ids):
        pass

EntryClass = [LlamaForCausalLM]
"""


def sglang(folder: Path, version: str = "0.5.23") -> Path:
    """A package `sglang` below `folder` that would fail loudly if it were imported."""
    files = {
        "__init__.py": "raise SystemExit('imported')\n",
        "version.py": f'__version__ = "{version}"\n',
        "srt/server_args.py": trees.COLLECTED + EXTRA_FLAGS,
        "srt/speculative/spec_info.py": trees.ENUM_AND_REGISTRY,
        "srt/speculative/spec_registry.py": trees.REGISTRY,
        "srt/arg_groups/speculative_hook.py": trees.HOOK,
        "srt/arg_groups/fields/spec.py": FIELDS,
        "srt/models/llama.py": MODELS,
        "srt/models/llama_eagle3.py": "class LlamaForCausalLMEagle3:\n    pass\n\nEntryClass = [LlamaForCausalLMEagle3]\n",
    }
    for name, text in files.items():
        path = folder / "sglang" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "sglang"


EXTRA_FLAGS = """
def more(parser):
    for_all = parser
    for_all.add_argument("--device", type=str)
    for_all.add_argument("--host", type=str)
    for_all.add_argument("--port", type=int, default=30000)
    for_all.add_argument("--tp-size", type=int, default=1)
    for_all.add_argument("--mem-fraction-static", type=float)
    for_all.add_argument("--enable-metrics", action="store_true")
    for_all.add_argument("--max-running-requests", type=int)
"""
FIELDS = trees.FIELDS.replace(
    "class Unlisted",
    '    speculative_eagle_topk: A[Optional[int], "T."] = None\n'
    '    speculative_num_draft_tokens: A[Optional[int], "N."] = None\n'
    '    speculative_draft_model_path: A[Optional[str], "P."] = None\n\nclass Unlisted',
)


def safetensors(path: Path, tensors: tuple[str, ...] = ("a",), size: int = 64) -> None:
    header = json.dumps(
        {
            name: {"dtype": "U8", "shape": [size], "data_offsets": [i * size, (i + 1) * size]}
            for i, name in enumerate(tensors)
        }
    ).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * size * len(tensors))


def model(folder: Path, config: dict[str, Any], shards: int = 1) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    names = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    for i, name in enumerate(names):
        safetensors(folder / name, (f"t{i}", "d2t"))
    if shards > 1:
        index = {"weight_map": {f"t{i}": name for i, name in enumerate(names)}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
