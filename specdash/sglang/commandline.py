"""The engine's command line: what a launch is and the exact argv it becomes.

Nothing of SGLang's is hard-wired: flag names are the operator's, spelled as SGLang spells them. The shell
line that a launch came from, or prints as, is `specdash.sglang.shell_line`.

`sglang serve` is the console script beside the interpreter (`/venv/bin/python3` → `/venv/bin/sglang`), run by
that interpreter: what the kernel makes of the script's `#!` line, but sure to be the interpreter that was
probed. `python -m sglang.cli.main serve` is no way in: the module has no `__main__` part and exits 0 having
done nothing (read in 0.5.23).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Tuple

DEFAULT_PORT = 30000
DEFAULT_HOST = "127.0.0.1"
MODULE_LAUNCHER = ("-m", "sglang.launch_server")
SERVE_LAUNCHER = ("sglang", "serve")

_NEGATIVE = re.compile(r"-\d+\Z|-\d*\.\d+\Z")
_WILDCARDS = {"": DEFAULT_HOST, "0": DEFAULT_HOST, "0.0.0.0": DEFAULT_HOST, "::": "::1"}
"""asyncio binds `::` with IPV6_V6ONLY, so 127.0.0.1 would not reach it."""


@dataclass(frozen=True)
class LaunchSpec:
    """A resolved profile: everything that a launch needs, secrets as references only.

    `flags` keeps order; each key is the full option string (`--model-path`); values: True (a switch),
    str, int, float, list (one option, several values; a list of lists repeats the option), or dict (one JSON
    value). Text may hold any byte but NUL: bytes that are not UTF-8 are carried as surrogates
    (`surrogateescape`), as Python does for argv.

    `python`, `cwd` and `log` are host paths; a leading `~/` is the launching user's home there.
    """

    profile: str
    host: str
    python: str
    launcher: Tuple[str, ...]
    """What follows the interpreter: ("-m", "sglang.launch_server"), or ("sglang", "serve")."""
    flags: Tuple[Tuple[str, Any], ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""
    """Working directory on the host; empty is the user's home."""
    log: str = ""
    """Path that becomes a symlink to the run's log; empty: none. Relative to `cwd`."""
    secret_flags: Mapping[str, str] = field(default_factory=dict)
    """Option string → reference (`env:NAME`, `file:PATH`, `host-file:PATH`). Never in argv."""
    secret_env: Mapping[str, str] = field(default_factory=dict)
    algorithm: str = ""
    drafter: str = ""
    wrapper: Tuple[str, ...] = ()
    """A command that runs the interpreter by exec (`numactl --interleave=all`), before it in argv."""
    hosts: Tuple[str, ...] = ()
    """The hosts of one server over several machines (or of a pair's parts), rank 0's first; empty: one host. Such a
    spec is launched as one spec a rank or part (`control.ranks`, `control.pd`), never by itself."""

    def program(self) -> List[str]:
        """Wrapper, interpreter and launcher: argv up to the first flag."""
        launcher = list(self.launcher)
        if launcher and launcher[0].startswith("-"):
            return [*self.wrapper, self.python, *launcher]
        if launcher[:1] == ["sglang"] and "/" in self.python:
            beside = self.python.rsplit("/", 1)[0] + "/sglang"
            return [*self.wrapper, self.python, beside, *launcher[1:]]
        return [*self.wrapper, *launcher]

    def argv(self) -> List[str]:
        """The exact argv of the launched process, secrets left out."""
        words = self.program()
        for option, value in self.flags:
            words.extend(flag_words(option, value))
        return words

    def flag(self, *names: str) -> Any:
        """Value of the last flag spelled as one of `names`, or None."""
        found = None
        for key, value in self.flags:
            if key in names:
                found = value
        return found

    def http(self) -> Tuple[str, int]:
        """(host to connect to from the host itself, port): 0.0.0.0 and :: become loopback; default 30000.

        Raises ValueError when `--port` is no number from 1 to 65535.
        """
        bind = self.flag("--host")
        address = "" if bind is None or bind is True else str(bind).strip().strip("[]")
        port = self.flag("--port")
        number = DEFAULT_PORT if port is None else int(str(port))
        if not 1 <= number <= 65535:
            raise ValueError("--port must be a number from 1 to 65535")
        return _WILDCARDS.get(address, address), number

    def as_json(self) -> Dict[str, Any]:
        """JSON-able, and back by `from_json`; goes into plans and run.json.

        Dump it with `ensure_ascii` (the default of `json`): surrogates survive only so.
        """
        return {
            "profile": self.profile,
            "host": self.host,
            "python": self.python,
            "launcher": list(self.launcher),
            "wrapper": list(self.wrapper),
            **({"hosts": list(self.hosts)} if self.hosts else {}),
            "flags": [[option, value] for option, value in self.flags],
            "env": dict(self.env),
            "cwd": self.cwd,
            "log": self.log,
            "secret_flags": dict(self.secret_flags),
            "secret_env": dict(self.secret_env),
            "algorithm": self.algorithm,
            "drafter": self.drafter,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LaunchSpec:
        """The spec that `as_json` described. Unknown keys are ignored, so that older readers read newer runs."""
        return cls(
            profile=str(data.get("profile", "")),
            host=str(data.get("host", "")),
            python=str(data.get("python", "")),
            launcher=tuple(str(word) for word in data.get("launcher", ())),
            flags=tuple((str(pair[0]), pair[1]) for pair in data.get("flags", ())),
            env={str(k): str(v) for k, v in (data.get("env") or {}).items()},
            cwd=str(data.get("cwd", "")),
            log=str(data.get("log", "")),
            secret_flags={str(k): str(v) for k, v in (data.get("secret_flags") or {}).items()},
            secret_env={str(k): str(v) for k, v in (data.get("secret_env") or {}).items()},
            algorithm=str(data.get("algorithm", "")),
            drafter=str(data.get("drafter", "")),
            wrapper=tuple(str(word) for word in data.get("wrapper", ())),
            hosts=tuple(str(word) for word in data.get("hosts", ())),
        )


def flag_words(option: str, value: Any) -> List[str]:
    """One flag as argv words: `--tp 8`; True → `--tp`; a list → several values; a dict → one JSON word.

    A value that argparse would take for an option is joined: `--x=-y`.
    """
    if value is True:
        return [option]
    if isinstance(value, (list, tuple)):
        if value and all(isinstance(item, (list, tuple)) for item in value):
            words: List[str] = []
            for item in value:
                words.extend(flag_words(option, item))
            return words
        return [option, *(value_text(item) for item in value)]
    text = value_text(value)
    if looks_like_option(text):
        return [option + "=" + text]
    return [option, text]


def value_text(value: Any) -> str:
    """A value as the engine reads it. Numbers as Python writes them, a table as JSON, booleans as JSON's."""
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, dict, list, tuple)) or value is None:
        return json.dumps(value, ensure_ascii=False)
    return repr(value)


def looks_like_option(text: str) -> bool:
    """Whether argparse would read this word as an option, not as a value. Negative numbers are values."""
    return text.startswith("-") and text != "-" and not _NEGATIVE.match(text)


def spoken(flags: Tuple[Tuple[str, Any], ...]) -> Tuple[str, str]:
    """(algorithm, drafter path) that these flags name; empty where none."""
    algorithm = drafter = ""
    for option, value in flags:
        if option in ("--speculative-algorithm", "--speculative-algo") and value is not True:
            algorithm = value_text(value)
        elif option in ("--speculative-draft-model-path", "--speculative-draft-model") and value is not True:
            drafter = value_text(value)
    return algorithm, drafter
