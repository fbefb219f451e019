"""Fit rules on sizes: hidden states, vocabulary, layers, auxiliary layer ids, context length, heads."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence

from specdash.sglang import modelconfig as mc
from specdash.sglang.fit import Config, Context, Finding
from specdash.sglang.versions import between

BLOCKERS = ("DFLASH", "DSPARK")
POSITIONS = (
    "max_sequence_length",
    "seq_length",
    "max_seq_len",
    "model_max_length",
    "max_position_embeddings",
)
"""Where SGLang looks for the context length, in its order."""


def numbers(target: Config, draft: Optional[Config]) -> Dict[str, Optional[int]]:
    """All that is compared, by name."""
    out = {
        "target_hidden": mc.hidden_size(target),
        "target_vocab": mc.vocab_size(target),
        "target_layers": mc.layers(target),
        "target_context": context_of(target),
        "target_nextn_layers": mc.nextn_layers(target),
    }
    if draft is not None:
        out.update(
            draft_hidden=mc.hidden_size(draft),
            draft_expects=expects(draft),
            draft_vocab=mc.vocab_size(draft),
            draft_vocab_size=mc.whole(draft, "draft_vocab_size"),
            draft_layers=mc.layers(draft),
            draft_context=context_of(draft),
            config_block_size=block_size(draft),
            mask_token_id=mc.mask_token_id(draft),
        )
    return out


def expects(draft: Config) -> Optional[int]:
    """The width of one target hidden state that the drafter was made for."""
    return mc.whole(draft, "target_hidden_size") or mc.hidden_size(draft)


def block_size(draft: Config) -> Optional[int]:
    for name in ("dflash_config", "dspark_config"):
        inner = draft.get(name)
        if isinstance(inner, Mapping) and isinstance(inner.get("block_size"), int):
            return int(inner["block_size"])
    return mc.whole(draft, "block_size", "dspark_block_size")


def context_of(config: Config) -> Optional[int]:
    """The context length that SGLang derives: positions, times a scaling factor that is not yet in them."""
    part = mc.text(config)
    positions = mc.whole(config, *POSITIONS)
    if positions is None:
        return None
    scaling = part.get("rope_scaling") or part.get("rope_parameters")
    factor: Any = 1
    if isinstance(scaling, Mapping) and "original_max_position_embeddings" not in scaling:
        kind = scaling.get("rope_type") or scaling.get("type")
        factor = 1 if kind == "llama3" else scaling.get("factor", 1)
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor < 1e6:
        factor = 1
    return int(positions * factor) if abs(positions) < 2**53 else positions


def hidden(target: Config, draft: Config, context: Context) -> List[Finding]:
    name = context.algorithm.upper()
    here, there = mc.hidden_size(target), mc.hidden_size(draft)
    wanted = expects(draft) if name == "EAGLE3" else there
    if here is None or wanted is None:
        missing = "the target" if here is None else "the drafter"
        return [Finding("not_checked", "", "Hidden sizes: {} does not say its own.".format(missing))]
    if name == "STANDALONE":
        if here != there and between(context.version, "", "0.5.12"):
            sentence = (
                "Hidden sizes differ ({} and {}). STANDALONE does not need them equal, but builds before 0.5.13 can "
                "crash when they merge batches."
            ).format(here, there)
            remedy = "Use 0.5.13 or later, or try it under load first."
            return [Finding("warn", "hidden_size_differs", sentence, remedy, "up to 0.5.12")]
        if here != there and not context.version:
            sentence = (
                "Hidden sizes differ ({} and {}). STANDALONE does not need them equal, but builds before 0.5.13 can "
                "crash when they merge batches, and the version is not known."
            ).format(here, there)
            return [
                Finding(
                    "warn", "hidden_size_differs", sentence, "Probe the host for its version.", "up to 0.5.12"
                )
            ]
        return []
    if here != wanted:
        sentence = "The drafter was made for hidden states of {}; the target's are {}.".format(wanted, here)
        remedy = "Use a drafter that was trained for this target."
        return [Finding("block", "drafter_mismatch_hidden", sentence, remedy, "all")]
    out = [Finding("ok", "", "Hidden states: {} on both sides.".format(here), holds_for="all")]
    if name == "EAGLE3" and there != here and between(context.version, "", "0.5.5"):
        mode = context.flag("--disaggregation-mode")
        if mode in ("prefill", "decode"):
            sentence = (
                "The drafter's own hidden size ({}) differs from the target's ({}): disaggregated prefill and decode "
                "before 0.5.6 transfer the wrong width."
            ).format(there, here)
            out.append(Finding("warn", "hidden_size_differs", sentence, "Use 0.5.6 or later.", "up to 0.5.5"))
    return out


def vocabulary(target: Config, draft: Config, context: Context) -> List[Finding]:
    name = context.algorithm.upper()
    here, there = mc.vocab_size(target), mc.vocab_size(draft)
    if here is None or there is None:
        return [Finding("not_checked", "", "Vocabularies: a config does not say its size.")]
    out: List[Finding] = []
    if here != there:
        sentence = "Vocabularies differ: target {}, drafter {}.".format(here, there)
        if name == "STANDALONE":
            told = (
                " Builds before 0.5.15 start anyway and emit wrong text."
                if between(context.version, "", "0.5.14")
                else ""
            )
            remedy = "STANDALONE needs a drafter with the target's tokenizer."
            return [Finding("block", "drafter_mismatch_vocab", sentence + told, remedy, "all")]
        # EAGLE heads and DFLASH take embeddings and head from the target; only the drafter's own head is left.
        remedy = "Check that the drafter was trained with this target's tokenizer."
        out.append(Finding("warn", "drafter_vocab_differs", sentence, remedy, "all"))
    if name != "EAGLE3":
        return out
    own = mc.whole(draft, "draft_vocab_size")
    if own is None:
        if "draft_vocab_size" not in draft and between(context.version, "", "0.5.2"):
            sentence = (
                "The drafter's config has no draft_vocab_size, which this version reads without asking."
            )
            out.append(Finding("block", "draft_vocab_size_missing", sentence, "", "up to 0.5.2"))
        return out
    if own > here:
        sentence = "draft_vocab_size {} is more than the target's vocabulary {}.".format(own, here)
        out.append(Finding("block", "drafter_mismatch_vocab", sentence, "", "all"))
    elif (
        own < there
        and context.draft_tensors is not None
        and not any("d2t" in t for t in context.draft_tensors)
    ):
        sentence = (
            "draft_vocab_size {} is smaller than the vocabulary and the weights have no d2t map.".format(own)
        )
        out.append(Finding("block", "drafter_d2t_missing", sentence, "The checkpoint is incomplete.", "all"))
    if own != here and context.flag("--speculative-use-rejection-sampling") is True:
        sentence = (
            "Rejection sampling needs draft_vocab_size ({}) to be the target's vocabulary ({}).".format(
                own, here
            )
        )
        flags = ("--speculative-use-rejection-sampling",)
        out.append(Finding("block", "flag_conflict", sentence, "", "from 0.5.15", flags))
    return out


def layers(target: Config, draft: Config, context: Context) -> List[Finding]:
    name = context.algorithm.upper()
    count = mc.layers(draft)
    out: List[Finding] = []
    if name == "EAGLE3" and count is not None and count > 1 and between(context.version, "0.4.6", "0.5.12"):
        sentence = "The drafter has {} layers; this version's EAGLE3 takes only 1.".format(count)
        out.append(Finding("block", "drafter_too_deep", sentence, "Use 0.5.13 or later.", "0.4.6 to 0.5.12"))
    made_for = mc.whole(draft, "num_target_layers")
    inner = draft.get("dflash_config")
    if isinstance(inner, Mapping) and isinstance(inner.get("num_target_layers"), int):
        made_for = int(inner["num_target_layers"])
    have = mc.layers(target)
    if made_for is not None and have is not None and made_for != have:
        sentence = "The drafter was made for a target of {} layers; this one has {}.".format(made_for, have)
        out.append(Finding("warn", "target_layers_differ", sentence, "", "all"))
    return out


def aux_layers(target: Config, draft: Config, context: Context) -> List[Finding]:
    """Ids count layers from 0 and mean the layer's *output*; SGLang captures before layer id + 1."""
    name = context.algorithm.upper()
    if name not in ("EAGLE3", *BLOCKERS):
        return []
    ids, reason = mc.aux_layer_ids(draft)
    count = mc.layers(target)
    if reason:
        told, status = "{} refuses it".format(name), "block"
        if name == "EAGLE3":
            told = "the engine takes it as it stands, and stops"
            config = draft.get("eagle_config")
            # Until 0.5.12 only a bare `except` sees it; later the drafter's own class reads it too.
            if not isinstance(config, Mapping) and (not config or between(context.version, "", "0.5.12")):
                told, status = "SGLang swallows the error and takes layers 2, n/2 and n-3", "warn"
        return [Finding(status, "aux_layer_ids_malformed", "{}: {}.".format(reason, told), "", "from 0.5.3")]
    if ids is None or count is None:
        if ids is None and name == "EAGLE3" and count is not None:
            return _default_layers(count, "No layer ids are given")
        return []
    if name == "EAGLE3" and not ids:
        sentence = "The list of layer ids is empty: no hidden state is captured and the first forward fails."
        return [Finding("block", "aux_layer_ids_count", sentence, "", "from 0.5.3")]
    bad = [i for i in ids if i < 0 or i > count or (i == count and name in BLOCKERS)]
    if bad:
        sentence = "Layer ids {} are outside the target's {} layers (all: {}).".format(bad, count, ids)
        remedy = "The drafter was made for another target."
        return [Finding("block", "aux_layer_ids_out_of_range", sentence, remedy, "all")]
    inner = draft.get("eagle_config")
    inside = isinstance(inner, Mapping) and inner.get("eagle_aux_hidden_state_layer_ids") is not None
    if name == "EAGLE3" and not inside:
        return _default_layers(count, "Layer ids {} do not stand in eagle_config".format(ids), ids)
    out: List[Finding] = []
    if count in ids:
        sentence = (
            "Layer id {} is the target's layer count: it asks for the final output (ids {}). Engines that ignore it "
            "give accept length 1.00."
        ).format(count, ids)
        remedy = "Watch the accept length from the first requests on."
        out.append(Finding("warn", "aux_layer_ids_unusual", sentence, remedy, "all"))
    elif name == "EAGLE3" and count - 1 in ids:
        # Seen on 0.5.23 with LlamaForCausalLM: two of three hidden states arrive, the first request kills the engine.
        sentence = (
            "Layer id {} is the target's last layer: SGLang captures before layer id + 1, and most of its classes "
            "have none after the last (ids {}). Then the first request ends the engine by a shape error."
        ).format(count - 1, ids)
        remedy = "Ask its maker whether ids count from 1; try it where nobody is served."
        out.append(Finding("warn", "aux_layer_ids_unusual", sentence, remedy, "all"))
    elif ids != sorted(set(ids)):
        sentence = "Layer ids {} are not ascending, or repeat.".format(ids)
        out.append(Finding("warn", "aux_layer_ids_unusual", sentence, "", "all"))
    given = mc.whole(draft, "num_aux_hidden_states")
    if name == "EAGLE3" and len(ids) != 3 and between(context.version, "", "0.5.12"):
        sentence = "{} layer ids are given; this version's EAGLE3 always takes 3.".format(len(ids))
        out.append(Finding("block", "aux_layer_ids_count", sentence, "Use 0.5.13 or later.", "up to 0.5.12"))
    elif name == "EAGLE3" and given is not None and given != len(ids):
        sentence = "num_aux_hidden_states is {} and {} layer ids are given.".format(given, len(ids))
        out.append(Finding("block", "aux_layer_ids_count", sentence, "", "from 0.5.13"))
    return out or [Finding("ok", "", "Layer ids {} are within the target's {} layers.".format(ids, count))]


