"""Small SGLang trees of every shape there has been, written by us."""

from __future__ import annotations

from specdash.sglang.tree import DictTree

INT_ENUM = """
from enum import IntEnum, auto

class SpeculativeAlgorithm(IntEnum):
    NONE = auto()
    EAGLE = auto()
    EAGLE3 = auto()

class SpecInputType(IntEnum):
    EAGLE_DRAFT = auto()
"""

REGISTERED = """
class _Meta(type):
    pass

class SpeculativeAlgorithm(metaclass=_Meta):
    @classmethod
    def register(cls, name, *, aliases=None, value=None):
        return cls

def register_speculative_algorithm(name, worker_cls, *, aliases=None):
    return SpeculativeAlgorithm.register(name, aliases=aliases)

SpeculativeAlgorithm.register("NONE")
register_speculative_algorithm("EAGLE", aliases=("NEXTN",), worker_cls=None)
register_speculative_algorithm("NGRAM", worker_cls=None)
"""

ENUM_AND_REGISTRY = """
from enum import Enum, auto
from sglang.srt.speculative.spec_registry import _RESERVED_ALIASES

class SpeculativeAlgorithm(Enum):
    EAGLE = auto()
    EAGLE3 = auto()
    NONE = auto()

    @classmethod
    def register(cls, name):
        return lambda factory: factory
"""

REGISTRY = '_RESERVED_ALIASES = frozenset({"NEXTN"})\n'

HOOK = """
def resolve(algorithm, gemma):
    if algorithm == "NEXTN" or algorithm == "EAGLE":
        if gemma:
            return "EAGLE3"
        return "EAGLE"
    return algorithm
"""

ARGPARSE = """
import argparse
import dataclasses
from typing import Optional

LOAD_CHOICES = ["auto", "dummy"]
LOAD_CHOICES += ["gguf"]

class RetiredAction(argparse.Action):
    def __init__(self, option_strings, dest, nargs=0, **kwargs):
        super().__init__(option_strings, dest, nargs=nargs, **kwargs)

@dataclasses.dataclass
class ServerArgs:
    model_path: str
    tp_size: int = 1
    load_format: str = "auto"
    speculative_algorithm: Optional[str] = None

    @staticmethod
    def add_cli_args(parser):
        names = sorted(known())
        parser.add_argument("--model-path", "--model", type=str, required=True, help="Where it is.")
        parser.add_argument("--tensor-parallel-size", "--tp-size", type=int, default=ServerArgs.tp_size, help="TP.")
        parser.add_argument("--load-format", type=str, choices=LOAD_CHOICES, default=ServerArgs.load_format)
        parser.add_argument("--trust-remote-code", action="store_true", help="Trust.")
        parser.add_argument("--parser-name", type=str, choices=names)
        parser.add_argument("--numbers", type=int, nargs="+")
        parser.add_argument("--old-thing", action=RetiredAction, help="Deprecated. Use --tp-size.")
        parser.add_argument("--speculative-algorithm", type=str, choices=["EAGLE", "EAGLE3", "NEXTN"])
"""

ANNOTATED = """
import argparse
from typing import List, Literal, Optional
from sglang.srt.arg_groups.arg_utils import A, Arg
from sglang.srt.arg_groups.choices import FORMATS

class ServerArgs:
    model_path: A[str, Arg(help="Where it is.", aliases=["--model"])]
    tp_size: A[int, Arg(help="TP.", aliases=["--tensor-parallel-size"])] = 1
    load_format: A[Optional[str], Arg(help="Format.", choices=FORMATS)] = "auto"
    trust_remote_code: A[bool, "Trust."] = False
    mode: A[Literal["a", "b"], "Mode."] = "a"
    numbers: A[Optional[List[int]], "Numbers."] = None
    fused: A[Optional[bool], Arg(help="Fused.", action=argparse.BooleanOptionalAction)] = None
    odd_name: A[str, Arg(help="Odd.", cli_name="--even-name")] = "x"
    hidden: A[bool, Arg(no_cli=True)] = False
    plain: int = 3

    @staticmethod
    def add_cli_args(parser):
        add_cli_args_from_dataclass(parser, ServerArgs)
        parser.add_argument("--config", type=str)
"""

FIELDS = """
import msgspec
from typing import Optional
from sglang.srt.arg_groups.arg_utils import A, Arg

class Spec(msgspec.Struct):
    _NS_PATH = "spec"
    speculative_algorithm: A[Optional[str], "Any name."] = None
    speculative_num_steps: A[Optional[int], "Steps."] = None

class Unlisted(msgspec.Struct):
    not_an_option: A[int, "Nobody collects this class."] = 0
"""

COLLECTED = """
from sglang.srt.arg_groups.fields.spec import Spec

class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model-path", type=str, required=True)

_INPUT_NAMESPACES = [
    Spec,
]
"""


def tree(**parts: str) -> DictTree:
    """A tree from parts: spec_info, spec_registry, server_args, hook, fields, choices, version."""
    places = {
        "spec_info": "sglang/srt/speculative/spec_info.py",
        "spec_registry": "sglang/srt/speculative/spec_registry.py",
        "server_args": "sglang/srt/server_args.py",
        "hook": "sglang/srt/arg_groups/speculative_hook.py",
        "fields": "sglang/srt/arg_groups/fields/spec.py",
        "choices": "sglang/srt/arg_groups/choices.py",
        "version": "sglang/version.py",
        "model": "sglang/srt/models/llama.py",
    }
    return DictTree({places[name]: text.encode() for name, text in parts.items()})


NEWEST = tree(
    spec_info=ENUM_AND_REGISTRY,
    spec_registry=REGISTRY,
    hook=HOOK,
    server_args=COLLECTED,
    fields=FIELDS,
    version='__version__ = "0.5.23"\n',
    model="class LlamaForCausalLM:\n    def set_eagle3_layers_to_capture(self, ids):\n        pass\n\nEntryClass = [LlamaForCausalLM]\n",
)
