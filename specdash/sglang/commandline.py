"""The engine's command line: what a launch is, the argv it becomes, and the shell line it came from.

Nothing of SGLang's is hard-wired: flag names are the operator's, spelled as SGLang spells them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Tuple


@dataclass(frozen=True)
class LaunchSpec:
    """A resolved profile: everything that a launch needs, secrets as references only.

    `flags` keeps order; each key is the full option string (`--model-path`); values: True (a switch),
    str, int, float, list (one option, several values), or dict (one JSON value).
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
    """Path that becomes a symlink to the run's log; empty: none."""
    secret_flags: Mapping[str, str] = field(default_factory=dict)
    """Option string → reference (`env:NAME`, `file:PATH`, `host-file:PATH`). Never in argv."""
    secret_env: Mapping[str, str] = field(default_factory=dict)
    algorithm: str = ""
    drafter: str = ""

    def argv(self) -> List[str]:
        """The exact argv of the launched process, secrets left out."""
        raise NotImplementedError

    def flag(self, *names: str) -> Any:
        """Value of the last flag spelled as one of `names`, or None."""
        found = None
        for key, value in self.flags:
            if key in names:
                found = value
        return found

    def http(self) -> Tuple[str, int]:
        """(host to connect to from the host itself, port): 0.0.0.0 and :: become loopback; default 30000."""
        raise NotImplementedError

    def as_json(self) -> Dict[str, Any]:
        """JSON-able, and back by `from_json`; goes into plans and run.json."""
        raise NotImplementedError
