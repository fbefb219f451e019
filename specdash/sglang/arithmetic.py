"""Steps, topk and draft tokens: what the engine will make of them, and what it refuses.

Rules by algorithm and version, read in `server_args.py` (to 0.5.11) and `arg_groups/speculative_hook.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Mapping, Optional, Tuple

from specdash.sglang.versions import between

FIVE_FOUR_EIGHT = (5, 4, 8)
THREE_ONE_FOUR = (3, 1, 4)
LLAMA = ("LlamaForCausalLM", "Grok1ForCausalLM", "Grok1VForCausalLM")
CHAIN_TARGETS = (
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "DeepseekV32ForCausalLM",
    "GptOssForCausalLM",
    "BailingMoeForCausalLM",
    "BailingMoeV2ForCausalLM",
)
"""Targets that get 3/1/4 already before 0.5.8, when most others still get 5/4/8."""
NGRAM_TOKENS = 12
DFLASH_BLOCK = 16
DSPARK_GAMMA = 7


@dataclass(frozen=True)
class Wanted:
    """What the operator set; None is unset."""

    steps: Optional[int] = None
    topk: Optional[int] = None
    draft_tokens: Optional[int] = None
    block_size: Optional[int] = None
    """--speculative-dflash-block-size, or --speculative-dspark-block-size for DSPARK."""
    bfs_breadth: int = 10
    match_window: int = 12
    page_size: Optional[int] = None
    attention_backend: str = ""
    """--attention-backend: the one that rules on pages ask for."""
    other_backends: Tuple[str, ...] = ()
    """Those of decode and prefill, where they are set apart."""
    adaptive: bool = False


@dataclass(frozen=True)
class Issue:
    """One finding. `status`: ok (only told) | warn | block."""

    status: str
    category: str
    sentence: str
    flags: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Numbers:
    """What the engine will run with; None where only the engine or the drafter's config knows."""

    steps: Optional[int]
    topk: Optional[int]
    draft_tokens: Optional[int]
    issues: Tuple[Issue, ...] = ()

    @property
    def blocked(self) -> bool:
        return any(issue.status == "block" for issue in self.issues)


STEPS, TOPK, TOKENS = "--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens"


def resolve(
    algorithm: str,
    version: str,
    wanted: Wanted,
    target_architecture: str = "",
    draft_config: Optional[Mapping[str, Any]] = None,
) -> Numbers:
    """The numbers that this algorithm of this version runs with. An unknown algorithm: as given."""
    name = algorithm.upper()
    for value, flag in ((wanted.steps, STEPS), (wanted.topk, TOPK), (wanted.draft_tokens, TOKENS)):
        if value is not None and value < 1:
            issue = Issue(
                "block", "bad_flag_value", "{} must be at least 1, not {}.".format(flag, value), (flag,)
            )
            return Numbers(wanted.steps, wanted.topk, wanted.draft_tokens, (issue,))
    if name in ("EAGLE", "NEXTN", "EAGLE3", "STANDALONE", "FROZEN_KV_MTP"):
        return _eagle(name, version, wanted, target_architecture)
    if name == "NGRAM":
        return _ngram(version, wanted)
    if name == "DFLASH":
        return _dflash(wanted, draft_config or {})
    if name == "DSPARK":
        return _dspark(wanted, draft_config or {})
    if name == "UNO":
        return _uno(wanted)
    return Numbers(wanted.steps, wanted.topk, wanted.draft_tokens)


def default_numbers(algorithm: str, version: str, target_architecture: str) -> Tuple[int, int, int]:
    """(steps, topk, draft tokens) that SGLang chooses when none is set."""
    if algorithm == "STANDALONE":
        return THREE_ONE_FOUR
    if target_architecture in LLAMA:
        return FIVE_FOUR_EIGHT
    if between(version, "0.5.8"):
        return THREE_ONE_FOUR
    if target_architecture in CHAIN_TARGETS and between(version, "0.4.9"):
        return THREE_ONE_FOUR
    return FIVE_FOUR_EIGHT


