"""Reads a TOML file so that every complaint can say file, line and key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdash.config.keys import did_you_mean, nearest
from specdash.errors import ConfigError

Key = tuple[str | int, ...]
MAX_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class TomlFile:
    """A parsed file. `lines` maps a key path to its line, counted from 1."""

    path: Path
    data: dict[str, Any]
    lines: dict[Key, int] = field(default_factory=dict)

    def where(self, key: Sequence[str | int]) -> str:
        """`FILE:LINE` of a key, or of the nearest table around it."""
        for end in range(len(key), 0, -1):
            line = self.lines.get(tuple(key[:end]))
            if line is not None:
                return f"{self.path}:{line}"
        return str(self.path)

    def line(self, key: Sequence[str | int]) -> int | None:
        return self.lines.get(tuple(key))

    def error(self, key: Sequence[str | int], sentence: str, step: str = "") -> ConfigError:
        """A ConfigError that starts with file and line."""
        return ConfigError(f"{self.where(key)}: {sentence}", step)

    def unknown(self, key: Sequence[str | int], known: Iterable[str], elsewhere: str = "") -> ConfigError:
        """The complaint about a key that means nothing, with the nearest that does, or `elsewhere`."""
        names = list(known)
        step = (
            did_you_mean(str(key[-1]), names) if not elsewhere or nearest(str(key[-1]), names) else elsewhere
        )
        return self.error(key, f'unknown key "{dotted(key)}".', step)


def dotted(key: Sequence[str | int]) -> str:
    """`("hosts", "gpu1")` → `hosts.gpu1`; parts that TOML must quote are quoted."""
    bare = re.compile(r"[A-Za-z0-9_-]+\Z")
    return ".".join(str(k) if isinstance(k, int) or bare.match(k) else f'"{k}"' for k in key)


def read(path: Path) -> TomlFile:
    """The file at `path`. Raises ConfigError: missing, unreadable, too long, not UTF-8, bad TOML (line, column)."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(
            f"{path} is not there.", "Correct the name; `specdash config init` makes a config file."
        ) from None
    except OSError as problem:
        raise ConfigError(f"{path} cannot be read: {problem.strerror}.") from None
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"{path} is over {MAX_BYTES} bytes: not one of ours.")
    try:
        text = raw.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as problem:
        line = raw.count(b"\n", 0, problem.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 (byte {raw[problem.start]:#04x}).") from None
    return parse(text, path)


def parse(text: str, path: Path) -> TomlFile:
    """Text that came from `path`."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        found = re.search(r"(.*) \(at line (\d+), column (\d+)\)", str(problem), re.S)
        if found:
            what, line, column = found.groups()
            raise ConfigError(f"{path}:{line}:{column}: not TOML: {what}.") from None
        last = text.count("\n") + 1
        raise ConfigError(f"{path}:{last}: not TOML: {problem}.") from None
    return TomlFile(path, data, locate(text))


_TOKEN = re.compile(
    r"""(?P<long>\"{3}(?:\\.|[^\\])*?\"{3,5}|'{3}.*?'{3,5})"""
    r"""|(?P<basic>"(?:\\.|[^"\\\n])*")|(?P<literal>'[^'\n]*')"""
    r"""|(?P<comment>\#[^\n]*)|(?P<newline>\n)|(?P<punct>[\[\]{}=,.])|(?P<bare>[A-Za-z0-9_-]+)|(?P<other>.)""",
    re.S,
)


def locate(text: str) -> dict[Key, int]:
    """Key path → line for every key and table of a text that is known to be valid TOML.

    Keys within inline tables are located too; items of arrays of tables have their index in the path.
    """
    lines: dict[Key, int] = {}
    arrays: dict[Key, int] = {}
    table: Key = ()
    line = 1
    tokens: list[tuple[str, str, int]] = []
    for match in _TOKEN.finditer(text):
        kind, value = match.lastgroup or "other", match.group()
        if kind != "comment" and not (kind == "other" and value.isspace()):
            tokens.append((kind, value, line))
        line += value.count("\n")
    tokens.append(("newline", "\n", line))
    at = 0
    while at < len(tokens):
        kind, value, line = tokens[at]
        if kind == "newline":
            at += 1
        elif value == "[" and kind == "punct":
            double = tokens[at + 1][:2] == ("punct", "[") and tokens[at + 1][2] == line
            key, at = _key(tokens, at + (2 if double else 1))
            table = _absolute(key, arrays)
            if double:
                arrays[table] = arrays.get(table, -1) + 1
                table = (*table, arrays[table])
            _put(lines, table, line)
            while tokens[at][0] != "newline":
                at += 1
        else:
            key, at = _key(tokens, at)
            _put(lines, table + key, line)
            at = _value(tokens, at + 1, table + key, lines)
    return lines


def _put(lines: dict[Key, int], key: Key, line: int) -> None:
    for end in range(1, len(key) + 1):
        lines.setdefault(key[:end], line)


def _absolute(key: Key, arrays: dict[Key, int]) -> Key:
    """A header's path, with the index of the newest item where a part of it is an array of tables."""
    path: Key = ()
    for at, part in enumerate(key):
        path = (*path, part)
        if path in arrays and at < len(key) - 1:
            path = (*path, arrays[path])
    return path


def _key(tokens: list[tuple[str, str, int]], at: int) -> tuple[Key, int]:
    """Dotted key from `at` on: (parts, position of the `=` or `]` after it)."""
    parts: list[str] = []
    while at < len(tokens) - 1 and tokens[at][1] not in ("=", "]"):
        kind, value, _ = tokens[at]
        if kind == "bare":
            parts.append(value)
        elif kind in ("basic", "literal"):
            parts.append(str(tomllib.loads(f"k = {value}")["k"]))
        at += 1
    return tuple(parts), at


def _value(tokens: list[tuple[str, str, int]], at: int, key: Key, lines: dict[Key, int]) -> int:
    """Skips one value, noting keys of inline tables; returns the position after it."""
    kind, value, _ = tokens[at]
    if (kind, value) == ("punct", "{"):
        at += 1
        while tokens[at][1] != "}":
            if tokens[at][0] == "newline" or tokens[at][1] == ",":
                at += 1
                continue
            line = tokens[at][2]
            inner, at = _key(tokens, at)
            _put(lines, key + inner, line)
            at = _value(tokens, at + 1, key + inner, lines)
        return at + 1
    if (kind, value) == ("punct", "["):
        at += 1
        index = 0
        while tokens[at][1] != "]":
            if tokens[at][0] == "newline":
                at += 1
            elif tokens[at][1] == ",":
                at, index = at + 1, index + 1
            else:
                lines[(*key, index)] = tokens[at][2]
                at = _value(tokens, at, (*key, index), lines)
        return at + 1
    while tokens[at][0] != "newline" and tokens[at][1] not in (",", "]", "}"):
        at += 1
    return at
