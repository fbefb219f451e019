"""The one error tree. Each error is a sentence with a next step, and maps to an exit code.

SpecdashError                     exit
├── UsageError                    UNKNOWN      the command line is off
├── ConfigError                   UNKNOWN      config, profile or secret: file, line, key, nearest valid key
├── LinkError                     UNREACHABLE  the host cannot be reached
│   ├── HostUnknown                            no such host in config or ssh config, or name resolution
│   ├── HostKeyUnknown                         never seen; carries the fingerprint to ask about
│   ├── HostKeyChanged                         refused; carries the known_hosts line to remove
│   ├── AuthRefused                            no key or agent was accepted
│   ├── SshConfigUnsupported                   asyncssh cannot read what OpenSSH can
│   ├── NoPython                               the interpreter on the host is missing or too old
│   ├── HostBusy                               no session or login is free there; try again, it is not down
│   └── LinkLost                               it was up and went away; the result of a call is unknown
├── RemoteError                   CRITICAL     the agent answered with an error (code, sentence)
├── HttpError                     CRITICAL     the engine's port: refused, timed out, closed in the middle
├── Refused                       REFUSED      a check blocks it, read-only, or not confirmed
└── ActionFailed                  CRITICAL     launch, stop or switch failed; says what is left
"""

from __future__ import annotations

from specdash.exits import Exit


class SpecdashError(Exception):
    """`sentence` says what happened, `step` what to do next (may be empty)."""

    exit: Exit = Exit.UNKNOWN

    def __init__(self, sentence: str, step: str = "") -> None:
        self.sentence = sentence
        self.step = step
        super().__init__(self.words)

    @property
    def words(self) -> str:
        """Sentence and step as one text, also where the sentence came from elsewhere without its full stop."""
        stop = "." if self.step and self.sentence[-1:].isalnum() else ""
        return f"{self.sentence}{stop} {self.step}".strip()


class UsageError(SpecdashError):
    exit = Exit.UNKNOWN


class ConfigError(SpecdashError):
    exit = Exit.UNKNOWN


class LinkError(SpecdashError):
    exit = Exit.UNREACHABLE


class HostUnknown(LinkError):
    pass


class HostKeyUnknown(LinkError):
    """`fingerprint` is `SHA256:…`; `known_hosts_line` is what accepting it appends to known_hosts."""

    def __init__(self, sentence: str, step: str = "", *, fingerprint: str, known_hosts_line: str) -> None:
        super().__init__(sentence, step)
        self.fingerprint = fingerprint
        self.known_hosts_line = known_hosts_line


class HostKeyChanged(LinkError):
    pass


class AuthRefused(LinkError):
    pass


class SshConfigUnsupported(LinkError):
    """`path` and `line` (1-based, 0 = not known) say where."""

    def __init__(self, sentence: str, step: str = "", *, path: str = "", line: int = 0) -> None:
        super().__init__(sentence, step)
        self.path = path
        self.line = line


class NoPython(LinkError):
    pass


class HostBusy(LinkError):
    pass


class LinkLost(LinkError):
    pass


class RemoteError(SpecdashError):
    """The agent's own error. `code` is a short stable word (`not_found`, `exists`, `denied`, …)."""

    exit = Exit.CRITICAL

    def __init__(self, code: str, sentence: str, step: str = "") -> None:
        super().__init__(sentence, step)
        self.code = code


class HttpError(SpecdashError):
    """`word` says which: refused, timeout, closed, reset, too_big, tls, unreachable, bad_request."""

    exit = Exit.CRITICAL

    def __init__(self, sentence: str, step: str = "", *, word: str = "") -> None:
        super().__init__(sentence, step)
        self.word = word


class Refused(SpecdashError):
    exit = Exit.REFUSED


class ActionFailed(SpecdashError):
    exit = Exit.CRITICAL
