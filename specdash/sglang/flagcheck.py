"""A profile's flags against the flags that are really there, as argparse will take them.

argparse binds a flag it does not know to a longer one when only one begins so; that is said, with the full
name. What only the engine knows (choices computed at start) is *not checked*, never assumed right.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Dict, List, Optional, Sequence, Tuple

from specdash.sglang import replaced
from specdash.sglang.commandline import looks_like_option, value_text
from specdash.sglang.flags import Flag, FlagTable

Pairs = Sequence[Tuple[str, Any]]

RANGES: Dict[str, Tuple[float, float, str]] = {
    "--mem-fraction-static": (0.0, 1.0, "a fraction between 0 and 1"),
    "--port": (0, 65536, "a port from 1 to 65535"),
    "--tp-size": (0, 4097, "a number of GPUs, at least 1"),
    "--speculative-accept-threshold-single": (-1e-9, 1.0000001, "between 0 and 1"),
    "--speculative-accept-threshold-acc": (-1e-9, 1.0000001, "between 0 and 1"),
}
"""Main option string → (above, below, words): values that the parser takes and the engine cannot use."""


@dataclass(frozen=True)
class FlagProblem:
    """One thing about one flag. `status`: block | warn | not_checked."""

    flag: str
    kind: str
    """unknown | ambiguous_abbreviation | abbreviation | deprecated | refused | wrong_type | wrong_choice |
    wrong_count | out_of_range | blanks | tilde | missing | repeated | not_checked"""
    status: str
    sentence: str
    use: str = ""
    """What to write instead; empty when specdash does not know."""
    near: Tuple[str, ...] = ()
    category: str = ""
    """A word for scripts: unknown_flag | flag_renamed | flag_abbreviation | bad_flag_value | flag_deprecated | …"""


def from_argv(words: Sequence[str], table: Optional[FlagTable] = None) -> List[Tuple[str, Any]]:
    """argv words → (option, value): True, text, or a list of texts. Positional words get the option "".

    With a table, a flag that takes nothing leaves the next word alone, as argparse does.
    """
    out: List[Tuple[str, Any]] = []
    i = 0
    while i < len(words):
        word = words[i]
        i += 1
        if not looks_like_option(word):
            out.append(("", word))
            continue
        name, equals, inline = word.partition("=")
        if equals:
            out.append((name, inline))
            continue
        flag = table.get(name) if table else None
        values: List[str] = []
        while i < len(words) and not looks_like_option(words[i]):
            if flag is not None and (flag.takes == "nothing" or (flag.takes in ("one", "maybe") and values)):
                break
            values.append(words[i])
            i += 1
        out.append((name, True if not values else values[0] if len(values) == 1 else values))
    return out


def check(pairs: Pairs, table: FlagTable) -> Tuple[FlagProblem, ...]:
    """All problems, worst first within a flag. With an unreadable table: one *not checked*."""
    if not table.readable:
        why = table.unread[0].reason if table.unread else "no flag was found"
        return (
            FlagProblem("", "not_checked", "not_checked", "The flags could not be read: {}.".format(why)),
        )
    problems: List[FlagProblem] = []
    seen: Dict[str, int] = {}
    config_file = any(name == "--config" for name, _ in pairs)
    for name, value in pairs:
        if name == "":
            sentence = "{!r} is no flag and belongs to none: argparse refuses it.".format(value)
            problems.append(FlagProblem(str(value), "unknown", "block", sentence, category="unknown_flag"))
            continue
        flag, found = _resolve(name, value, table)
        problems.extend(found)
        if flag is not None:
            seen[flag.name] = seen.get(flag.name, 0) + 1
            problems.extend(_value(name, flag, value))
    for name, count in seen.items():
        if count > 1 and (table.by_string[name].takes in ("one", "maybe")):
            sentence = "{} is given {} times: the last one counts.".format(name, count)
            problems.append(FlagProblem(name, "repeated", "warn", sentence, category="flag_repeated"))
    for flag in table.flags:
        if flag.required and flag.name not in seen and not config_file:
            sentence = "{} is required and not given.".format(flag.name)
            problems.append(
                FlagProblem(flag.name, "missing", "block", sentence, flag.name, category="missing_flag")
            )
    return tuple(problems)


def category(problems: Sequence[FlagProblem]) -> str:
    """One word for the whole: of the first blocking problem, else of the first warning."""
    for status in ("block", "warn"):
        for problem in problems:
            if problem.status == status and problem.category:
                return problem.category
    return ""


def _resolve(name: str, value: Any, table: FlagTable) -> Tuple[Optional[Flag], List[FlagProblem]]:
    flag = table.get(name)
    if flag is not None:
        return flag, []
    candidates = table.starting(name) if name.startswith("--") and len(name) > 2 else []
    old = replaced.find(name)
    if len(candidates) == 1:
        target = table.by_string[candidates[0]]
        if candidates[0] == name + "-size":
            # --tp, --dp, --pp: SGLang's own documents write them; they are abbreviations that bind well.
            return target, []
        if old is not None and old.use and old.use not in target.strings:
            sentence = "{} is gone; argparse would bind it to {}, which is another thing.".format(
                name, candidates[0]
            )
            return None, [
                FlagProblem(
                    name, "abbreviation", "block", sentence, old.use, tuple(candidates), "flag_renamed"
                )
            ]
        sentence = "{} is no flag of this version; argparse binds it to {}.".format(name, candidates[0])
        return target, [
            FlagProblem(name, "abbreviation", "warn", sentence, candidates[0], (), "flag_abbreviation")
        ]
    if candidates:
        use = _preferred(candidates, value, old, table)
        sentence = "{} could mean {}: argparse calls it ambiguous and refuses.".format(
            name, ", ".join(candidates[:6])
        )
        word = "flag_renamed" if old is not None and old.use else "flag_abbreviation"
        return None, [
            FlagProblem(name, "ambiguous_abbreviation", "block", sentence, use, tuple(candidates), word)
        ]
    return None, [_unknown(name, old, table)]


def _preferred(candidates: List[str], value: Any, old: Optional[replaced.Replaced], table: FlagTable) -> str:
    """Which candidate was meant: the known successor; for a path, a flag that takes one; else nobody knows."""
    if old is not None and old.use in candidates:
        return old.use
    if isinstance(value, str) and "/" in value:
        paths = [c for c in candidates if c.endswith("-path") and table.by_string[c].takes == "one"]
        if len(paths) == 1:
            return paths[0]
    mains = {table.by_string[c].name for c in candidates}
    return mains.pop() if len(mains) == 1 else ""


def _unknown(name: str, old: Optional[replaced.Replaced], table: FlagTable) -> FlagProblem:
    near = tuple(difflib.get_close_matches(name, list(table.by_string), n=3, cutoff=0.75))
    words = [w for w in name.strip("-").split("-") if len(w) > 2]
    if not near and words:
        scored = sorted(table.by_string, key=lambda s: (-sum(w in s for w in words), len(s)))
        near = tuple(s for s in scored[:3] if sum(w in s for w in words) >= max(2, len(words) - 1))
    if not table.complete:
        sentence = "{} was not found, but not all files could be read.".format(name)
        return FlagProblem(name, "not_checked", "not_checked", sentence, "", near)
    sentence = "This version has no {}.".format(name)
    use = ""
    if old is not None:
        use = old.use if old.use in table.by_string else ""
        if old.engine:
            sentence = "{} is a name of {}, not of SGLang.".format(name, old.engine)
        elif old.gone_in:
            sentence = "{} is gone since {}.".format(name, old.gone_in)
        if old.sentence:
            sentence += " " + old.sentence
    word = "flag_renamed" if old is not None and use and not old.engine else "unknown_flag"
    return FlagProblem(name, "unknown", "block", sentence, use, near, word)


def _value(name: str, flag: Flag, value: Any) -> List[FlagProblem]:
    out: List[FlagProblem] = []
    if flag.dest == "help":
        sentence = "{} prints the engine's help and ends it; nothing is served.".format(name)
        return [FlagProblem(name, "refused", "block", sentence, category="bad_flag_value")]
    if flag.stops:
        return [FlagProblem(name, "refused", "block", flag.stops, flag.new_flag, category="flag_renamed")]
    if flag.deprecated:
        use = (flag.new_flag or _named(flag.deprecated, name)).split(" ")[0]
        out.append(FlagProblem(name, "deprecated", "warn", flag.deprecated, use, category="flag_deprecated"))
    groups = [value]
    if isinstance(value, (list, tuple)) and value and all(isinstance(v, (list, tuple)) for v in value):
        groups = list(value)
    for group in groups:
        out.extend(_one(name, flag, group))
    return out


def _named(sentence: str, name: str) -> str:
    """The first other flag that a deprecation sentence names."""
    for word in re.findall(r"--[a-z][\w-]*(?:\{[\w,]+\})?(?:=[\w-]+)?", sentence):
        if word != name:
            return str(word)
    return ""


def _one(name: str, flag: Flag, value: Any) -> List[FlagProblem]:
    if flag.takes == "unknown":
        return [_not_checked(name, "how many values it takes is not in the source")]
    given = [] if value is True else list(value) if isinstance(value, (list, tuple)) else [value]
    if flag.takes == "nothing":
        if given and given != [False]:
            sentence = "{} is a switch and takes no value.".format(name)
            return [FlagProblem(name, "wrong_count", "block", sentence, name, category="bad_flag_value")]
        return []
    if (not given and flag.takes in ("one", "many")) or (len(given) > 1 and flag.takes in ("one", "maybe")):
        sentence = "{} takes {}.".format(name, "one value" if flag.takes != "many" else "at least one value")
        return [FlagProblem(name, "wrong_count", "block", sentence, category="bad_flag_value")]
    if flag.takes.isdigit() and len(given) != int(flag.takes):
        sentence = "{} takes {} values.".format(name, flag.takes)
        return [FlagProblem(name, "wrong_count", "block", sentence, category="bad_flag_value")]
    out: List[FlagProblem] = []
    for item in given:
        out.extend(_item(name, flag, item))
    return out


def _item(name: str, flag: Flag, item: Any) -> List[FlagProblem]:
    text = value_text(item)
    out: List[FlagProblem] = []
    if text != text.strip():
        sentence = "The value of {} has blanks around it: {!r}.".format(name, text)
        out.append(FlagProblem(name, "blanks", "warn", sentence, text.strip(), category="bad_flag_value"))
    if text.startswith("~") and "/" in text:
        sentence = "{}: no shell expands ~ here, the engine would look for a folder named ~.".format(name)
        out.append(FlagProblem(name, "tilde", "block", sentence, category="bad_flag_value"))
    number, wrong = _typed(flag.type, text)
    if wrong:
        sentence = "{} wants {}, not {!r}.".format(name, wrong, text[:80])
        out.append(FlagProblem(name, "wrong_type", "block", sentence, category="bad_flag_value"))
        return out
    if flag.choices_dynamic:
        out.append(_not_checked(name, "its choices are computed when the engine starts"))
    elif flag.choices is not None and number not in flag.choices and text not in flag.choices:
        choices = [str(c) for c in flag.choices]
        near = tuple(difflib.get_close_matches(text, choices, n=3, cutoff=0.6))
        shown = ", ".join(choices[:12]) + (", …" if len(choices) > 12 else "")
        sentence = "{} does not take {!r}; it takes {}.".format(name, text[:80], shown)
        use = near[0] if near else ""
        word = "unknown_algorithm" if flag.dest == "speculative_algorithm" else "bad_flag_value"
        out.append(FlagProblem(name, "wrong_choice", "block", sentence, use, near, word))
    bounds = next((RANGES[s] for s in flag.strings if s in RANGES), None)
    if bounds is not None and isinstance(number, (int, float)) and not bounds[0] < number < bounds[1]:
        sentence = "{} wants {}, not {}.".format(name, bounds[2], text)
        out.append(FlagProblem(name, "out_of_range", "block", sentence, category="bad_flag_value"))
    if flag.type not in ("str", "int", "float", "bool", "json", *CONVERTERS):
        out.append(_not_checked(name, "SGLang reads the value with its own {}".format(flag.type)))
    return out


CONVERTERS = ("human_readable_int", "nullable_str", "json_list_type")
"""SGLang's own converters whose rules are known here; any other is *not checked*."""
_SUFFIXED = re.compile(r"\s*(?:\d+(?:\.\d+)?[kMGT]|\d+[KMGT]i)\s*\Z")
_TIMES = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def readable_int(text: str) -> int:
    """`8192`, `8k`, `1.5M` or `8Ki` as SGLang reads them. Raises ValueError."""
    if not _SUFFIXED.match(text):
        return int(text)
    number = text.strip().rstrip("kKMGTi")
    return int(Decimal(number) * _TIMES[text.strip()[len(number) :]])


def _typed(kind: str, text: str) -> Tuple[Any, str]:
    """(the value as that type, "") or (None, what was wanted)."""
    try:
        if kind == "int" or (kind == "human_readable_int" and not _SUFFIXED.match(text)):
            return int(text), ""
        if kind == "float":
            return float(text), ""
        if kind in ("json", "json_list_type"):
            json.loads(text)
    except (ValueError, RecursionError):
        words = {
            "int": "a whole number",
            "float": "a number",
            "human_readable_int": "a number like 8192 or 8k",
        }
        return None, words.get(kind, "JSON")
    return text, ""


def _not_checked(name: str, why: str) -> FlagProblem:
    return FlagProblem(name, "not_checked", "not_checked", "{}: not checked, {}.".format(name, why))
