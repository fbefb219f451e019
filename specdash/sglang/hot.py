"""The hot switch: new draft weights for a living server. Requests, answers and the rule to keep or go back.

Pure; the sending is done by the program on the host (`specdash.host.remote.hotkeeper`) with these requests.
Whether two drafters are alike enough is decided before, in `specdash.sglang.hot_fit`. Facts: seen on 0.5.23.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any, Dict, List, Mapping, Optional, Sequence

from specdash.sglang import pulse
from specdash.sglang.ready import headers

BEGIN, UPDATE, END, CHECK = (
    "/begin_weight_update",
    "/update_weights_from_tensor",
    "/end_weight_update",
    "/weights_checker",
)
DRAFT = "draft"
BEGIN_S, UPDATE_S, END_S, CHECK_S = 120.0, 300.0, 60.0, 120.0
"""The engine takes these between two requests of its own; a busy one lets us wait."""


def _post(path: str, body: Mapping[str, Any], key: str, timeout_s: float) -> Dict[str, Any]:
    return {
        "method": "POST",
        "path": path,
        "headers": headers(key),
        "body": json.dumps(body),
        "timeout_s": timeout_s,
    }


def begin(key: str = "") -> Dict[str, Any]:
    return _post(BEGIN, {"selector": DRAFT}, key, BEGIN_S)


def update(payload: bytes, ranks: int, flush: bool, key: str = "") -> Dict[str, Any]:
    """`payload`: what the engine's own serializer made; every tensor-parallel rank gets the same whole one."""
    text = base64.b64encode(payload).decode("ascii")
    body = {"serialized_named_tensors": [text] * ranks, "selector": DRAFT, "flush_cache": flush}
    return _post(UPDATE, body, key, UPDATE_S)


def end(key: str = "") -> Dict[str, Any]:
    return _post(END, {}, key, END_S)


def check(key: str = "") -> Dict[str, Any]:
    return _post(CHECK, {"action": "checksum", "selector": DRAFT}, key, CHECK_S)


def generate(key: str = "") -> Dict[str, Any]:
    """The smallest generation: does it live?"""
    body = {"text": "Hello", "sampling_params": {"temperature": 0, "max_new_tokens": 8}}
    return _post("/generate", body, key, 60.0)


def outcome(answer: Mapping[str, Any]) -> str:
    """done | refused (the server said no and did nothing) | unknown (no whole answer: it may have happened)."""
    status = answer.get("status")
    if status is None:
        return "refused" if answer.get("problem") == "refused" else "unknown"
    if status == 200:
        return "done"
    return "refused" if 400 <= int(status) < 500 else "unknown"


def said(answer: Mapping[str, Any]) -> str:
    """The answer in words, bounded."""
    if answer.get("status") is None:
        return "no answer (%s)" % (answer.get("problem") or "?")
    told = _json(answer)
    text = ""
    if isinstance(told, dict):
        text = str(told.get("message") or told.get("error") or "")
    return ("HTTP %s %s" % (answer["status"], " ".join(text.split())[:300])).strip()


def closed(answer: Mapping[str, Any]) -> bool:
    """After `end`: is it sure that no update is open? 200: it was closed; 400: none was open."""
    return answer.get("status") in (200, 400)


def is_open(answer: Mapping[str, Any]) -> bool:
    """After a refused `begin`: was it because somebody has an update open?"""
    return answer.get("status") == 400 and "already open" in said(answer)


def checksum(answer: Mapping[str, Any]) -> Optional[str]:
    """One word for all draft weights on all ranks (SHA-256 of the ranks' own checksums), None when it told none."""
    told = _json(answer)
    if answer.get("status") != 200 or not isinstance(told, dict) or not told.get("ranks"):
        return None
    ranks = told["ranks"]
    sums = [one.get("checksums", one) for one in ranks if isinstance(one, dict)]
    if not sums:
        return None
    return hashlib.sha256(json.dumps(sums, sort_keys=True).encode("utf-8")).hexdigest()


def _json(answer: Mapping[str, Any]) -> Any:
    try:
        return json.loads(bytes(answer.get("body") or b"").decode("utf-8", "replace"))
    except ValueError:
        return None


def floor(at_least: Optional[float]) -> float:
    """The accept length below which the old weights come back."""
    return max(pulse.USELESS_BELOW, at_least or 0.0)


def rule(at_least: Optional[float] = None) -> List[str]:
    """The rule in sentences, for the plan."""
    return [
        "The old weights go back when the accept length is below %.2f over at least %d verify steps, warm-up "
        "left out, or when a generation fails." % (floor(at_least), pulse.MIN_VERIFY_STEPS),
        "They go back, too, when the checksums of the weights did not change, or the update was cut off.",
    ]


def judge(
    passes: Sequence[Mapping[str, Any]],
    at_least: Optional[float],
    before: Optional[Mapping[str, Any]] = None,
) -> Dict[str, Any]:
    """→ {"decision": "keep" | "back", "sentence", "pulse"}. `before`: the pulse with the old weights, if any."""
    now = pulse.together(passes)
    length, steps = now["accept_length"], now["verify_steps"]
    if not now["ok"]:
        text = "%d of %d generations came back (%s)."
        return {
            "decision": "back",
            "sentence": text % (now["answered"], now["asked"], now["problem"] or "none asked"),
            "pulse": now,
        }
    if length is None:
        return {"decision": "back", "sentence": "The server tells no accept length.", "pulse": now}
    was = (before or {}).get("accept_length")
    head = "Accept length %.2f over %d verify steps%s" % (
        length,
        steps or 0,
        "" if was is None else " (before: %.2f)" % was,
    )
    if length < floor(at_least) and (steps or 0) >= pulse.MIN_VERIFY_STEPS:
        return {"decision": "back", "sentence": "%s: below %.2f." % (head, floor(at_least)), "pulse": now}
    return {"decision": "keep", "sentence": head + ".", "pulse": now}
