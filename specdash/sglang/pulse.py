"""The pulse: the same few prompts, generated greedily, to see what a server does now. And the rule of a switch.

Accept length is SGLang's own: tokens per target verify step, bonus token included, from each answer's meta_info
(`completion_tokens / spec_verify_ct`). One stream, so tok/s is that of a single request. Pure: the sending is
done by `specdash.control.pulse` or, in a switch, by the program on the host, with these same requests.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, Optional, Sequence

from specdash.sglang import acceptance
from specdash.sglang.ready import headers

VERSION = 1
"""Goes up when prompts or settings change: only pulses of one version are compared."""
MAX_NEW_TOKENS = 128
TIMEOUT_S = 180.0
PASSES = 2
"""The first pass warms up (graphs, caches, the NGRAM table) and is not judged."""
USELESS_BELOW = 1.05
"""A drafter model that is accepted less than this only costs."""
MIN_VERIFY_STEPS = 200
SLOWER_BELOW = 0.97
"""Less than this share of the previous server's tok/s is called slower; above it is noise."""

PROMPTS = (
    "Write a Python function that merges two sorted lists of integers and returns one sorted list.",
    "Explain in plain words how a bicycle stays upright while it is moving.",
    "List the planets of the solar system with one fact about each of them.",
    "Translate into French, sentence by sentence: The harbour was quiet. Two boats came in before noon. Nobody spoke.",
)


def requests(auth: str = "") -> List[Dict[str, Any]]:
    """One pass: requests to send one after another ({"method", "path", "headers", "body"})."""
    settings = {"temperature": 0, "max_new_tokens": MAX_NEW_TOKENS, "ignore_eos": True}
    return [
        {
            "method": "POST",
            "path": "/generate",
            "headers": headers(auth),
            "body": json.dumps({"text": text, "sampling_params": settings}),
        }
        for text in PROMPTS
    ]


