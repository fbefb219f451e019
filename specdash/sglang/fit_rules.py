"""Fit rules on kinds: which path, which architecture, which algorithm, quantization, block drafters."""

from __future__ import annotations

import json
from typing import Any, List, Mapping, Optional, Tuple

from specdash.sglang import modelconfig as mc
from specdash.sglang import notes
from specdash.sglang.architectures import FALLBACK
from specdash.sglang.fit import Config, Context, Finding
from specdash.sglang.versions import between

PATH = "--speculative-draft-model-path"
GEMMA4 = ("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM")
ONLINE_QUANTIZATION = ("fp8", "mxfp8", "w8a8_int8", "w8a8_fp8", "nvfp4_online", "bitsandbytes", "unquant")
"""Methods that SGLang can apply to weights that are not quantized; any other needs its own weights."""


def known_algorithm(context: Context) -> List[Finding]:
    """An algorithm without rules here, of a plugin or of a later version, is never taken for a match."""
    name = context.algorithm.upper()
    if name in ("", "NEXTN") or notes.get(name) is not None:
        return []
    sentence = "specdash knows nothing of {}: only what holds for every drafter was compared.".format(name)
    return [Finding("not_checked", "", sentence)]


def path_rules(target: Config, draft: Optional[Config], context: Context) -> List[Finding]:
    """Whether a drafter must, may or must not be given."""
    name = context.algorithm.upper()
    arch = mc.architecture(target)
    if name == "UNO":
        if draft is not None:
            sentence = "UNO drafts with the target itself and refuses a drafter."
            return [
                Finding(
                    "block", "flag_conflict", sentence, "Leave {} out.".format(PATH), "from 0.5.20", (PATH,)
                )
            ]
        if context.flag("--uno-lora-path") is None:
            return [
                Finding(
                    "block",
                    "missing_flag",
                    "UNO requires --uno-lora-path.",
                    "",
                    "from 0.5.20",
                    ("--uno-lora-path",),
                )
            ]
        return []
    if name == "NGRAM":
        if draft is not None:
            return [
                Finding(
                    "warn",
                    "drafter_ignored",
                    "NGRAM drafts from n-grams; the drafter is ignored.",
                    "",
                    "all",
                    (PATH,),
                )
            ]
        return []
    if draft is not None:
        return []
    if name in ("EAGLE", "NEXTN") and (
        notes.defaults_to_target(arch, context.version) or mc.nextn_layers(target) is not None
    ):
        return _own_layers(target, arch, context)
    if name == "DFLASH":
        return [
            Finding(
                "block",
                "missing_flag",
                "DFLASH refuses to start without a drafter.",
                "Set {}.".format(PATH),
                "from 0.5.11",
                (PATH,),
            )
        ]
    if name == "DSPARK":
        bundled = any(
            target.get(key) is not None
            for key in (
                "dspark_block_size",
                "dspark_markov_rank",
                "dspark_noise_token_id",
                "dspark_target_layer_ids",
            )
        )
        if bundled:
            return [Finding("ok", "", "The target's checkpoint holds a DSpark drafter.", "", "from 0.5.18")]
        sentence = "DSPARK needs a drafter: the target's config names none inside."
        return [
            Finding(
                "block",
                "missing_flag",
                sentence,
                "Set {}, or put the drafter in the target's dspark/ folder (0.5.23).".format(PATH),
                "from 0.5.18",
                (PATH,),
            )
        ]
    if notes.get(name) is None or name == "":
        return []
    sentence = (
        "No drafter is given: SGLang does not refuse, it loads the target a second time as its own drafter."
    )
    return [Finding("block", "missing_flag", sentence, "Set {}.".format(PATH), "all", (PATH,))]


