"""A model's `config.json` as the drafter rules need it. Untrusted: any key may be missing or of any type.

Sizes of a model that also sees or hears sit in `text_config` (or a kin of it); a `vision_config` has a
`hidden_size` too, which is never the one meant.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, Optional, Tuple

TEXT_KEYS = ("text_config", "llm_config", "language_config", "thinker_config")
MAX_BYTES = 8_000_000


def parse(data: Optional[bytes]) -> Tuple[Optional[Dict[str, Any]], str]:
    """(config, "") or (None, why not, as a clause)."""
    if data is None:
        return None, "there is no config.json"
    if len(data) > MAX_BYTES:
        return None, "config.json has {} bytes, more than specdash reads".format(len(data))
    try:
        config = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        return None, "config.json is no JSON ({})".format(str(error)[:120])
    if not isinstance(config, dict):
        return None, "config.json holds no object"
    return config, ""


def text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part that describes the language model."""
    for key in TEXT_KEYS:
        inner = config.get(key)
        if isinstance(inner, Mapping):
            return text(inner) if any(k in inner for k in TEXT_KEYS) else inner
    return config


def whole(config: Mapping[str, Any], *keys: str) -> Optional[int]:
    """The first of the keys that holds a whole number, in the text part, then at the top."""
    for place in (text(config), config):
        for key in keys:
            value = place.get(key)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return None


def word(config: Mapping[str, Any], *keys: str) -> str:
    for place in (config, text(config)):
        for key in keys:
            value = place.get(key)
            if isinstance(value, str):
                return value
    return ""


def architecture(config: Mapping[str, Any]) -> str:
    """The first of `architectures`, as SGLang takes it; empty when there is none."""
    names = config.get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str):
        return names[0]
    return ""


def hidden_size(config: Mapping[str, Any]) -> Optional[int]:
    return whole(config, "hidden_size", "n_embd", "d_model")


def layers(config: Mapping[str, Any]) -> Optional[int]:
    return whole(config, "num_hidden_layers", "n_layer", "num_layers")


def vocab_size(config: Mapping[str, Any]) -> Optional[int]:
    return whole(config, "vocab_size")


def dtype(config: Mapping[str, Any]) -> str:
    return word(config, "torch_dtype", "dtype")


def quantization(config: Mapping[str, Any]) -> str:
    """`fp8`, `awq`, …; empty: none named."""
    for place in (config, text(config)):
        inner = place.get("quantization_config") or place.get("compression_config")
        if isinstance(inner, Mapping):
            method = inner.get("quant_method") or inner.get("quant_algo")
            return str(method).lower() if method else "unknown"
    return ""


def nextn_layers(config: Mapping[str, Any]) -> Optional[int]:
    """MTP layers that the checkpoint says it has; 0 is a statement, None is silence."""
    return whole(
        config, "num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers", "num_mtp_modules"
    )


def aux_layer_ids(config: Mapping[str, Any]) -> Tuple[Optional[List[int]], str]:
    """(ids that the drafter asks for, "") or (None, why they cannot be read; empty: none are given)."""
    places: List[Tuple[str, Any]] = []
    for name in ("eagle_config", "dflash_config", "dspark_config"):
        inner = config.get(name)
        if inner is None:
            continue
        if not isinstance(inner, Mapping):
            return None, "{} is no object".format(name)
        for key in ("eagle_aux_hidden_state_layer_ids", "target_layer_ids"):
            places.append((name + "." + key, inner.get(key)))
    for key in (
        "eagle_aux_hidden_state_layer_ids",
        "target_layer_ids",
        "aux_hidden_state_layer_ids",
        "dspark_target_layer_ids",
    ):
        places.append((key, config.get(key)))
    for name, value in places:
        if value is None:
            continue
        if not isinstance(value, list) or not all(
            isinstance(v, int) and not isinstance(v, bool) for v in value
        ):
            return None, "{} is no list of whole numbers".format(name)
        return list(value[:1000]), ""
    return None, ""


def mask_token_id(config: Mapping[str, Any]) -> Optional[int]:
    for name in ("dspark_config", "dflash_config"):
        inner = config.get(name)
        if isinstance(inner, Mapping) and isinstance(inner.get("mask_token_id"), int):
            return int(inner["mask_token_id"])
    return whole(config, "mask_token_id", "dspark_noise_token_id")


def is_eagle3(config: Mapping[str, Any]) -> bool:
    """A drafter made for EAGLE3: by its name, or by what only such drafters have."""
    name = architecture(config)
    if "eagle3" in name.lower():
        return True
    return "eagle" not in name.lower() and ("draft_vocab_size" in config or "eagle_config" in config)
