"""The `server_args=` line: `ServerArgs(a=1, …)` up to 0.5.18, a dict from 0.5.20 on; both cut, nested, quoted.

Raw from the engine, so it holds secrets: they are replaced here, at the door.
"""

from __future__ import annotations

import ast
from typing import Any, List, Tuple

from specdash.sglang import redact

MAX_ARGS = 2000
MAX_VALUE = 2000

_OPEN = {"(": ")", "[": "]", "{": "}", "<": ">"}


def parse(text: str) -> Tuple[Tuple[str, Any], ...]:
    """(name, value) pairs in their order. Values that are no literal stay text; a cut line gives what it has."""
    start = text.find("server_args=")
    body = text[start + len("server_args=") :] if start >= 0 else text
    body = body.lstrip()
    if body.startswith("{"):
        parts, sep = _split(body[1:]), ":"
    elif "(" in body[:80]:
        parts, sep = _split(body[body.index("(") + 1 :]), "="
    else:
        return ()
    found: List[Tuple[str, Any]] = []
    for part in parts[:MAX_ARGS]:
        key, mark, value = part.partition(sep)
        key = key.strip().strip("'\"")
        if mark and key.isidentifier():
            found.append((key, _value(key, value.strip())))
    return tuple(found)


def _split(body: str) -> List[str]:
    """Top-level parts, split at commas outside of quotes and brackets; stops at the closing bracket."""
    parts: List[str] = []
    begin = 0
    depth: List[str] = []
    quote = ""
    i = 0
    while i < len(body):
        char = body[i]
        if quote:
            if char == "\\":
                i += 1
            elif char == quote:
                quote = ""
        elif char in "'\"":
            quote = char
        elif depth and char == depth[-1]:
            depth.pop()
        elif char in _OPEN and (char != "<" or body[begin:i].rstrip()[-1:] in "=:"):
            depth.append(_OPEN[char])
        elif not depth and char in ")}":
            break
        elif not depth and char == ",":
            parts.append(body[begin:i])
            begin = i + 1
        i += 1
    parts.append(body[begin:i])
    return parts


def _value(key: str, text: str) -> Any:
    if redact.is_secret_key(key) and text not in ("None", "''", '""', "False", "True"):
        return redact.MARK
    if len(text) > MAX_VALUE:
        return redact.text(text[:MAX_VALUE]) + "…"
    try:
        return redact.json_value(ast.literal_eval(text))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return redact.text(text)