def _own_layers(target: Config, arch: str, context: Context) -> List[Finding]:
    """EAGLE or NEXTN without a drafter on a target that may have MTP layers inside."""
    count = mc.nextn_layers(target)
    if count == 0:
        sentence = "The target's config says it has no MTP layers (num_nextn_predict_layers 0)."
        return [
            Finding(
                "block", "no_mtp_layers", sentence, "Give a drafter, or a checkpoint with the layers.", "all"
            )
        ]
    if not notes.defaults_to_target(arch, context.version):
        sentence = "{} has MTP layers, but this version does not take them by itself.".format(
            arch or "The target"
        )
        return [
            Finding(
                "warn",
                "missing_flag",
                sentence,
                "Give the target's own path as the drafter.",
                "all",
                (PATH,),
            )
        ]
    if count is None:
        sentence = "The config does not say whether the checkpoint has MTP layers."
        return [Finding("not_checked", "", sentence, "Look for mtp or nextn tensors in the index.")]
    return [Finding("ok", "", "The target's own {} MTP layer(s) draft.".format(count), "", "all")]


def architecture(target: Config, draft: Config, context: Context) -> List[Finding]:
    """Whether the installed SGLang can load both."""
    known = context.architectures
    out: List[Finding] = []
    for who, config in (("drafter", draft), ("target", target)):
        name = mc.architecture(config)
        if not name:
            out.append(Finding("not_checked", "", "The {}'s config names no architecture.".format(who)))
        elif (
            known is not None
            and who == "drafter"
            and known.known(name) is False
            and name != mc.architecture(target)
        ):
            sentence = (
                "This SGLang has no model {}: the drafter would fail after the target is loaded.".format(name)
            )
            near = [a for a in known.files if a.lower()[:6] == name.lower()[:6]][:3]
            remedy = "It has {}.".format(", ".join(near)) if near else "Use a version that has it."
            out.append(
                Finding("block", "architecture_unknown_on_host", sentence, remedy, "this installation")
            )
        elif (
            known is not None
            and who == "target"
            and known.known(name) is False
            and FALLBACK not in known.files
        ) and any(known.files.values()):
            sentence = "This SGLang has no model {}.".format(name)
            out.append(Finding("block", "architecture_unknown_on_host", sentence, "", "this installation"))
    return out


def kind(config: Config) -> str:
    """What a drafter is, from its own config: eagle3 | dflash | dspark | gemma4 | eagle | plain."""
    name = mc.architecture(config)
    lower = name.lower()
    if "eagle3" in lower:
        return "eagle3"
    if "dspark" in lower or "dspark_config" in config or mc.whole(config, "markov_rank") is not None:
        return "dspark"
    if "dflash" in lower or "dflash_config" in config:
        return "dflash"
    if name in GEMMA4:
        return "gemma4"
    if mc.is_eagle3(config):
        return "eagle3"
    if "eagle" in lower or "nextn" in lower or "mtp" in lower:
        return "eagle"
    return "plain"


