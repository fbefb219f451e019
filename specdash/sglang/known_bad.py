"""Combinations that are known to fail or to mislead, each with its versions, its source and what to do.

A small registry on purpose: only what the parser takes and no other rule here sees. `first` and `last` are
release numbers, both included; an open end is empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Mapping, Sequence, Tuple

from specdash.sglang.versions import between

SPECULATIVE = ("EAGLE", "NEXTN", "EAGLE3", "STANDALONE", "NGRAM", "DFLASH", "DSPARK", "UNO", "FROZEN_KV_MTP")


@dataclass(frozen=True)
class Bad:
    """Holds when every condition that is set is met."""

    id: str
    status: str
    """block | warn"""
    sentence: str
    advice: str
    source: str
    first: str = ""
    last: str = ""
    algorithms: Tuple[str, ...] = ()
    """Any of these; empty: with or without speculation."""
    flags: Tuple[str, ...] = ()
    """Every one of these is given (as a switch, or with any value)."""
    values: Tuple[Tuple[str, Tuple[str, ...]], ...] = ()
    """(flag, values): the flag has one of them."""
    above_one: Tuple[str, ...] = ()
    """Any of these flags is a number above 1."""
    env: Tuple[Tuple[str, Tuple[str, ...]], ...] = ()
    without: Tuple[str, ...] = ()
    """None of these flags is given."""
    env_without: Tuple[str, ...] = ()
    """None of these variables is set."""


_HOOK = "arg_groups/speculative_hook.py (0.5.23)"
_ARGS = "server_args.py"
_ON = ("1", "true", "True", "TRUE", "yes")

REGISTRY: Tuple[Bad, ...] = (
    Bad(
        "spec-pipeline",
        "block",
        "Speculation does not run with pipeline parallelism before 0.5.23.",
        "Use tensor parallelism, or leave speculation out.",
        _ARGS + " check_server_args; validation_hook.py:83 (0.5.20)",
        last="0.5.22",
        algorithms=SPECULATIVE,
        above_one=("--pp-size", "--pipeline-parallel-size"),
    ),
    Bad(
        "spec-pipeline-not-eagle",
        "block",
        "With pipeline parallelism only EAGLE (one layer) speculates, and DSPARK on a disaggregated prefill server.",
        "Use tensor parallelism, or EAGLE.",
        "arg_groups/validation_hook.py check_pipeline_parallel_compat (0.5.23)",
        first="0.5.23",
        algorithms=("EAGLE3", "STANDALONE", "NGRAM", "DFLASH", "UNO", "FROZEN_KV_MTP"),
        above_one=("--pp-size", "--pipeline-parallel-size"),
    ),
    Bad(
        "eagle-pipeline",
        "block",
        "EAGLE with pipeline parallelism runs only on a disaggregated prefill server, or with SGLANG_ENABLE_PP_SPEC.",
        "Use tensor parallelism, or set SGLANG_ENABLE_PP_SPEC=1.",
        "arg_groups/validation_hook.py check_pipeline_parallel_compat (0.5.23)",
        first="0.5.23",
        algorithms=("EAGLE", "NEXTN"),
        above_one=("--pp-size", "--pipeline-parallel-size"),
        without=("--disaggregation-mode",),
        env_without=("SGLANG_ENABLE_PP_SPEC",),
    ),
    Bad(
        "dspark-pipeline",
        "block",
        "DSPARK with pipeline parallelism runs only on a disaggregated prefill server.",
        "Use tensor parallelism.",
        "arg_groups/validation_hook.py (0.5.23)",
        first="0.5.23",
        algorithms=("DSPARK",),
        above_one=("--pp-size", "--pipeline-parallel-size"),
        without=("--disaggregation-mode",),
    ),
    Bad(
        "standalone-dp-attention",
        "block",
        "STANDALONE and NGRAM refuse DP attention.",
        "Leave DP attention out, or use an EAGLE drafter.",
        _HOOK,
        algorithms=("STANDALONE", "NGRAM"),
        flags=("--enable-dp-attention",),
    ),
    Bad(
        "standalone-attn-dp",
        "block",
        "STANDALONE and NGRAM refuse DP attention.",
        "Leave DP attention out, or use an EAGLE drafter.",
        _HOOK,
        algorithms=("STANDALONE", "NGRAM"),
        above_one=("--attn-dp-size", "--attention-data-parallel-size"),
    ),
    Bad(
        "dflash-dp-attention",
        "block",
        "DFLASH refuses DP attention before 0.5.23.",
        "Leave DP attention out.",
        "speculative_hook.py:212 (0.5.20)",
        first="0.5.11",
        last="0.5.22",
        algorithms=("DFLASH",),
        flags=("--enable-dp-attention",),
    ),
    Bad(
        "block-dp-lm-head",
        "block",
        "DFLASH and DSPARK with DP attention need --enable-dp-lm-head.",
        "Add --enable-dp-lm-head.",
        _HOOK,
        first="0.5.23",
        algorithms=("DFLASH", "DSPARK"),
        above_one=("--attn-dp-size", "--attention-data-parallel-size"),
        without=("--enable-dp-lm-head",),
    ),
    Bad(
        "uno-parallel",
        "block",
        "UNO runs on one GPU only (TP = PP = 1).",
        "Use tp 1, or another algorithm.",
        _HOOK,
        algorithms=("UNO",),
        above_one=("--tp-size", "--tensor-parallel-size", "--tp", "--pp-size", "--pipeline-parallel-size"),
    ),
    Bad(
        "ngram-device",
        "block",
        "NGRAM runs only on CUDA before 0.5.18.",
        "Use 0.5.18 or later on a CPU.",
        _ARGS + " (0.5.9:2462)",
        last="0.5.17",
        algorithms=("NGRAM",),
        values=(("--device", ("cpu", "xpu", "npu", "hpu")),),
    ),
    Bad(
        "torch-native-spec",
        "block",
        "The torch_native attention backend cannot verify drafts.",
        "Use another --attention-backend (on a CPU: intel_amx).",
        "seen on 0.5.23: 'EAGLE is not supported in decode attention backend torch_native'",
        first="0.5.20",
        algorithms=("EAGLE", "NEXTN", "EAGLE3", "STANDALONE"),
        values=(("--attention-backend", ("torch_native",)),),
    ),
    Bad(
        "spec-v2-topk",
        "block",
        "SGLANG_ENABLE_SPEC_V2 takes only topk 1 in these versions.",
        "Set --speculative-eagle-topk 1, or leave the variable out.",
        _ARGS + " (0.5.9:2376)",
        first="0.5.8",
        last="0.5.10",
        algorithms=("EAGLE", "NEXTN", "EAGLE3", "STANDALONE"),
        above_one=("--speculative-eagle-topk",),
        env=(("SGLANG_ENABLE_SPEC_V2", _ON),),
    ),
    Bad(
        "spec-v2-gone",
        "warn",
        "SGLANG_ENABLE_SPEC_V2 does nothing from 0.5.15 on.",
        "Leave it out: overlap with speculation is on by itself.",
        "server_args.py (0.5.15)",
        first="0.5.15",
        env=(("SGLANG_ENABLE_SPEC_V2", _ON),),
    ),
    Bad(
        "spec-moe-trtllm",
        "block",
        "The speculative MoE runner cannot be flashinfer_trtllm in these versions (AssertionError).",
        "Leave --speculative-moe-runner-backend out.",
        _ARGS + " (0.5.9:2348)",
        first="0.5.5",
        last="0.5.10",
        algorithms=SPECULATIVE,
        values=(("--speculative-moe-runner-backend", ("flashinfer_trtllm",)),),
    ),
    Bad(
        "lora-spec",
        "block",
        "LoRA serving with speculation works only with NGRAM in these versions.",
        "Leave one of the two out, or use 0.5.23.",
        _ARGS + " (0.5.18:9371)",
        first="0.5.11",
        last="0.5.18",
        algorithms=("EAGLE", "NEXTN", "EAGLE3", "STANDALONE", "DFLASH", "DSPARK"),
        flags=("--enable-lora",),
    ),
    Bad(
        "sink-without-window",
        "block",
        "--speculative-draft-sink-size needs --speculative-draft-window-size.",
        "Set both.",
        _HOOK,
        first="0.5.23",
        algorithms=SPECULATIVE,
        flags=("--speculative-draft-sink-size",),
        without=("--speculative-draft-window-size",),
    ),
    Bad(
        "rejection-sampling-other",
        "block",
        "--speculative-use-rejection-sampling works only with EAGLE and EAGLE3.",
        "Leave it out.",
        _HOOK,
        first="0.5.15",
        algorithms=("STANDALONE", "UNO", "FROZEN_KV_MTP"),
        flags=("--speculative-use-rejection-sampling",),
    ),
    Bad(
        "rejection-sampling-topk",
        "block",
        "--speculative-use-rejection-sampling needs --speculative-eagle-topk 1.",
        "Set topk to 1.",
        _HOOK,
        first="0.5.15",
        algorithms=("EAGLE", "NEXTN", "EAGLE3"),
        flags=("--speculative-use-rejection-sampling",),
        above_one=("--speculative-eagle-topk",),
    ),
    Bad(
        "no-metrics",
        "warn",
        "Without --enable-metrics there is no /metrics: specdash sees accept length only in the log.",
        "Add --enable-metrics.",
        "facts: default False in every version",
        without=("--enable-metrics",),
    ),
    Bad(
        "skip-warmup-old-info",
        "warn",
        "With --skip-server-warmup /get_server_info never answers before the first request in these versions.",
        "Leave it out, or send one request first.",
        "tokenizer_manager auto_create_handle_loop (0.5.11)",
        last="0.5.10",
        flags=("--skip-server-warmup",),
    ),
    Bad(
        "force-shutdown",
        "warn",
        "SGL_FORCE_SHUTDOWN drops running requests when the server is stopped.",
        "Leave it out unless that is wanted.",
        "tokenizer_manager sigterm_watchdog",
        env=(("SGL_FORCE_SHUTDOWN", _ON),),
    ),
)


def find(version: str, algorithm: str, flags: Sequence[Tuple[str, Any]], env: Mapping[str, str]) -> List[Bad]:
    """The entries that hold for this launch."""
    given = dict(flags)
    return [bad for bad in REGISTRY if _holds(bad, version, algorithm.upper(), given, env)]


def _holds(bad: Bad, version: str, algorithm: str, given: Mapping[str, Any], env: Mapping[str, str]) -> bool:
    if not between(version, bad.first, bad.last):
        return False
    if bad.algorithms and algorithm not in bad.algorithms:
        return False
    if any(flag not in given for flag in bad.flags) or any(flag in given for flag in bad.without):
        return False
    if any(str(given.get(flag)) not in values for flag, values in bad.values):
        return False
    if any(str(env.get(name, "")) not in values for name, values in bad.env):
        return False
    if any(env.get(name) for name in bad.env_without):
        return False
    return not bad.above_one or any(_number(given.get(flag)) > 1 for flag in bad.above_one)


def _number(value: Any) -> float:
    try:
        return float(str(value))
    except ValueError:
        return 0.0
