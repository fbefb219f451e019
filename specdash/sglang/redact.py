"""Keep secrets out of every view, copy, export and message.

Two nets: *by value* for secrets that we know (the profile's own), *by key* for those that we do not: SGLang
prints `api_key='…'` into its log, returns it from /server_info, and people put tokens into URLs and
environments. The raw log stays exact and private; what leaves it goes through here.
"""

from __future__ import annotations

import re
from typing import Any, Iterable, List

MARK = "•••"

_COUNTS = re.compile(
    r"(?:^|[_-])(?:num|max|min|total|new|draft|cached?|prefill|decode|input|output|prompt|completion|generation|stop"
    r"|chunked|used|special|pad|eos|bos|per|accept(?:ed)?|spec|page|allocated|reserved|verify|drop)[_-].*tokens?$"
    r"|^#|tokens?[_-](?:id|ids|usage|map|count|limit|num|per|capacity|ratio)|^(?:token|tokens)$"
    r"|token(?:izer|ized|ization)|keyfile$",
    re.IGNORECASE,
)
SECRET_KEY = re.compile(
    r"(?:^|[_.-])(?:api[_-]?key|apikey|secret|passw(?:or)?d|passphrase|passwd|pwd|credentials?|private[_-]?key"
    r"|access[_-]?key|secret[_-]?key|auth|bearer|authorization|cookie|token|hf[_-]?token)(?:[_.-]?(?:id|value))?$"
    r"|(?:api|access|secret|auth)(?:key|token)$|password|passphrase|credential|(?:^|_)tokens?$",
    re.IGNORECASE,
)

_VALUE = r"'(?:[^'\\\n]|\\.)*'?|\"(?:[^\"\\\n]|\\.)*\"?|[^\s,;&)\]}'\"]+"
_NAME = r"[A-Za-z_][A-Za-z0-9_.-]*"
_NAMED = re.compile(
    r"(?<![#\w.-])(?P<quote>\\?[\"']?)(?P<key>" + _NAME + r")(?P=quote)\s*[=:]\s*(?:(?:Bearer|Basic)\s+)?"
)
"""A name and its sign, without the value: a value may hold names of its own (`server_args=ServerArgs(api_key=…`)."""
_ITS_VALUE = re.compile(r"\\\"(?:[^\"\\\n]|\\[^\"\n])*\\\"|" + _VALUE)
_FLAG = re.compile(r"(?P<flag>--(?P<key>[A-Za-z][A-Za-z0-9-]*))(?P<sep>\s+|=)(?P<value>" + _VALUE + r")")
_HEADER = re.compile(r"(?i)\b((?:Bearer|Basic)\s+)[A-Za-z0-9._~+/=-]{6,}")
_URL_USER = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)(?P<user>[^\s/@:'\"]*):(?P<password>[^\s/@'\"]+)@")
_URL_TOKEN = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)(?P<user>[^\s/@:'\"]{16,})@")
_KNOWN_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"
    r"|AKIA[0-9A-Z]{16}|xox[abprs]-[A-Za-z0-9-]{10,}|glpat-[A-Za-z0-9_-]{16,}"
    r"|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{5,})"
)
_PRIVATE_KEY = re.compile(
    r"(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----)(?:(?!-----END )[\s\S])*(-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----)?"
)
"""A key in its armour, over lines or with `\\n` between them; one without its end goes on to the end of the text."""
_HASH = re.compile(r"#[\w -]*$")
_COUNT = re.compile(r"^[\d.]+[%,;]?$")
_EMPTY = ("none", "null", "''", '""', "true", "false", "")


def is_secret_key(key: str) -> bool:
    """Whether a value under this name is a secret. Counts of tokens and token ids are not."""
    name = key.strip().lstrip("-")
    if _COUNTS.search(name.replace("-", "_")):
        return name.lower() == "token" or name.lower().endswith(("_api_key", "_password"))
    return SECRET_KEY.search(name) is not None


def private_keys(value: str) -> str:
    """A text without the bodies of armoured private keys (PEM, OpenSSH), which go over many lines."""
    if "PRIVATE KEY" not in value:
        return value
    return _PRIVATE_KEY.sub(lambda m: m.group(1) + MARK + (m.group(2) or ""), value)


def text(value: str, secrets: Iterable[str] = ()) -> str:
    """A text with secrets replaced by `•••`, their keys kept.

    `secrets` are known values (shorter than 4 characters are left: they would eat the text).
    """
    for secret in sorted({s for s in secrets if len(s) >= 4}, key=len, reverse=True):
        value = value.replace(secret, MARK)
    value = private_keys(value)
    value = _URL_USER.sub(lambda m: m.group("scheme") + m.group("user") + ":" + MARK + "@", value)
    value = _URL_TOKEN.sub(lambda m: m.group("scheme") + MARK + "@", value)
    value = _FLAG.sub(_hide_flag, value)
    value = _hide_named(value)
    value = _HEADER.sub(lambda m: m.group(1) + MARK, value)
    return _KNOWN_SHAPES.sub(MARK, value)


def json_value(value: Any, secrets: Iterable[str] = (), _depth: int = 0) -> Any:
    """A JSON value with secrets replaced: by key in objects, by value and shape in every string."""
    known: List[str] = list(secrets)
    if _depth > 64:
        return MARK
    if isinstance(value, dict):
        return {
            key: (
                MARK
                if isinstance(key, str) and is_secret_key(key) and not _is_empty(item)
                else json_value(item, known, _depth + 1)
            )
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return _argv([json_value(item, known, _depth + 1) for item in value])
    if isinstance(value, str):
        return text(value, known)
    return value


def argv(words: Iterable[str], secrets: Iterable[str] = ()) -> List[str]:
    """A command line with the values of secret flags replaced."""
    known = list(secrets)
    return [str(word) for word in _argv([text(word, known) for word in words])]


def _argv(items: List[Any]) -> List[Any]:
    out: List[Any] = []
    hide = False
    for item in items:
        out.append(MARK if hide and isinstance(item, str) and not item.startswith("--") else item)
        hide = isinstance(item, str) and item.startswith("--") and "=" not in item and is_secret_key(item)
    return out


def _is_empty(item: Any) -> bool:
    return item is None or isinstance(item, (bool, int, float)) or item == "" or item == [] or item == {}


def _hide_flag(found: "re.Match[str]") -> str:
    if not is_secret_key(found.group("key")) or found.group("value").startswith("--"):
        return found.group(0)
    return found.group("flag") + found.group("sep") + MARK


def _hide_named(value: str) -> str:
    """Replace what stands behind a secret name and `=` or `:`."""
    parts: List[str] = []
    done = 0
    found = _NAMED.search(value)
    while found is not None:
        after = found.end()
        hit = _ITS_VALUE.match(value, after) if is_secret_key(found.group("key")) else None
        if hit is not None and hit.group().lower() not in _EMPTY and not hit.group().startswith(MARK):
            shown = hit.group()
            quote = '\\"' if shown.startswith('\\"') else shown[0] if shown[0] in "'\"" else ""
            closing = quote if quote and len(shown) > len(quote) and shown.endswith(quote) else ""
            parts += [value[done:after], quote, MARK, closing]
            done = after = hit.end()
        found = _NAMED.search(value, max(after, found.end()))
    parts.append(value[done:])
    return "".join(parts)