def _eagle(name: str, version: str, wanted: Wanted, target: str) -> Numbers:
    issues: List[Issue] = []
    steps, topk, tokens = wanted.steps, wanted.topk, wanted.draft_tokens
    if between(version, "", "0.4.5"):
        # The parser itself had 5/4/8 as defaults; nothing was checked or adjusted.
        return Numbers(steps or 5, topk or 4, tokens or 8)
    if wanted.adaptive:
        topk = topk or 1
        if steps is not None:
            tokens = steps + 1
        return Numbers(
            steps, topk, tokens, (Issue("ok", "", "Adaptive: the number of steps changes at run time."),)
        )
    if steps is None and (topk is not None or tokens is not None):
        given = [flag for flag, value in ((TOPK, topk), (TOKENS, tokens)) if value is not None]
        sentence = (
            "{} without {}: the engine stops with a bare AssertionError. Set all three or none.".format(
                " and ".join(given), STEPS
            )
        )
        return Numbers(steps, topk, tokens, (Issue("block", "flag_conflict", sentence, tuple(given)),))
    if steps is None:
        steps, topk, tokens = default_numbers(name, version, target)
        issues.append(
            Issue(
                "ok",
                "",
                "Unset: the engine takes {} steps, topk {}, {} draft tokens.".format(steps, topk, tokens),
            )
        )
    if topk is None:
        sentence = "{} is set and {} is not: the engine compares None with a number and stops.".format(
            STEPS, TOPK
        )
        issues.append(Issue("block", "flag_conflict", sentence, (STEPS, TOPK)))
        return Numbers(steps, topk, tokens, tuple(issues))
    if topk > 1 and "trtllm_mha" in (wanted.attention_backend, *wanted.other_backends):
        sentence = "Attention backend trtllm_mha takes only topk 1."
        issues.append(Issue("block", "flag_conflict", sentence, (TOPK, "--attention-backend")))
    if topk > 1 and wanted.page_size is not None and wanted.page_size > 1:
        topk = _pages(version, topk, wanted, issues)
    if topk == 1 and tokens != steps + 1:
        sentence = "With topk 1 draft tokens are steps + 1: the engine takes {}.".format(steps + 1)
        if tokens is not None:
            sentence = "With topk 1 draft tokens are steps + 1: the engine changes {} to {}.".format(
                tokens, steps + 1
            )
        issues.append(Issue("ok" if tokens is None else "warn", "draft_tokens_adjusted", sentence, (TOKENS,)))
        tokens = steps + 1
    if topk > 1 and tokens is None:
        sentence = "{} is not set; with topk {} the engine cannot size the tree.".format(TOKENS, topk)
        issues.append(Issue("block", "flag_conflict", sentence, (TOKENS,)))
    if topk > 1 and tokens is not None:
        # Level 1 has topk nodes; each later one keeps topk x topk candidates. The root is the verified token.
        room = 1 + topk + (steps - 1) * topk * topk
        if tokens > room:
            sentence = (
                "{} steps with topk {} give a tree of {} tokens; {} draft tokens cannot be chosen.".format(
                    steps, topk, room, tokens
                )
            )
            issues.append(Issue("block", "flag_conflict", sentence, (STEPS, TOPK, TOKENS)))
        elif tokens < steps + 1:
            sentence = (
                "{} draft tokens cannot hold a path of {} steps: the last steps are never verified.".format(
                    tokens, steps
                )
            )
            issues.append(Issue("warn", "draft_tokens_small", sentence, (STEPS, TOKENS)))
    return Numbers(steps, topk, tokens, tuple(issues))


def _pages(version: str, topk: int, wanted: Wanted, issues: List[Issue]) -> int:
    """topk > 1 with pages larger than 1: what each version does. Returns the topk that runs."""
    flags = (TOPK, "--page-size", "--attention-backend")
    if between(version, "", "0.5.2"):
        issues.append(
            Issue("warn", "topk_adjusted", "With page size above 1 the engine sets topk to 1.", flags)
        )
        return 1
    allowed: Tuple[str, ...] = ("flashinfer", "fa3", "triton")
    if between(version, "", "0.5.7"):
        allowed = ("flashinfer",)
    elif between(version, "", "0.5.12"):
        allowed = ("flashinfer", "fa3")
    if wanted.attention_backend and wanted.attention_backend not in allowed:
        sentence = "topk {} with page size {} runs only on {}, not on {}.".format(
            topk, wanted.page_size, ", ".join(allowed), wanted.attention_backend
        )
        issues.append(Issue("block", "flag_conflict", sentence, flags))
    return topk


def _ngram(version: str, wanted: Wanted) -> Numbers:
    tokens = wanted.draft_tokens
    issues: List[Issue] = []
    if tokens is None:
        tokens = wanted.match_window if between(version, "", "0.5.10") else NGRAM_TOKENS
        issues.append(Issue("ok", "", "Unset: the engine takes {} draft tokens.".format(tokens)))
    topk = wanted.bfs_breadth
    if wanted.topk not in (None, topk):
        sentence = "NGRAM takes topk from --speculative-ngram-max-bfs-breadth ({}); {} is ignored.".format(
            topk, TOPK
        )
        issues.append(Issue("warn", "flag_ignored", sentence, (TOPK,)))
    steps = wanted.steps
    if steps is None and between(version, "0.5.15") and topk:
        steps = tokens // topk
    paged = wanted.page_size is not None and wanted.page_size > 1 and topk > 1
    if paged and wanted.attention_backend not in ("", "flashinfer"):
        sentence = "NGRAM with page size {} runs only on flashinfer.".format(wanted.page_size)
        issues.append(Issue("block", "flag_conflict", sentence, ("--page-size", "--attention-backend")))
    return Numbers(steps, topk, tokens, tuple(issues))


