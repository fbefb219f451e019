"""May these two drafters be swapped on a living server, and can this SGLang do it? Decided before anything is sent.

A tensor of a wrong shape kills the scheduler and with it the server; unknown names are ignored in silence
(facts/hot-swap.md). So everything must be proven equal from the files, and what cannot be proven is a block.
"""

from __future__ import annotations

import ast
import json
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

from specdash.sglang import modelconfig as mc
from specdash.sglang.fit import Finding
from specdash.sglang.tree import Source

IO = "sglang/srt/managers/io_struct.py"
HTTP = "sglang/srt/entrypoints/http_server.py"
ROUTES = (
    "/begin_weight_update",
    "/update_weights_from_tensor",
    "/end_weight_update",
    "/weights_checker",
)
SELECTING = ("UpdateWeightsFromTensorReqInput", "BeginWeightUpdateReqInput", "CheckWeightsReqInput")
PROVEN_ALGORITHMS = ("EAGLE3",)
PROVEN_ARCHITECTURES = ("LlamaForCausalLMEagle3",)
"""Others keep derived copies of weights, or tie them to the target's, in ways that nobody has proven safe."""
SAID_ONLY = frozenset(
    ("_name_or_path", "transformers_version", "torch_dtype_str", "_commit_hash", "auto_map", "license")
)
"""Config fields that change nothing in the engine."""
DTYPES = ("BF16", "F16", "F32", "F64", "I64", "I32", "I16", "I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2")
REMEDY = "Use the ordinary switch."


def capability(source: Source) -> Dict[str, Any]:
    """{"able": bool, "missing": [what the installed files lack], "evidence": [where it was seen]}."""
    missing: List[str] = []
    evidence: List[str] = []
    classes = _classes(source)
    for name in SELECTING:
        line = _selects_draft(classes.get(name))
        if line is None:
            missing.append('`selector` with "draft" on %s' % name)
        else:
            evidence.append("%s:%d %s.selector" % (IO, line, name))
    routes = _routes(source)
    for route in ROUTES:
        if route in routes:
            evidence.append("%s:%d %s" % (HTTP, routes[route], route))
        else:
            missing.append("the endpoint %s" % route)
    return {"able": not missing, "missing": missing, "evidence": evidence}


def _classes(source: Source) -> Dict[str, ast.ClassDef]:
    module, _ = source.module(IO)
    return {n.name: n for n in module.body if isinstance(n, ast.ClassDef)} if module else {}


def _selects_draft(node: Optional[ast.ClassDef]) -> Optional[int]:
    for item in node.body if node else ():
        if isinstance(item, ast.AnnAssign) and getattr(item.target, "id", "") == "selector":
            words = [n.value for n in ast.walk(item.annotation) if isinstance(n, ast.Constant)]
            return item.lineno if "draft" in words else None
    return None


def _routes(source: Source) -> Dict[str, int]:
    """Path → line of every route that a decorator of the HTTP server declares."""
    module, _ = source.module(HTTP)
    found: Dict[str, int] = {}
    for node in ast.walk(module) if module else ():
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for one in node.decorator_list:
                if isinstance(one, ast.Call) and one.args and isinstance(one.args[0], ast.Constant):
                    found.setdefault(str(one.args[0].value), one.lineno)
    return found


def routes(source: Source) -> Dict[str, int]:
    """Every path of the HTTP server, with its line. Empty when the file cannot be read."""
    return _routes(source)


def kept_by_target(config: Mapping[str, Any], names: Iterable[str]) -> Tuple[str, ...]:
    """Tensors of an EAGLE3 file that the engine takes from the target instead: never sent, or they would
    overwrite the *target's* (the draft model holds the target's own embedding as its parameter)."""
    shares_head = mc.whole(config, "draft_vocab_size") is None or bool(config.get("tie_word_embeddings"))
    return tuple(
        name for name in names if "embed_tokens" in name or (shares_head and name.startswith("lm_head"))
    )


def vocabulary_maps(names: Iterable[str]) -> Tuple[str, ...]:
    """Tensors that the worker reads at start only (`d2t`, `t2d`): they must be equal, and are not sent."""
    return tuple(name for name in names if "d2t" in name or "t2d" in name)


def not_sent(config: Mapping[str, Any], names: Iterable[str]) -> Tuple[str, ...]:
    names = tuple(names)
    return tuple(sorted({*kept_by_target(config, names), *vocabulary_maps(names)}))


def server(info: Mapping[str, Any], run: Mapping[str, Any]) -> List[Finding]:
    """What of the running server itself stands in the way. `info`: /server_info; `run`: the run's record."""
    found: List[Finding] = []

    def block(sentence: str, category: str = "hot_not_possible", remedy: str = REMEDY) -> None:
        found.append(Finding("block", category, sentence, remedy))

    algorithm = str(info.get("speculative_algorithm") or "none").upper()
    if algorithm not in PROVEN_ALGORITHMS:
        block(
            "The server runs %s; new weights in a living server are proven for %s only."
            % (algorithm, ", ".join(PROVEN_ALGORITHMS))
        )
    for key, word in (("dp_size", "data"), ("pp_size", "pipeline"), ("nnodes", "multi-node")):
        value = info.get(key)
        if value is None:
            block("The server does not tell `%s`, so it is not proven that one host reads the weights." % key)
        elif value != 1:
            block(
                "The server has %s parallelism (%s %s); this works on one host, dp 1, pp 1."
                % (word, key, value)
            )
    if not isinstance(info.get("tp_size"), int):
        block("The server does not tell `tp_size`: how many ranks want the weights is not known.")
    for key in ("quantization", "speculative_draft_model_quantization"):
        draft_key = info.get("speculative_draft_model_quantization")
        if key == "quantization" and "speculative_draft_model_quantization" in info and draft_key is None:
            continue  # the target's own; a draft without the flag can still inherit it, see the config check
        if info.get(key) not in (None, "unquant"):
            block("The drafter is quantised (%s %s), which nobody has proven here." % (key, info[key]))
    if info.get("weight_cache_mode") not in (None, "off"):
        block(
            "The server shares its weights with a weight cache (--weight-cache-mode); they must not change."
        )
    for key in ("speculative_token_map", "speculative_draft_load_format", "uno_lora_path"):
        if info.get(key):
            block("The server was started with --%s, which nobody has proven here." % key.replace("_", "-"))
    if info.get("enable_lora"):
        block("The server has LoRA adapters on, which nobody has proven here.")
    if info.get("device") not in (None, "cpu"):
        found.append(
            Finding(
                "warn",
                "hot_unseen",
                "Proven on a CPU engine; on %s it has not been seen yet." % info.get("device"),
                "Have the ordinary switch ready: it is the way back if the server dies.",
            )
        )
    if run.get("phase") != "ready":
        block("The run is not ready (%s)." % run.get("phase"), "hot_not_ready", "Wait until it serves.")
    return found