def algorithm_fits(target: Config, draft: Config, context: Context) -> List[Finding]:
    """Whether the drafter is of the kind that the algorithm runs."""
    name = context.algorithm.upper()
    found, arch = kind(draft), mc.architecture(draft)
    word = "algorithm_does_not_fit_drafter"
    if name == "EAGLE3":
        if found == "gemma4":
            return [
                Finding(
                    "block", word, "{} runs under EAGLE or NEXTN, not EAGLE3.".format(arch), "", "from 0.5.13"
                )
            ]
        if found == "eagle3":
            if arch and "eagle" not in arch.lower():
                sentence = (
                    "An EAGLE3 drafter whose config calls it {}: SGLang would load that plain model.".format(
                        arch
                    )
                )
                remedy = "Set architectures to the model's …Eagle3 class in the drafter's config.json."
                return [Finding("block", word, sentence, remedy, "all")]
            return []
        sentence = "{} is no EAGLE3 drafter: the engine fails while it sets up the drafter.".format(
            arch or "The drafter"
        )
        return [Finding("block", word, sentence, "Use {}.".format(_right(found)), "all")]
    if name in ("EAGLE", "NEXTN"):
        if found == "eagle3":
            sentence = (
                "{} is an EAGLE3 drafter. As EAGLE it gets one hidden state in place of several: it runs, with accept "
                "length near 1, and says nothing."
            ).format(arch)
            return [Finding("block", word, sentence, "Use EAGLE3.", "all")]
        if found in ("dflash", "dspark"):
            return [
                Finding(
                    "block",
                    word,
                    "{} is no EAGLE drafter.".format(arch),
                    "Use {}.".format(_right(found)),
                    "all",
                )
            ]
        if found == "plain" and _no_head(draft, context):
            sentence = (
                "{} is a whole model and no EAGLE head: SGLang loads it as it is, and it drafts without the "
                "target's hidden states."
            ).format(arch)
            remedy = (
                "Name the …Eagle class in the drafter's config.json, or use STANDALONE for a small model."
            )
            return [Finding("warn", word, sentence, remedy, "all")]
        return []
    if name == "FROZEN_KV_MTP" and found != "gemma4":
        sentence = "{} is no Gemma 4 assistant, which FROZEN_KV_MTP is made for.".format(
            arch or "The drafter"
        )
        return [Finding("warn", word, sentence, "Use {}.".format(_right(found)), "from 0.5.13")]
    if name in ("DFLASH", "DSPARK"):
        if found == name.lower() or (name == "DSPARK" and found == "dflash"):
            return []
        return [
            Finding(
                "block",
                word,
                "{} is no {} drafter.".format(arch or "The drafter", name),
                "Use {}.".format(_right(found)),
                "all",
            )
        ]
    if name == "STANDALONE" and found != "plain":
        return [
            Finding(
                "block",
                word,
                "{} is no whole model and cannot draft alone.".format(arch),
                "Use {}.".format(_right(found)),
                "all",
            )
        ]
    return []


def _no_head(draft: Config, context: Context) -> bool:
    """Whether no MTP layers are in sight: SGLang renames a whole model that has them to its …NextN or …MTP class."""
    arch, known = mc.architecture(draft), context.architectures
    if not arch or known is None or known.known(arch) is not True or mc.nextn_layers(draft):
        return False
    stem = arch.split("For")[0].lower()[:5]
    return not any(
        other.lower().startswith(stem) and ("nextn" in other.lower() or "mtp" in other.lower())
        for other in known.files
    )


def _right(found: str) -> str:
    words = {"eagle3": "EAGLE3", "dflash": "DFLASH", "dspark": "DSPARK", "gemma4": "NEXTN", "eagle": "EAGLE"}
    return words.get(found, "STANDALONE, if it is a whole small model")


def capture(target: Config, draft: Config, context: Context) -> List[Finding]:
    """Whether the target's class hands out the hidden states that the drafter reads."""
    name = context.algorithm.upper()
    method = {
        "EAGLE3": "set_eagle3_layers_to_capture",
        "DFLASH": "set_dflash_layers_to_capture",
        "DSPARK": "set_dspark_layers_to_capture or set_dflash_layers_to_capture",
    }.get(name)
    inner = draft.get("eagle_config")
    if method is None or (isinstance(inner, Mapping) and inner.get("use_aux_hidden_state") is False):
        return []
    arch = mc.architecture(target) or "the target's class"
    if context.captures is False:
        sentence = "{} of this version has no {}: {} fails after the target is loaded.".format(
            arch, method, name
        )
        return [
            Finding(
                "block",
                "algorithm_does_not_fit_target",
                sentence,
                "Use a version that has it, or another algorithm.",
                "this installation",
            )
        ]
    if context.captures is None:
        return [
            Finding(
                "not_checked", "", "Whether {} has {}: the model's file was not read.".format(arch, method)
            )
        ]
    return [Finding("ok", "", "{} has {}.".format(arch, method), "", "this installation")]


