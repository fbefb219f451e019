"""What a drafter is, on one card: kind, architecture, layers, aux ids, vocabulary, size, dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple

from specdash.sglang import modelconfig as mc
from specdash.sglang.fit_rules import kind
from specdash.sglang.fit_shapes import block_size, context_of, expects

ALGORITHM = {
    "eagle3": "EAGLE3",
    "dflash": "DFLASH",
    "dspark": "DSPARK",
    "gemma4": "NEXTN",
    "eagle": "EAGLE",
    "plain": "STANDALONE",
}


@dataclass(frozen=True)
class DrafterCard:
    """None: the config does not say. `size_bytes` is what lies on disk."""

    path: str
    kind: str
    algorithm: str
    """The algorithm that it is made for."""
    architecture: str
    layers: Optional[int]
    hidden_size: Optional[int]
    target_hidden_size: Optional[int]
    vocab_size: Optional[int]
    draft_vocab_size: Optional[int]
    aux_layer_ids: Optional[Tuple[int, ...]]
    aux_problem: str
    block_size: Optional[int]
    context_length: Optional[int]
    mtp_layers: Optional[int]
    dtype: str
    quantization: str
    size_bytes: Optional[int] = None
    tensors: Optional[int] = None


def card(
    config: Mapping[str, Any], path: str = "", size_bytes: Optional[int] = None, tensors: Optional[int] = None
) -> DrafterCard:
    """The card of a drafter's config. Never raises."""
    ids, problem = mc.aux_layer_ids(config)
    found = kind(config)
    return DrafterCard(
        path,
        found,
        ALGORITHM[found],
        mc.architecture(config),
        mc.layers(config),
        mc.hidden_size(config),
        expects(config),
        mc.vocab_size(config),
        mc.whole(config, "draft_vocab_size"),
        tuple(ids) if ids is not None else None,
        problem,
        block_size(config),
        context_of(config),
        mc.nextn_layers(config),
        mc.dtype(config),
        mc.quantization(config),
        size_bytes,
        tensors,
    )


def lines(made: DrafterCard) -> List[Tuple[str, str]]:
    """(label, value) rows to show; what is not known is left out."""
    rows: List[Tuple[str, Any]] = [
        ("made for", made.algorithm),
        ("architecture", made.architecture),
        ("layers", made.layers),
        ("hidden size", made.hidden_size),
        (
            "target hidden size",
            made.target_hidden_size if made.target_hidden_size != made.hidden_size else None,
        ),
        (
            "aux layer ids",
            ", ".join(map(str, made.aux_layer_ids)) if made.aux_layer_ids else made.aux_problem,
        ),
        ("vocabulary", made.vocab_size),
        ("draft vocabulary", made.draft_vocab_size),
        ("block size", made.block_size),
        ("positions", made.context_length),
        ("MTP layers", made.mtp_layers),
        ("dtype", made.dtype),
        ("quantization", made.quantization),
        ("size on disk", "{:.2f} GB".format(made.size_bytes / 1e9) if made.size_bytes is not None else None),
    ]
    return [(label, str(value)) for label, value in rows if value not in (None, "")]


def as_json(made: DrafterCard) -> Dict[str, Any]:
    return dict(
        vars(made), aux_layer_ids=list(made.aux_layer_ids) if made.aux_layer_ids is not None else None
    )
