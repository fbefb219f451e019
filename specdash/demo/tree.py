"""The SGLang that the demo host has installed: declarations in SGLang's style, and the simulated engine.

Written by us. Only what a reader of files looks at is here: algorithms, flags, model classes, metadata.
"""

from __future__ import annotations

import shutil
from pathlib import Path

VERSION = "0.5.15.post1+simulated"

SPEC_INFO = '''"""Simulated: the algorithms of this build."""

from __future__ import annotations

from enum import Enum, auto
from typing import Optional

from sglang.srt.speculative.spec_registry import _RESERVED_ALIASES, get_spec, register_algorithm


class SpeculativeAlgorithm(Enum):
    DFLASH = auto()
    EAGLE = auto()
    EAGLE3 = auto()
    FROZEN_KV_MTP = auto()
    STANDALONE = auto()
    NGRAM = auto()
    NONE = auto()

    @classmethod
    def from_string(cls, name: Optional[str]):
        if name is None:
            return cls.NONE
        upper = name.upper()
        if upper in cls.__members__:
            return cls[upper]
        if upper in _RESERVED_ALIASES:
            return cls.EAGLE
        registered = get_spec(upper)
        if registered is not None:
            return registered
        raise ValueError(f"Unknown speculative algorithm name: {name}")

    @classmethod
    def register(cls, name: str, **options):
        return register_algorithm(name, **options)
'''

SPEC_REGISTRY = '''"""Simulated: algorithms that plugins add."""

_RESERVED_ALIASES = frozenset({"NEXTN"})
_REGISTRY: dict = {}


def get_spec(name):
    return _REGISTRY.get(name)


def register_algorithm(name, **options):
    def keep(factory):
        _REGISTRY[name.upper()] = (factory, options)
        return factory

    return keep
'''

ARG_UTILS = '''"""Simulated: how ServerArgs declares its options."""

import argparse
import dataclasses
import typing
from typing import Annotated as A
from typing import Any, Optional, Tuple


@dataclasses.dataclass(frozen=True)
class Arg:
    help: str = ""
    choices: Optional[Tuple[Any, ...]] = None
    aliases: Tuple[str, ...] = ()


def add_fields(parser: argparse.ArgumentParser, cls: type) -> None:
    hints = typing.get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        kind, meta = typing.get_args(hints[field.name])[:2]
        arg = meta if isinstance(meta, Arg) else Arg(help=meta)
        names = ["--" + field.name.replace("_", "-"), *arg.aliases]
        plain = [t for t in (typing.get_args(kind) or (kind,)) if t is not type(None)][0]
        if plain is bool:
            parser.add_argument(*names, dest=field.name, action="store_true", help=arg.help)
            continue
        required = field.default is dataclasses.MISSING
        parser.add_argument(
            *names, dest=field.name, type=plain, choices=arg.choices, help=arg.help, required=required,
            default=None if required else field.default,
        )
'''