def quantization(target: Config, draft: Config, context: Context) -> List[Finding]:
    """`--quantization` of the target goes to the drafter too."""
    flag = context.flag("--quantization", "-q")
    own = mc.quantization(draft)
    chosen = context.flag("--speculative-draft-model-quantization")
    if flag in (None, True) or chosen is not None or own == str(flag).lower():
        return []
    sentence = "--quantization {} goes to the drafter too, whose config says {}.".format(flag, own or "none")
    remedy = "Set --speculative-draft-model-quantization unquant."
    if between(context.version, "", "0.5.7"):
        remedy = (
            "This version cannot tell them apart: leave --quantization to the target's config, or use 0.5.8."
        )
    status = "warn" if not own and str(flag).lower() in ONLINE_QUANTIZATION else "block"
    return [Finding(status, "quantization_mismatch", sentence, remedy, "all", ("--quantization",))]


def old_gpu(target: Config, draft: Config, context: Context) -> List[Finding]:
    """FP8 weights on GPUs without FP8 (compute capability below 8.9)."""
    cap = _cap(context.gpu_compute_cap)
    out: List[Finding] = []
    for who, config in (("drafter", draft), ("target", target)):
        if cap is not None and cap < (8, 9) and "fp8" in mc.quantization(config):
            sentence = "The {} has FP8 weights; {} (compute capability {}) has no FP8.".format(
                who, context.gpu_name or "this GPU", context.gpu_compute_cap
            )
            remedy = "Convert it to bf16." if who == "drafter" else ""
            out.append(Finding("warn", "fp8_on_old_gpu", sentence, remedy, "all"))
    return out


def _cap(text: str) -> Optional[Tuple[int, int]]:
    parts = text.split(".")
    if len(parts) == 2 and all(p.isdigit() for p in parts):
        return int(parts[0]), int(parts[1])
    return None


def block_drafter(target: Config, draft: Config, context: Context) -> List[Finding]:
    """What DFLASH and DSPARK read of the drafter's config."""
    name = context.algorithm.upper()
    if name not in ("DFLASH", "DSPARK"):
        return []
    out: List[Finding] = []
    mask, vocab = mc.mask_token_id(draft), mc.vocab_size(target)
    if mask is not None and (mask < 0 or (vocab is not None and mask >= vocab)):
        sentence = "mask_token_id {} is outside the target's vocabulary of {}.".format(mask, vocab)
        out.append(Finding("block", "mask_token_out_of_range", sentence, "", "all"))
    if name == "DSPARK":
        rank = _nested(draft, "markov_rank", "dspark_markov_rank")
        if mask is None:
            out.append(
                Finding(
                    "block",
                    "mask_token_missing",
                    "DSPARK needs mask_token_id in the drafter's config.",
                    "",
                    "from 0.5.18",
                )
            )
        if rank is None or rank <= 0:
            told = "the drafter's config has none" if rank is None else "it is {}".format(rank)
            sentence = "DSPARK needs markov_rank above 0; {}.".format(told)
            out.append(Finding("block", "drafter_config", sentence, "", "from 0.5.18"))
    if context.number("--pp-size", "--pipeline-parallel-size") not in (None, 1) and name == "DFLASH":
        out.append(
            Finding(
                "block",
                "flag_conflict",
                "DFLASH does not run with pipeline parallelism.",
                "",
                "all",
                ("--pp-size",),
            )
        )
    return out


def _nested(config: Config, *keys: str) -> Optional[int]:
    for place in (config.get("dspark_config"), config.get("dflash_config"), mc.text(config), config):
        for key in keys:
            value: Any = place.get(key) if isinstance(place, Mapping) else None
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return None


def overrides(target: Config, draft: Config, context: Context) -> List[Finding]:
    """`--json-model-override-args` is laid over the drafter's config as well."""
    value = context.flag("--json-model-override-args")
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return []
    if not isinstance(value, Mapping) or not value:
        return []
    sentence = "--json-model-override-args ({}) is laid over the drafter's config too.".format(
        ", ".join(map(str, value))[:200]
    )
    return [Finding("warn", "override_hits_drafter", sentence, "", "all", ("--json-model-override-args",))]