def alike(now: Mapping[str, Any], new: Mapping[str, Any]) -> List[Finding]:
    """Two drafters as `control.remote_hot.drafter` reads them: is a swap safe? One finding per proof."""
    out: List[Finding] = []

    def say(good: bool, category: str, sentence: str) -> None:
        out.append(Finding("ok" if good else "block", category, sentence, "" if good else REMEDY))

    for who, one in (("present", now), ("new", new)):
        if one.get("problem"):
            say(False, "hot_unreadable", "The %s drafter, %s: %s." % (who, one.get("path"), one["problem"]))
    if out:
        return out
    a, b = now["config"], new["config"]
    for who, config in (("present", a), ("new", b)):
        name = mc.architecture(config)
        if name not in PROVEN_ARCHITECTURES:
            say(
                False,
                "hot_not_proven",
                "The %s drafter is a %s; swapping is proven for %s."
                % (who, name or "model of unknown class", ", ".join(PROVEN_ARCHITECTURES)),
            )
        if mc.quantization(config):
            say(False, "hot_quantised", "The %s drafter is quantised (%s)." % (who, mc.quantization(config)))
    different = sorted(
        key for key in {*a, *b} if key not in SAID_ONLY and _plain(a.get(key)) != _plain(b.get(key))
    )
    shown = ", ".join("%s: %s → %s" % (k, _short(a.get(k)), _short(b.get(k))) for k in different[:4])
    say(not different, "hot_config", "Configs differ in %s." % shown if different else "Configs are equal.")
    ids = (mc.aux_layer_ids(a), mc.aux_layer_ids(b))
    same_aux = ids[0] == ids[1] and not ids[0][1]
    say(
        same_aux,
        "hot_aux_layers",
        "Aux layers are the same (%s)." % (ids[0][0] if ids[0][0] is not None else "the engine's default")
        if same_aux
        else "Aux layers differ: %s → %s." % (ids[0][0] or ids[0][1], ids[1][0] or ids[1][1]),
    )
    out.extend(tensors(now["tensors"], new["tensors"]))
    if any(one.status == "block" for one in out):
        return out
    held = {*kept_by_target(a, now["tensors"])}
    for name in not_sent(a, now["tensors"]):
        old, fresh = now["hashes"].get(name), new["hashes"].get(name)
        what = (
            "The target's own stays in place of" if name in held else "The vocabulary map is read at start:"
        )
        if old is None or fresh is None:
            say(False, "hot_unread", "%s %s, and it was not read." % (what, name))
        elif old != fresh:
            say(False, "hot_vocabulary_map", "%s %s, and the two files differ in it." % (what, name))
    if not any(one.status == "block" for one in out):
        say(True, "hot_map", "What is read at start only (vocabulary maps, shared embeddings) is equal.")
    return out


def tensors(now: Mapping[str, Any], new: Mapping[str, Any]) -> List[Finding]:
    """Names, shapes and dtypes of two safetensors tables {name: {"dtype", "shape"}}."""
    gone, added = sorted(set(now) - set(new)), sorted(set(new) - set(now))
    if gone or added:
        text = "; ".join(
            "%s only in the %s: %s" % (len(names), who, ", ".join(names[:3]))
            for names, who in ((gone, "present one"), (added, "new one"))
            if names
        )
        return [Finding("block", "hot_names", "Tensor names differ (%s)." % text, REMEDY)]
    for name in sorted(now):
        a, b = now[name], new[name]
        if list(a["shape"]) != list(b["shape"]):
            text = "%s has shape %s now and %s in the new file: the engine would die of it."
            return [Finding("block", "hot_shape", text % (name, a["shape"], b["shape"]), REMEDY)]
        if a["dtype"] != b["dtype"]:
            text = "%s is %s now and %s in the new file."
            return [Finding("block", "hot_dtype", text % (name, a["dtype"], b["dtype"]), REMEDY)]
        if a["dtype"] not in DTYPES:
            text = "%s is %s, a type that cannot be sent."
            return [Finding("block", "hot_dtype", text % (name, a["dtype"]), REMEDY)]
    if not now:
        return [Finding("block", "hot_names", "The drafter has no tensors.", REMEDY)]
    return [Finding("ok", "hot_tensors", "%d tensors: the same names, shapes and dtypes." % len(now))]


def _plain(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _short(value: Any) -> str:
    text = "not given" if value is None else _plain(value)
    return text if len(text) <= 40 else text[:37] + "…"
