"""What an SGLang that was read offers for the name of an algorithm: which one it means, and whether it is there."""

from __future__ import annotations

import difflib
from typing import Optional, Tuple

from specdash.sglang.reading import Reading

NEAR = 0.65
"""A slip of the fingers (EAGEL3, DFLASH2, NGRAMS) is nearer than this; another technique (MEDUSA, DSPARK) is not."""


def resolve_name(reading: Reading, name: str) -> Optional[str]:
    """The algorithm that a name means here (NEXTN → EAGLE), or None when it is not offered."""
    upper = name.upper()
    known = reading.names or ()
    if upper in known:
        return upper
    if upper in reading.algorithms.aliases:
        return reading.algorithms.aliases[upper] or upper
    if upper in reading.accepted:
        return "EAGLE" if upper == "NEXTN" else upper
    return None


def judge_algorithm(reading: Reading, name: str) -> Tuple[str, str, str, Tuple[str, ...]]:
    """(status, category, sentence, near names) of asking this SGLang for an algorithm."""
    accepted = reading.accepted
    if accepted and name not in accepted:
        near = tuple(difflib.get_close_matches(name.upper(), accepted, n=3, cutoff=NEAR))
        sentence = "This version takes {}; {} is refused.".format(", ".join(accepted), name)
        return "block", "unknown_algorithm", sentence, near
    names = reading.names
    if name.upper() == "NONE":
        sentence = "NONE is no way to turn speculation off: the engine takes it for a name and goes wrong."
        return "block", "unknown_algorithm", sentence, ()
    if resolve_name(reading, name) is not None:
        meant = resolve_name(reading, name)
        told = "" if meant == name.upper() else " (it runs as {})".format(meant)
        return "ok", "", "{} is in this build{}.".format(name.upper(), told), ()
    if names is None:
        why = reading.algorithms.unread[0].reason if reading.algorithms.unread else "unknown reason"
        return "not_checked", "probe_unknown", "The algorithms could not be read: {}.".format(why), ()
    if reading.algorithms.style == "absent":
        return "block", "unknown_algorithm", "This SGLang has no speculative decoding at all.", ()
    unsure = [p.name for p in reading.plugins if p.enabled and (p.reason or p.dynamic)]
    dynamic = list(reading.algorithms.unread)
    if (unsure and reading.algorithms.registry) or dynamic:
        named = sorted((one.reason for one in dynamic), key=lambda reason: name.upper() not in reason.upper())
        what = "plugin " + ", ".join(unsure) if unsure else named[0]
        told = "{} is not among the names that the files tell; {} may add it. A deep probe asks the engine."
        sentence = told.format(name, what)
        return "not_checked", "probe_unknown", sentence, ()
    near = tuple(difflib.get_close_matches(name.upper(), names, n=3, cutoff=NEAR))
    skipped = [p.name for p in reading.plugins if not p.enabled and name.upper() in p.algorithms]
    told = " The plugin {} has it, but SGLANG_PLUGINS leaves it out.".format(skipped[0]) if skipped else ""
    sentence = "This build has no {}; it has {}.{}".format(name, ", ".join(names), told)
    return "block", "unknown_algorithm", sentence, near
