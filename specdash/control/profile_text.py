"""A profile while it is written: what can come next, what the word under the cursor means, what is wrong so far.

Pure, over the text and the flags of the SGLang that the profile would launch (`Known`). The text may be half
written: only `problems` parses it. Rows and columns count from 0, lines of problems from 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdash.config import profile as profile_
from specdash.config import tomlfile
from specdash.config.keys import kebab, key_of, option_of
from specdash.errors import ConfigError
from specdash.sglang import flagcheck, offer
from specdash.sglang.flags import Flag, FlagTable
from specdash.sglang.reading import Reading

MOST = 200
MOST_BROKEN = 5
_HEADER = re.compile(r"\s*\[\s*([^\[\]#]*?)\s*\]\s*(?:#.*)?\Z")
_KEY = re.compile(r"""\s*(?P<key>"[^"]*"|'[^']*'|[^=#"']*?)\s*=\s*(?P<value>.*)\Z""")


@dataclass(frozen=True, slots=True)
class Known:
    """The installed SGLang, or in `problem` a sentence why its flags are not known."""

    host: str = ""
    reading: Reading | None = None
    problem: str = ""
    remembered: bool = False
    """Read at an earlier time: the host cannot be asked now."""

    @property
    def table(self) -> FlagTable | None:
        return self.reading.flags if self.reading is not None and self.reading.flags.readable else None

    @property
    def sentence(self) -> str:
        """Where completion and checks come from, for the title."""
        if self.reading is None:
            return self.problem
        if self.table is None:
            return (
                f"The flags of SGLang {self.reading.version} on {self.host} could not be read: not checked."
            )
        before = ", as read before (not connected)" if self.remembered else ""
        return f"SGLang {self.reading.version or 'of unknown version'} on {self.host}{before}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the cursor is. `word` is what was typed of the key or value, from column `start` on."""

    table: str
    """"" at the top, "server", "speculation", "env", … (of `[on.HOST.server]` too)."""
    key: str = ""
    """The key of this line, as written; empty while the key itself is being written."""
    word: str = ""
    start: int = 0
    header: bool = False

    @property
    def option(self) -> str:
        """The option string of the key here, complete or not; empty outside of SGLang's tables."""
        key = self.key or self.word.strip("\"' ")
        return option_of(self.table, key) if self.table in profile_.TABLES and key else ""


@dataclass(frozen=True, slots=True)
class Suggestion:
    text: str
    """What replaces the word."""
    words: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    line: int
    """From 1; 0: of the file as a whole."""
    status: str
    """block | warn | not_checked"""
    sentence: str


def place(text: str, row: int, column: int) -> Place:
    lines = text.split("\n")
    table = ""
    for line in reversed(lines[:row]):
        found = _HEADER.match(line)
        if found:
            table = found[1].split(".")[-1].strip("\"' ")
            break
    line = lines[row] if row < len(lines) else ""
    head = line[:column]
    begin = len(head) - len(head.lstrip())
    if head.lstrip().startswith("["):
        return Place(table, "", head.lstrip(), begin, header=True)
    found = _KEY.match(head)
    if found:
        return Place(table, found["key"].strip("\"'"), found["value"], found.start("value"))
    return Place(table, "", head.lstrip(), begin)


def suggest(known: Known, text: str, at: Place) -> tuple[Suggestion, ...]:
    """What can stand here, best first."""
    if at.header:
        names = (f"[{name}]" for name in (*profile_.TABLES, "env", "check"))
        return tuple(
            Suggestion(name) for name in names if name.startswith(at.word.rstrip()) and name not in text
        )
    if at.key:
        return _values(known, at)
    if at.table in profile_.TABLES:
        return _keys(known, at, _used(text, at))
    if at.table == "":
        fields = profile_.Profile.model_fields
        offered = (
            Suggestion(f"{name} = ", field.description or "")
            for name, field in fields.items()
            if name not in (*profile_.TABLES, "env", "check", "on")
        )
        used = {line.partition("=")[0].strip() for line in text.split("\n") if "=" in line}
        return tuple(s for s in offered if s.text.startswith(at.word) and s.text[:-3] not in used)
    return ()


def _used(text: str, at: Place) -> set[str]:
    """Options of all lines that have a value, whichever table they are in."""
    out: set[str] = set()
    for row, line in enumerate(text.split("\n")):
        found = _KEY.match(line)
        if found and found["key"]:
            out.add(place(text, row, len(line)).option)
    return out


def _keys(known: Known, at: Place, used: Iterable[str]) -> tuple[Suggestion, ...]:
    table = known.table
    if table is None:
        return ()
    taken = {table.by_string[option].name for option in used if option in table.by_string}
    word = kebab(at.word.strip())
    first: list[Suggestion] = []
    later: list[Suggestion] = []
    for option in sorted(table.by_string):
        flag = table.by_string[option]
        where, key = key_of(option)
        if where != at.table or key.startswith("-") or flag.name in taken or flag.stops or option == "--help":
            continue
        found = Suggestion(f"{key} = {'true' if flag.takes == 'nothing' else ''}", _short(flag, option))
        if key.startswith(word):
            (later if flag.deprecated or option != flag.name else first).append(found)
        elif len(word) >= 3 and word in key:
            later.append(found)
    return (*first, *later)[:MOST]


