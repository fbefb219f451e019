"""A launch as one shell line, for people and for pasting. The way back is `specdash.sglang.shell_import`.

    cd /work && HF_HOME=/data/hf nohup /venv/bin/python3 -m sglang.launch_server --tp 8 > server.log 2>&1 &

Secrets are printed as references that a shell refuses to run without: `"${API_KEY:?file:/path}"` fails with
that text until API_KEY is set. `host-file:` is read where the line runs: `"$(cat /path)"`.
"""

from __future__ import annotations

import re
from typing import List

from specdash.sglang.commandline import LaunchSpec, flag_words

_SAFE = re.compile(r"[A-Za-z0-9_@%+=:,./-]+\Z")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def quote(text: str) -> str:
    """One shell word whose value is `text`, byte for byte, in every POSIX shell."""
    return text if _SAFE.match(text) else "'" + text.replace("'", "'\"'\"'") + "'"


def quote_path(text: str) -> str:
    """The same, with a leading `~/` left for the shell."""
    if text == "~" or text.startswith("~/"):
        return text[:2] + (quote(text[2:]) if text[2:] else "")
    return quote(text)


def reference_word(name: str, reference: str) -> str:
    """A word that stands for a secret: `name` is the option or variable that it is for."""
    scheme, _, rest = reference.partition(":")
    if scheme == "host-file":
        return '"$(cat ' + quote_path(rest) + ')"'
    variable = (
        rest
        if scheme == "env" and _NAME.match(rest)
        else re.sub(r"[^A-Za-z0-9_]", "_", name.lstrip("-")).upper()
    )
    if not _NAME.match(variable):
        variable = "SECRET_" + variable
    return '"${' + variable + ":?" + re.sub(r'([\\"$`}])', r"\\\1", reference) + '}"'


def format_line(spec: LaunchSpec, continued: bool = False) -> str:
    """The shell line that launches `spec` by hand, as one line, or one flag a line with `\\`.

    With a `log` it runs in the background, detached from the terminal; without, in the foreground.
    """
    head: List[str] = []
    odd: List[str] = []
    for name, value in spec.env.items():
        if _NAME.match(name):
            head.append(name + "=" + quote(value))
        else:
            odd.append(quote(name + "=" + value))
    head.extend(name + "=" + reference_word(name, ref) for name, ref in spec.secret_env.items())
    words = [*head, *(["nohup"] if spec.log else []), *(["env", *odd] if odd else [])]
    program = spec.program()
    if program and program[0] == spec.python:
        words.append(quote_path(program[0]))
        program = program[1:]
    words.extend(map(quote, program))
    chunks = [" ".join(words)]
    for option, value in spec.flags:
        chunks.append(" ".join(map(quote, flag_words(option, value))))
    for option, reference in spec.secret_flags.items():
        chunks.append(quote(option) + " " + reference_word(option, reference))
    line = (" \\\n    " if continued else " ").join(chunks)
    if spec.cwd:
        dashes = "-- " if spec.cwd.startswith("-") else ""
        line = "cd " + dashes + quote_path(spec.cwd) + " && " + line
    if spec.log:
        line += " > " + quote_path(spec.log) + " 2>&1 &"
    return line
