""" "What about Medusa, lookahead, prompt lookup, REST, MTP?": each technique, in this build or not.

A technique is in the build as the algorithm (and flag) that implements it there. The answer comes from what
was read of the tree, with file and line; this table only says which names to look for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence, Tuple

from specdash.sglang.algorithms import SPEC_FOLDER, Algorithms
from specdash.sglang.flags import FlagTable


@dataclass(frozen=True)
class Technique:
    name: str
    what: str
    algorithms: Tuple[str, ...] = ()
    """Names, any of which is the technique."""
    flag: str = ""
    """When set, this flag must be there too."""
    how: str = ""
    """How to ask for it; empty: `--speculative-algorithm NAME`."""
    words: Tuple[str, ...] = ()
    """Parts of file names that would betray an implementation under another name."""


TECHNIQUES: Tuple[Technique, ...] = (
    Technique(
        "Draft model (vanilla speculative sampling)",
        "A small model of the same vocabulary drafts a chain; the target verifies it in one pass.",
        ("STANDALONE",),
    ),
    Technique("EAGLE 1, EAGLE 2", "One layer drafts from the target's last hidden state.", ("EAGLE",)),
    Technique("EAGLE 3", "A drafter on hidden states of several target layers.", ("EAGLE3",)),
    Technique(
        "MTP / NextN (multi-token prediction)",
        "Heads trained with the target, in its checkpoint (DeepSeek V3, GLM, MiMo, Qwen3-Next).",
        ("NEXTN", "EAGLE"),
        how="--speculative-algorithm EAGLE (NEXTN where the name is known), no draft path for targets that "
        "carry the layers",
    ),
    Technique(
        "MTP on the frozen KV cache", "Gemma 4 assistants.", ("FROZEN_KV_MTP",), how="chosen by itself"
    ),
    Technique(
        "Several MTP layers in a row",
        "Each draft step has its own layer.",
        ("EAGLE",),
        flag="--enable-multi-layer-eagle",
        how="--enable-multi-layer-eagle",
    ),
    Technique(
        "Prompt lookup / n-gram",
        "Repeats continuations of n-grams seen in the request or before it.",
        ("NGRAM", "PROMPT_LOOKUP", "LOOKUP"),
    ),
    Technique(
        "Lookahead (trie of past output)",
        "A trie of seen continuations proposes a tree; the engine's own name for it is NGRAM.",
        ("LOOKAHEAD", "NGRAM"),
    ),
    Technique(
        "REST (retrieval from a datastore)",
        "Drafts are retrieved from a corpus outside the request.",
        ("REST", "NGRAM"),
        flag="--speculative-ngram-external-corpus-path",
        how="NGRAM with --speculative-ngram-external-corpus-path",
        words=("rest_",),
    ),
    Technique("Block diffusion drafter (DFlash)", "A drafter fills a block at once.", ("DFLASH",)),
    Technique("DSpark", "A block drafter with a Markov head.", ("DSPARK",)),
    Technique("Self-drafting by LoRA (UNO)", "The target drafts through an adapter.", ("UNO",)),
    Technique(
        "Adaptive draft length",
        "The number of steps follows the observed accept length.",
        ("EAGLE", "EAGLE3"),
        flag="--speculative-adaptive",
        how="--speculative-adaptive",
    ),
    Technique(
        "Tree drafts (SpecInfer, EAGLE 2 trees)",
        "More than one candidate a step, verified as a tree.",
        ("EAGLE", "EAGLE3"),
        flag="--speculative-eagle-topk",
        how="--speculative-eagle-topk above 1",
    ),
    Technique(
        "Medusa", "Several heads on the last hidden state, no drafter.", ("MEDUSA",), words=("medusa",)
    ),
    Technique("Hydra", "Medusa heads that depend on one another.", ("HYDRA",), words=("hydra",)),
    Technique(
        "Lookahead decoding (Jacobi)",
        "The target iterates on guesses of its own; no drafter, no trie.",
        ("JACOBI",),
        words=("jacobi",),
    ),
    Technique(
        "Self-speculation by skipped layers",
        "The target drafts with some of its layers (LayerSkip, Draft & Verify).",
        ("LAYERSKIP", "LAYER_SKIP"),
        words=("layer_skip", "layerskip"),
    ),
    Technique("Suffix decoding", "Drafts from suffix trees of past output.", ("SUFFIX",), words=("suffix",)),
    Technique(
        "ReDrafter", "A recurrent drafter on the target's hidden state.", ("REDRAFTER",), words=("redrafter",)
    ),
)


@dataclass(frozen=True)
class Answer:
    technique: str
    what: str
    status: str
    """in_build | not_in_build | unknown"""
    sentence: str
    evidence: Tuple[str, ...] = ()


def answer(files: Sequence[str], algorithms: Algorithms, flags: FlagTable) -> Tuple[Answer, ...]:
    """One answer per technique, each with its evidence. `files`: names beside the algorithms and the models."""
    return tuple(_one(technique, algorithms, flags, files) for technique in TECHNIQUES)


def _one(technique: Technique, algorithms: Algorithms, flags: FlagTable, files: Sequence[str]) -> Answer:
    if algorithms.names is None:
        reason = algorithms.unread[0].reason if algorithms.unread else "the list could not be read"
        return Answer(technique.name, technique.what, "unknown", "Cannot tell: {}.".format(reason))
    offered = [n for n in technique.algorithms if n in algorithms.names or n in algorithms.aliases]
    flag = flags.get(technique.flag) if technique.flag else None
    if offered and (not technique.flag or flag is not None):
        name = offered[0]
        evidence = [algorithms.where(name) or algorithms.where(algorithms.aliases.get(name) or "")]
        if flag is not None:
            evidence.append("{}:{}".format(flag.path, flag.line))
        how = technique.how or "--speculative-algorithm {}".format(name)
        sentence = "In this build as {}: {}.".format(name, how)
        return Answer(technique.name, technique.what, "in_build", sentence, tuple(e for e in evidence if e))
    hints = [f for f in files if any(w in f.lower() for w in technique.words)]
    if hints:
        sentence = "Not offered as an algorithm, but there is a file of that name."
        return Answer(technique.name, technique.what, "unknown", sentence, tuple(hints[:3]))
    if algorithms.unread:
        sentence = "Not among the names that could be read; {} may be it.".format(algorithms.unread[0].reason)
        return Answer(technique.name, technique.what, "unknown", sentence)
    listed = ", ".join(algorithms.names) or "no speculation at all"
    evidence = (
        ["{}:{}".format(*algorithms.evidence[0][1:])] if algorithms.evidence else [SPEC_FOLDER + " is absent"]
    )
    return Answer(
        technique.name,
        technique.what,
        "not_in_build",
        "Not in this build, which has: {}.".format(listed),
        tuple(evidence),
    )
