"""How keys are spelled: kebab or snake, which option a profile key becomes, and the nearest valid key.

A key of `[server]` is the option without its dashes: `tp-size` and `tp_size` are `--tp-size`. A key of
`[speculation]` gets `--speculative-` in front, unless it is one of SGLang's speculation options that have
another first word (`uno-lora-path`, `spec-trace-dir`, …) or is spelled in full. A quoted key that starts with
a dash (`"--odd_one"`) is taken to the letter, in both tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

SPECULATIVE = "--speculative-"
_OTHER_FIRST_WORDS = (
    "speculative-",
    "spec-",
    "uno-",
    "decoupled-spec-",
    "enable-multi-layer-eagle",
    "enable-beta-spec",
)


def kebab(key: str) -> str:
    """`tp_size` → `tp-size`. A key that starts with a dash is left as it is."""
    return key if key.startswith("-") else key.replace("_", "-")


def snake(key: str) -> str:
    return key.replace("-", "_")


def option_of(table: str, key: str) -> str:
    """The option string that `key` in `[server]` or `[speculation]` stands for."""
    if key.startswith("-"):
        return key
    name = kebab(key)
    if table != "speculation" or name.startswith(_OTHER_FIRST_WORDS):
        return f"--{name}"
    if name.startswith("no-"):
        bare = name[3:]
        return f"--no-{bare}" if bare.startswith(_OTHER_FIRST_WORDS) else f"--no-speculative-{bare}"
    return f"{SPECULATIVE}{name}"


def key_of(option: str) -> tuple[str, str]:
    """(table, key) that give `option` back through `option_of`."""
    for table, prefix, lead in (
        ("speculation", SPECULATIVE, ""),
        ("speculation", "--no-speculative-", "no-"),
    ):
        if option.startswith(prefix):
            key = lead + option[len(prefix) :]
            if key and option_of(table, key) == option:
                return table, key
            return table, option
    key = option[2:]
    table = "speculation" if key.startswith(_OTHER_FIRST_WORDS) else "server"
    if option.startswith("--") and key and option_of(table, key) == option and "=" not in key:
        return table, key
    return table, option


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word closest to `word`, or empty. Dashes, underscores and case do not count."""
    by_form = {name.lower().replace("_", "-"): name for name in known}
    found = get_close_matches(word.lower().replace("_", "-"), by_form, n=1, cutoff=0.6)
    return by_form[found[0]] if found else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`Did you mean "x"?`, or the choices when they are few, or empty."""
    names = list(known)
    close = nearest(word, names)
    if close:
        return f'Did you mean "{close}"?'
    if 0 < len(names) <= 12:
        return f"Known: {', '.join(names)}."
    return ""