def _number(config: Mapping[str, Any], key: str, *nested: str) -> Optional[int]:
    for name in nested:
        inner = config.get(name)
        if isinstance(inner, Mapping) and isinstance(inner.get(key), int):
            return int(inner[key])
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _forced_chain(name: str, wanted: Wanted) -> List[Issue]:
    return [
        Issue("warn", "flag_ignored", "{} forces {} to 1; {} is ignored.".format(name, flag, value), (flag,))
        for value, flag in ((wanted.steps, STEPS), (wanted.topk, TOPK))
        if value not in (None, 1)
    ]


def _dflash(wanted: Wanted, draft: Mapping[str, Any]) -> Numbers:
    issues = _forced_chain("DFLASH", wanted)
    trained = _number(draft, "block_size", "dflash_config")
    tokens, block = wanted.draft_tokens, wanted.block_size
    if block is not None and block < 1:
        issues.append(
            Issue(
                "block",
                "bad_flag_value",
                "The DFLASH block size must be positive.",
                ("--speculative-dflash-block-size",),
            )
        )
    if tokens is not None and block is not None and tokens != block:
        told = " The drafter was trained with {}.".format(trained) if trained else ""
        sentence = "{} ({}) and --speculative-dflash-block-size ({}) mean the same and differ.{}".format(
            TOKENS, tokens, block, told
        )
        issues.append(Issue("block", "flag_conflict", sentence, (TOKENS, "--speculative-dflash-block-size")))
    chosen = block if block is not None else tokens
    if chosen is None:
        chosen = trained or DFLASH_BLOCK
        source = "the drafter's block size" if trained else "the default"
        issues.append(Issue("ok", "", "Unset: the engine takes {} draft tokens, {}.".format(chosen, source)))
    elif trained and chosen != trained and not any(i.status == "block" for i in issues):
        sentence = "The drafter was trained with block size {}; {} is asked for.".format(trained, chosen)
        issues.append(Issue("warn", "block_size_differs", sentence, (TOKENS,)))
    return Numbers(1, 1, chosen, tuple(issues))


def _dspark(wanted: Wanted, draft: Mapping[str, Any]) -> Numbers:
    issues = _forced_chain("DSPARK", wanted)
    trained = _number(draft, "dspark_block_size") or _number(
        draft, "block_size", "dspark_config", "dflash_config"
    )
    gamma = wanted.block_size if wanted.block_size is not None else trained
    if gamma is None and wanted.draft_tokens is None:
        gamma = DSPARK_GAMMA
        issues.append(Issue("ok", "", "Unset: the engine takes gamma {}.".format(gamma)))
    tokens = wanted.draft_tokens
    if gamma is not None:
        if tokens is not None and tokens != gamma + 1:
            sentence = "{} must be gamma + 1 = {}, not {}.".format(TOKENS, gamma + 1, tokens)
            issues.append(
                Issue("block", "flag_conflict", sentence, (TOKENS, "--speculative-dspark-block-size"))
            )
        tokens = gamma + 1
    if tokens is not None and tokens < 2:
        issues.append(Issue("block", "bad_flag_value", "DSPARK needs at least 2 draft tokens.", (TOKENS,)))
    return Numbers(1, 1, tokens, tuple(issues))


def _uno(wanted: Wanted) -> Numbers:
    tokens, topk = wanted.draft_tokens, wanted.topk or 1
    if tokens is None:
        issue = Issue("block", "missing_flag", "UNO requires {}.".format(TOKENS), (TOKENS,))
        return Numbers(wanted.steps, topk, tokens, (issue,))
    if topk == 1:
        return Numbers(1, 1, tokens, tuple(_forced_chain("UNO", wanted)))
    if wanted.steps is None:
        issue = Issue("block", "missing_flag", "UNO with topk above 1 requires {}.".format(STEPS), (STEPS,))
        return Numbers(None, topk, tokens, (issue,))
    steps = wanted.steps
    room = sum(topk**depth for depth in range(min(steps, 12) + 1))
    limits = (
        (tokens >= steps + 1, "at least steps + 1 = {}".format(steps + 1)),
        (tokens <= 128, "at most 128"),
        (tokens * topk <= 2048, "at most 2048 / topk"),
        (tokens <= room, "at most {}, the nodes of that tree".format(room)),
        (tokens - 1 <= topk * max(steps - 1, 0) + 1, "at most topk x (steps - 1) + 2"),
    )
    issues = tuple(
        Issue(
            "block",
            "flag_conflict",
            "UNO trees need {} draft tokens, not {}.".format(words, tokens),
            (TOKENS,),
        )
        for fine, words in limits
        if not fine
    )
    return Numbers(steps, topk, tokens, issues)
