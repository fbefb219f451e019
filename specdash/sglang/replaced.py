"""Flags that are gone, and what took their place; and names that belong to other engines.

Only used to advise on a flag that the installed parser does not know: never to say that one exists. Versions
are the first covered release without the flag (read from 16 releases, 0.4.1 to 0.5.23).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Optional


@dataclass(frozen=True)
class Replaced:
    use: str
    """The flag to use now; empty when there is none."""
    gone_in: str = ""
    sentence: str = ""
    engine: str = ""
    """The other engine whose name this is; empty for SGLang's own old names."""


def _gone(version: str, use: str = "", sentence: str = "") -> Replaced:
    return Replaced(use, version, sentence)


SGLANG: Dict[str, Replaced] = {
    "--cuda-graph-max-bs": _gone(
        "0.5.20", "--cuda-graph-max-bs-decode", "Split into a decode and a prefill flag."
    ),
    "--cuda-graph-bs": _gone("0.5.20", "--cuda-graph-bs-decode", "Split into a decode and a prefill flag."),
    "--disable-piecewise-cuda-graph": _gone("0.5.20", "--cuda-graph-backend-prefill", "Use …=disabled."),
    "--enable-piecewise-cuda-graph": _gone("0.5.15", "--cuda-graph-backend-prefill"),
    "--speculative-ngram-max-match-window-size": _gone("0.5.11", "--speculative-ngram-max-trie-depth"),
    "--speculative-ngram-branch-length": _gone("0.5.11", "--speculative-ngram-max-trie-depth"),
    "--speculative-ngram-min-match-window-size": _gone("0.5.11"),
    "--speculative-dflash-draft-window-size": _gone("0.5.20", "--speculative-draft-window-size"),
    "--speculative-skip-dp-mlp-sync": _gone("0.5.23"),
    "--enable-beta-spec": _gone(
        "0.5.5", "", "Overlap with speculation was SGLANG_ENABLE_SPEC_V2=1, and is on by itself from 0.5.11."
    ),
    "--enable-ep-moe": _gone("0.5.5", "--ep-size"),
    "--enable-deepep-moe": _gone("0.5.5", "--moe-a2a-backend", "Use … deepep."),
    "--enable-flashinfer-cutlass-moe": _gone("0.5.5", "--moe-runner-backend", "Use … flashinfer_cutlass."),
    "--enable-flashinfer-trtllm-moe": _gone("0.5.5", "--moe-runner-backend", "Use … flashinfer_trtllm."),
    "--enable-triton-kernel-moe": _gone("0.5.5", "--moe-runner-backend", "Use … triton_kernel."),
    "--enable-flashinfer-mla": _gone("0.4.9", "--attention-backend", "Use … flashinfer."),
    "--enable-flashmla": _gone("0.4.9", "--attention-backend", "Use … flashmla."),
    "--disable-mla": _gone("0.4.6"),
    "--enable-overlap-schedule": _gone("0.4.3", "", "Overlap is on by itself."),
    "--max-micro-batch-size": _gone("0.5.3", "--pp-max-micro-batch-size"),
    "--nsa-prefill-backend": _gone("0.5.20", "--dsa-prefill-backend"),
    "--nsa-decode-backend": _gone("0.5.20", "--dsa-decode-backend"),
    "--mamba-scheduler-strategy": _gone("0.5.20", "--mamba-radix-cache-strategy"),
    "--torchao-config": _gone("0.5.18"),
    "--stream-output": _gone("0.5.20", "--incremental-streaming-output"),
    "--crash-on-nan": _gone("0.5.5"),
    "--enable-double-sparsity": _gone("0.5.11"),
    "--cuda-graph-tc-compiler": _gone("0.5.23"),
}


def _other(engine: str, use: str, sentence: str = "") -> Replaced:
    return Replaced(use, "", sentence, engine)


OTHER_ENGINES: Dict[str, Replaced] = {
    "--speculative-model": _other("vLLM", "--speculative-draft-model-path"),
    "--speculative-config": _other("vLLM", "--speculative-algorithm", "SGLang has one flag per setting."),
    "--num-speculative-tokens": _other("vLLM", "--speculative-num-draft-tokens"),
    "--ngram-prompt-lookup-max": _other("vLLM", "--speculative-ngram-max-trie-depth"),
    "--max-model-len": _other("vLLM", "--context-length"),
    "--gpu-memory-utilization": _other("vLLM", "--mem-fraction-static"),
    "--max-num-seqs": _other("vLLM", "--max-running-requests"),
    "--max-num-batched-tokens": _other("vLLM", "--chunked-prefill-size"),
    "--enforce-eager": _other("vLLM", "--cuda-graph-backend-decode", "Use …=disabled."),
    "--enable-prefix-caching": _other("vLLM", "", "SGLang caches prefixes by itself."),
    "--enable-chunked-prefill": _other("vLLM", "--chunked-prefill-size"),
    "--swap-space": _other("vLLM", ""),
    "--disable-log-requests": _other("vLLM", ""),
    "--enable-auto-tool-choice": _other("vLLM", "--tool-call-parser"),
    "--distributed-executor-backend": _other("vLLM", ""),
    "--limit-mm-per-prompt": _other("vLLM", "--limit-mm-data-per-request"),
    "--rope-scaling": _other("vLLM", "--json-model-override-args"),
    "--model-draft": _other("llama.cpp", "--speculative-draft-model-path"),
    "--draft-max": _other("llama.cpp", "--speculative-num-draft-tokens"),
    "--ctx-size": _other("llama.cpp", "--context-length"),
    "--n-gpu-layers": _other("llama.cpp", ""),
    "--max-batch-size": _other("TensorRT-LLM", "--max-running-requests"),
    "--num-shard": _other("TGI", "--tp-size"),
    "--speculate": _other("TGI", "--speculative-num-draft-tokens"),
}
"""A flag that the installed SGLang knows is never looked up here, whatever another engine means by it."""


def find(flag: str) -> Optional[Replaced]:
    return SGLANG.get(flag) or OTHER_ENGINES.get(flag)