def _values(known: Known, at: Place) -> tuple[Suggestion, ...]:
    flag = known.table.get(at.option) if known.table is not None and at.option else None
    if flag is None:
        return ()
    values: list[Any] = list(flag.choices or ())
    if flag.takes == "nothing":
        values = [True, False]
    if flag.name == "--speculative-algorithm" and known.reading is not None:
        names = (*(known.reading.names or ()), *known.reading.algorithms.aliases)
        values = list(known.reading.accepted or names)
    word = at.word.strip().strip("\"'").lower()
    texts = (
        str(v).lower() if isinstance(v, bool) else f'"{v}"' if isinstance(v, str) else str(v) for v in values
    )
    return tuple(
        Suggestion(t) for t in texts if t.strip('"').lower().startswith(word) and t != at.word.strip()
    )


def _short(flag: Flag, option: str) -> str:
    """A few words of a flag: type, default, the start of its help."""
    also = f"= {flag.name}; " if option != flag.name else ""
    kind = (
        "switch" if flag.takes == "nothing" else flag.type + (" …" if flag.takes in ("many", "any") else "")
    )
    default = f"={flag.default}" if flag.default_known and flag.default not in (None, False) else ""
    return f"{also}{kind}{default}  {'DEPRECATED ' if flag.deprecated else ''}{' '.join(flag.help.split())}"


def explain(known: Known, at: Place) -> tuple[str, ...]:
    """What stands under the cursor, in sentences; empty where there is nothing to say."""
    option = at.option
    if not option:
        field = profile_.Profile.model_fields.get(at.key or at.word.strip()) if at.table == "" else None
        return (field.description,) if field is not None and field.description else ()
    table = known.table
    if table is None:
        return (f"{option}: {known.sentence}",)
    flag = table.get(option) or table.get(option + "-size")  # --tp, as SGLang's own documents write it
    if flag is None:
        if not at.key:
            return ()
        found = flagcheck.check([(option, _value(at.word))], table)
        told = [p for p in found if p.flag == option]
        return tuple(_said(p) for p in told) or (f"{option}: nothing is known of it.",)
    default = "computed" if not flag.default_known else "unset" if flag.default is None else f"{flag.default}"
    what = "a switch" if flag.takes == "nothing" else f"{flag.type}, default {default}"
    out = [f"{', '.join(flag.strings)}: {what}."]
    if flag.stops or flag.deprecated:
        use = f" Use {flag.new_flag}." if flag.new_flag else ""
        out.append(f"{flag.stops or flag.deprecated}{use}")
    if flag.choices:
        out.append(f"One of {', '.join(map(str, flag.choices))}.")
    if flag.choices_dynamic:
        out.append("Its choices are known only when the engine starts: not checked.")
    if flag.help and flag.help != flag.deprecated:
        out.append(" ".join(flag.help.split()))
    if flag.name == "--speculative-algorithm" and known.reading is not None and at.key and at.word:
        name = str(_value(at.word))
        out.insert(1, offer.judge_algorithm(known.reading, name)[2])
    return tuple(out)


def problems(known: Known, text: str, path: Path) -> tuple[Problem, ...]:
    """What is wrong with the text by itself: TOML, keys, and each flag against the installed SGLang.

    What a base gives (`extends`) is not looked at here: a missing flag is no problem of this file.
    """
    broken: list[Problem] = []
    rows = text.split("\n")
    while True:
        try:
            file = tomlfile.parse("\n".join(rows), path)
            profile = profile_.load(file)
            break
        except ConfigError as error:
            found = re.match(rf"{re.escape(str(path))}(?::(\d+))?(?::\d+)?: (.*)", error.sentence, re.S)
            line, sentence = (int(found[1] or 0), found[2]) if found else (0, error.sentence)
            broken.append(Problem(line, "block", f"{sentence} {error.step}".strip()))
            if not 0 < line <= len(rows) or not rows[line - 1] or len(broken) == MOST_BROKEN:
                return tuple(broken)
            rows[line - 1] = ""  # a line that is being written hides nothing of the others
    lines: dict[str, int] = {}
    pairs: list[tuple[str, Any]] = []
    for name in profile_.TABLES:
        for key, value in getattr(profile, name).items():
            option = option_of(name, key)
            lines[option] = file.line((name, key)) or 0
            secret = profile_.reference_of(value)
            pairs.append((option, "secret" if secret else profile_.plain(value)))
    if known.table is None:
        return (*broken, Problem(0, "not_checked", known.sentence)) if pairs else tuple(broken)
    out = broken + [
        Problem(lines.get(one.flag, 0), one.status, _said(one))
        for one in flagcheck.check(pairs, known.table)
        if one.kind != "missing"
    ]
    named = [(option, value) for option, value in pairs if option == "--speculative-algorithm"]
    if known.reading is not None:
        for option, value in named:
            status, _, sentence, near = offer.judge_algorithm(known.reading, str(value))
            if status != "ok":
                hint = f" Did you mean {', '.join(near)}?" if near else ""
                out.append(Problem(lines.get(option, 0), status, sentence + hint))
    order = {"block": 0, "warn": 1, "not_checked": 2}
    return tuple(sorted(out, key=lambda one: (order.get(one.status, 3), one.line)))


def _said(problem: flagcheck.FlagProblem) -> str:
    if problem.use and problem.use not in problem.sentence:
        return f"{problem.sentence} Use {problem.use}."
    if problem.near and not problem.use:
        return f"{problem.sentence} Did you mean {', '.join(problem.near)}?"
    return problem.sentence


def _value(word: str) -> Any:
    """A half-written TOML value: as it is when it is whole, else its text."""
    import tomllib

    try:
        return tomllib.loads(f"k = {word}")["k"]
    except tomllib.TOMLDecodeError:
        return word.strip().strip("\"'")