def read(answers: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
    """Sum up one pass. Each answer: {"status": int | None, "body": bytes, "took_s": float, "problem": str}.

    → {"version", "ok", "problem", "answered", "asked", "tokens", "seconds", "tok_s", "verify_steps",
    "accept_length", "accept_rate", "histogram" (verify steps by correct drafts), "position_acceptance" (P(at least i
    drafts correct), i = 1…), "accept_source"}. Numbers that were not told are None. `seconds` is wall time of the
    requests.
    """
    metas: List[Mapping[str, Any]] = []
    tokens, verified, seconds, answered = 0, 0, 0.0, 0
    told_verify = True
    problem = ""
    for answer in answers:
        meta = _meta(answer)
        if meta is None:
            status, word = answer.get("status"), answer.get("problem")
            problem = problem or ("HTTP %s" % status if status is not None else str(word or "no answer"))
            continue
        count, steps = _whole(meta.get("completion_tokens")), _whole(meta.get("spec_verify_ct"))
        if not count:
            problem = problem or "an answer without tokens"
            continue
        answered += 1
        tokens += count
        seconds += float(answer.get("took_s") or 0.0)
        told_verify = told_verify and bool(steps)
        verified += steps or 0
        metas.append(meta)
    told = acceptance.of(metas)
    speculates = bool(answered) and told_verify and verified > 0
    return {
        "version": VERSION,
        "ok": answered == len(answers) > 0,
        "problem": problem,
        "answered": answered,
        "asked": len(answers),
        "tokens": tokens,
        "seconds": round(seconds, 4),
        "tok_s": round(tokens / seconds, 2) if answered and seconds > 0 else None,
        "verify_steps": verified if speculates else None,
        "accept_length": round(tokens / verified, 4) if speculates else None,
        "accept_rate": _rounded(told.accept_rate) if speculates else None,
        "histogram": list(told.histogram) if speculates and told.histogram else None,
        "position_acceptance": [round(p, 4) for p in told.positions]
        if speculates and told.positions
        else None,
        "accept_source": "meta_info: completion_tokens / spec_verify_ct, bonus token included"
        if speculates
        else "",
    }


def _rounded(value: Optional[float]) -> Optional[float]:
    return None if value is None else round(value, 4)


def _meta(answer: Mapping[str, Any]) -> Optional[Mapping[str, Any]]:
    if answer.get("status") != 200:
        return None
    try:
        value = json.loads(bytes(answer.get("body") or b"").decode("utf-8", "replace"))
    except ValueError:
        return None
    value = value[0] if isinstance(value, list) and value else value
    meta = value.get("meta_info") if isinstance(value, dict) else None
    return meta if isinstance(meta, dict) else None


def _whole(value: Any) -> Optional[int]:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def kind(algorithm: str) -> str:
    """How a server is judged: "base", "ngram" (starts at 1.00 by nature, learns as it goes) or "drafter"."""
    name = algorithm.strip().upper()
    if name in ("", "NONE"):
        return "base"
    return "ngram" if name in ("NGRAM", "LOOKAHEAD") else "drafter"


def rule(algorithm: str, before: Optional[Mapping[str, Any]] = None) -> List[str]:
    """The rule that `judge` will apply to a server with this algorithm, in sentences for the plan."""
    said = ["It is rolled back when it does not get ready, or dies, or does not answer the pulse."]
    if kind(algorithm) == "drafter":
        said.append(
            "It is rolled back when its accept length is below %.2f over at least %d verify steps, warm-up left out."
            % (USELESS_BELOW, MIN_VERIFY_STEPS)
        )
    elif kind(algorithm) == "ngram":
        said.append(
            "NGRAM starts at accept length 1.00: it is judged on a second pass over the same prompts "
            "(below %.2f over %d verify steps: rolled back)." % (USELESS_BELOW, MIN_VERIFY_STEPS)
        )
    else:
        said.append("A base server has no accept length: it is judged on tok/s alone.")
    if before and before.get("tok_s"):
        said.append("When it is slower than now (%.1f tok/s, one stream), you are asked." % before["tok_s"])
    return said


def more(passes: Sequence[Mapping[str, Any]], algorithm: str) -> bool:
    """Is another pass needed before `judge` may speak? (Few verify steps so far; never more than six passes.)"""
    if len(passes) < PASSES:
        return True
    if len(passes) >= 6 or kind(algorithm) == "base" or not passes[-1].get("ok"):
        return False
    counted = [one.get("verify_steps") for one in passes[1:]]
    steps = sum(one for one in counted if isinstance(one, int))
    return all(isinstance(one, int) for one in counted) and steps < MIN_VERIFY_STEPS


def together(passes: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
    """All passes after the warm-up as one result, in the shape of `read`."""
    counted = list(passes[1:]) or list(passes)
    if not counted:
        return read([])
    tokens = sum(int(one["tokens"]) for one in counted)
    seconds = sum(float(one["seconds"]) for one in counted)
    steps = [one["verify_steps"] for one in counted]
    verified = sum(steps) if all(isinstance(step, int) and step for step in steps) else None
    histogram = _added([one.get("histogram") for one in counted])
    shares = acceptance.shares(histogram)
    return dict(
        counted[-1],
        histogram=histogram,
        position_acceptance=[round(share, 4) for share in shares] if shares else None,
        accept_rate=_mean_rate(counted),
        ok=all(one["ok"] for one in counted),
        problem=next((one["problem"] for one in counted if one["problem"]), ""),
        answered=sum(int(one["answered"]) for one in counted),
        asked=sum(int(one["asked"]) for one in counted),
        tokens=tokens,
        seconds=round(seconds, 4),
        tok_s=round(tokens / seconds, 2) if tokens and seconds > 0 else None,
        verify_steps=verified,
        accept_length=round(tokens / verified, 4) if verified else None,
    )


def _added(rows: Sequence[Any]) -> Optional[List[int]]:
    """Histograms of several passes as one; None when one pass has none."""
    if not rows or not all(rows):
        return None
    width = max(len(row) for row in rows)
    return [sum(int(row[i]) for row in rows if i < len(row)) for i in range(width)]


def _mean_rate(passes: Sequence[Mapping[str, Any]]) -> Optional[float]:
    """Accept rate over passes, each by its verify steps (all propose alike)."""
    told = [(one["accept_rate"], one["verify_steps"]) for one in passes if one.get("accept_rate") is not None]
    steps = sum(step for _, step in told)
    return round(sum(rate * step for rate, step in told) / steps, 4) if steps else None


def judge(
    passes: Sequence[Mapping[str, Any]], algorithm: str, before: Optional[Mapping[str, Any]] = None
) -> Dict[str, Any]:
    """Keep, roll back or ask? → {"decision": "keep" | "roll_back" | "ask", "sentence", "pulse": `together`}.

    `before`: the pulse of the server that was there before, of the same version; None: not known.
    """
    now = together(passes)
    length, steps, speed = now["accept_length"], now["verify_steps"], now["tok_s"]
    if not now["ok"]:
        said = "%d of %d generations came back (%s)." % (
            now["answered"],
            now["asked"],
            now["problem"] or "none asked",
        )
        return {"decision": "roll_back", "sentence": said, "pulse": now}
    judged = kind(algorithm) != "base" and length is not None and (steps or 0) >= MIN_VERIFY_STEPS
    if judged and length < USELESS_BELOW:
        said = "Accept length %.2f over %d verify steps: the drafter is not accepted, it only costs."
        return {"decision": "roll_back", "sentence": said % (length, steps), "pulse": now}
    shown = (
        "accept length not told"
        if length is None
        else "accept length %.2f over %d verify steps" % (length, steps or 0)
    )
    head = "%s tok/s, one stream" % ("-" if speed is None else "%.1f" % speed)
    head += "" if kind(algorithm) == "base" else ", " + shown
    old = before.get("tok_s") if before and before.get("version") == VERSION else None
    if old and speed and speed < SLOWER_BELOW * old:
        said = "%s: slower than before (%.1f tok/s)." % (head, old)
        return {"decision": "ask", "sentence": said, "pulse": now}
    compared = " (before: %.1f tok/s)" % old if old else " (what it was before is not known)"
    return {"decision": "keep", "sentence": head + compared + ".", "pulse": now}