SERVER_ARGS = '''"""Simulated: the command line of this build, a part of the real one."""

import argparse
import dataclasses
from typing import Optional

from sglang.srt.arg_groups.arg_utils import A, Arg, add_fields


@dataclasses.dataclass
class ServerArgs:
    model_path: A[str, Arg(help="Folder of the model.", aliases=("--model",))]
    tokenizer_path: A[Optional[str], "Folder of the tokenizer."] = None
    tokenizer_mode: A[str, Arg(help="Tokenizer.", choices=("auto", "slow"))] = "auto"
    load_format: A[str, "Format of the weights."] = "auto"
    trust_remote_code: A[bool, "Run code that comes with the model."] = False
    context_length: A[Optional[int], "Longest context."] = None
    quantization: A[Optional[str], "Quantization of the weights."] = None
    dtype: A[str, "Type of weights and activations."] = "auto"
    kv_cache_dtype: A[str, "Type of the KV cache."] = "auto"
    host: A[str, "Address to listen on."] = "127.0.0.1"
    port: A[int, "Port to listen on."] = 30000
    served_model_name: A[Optional[str], "Name told to clients."] = None
    api_key: A[Optional[str], "Key that clients must send."] = None
    mem_fraction_static: A[Optional[float], "Share of GPU memory for weights and KV cache."] = None
    max_running_requests: A[Optional[int], "Most requests at a time."] = None
    max_total_tokens: A[Optional[int], "Most tokens in the KV cache."] = None
    chunked_prefill_size: A[Optional[int], "Most tokens of one prefill."] = None
    schedule_policy: A[str, "Order of requests."] = "fcfs"
    tp_size: A[int, Arg(help="Tensor parallel size.", aliases=("--tensor-parallel-size", "--tp"))] = 1
    dp_size: A[int, Arg(help="Data parallel size.", aliases=("--data-parallel-size", "--dp"))] = 1
    base_gpu_id: A[int, "First GPU."] = 0
    random_seed: A[Optional[int], "Seed."] = None
    watchdog_timeout: A[float, "Seconds until a stuck batch ends the server."] = 300
    log_level: A[str, "Log level."] = "info"
    log_requests: A[bool, "Log every request."] = False
    enable_metrics: A[bool, "Serve /metrics."] = False
    enable_cache_report: A[bool, "Tell cached tokens."] = False
    decode_log_interval: A[int, "Decode steps between log lines."] = 40
    reasoning_parser: A[Optional[str], "Parser of reasoning."] = None
    tool_call_parser: A[Optional[str], "Parser of tool calls."] = None
    dist_init_addr: A[Optional[str], "Address of the first node."] = None
    nnodes: A[int, "Nodes."] = 1
    node_rank: A[int, "Rank of this node."] = 0
    attention_backend: A[Optional[str], Arg(help="Attention kernels.", choices=("triton", "flashinfer", "fa3", "flashmla", "trtllm_mla"))] = None
    sampling_backend: A[Optional[str], Arg(help="Sampling kernels.", choices=("flashinfer", "pytorch"))] = None
    grammar_backend: A[Optional[str], Arg(help="Grammar.", choices=("xgrammar", "outlines", "llguidance", "none"))] = None
    disable_cuda_graph: A[bool, "No CUDA graphs."] = False
    cuda_graph_max_bs_decode: A[Optional[int], Arg(help="Largest captured batch.", aliases=("--cuda-graph-max-bs",))] = None
    disable_radix_cache: A[bool, "No prefix cache."] = False
    speculative_algorithm: A[Optional[str], "Algorithm of speculative decoding."] = None
    speculative_draft_model_path: A[Optional[str], Arg(help="Folder of the drafter.", aliases=("--speculative-draft-model",))] = None
    speculative_num_steps: A[Optional[int], "Draft steps."] = None
    speculative_eagle_topk: A[Optional[int], "Branches per draft step."] = None
    speculative_num_draft_tokens: A[Optional[int], "Tokens per verify."] = None
    speculative_accept_threshold_single: A[float, "Accept threshold."] = 1.0
    speculative_attention_mode: A[str, Arg(help="Attention of verify.", choices=("prefill", "decode"))] = "prefill"
    speculative_ngram_max_trie_depth: A[int, "Depth of the n-gram trie."] = 18

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser):
        add_fields(parser, ServerArgs)


def prepare_server_args(argv) -> ServerArgs:
    parser = argparse.ArgumentParser(prog="launch_server.py")
    ServerArgs.add_cli_args(parser)
    given = vars(parser.parse_args(argv))
    args = ServerArgs(**given)
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    SpeculativeAlgorithm.from_string(args.speculative_algorithm)
    return args
'''

LAUNCH = '''"""Simulated: `python -m sglang.launch_server`."""

import sys

from sglang.simulated.main import main
from sglang.srt.server_args import prepare_server_args
from sglang.version import __version__

if __name__ == "__main__":
    sys.exit(main(prepare_server_args(sys.argv[1:]), __version__))
'''

KIMI = '''"""Simulated: a target that hands hidden states to a drafter."""


class KimiK25ForConditionalGeneration:
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        self.layers = layer_ids


EntryClass = KimiK25ForConditionalGeneration
'''
LLAMA = '''"""Simulated: a plain target."""


class LlamaForCausalLM:
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        self.layers = layer_ids


EntryClass = [LlamaForCausalLM]
'''
EAGLE3 = '''"""Simulated: an EAGLE3 drafter."""


class LlamaForCausalLMEagle3:
    pass


EntryClass = [LlamaForCausalLMEagle3]
'''

FILES = {
    "sglang/__init__.py": '"""Simulated SGLang: no model is computed."""\n\nfrom sglang.version import __version__\n',
    "sglang/version.py": f'__version__ = "{VERSION}"\n',
    "sglang/launch_server.py": LAUNCH,
    "sglang/srt/__init__.py": "",
    "sglang/srt/server_args.py": SERVER_ARGS,
    "sglang/srt/arg_groups/__init__.py": "",
    "sglang/srt/arg_groups/arg_utils.py": ARG_UTILS,
    "sglang/srt/speculative/__init__.py": "",
    "sglang/srt/speculative/spec_info.py": SPEC_INFO,
    "sglang/srt/speculative/spec_registry.py": SPEC_REGISTRY,
    "sglang/srt/models/__init__.py": "",
    "sglang/srt/models/kimi_k25.py": KIMI,
    "sglang/srt/models/llama.py": LLAMA,
    "sglang/srt/models/llama_eagle3.py": EAGLE3,
    "pynvml.py": '"""Simulated NVML."""\n\nfrom sglang.simulated.nvml import *  # noqa: F403\n',
    f"sglang-{VERSION}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: sglang\nVersion: {VERSION}\n",
    f"sglang-{VERSION}.dist-info/INSTALLER": "specdash demo\n",
}


def install(site: Path) -> None:
    """Write the simulated SGLang and NVML into a site-packages folder."""
    for name, text in FILES.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    engine = Path(__file__).parent / "engine"
    shutil.copytree(engine, site / "sglang" / "simulated", ignore=shutil.ignore_patterns("__pycache__"))
    record = "".join(f"{name},,\n" for name in FILES)
    (site / f"sglang-{VERSION}.dist-info" / "RECORD").write_text(record)
