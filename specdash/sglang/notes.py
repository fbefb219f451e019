"""What is known of each speculative algorithm beyond its name: what it needs, reads and changes silently.

Keyed by name and version; annotates what `algorithms.read` found and never adds an algorithm. A name without
a note says so. Facts: read in the sources of 16 releases from 0.4.1 to 0.5.23 (`server_args.py`, from 0.5.13
`arg_groups/speculative_hook.py`) and seen on a running 0.5.23.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

from specdash.sglang.versions import between


@dataclass(frozen=True)
class Change:
    """Something that the algorithm does to a server. Holds from `first` to `last` (empty: open)."""

    sentence: str
    first: str = ""
    last: str = ""


@dataclass(frozen=True)
class Note:
    name: str
    what: str
    draft: str
    """needs | forbids | may_default | ignores: the draft model path."""
    draft_sentence: str
    since: str
    flags: Tuple[str, ...]
    """Option strings, or beginnings of them (ending in `-`), that it reads."""
    changes: Tuple[Change, ...] = ()
    internal: bool = False
    """SGLang chooses it by itself; it is in no help text."""


_CHAIN = ("--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens")
_DRAFT = ("--speculative-draft-", "--speculative-moe-", "--speculative-attention-mode")
_ACCEPT = ("--speculative-accept-threshold-", "--speculative-use-")

_CAP = (
    Change("Caps running requests at 32 unless --max-running-requests is set.", "0.4.3", "0.4.5"),
    Change("Caps running requests at 48 unless --max-running-requests is set.", "0.4.6"),
)
_MIXED = Change("Turns mixed chunked prefill off.", "0.4.9", "0.5.22")
_MEMORY = (
    Change("Keeps 2 GB a GPU free for the drafter when --mem-fraction-static is unset.", "0.4.9", "0.5.10"),
    Change("Keeps 4 GB a GPU free for the drafter when --mem-fraction-static is unset.", "0.5.11", "0.5.14"),
    Change("Sizes memory by running requests x draft tokens when --mem-fraction-static is unset.", "0.5.15"),
)
_GRAPHS = Change("Captures a denser and smaller list of CUDA graphs.")
_PIPELINE = (
    Change("Refuses pipeline parallelism.", "", "0.5.22"),
    Change(
        "Allows pipeline parallelism only for EAGLE and DSPARK, on a disaggregated prefill server.", "0.5.23"
    ),
)
_OVERLAP_EAGLE = (
    Change("Turns the overlap scheduler off.", "", "0.5.2"),
    Change("Keeps the overlap scheduler only with --enable-beta-spec.", "0.5.3", "0.5.4"),
    Change(
        "Turns the overlap scheduler off unless SGLANG_ENABLE_SPEC_V2=1 and topk is 1.", "0.5.5", "0.5.10"
    ),
    Change("Keeps the overlap scheduler when topk is 1.", "0.5.11", "0.5.14"),
)
_OVERLAP_OFF = Change("Turns the overlap scheduler off.", "", "0.5.14")
_ALL_OR_NONE = Change(
    "Steps, topk and draft tokens are all set or all left out: topk or draft tokens without steps is a bare "
    "AssertionError.",
    "0.4.6",
)
_CONTEXT = Change("Gives the drafter the target's context length.")
_NO_DP = Change("Refuses DP attention.")

NOTES: Dict[str, Note] = {
    note.name: note
    for note in (
        Note(
            "EAGLE",
            "A one-layer drafter that extends the target's last hidden state (EAGLE 1 and 2, and MTP heads).",
            "may_default",
            "Needs a drafter, except for targets with MTP layers inside: there the target's own checkpoint is "
            "used. For any other target a missing path is not refused: the target is loaded again as drafter.",
            "0.4.3",
            _CHAIN
            + _DRAFT
            + _ACCEPT
            + ("--speculative-token-map", "--enable-multi-layer-eagle", "--speculative-adaptive"),
            (*_CAP, *_OVERLAP_EAGLE, _MIXED, *_MEMORY, _GRAPHS, *_PIPELINE, _ALL_OR_NONE, _CONTEXT),
        ),
        Note(
            "EAGLE3",
            "A drafter that reads hidden states of several target layers (EAGLE 3).",
            "needs",
            "Needs a drafter; a missing path is not refused, and the target is loaded again as drafter.",
            "0.4.6",
            _CHAIN + _DRAFT + _ACCEPT + ("--speculative-adaptive",),
            (*_CAP, *_OVERLAP_EAGLE, _MIXED, *_MEMORY, _GRAPHS, *_PIPELINE, _ALL_OR_NONE, _CONTEXT),
        ),
        Note(
            "STANDALONE",
            "A small whole model of the same vocabulary drafts (classic speculative decoding).",
            "needs",
            "Needs a drafter with the target's vocabulary; a missing path is not refused, and the target is "
            "loaded again as drafter.",
            "0.5.3",
            _CHAIN + _DRAFT + ("--speculative-accept-threshold-",),
            (
                *_CAP,
                *_OVERLAP_EAGLE,
                _MIXED,
                Change(
                    "Keeps 6 GB a GPU free for the drafter when --mem-fraction-static is unset.",
                    "0.5.3",
                    "0.5.14",
                ),
                _GRAPHS,
                *_PIPELINE,
                _ALL_OR_NONE,
                _CONTEXT,
                _NO_DP,
            ),
        ),
        Note(
            "NGRAM",
            "No drafter: continuations of n-grams seen before are proposed from a trie.",
            "ignores",
            "Takes no drafter; a given path is ignored.",
            "0.5.3",
            ("--speculative-num-draft-tokens", "--speculative-num-steps", "--speculative-ngram-"),
            (
                *_CAP,
                _OVERLAP_OFF,
                Change("Turns mixed chunked prefill off."),
                Change("Sets topk to --speculative-ngram-max-bfs-breadth."),
                Change("Runs on CUDA only.", "", "0.5.17"),
                _GRAPHS,
                *_PIPELINE,
                _NO_DP,
            ),
        ),
        Note(
            "DFLASH",
            "A block-diffusion drafter that fills a whole block of tokens in one pass.",
            "needs",
            "Refuses to start without --speculative-draft-model-path.",
            "0.5.11",
            ("--speculative-num-draft-tokens", "--speculative-dflash-", "--speculative-domino-") + _DRAFT,
            (
                *_CAP,
                _OVERLAP_OFF,
                Change("Forces steps and topk to 1; draft tokens are the block size."),
                Change("Refuses DP attention.", "", "0.5.22"),
                Change(
                    "Allows DP attention only with --enable-dp-lm-head and without context parallel.",
                    "0.5.23",
                ),
                *_MEMORY,
                _GRAPHS,
                Change("Refuses pipeline parallelism."),
            ),
        ),
        Note(
            "DSPARK",
            "A semi-autoregressive block drafter with a Markov head; the verify window is gamma + 1.",
            "may_default",
            "Needs a drafter, unless the target's checkpoint holds one (dspark_* keys, or from 0.5.23 a "
            "dspark/ folder).",
            "0.5.18",
            ("--speculative-num-draft-tokens", "--speculative-dspark-") + _DRAFT,
            (
                *_CAP,
                Change("Forces steps and topk to 1; draft tokens are gamma + 1."),
                *_MEMORY,
                _GRAPHS,
                *_PIPELINE,
            ),
        ),
        Note(
            "UNO",
            "The target drafts for itself through a LoRA.",
            "forbids",
            "Refuses --speculative-draft-model-path; needs --uno-lora-path and --speculative-num-draft-tokens.",
            "0.5.20",
            ("--uno-lora-path",) + _CHAIN,
            (
                Change("Runs only on CUDA with TP=PP=1 and FA3 for prefill and decode."),
                Change("Turns mixed chunked prefill off."),
                Change("Refuses LoRA serving, DP attention and deterministic inference."),
            ),
        ),
        Note(
            "FROZEN_KV_MTP",
            "MTP on the target's own KV cache (Gemma 4 assistants).",
            "needs",
            "Needs a Gemma 4 assistant as drafter; EAGLE or NEXTN with such a drafter becomes this by itself.",
            "0.5.13",
            _CHAIN + _DRAFT,
            (*_CAP, _OVERLAP_OFF, Change("Turns mixed chunked prefill off."), *_PIPELINE),
            internal=True,
        ),
    )
}

MTP_TARGETS: Tuple[Tuple[str, str], ...] = (
    ("DeepseekV3ForCausalLM", "0.4.6"),
    ("Glm4MoeForCausalLM", "0.4.9"),
    ("DeepseekV32ForCausalLM", "0.5.3"),
    ("BailingMoeForCausalLM", "0.5.3"),
    ("BailingMoeV2ForCausalLM", "0.5.3"),
    ("Glm4MoeLiteForCausalLM", "0.5.9"),
    ("GlmMoeDsaForCausalLM", "0.5.9"),
    ("BailingMoeV2_5ForCausalLM", "0.5.9"),
    ("MistralLarge3ForCausalLM", "0.5.9"),
    ("PixtralForConditionalGeneration", "0.5.9"),
    ("HYV3ForCausalLM", "0.5.11"),
    ("DeepseekV4ForCausalLM", "0.5.23"),
    ("HYV4ForCausalLM", "0.5.23"),
    ("Qwen4ExpForConditionalGeneration", "0.5.23"),
)
"""(target architecture, since): with EAGLE or NEXTN the draft path defaults to the target's own checkpoint."""


def get(name: str) -> Optional[Note]:
    """The note on an algorithm, or None: then say that nothing is known of it."""
    return NOTES.get(name.upper())


def changes(note: Note, version: str) -> List[str]:
    """What it changes silently in this version, as sentences."""
    return [c.sentence for c in note.changes if between(version, c.first, c.last)]


def defaults_to_target(architecture: str, version: str) -> bool:
    """EAGLE without a draft path takes the target's own MTP layers for this architecture."""
    return any(architecture == name and between(version, since) for name, since in MTP_TARGETS)


def flags_read(note: Note, strings: Sequence[str]) -> List[str]:
    """Which of the installed option strings it reads."""
    return sorted(
        s for s in strings if any(s == f or (f.endswith("-") and s.startswith(f)) for f in note.flags)
    )