def _default_layers(count: int, why: str, asked: Sequence[int] = ()) -> List[Finding]:
    """EAGLE3 without ids in `eagle_config`: three layers by the target's depth, whatever else the config holds."""
    default = [2, count // 2, count - 3]
    sentence = "{}: SGLang captures before layers {}.".format(why, default)
    if len({i for i in default if 0 <= i < count}) < 3:
        sentence += " A target of {} layers has not three of them.".format(count)
        return [Finding("block", "aux_layer_ids_out_of_range", sentence, "", "all")]
    if asked and [i + 1 for i in asked] != default:
        remedy = "Move them to eagle_config.eagle_aux_hidden_state_layer_ids in the drafter's config.json."
        return [Finding("warn", "aux_layer_ids_ignored", sentence, remedy, "all")]
    return [Finding("ok", "", sentence)]


def context_length(target: Config, draft: Config, context: Context) -> List[Finding]:
    """The drafter is built with the target's context length, whatever its own is."""
    asked = context.number("--context-length")
    wanted = asked if asked is not None else context_of(target)
    have = context_of(draft)
    if _positions_overridden(context):
        sentence = "Context length: --json-model-override-args changes the positions of target and drafter."
        return [Finding("not_checked", "", sentence)]
    if wanted is None or have is None:
        return [
            Finding("not_checked", "", "Context length: a config does not say how many positions it has.")
        ]
    if have >= wanted:
        return []
    sentence = "The drafter has {} positions; the target serves {}.".format(have, wanted)
    remedy = "Set --context-length {} or SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 (then text beyond may draft badly).".format(
        have
    )
    if _longer_allowed(context):
        return [
            Finding("warn", "drafter_context_too_short", sentence + " The environment allows it.", "", "all")
        ]
    if between(context.version, "0.4.6", "0.5.0"):
        told = sentence + " This version only warns."
        return [Finding("warn", "drafter_context_too_short", told, remedy, "0.4.6 to 0.5.0")]
    return [Finding("block", "drafter_context_too_short", sentence, remedy, "from 0.5.1, and 0.4.3")]


def served_context(target: Config, context: Context) -> List[Finding]:
    """The target's own positions against --context-length, with or without speculation."""
    asked, have = context.number("--context-length"), context_of(target)
    if asked is None or have is None or asked <= have or _positions_overridden(context):
        return []
    sentence = "--context-length {} is more than the {} positions of the target's config.".format(asked, have)
    remedy = "Set --context-length {} or less, or SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1.".format(have)
    warns = _longer_allowed(context) or between(context.version, "0.4.6", "0.5.0")
    holds = "0.4.6 to 0.5.0" if between(context.version, "0.4.6", "0.5.0") else "from 0.5.1, and 0.4.3"
    return [Finding("warn" if warns else "block", "context_too_long", sentence, remedy, holds)]


def _longer_allowed(context: Context) -> bool:
    value = str(context.env.get("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", ""))
    return value.lower() in ("1", "true", "yes", "y")


def _positions_overridden(context: Context) -> bool:
    """Whether --json-model-override-args is laid over what the context length is derived from."""
    value = str(context.flag("--json-model-override-args") or "")
    return any(word in value for word in (*POSITIONS, "rope_", "text_config"))


def heads(target: Config, draft: Config, context: Context) -> List[Finding]:
    """Attention heads must divide among the tensor-parallel ranks, the drafter's too."""
    tp = context.tp
    total, grouped = mc.whole(draft, "num_attention_heads"), mc.whole(draft, "num_key_value_heads")
    out: List[Finding] = []
    if tp > 1 and total is not None and total % tp:
        sentence = "The drafter's {} attention heads do not divide by tp {}.".format(total, tp)
        out.append(Finding("block", "tp_does_not_divide", sentence, "", "all"))
    if tp > 1 and grouped and grouped % tp and tp % grouped:
        sentence = "The drafter's {} key-value heads and tp {} do not divide either way.".format(grouped, tp)
        out.append(Finding("block", "tp_does_not_divide", sentence, "", "all"))
    return out
