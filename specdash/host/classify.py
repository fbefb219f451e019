"""What the result of one remote command means for the host: pure, over bytes and exit codes.

A command whose connection broke has an unknown result; a tool that a plain PATH does not find may well be there;
a shell that is not POSIX fails in its own words; and only what stands between our own markers was said to us.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from specdash.host.bootstrap import quote_any


class Outcome(StrEnum):
    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """Nobody knows whether it ran: never read as success, and never as "it stopped"."""


class Category(StrEnum):
    NONE = ""
    CONNECTION_LOST = "connection_lost"
    MAX_SESSIONS = "max_sessions"
    SHELL_NOT_POSIX = "remote_shell_not_posix"
    PATH = "path_of_noninteractive_shell"
    NOT_FOUND = "command_not_found"
    DIED_SILENTLY = "died_silently"


@dataclass(frozen=True, slots=True)
class ExecResult:
    """One remote command. `code` None and `signal` "" mean that no exit status ever came."""

    command: str
    stdout: bytes = b""
    stderr: bytes = b""
    code: int | None = None
    signal: str = ""
    error: str = ""
    """What the SSH library raised, in words; empty when nothing."""


@dataclass(frozen=True, slots=True)
class Verdict:
    outcome: Outcome
    category: Category = Category.NONE
    sentence: str = ""
    step: str = ""
    detail: Mapping[str, Any] | None = None


# In their own words: fish, csh/tcsh, nushell, PowerShell, xonsh. POSIX shells say none of these.
_FOREIGN = (
    ("fish", re.compile(r"^fish: (?!Unknown command)\S|\bin fish, |config\.fish \(line \d+\)", re.I | re.M)),
    (
        "csh",
        re.compile(
            r"^(?:if|while|foreach|set|export): (?:Expression Syntax|Command not found)\.?$|Illegal variable name\."
            r"|Badly placed \(\)|Missing \}\.|Ambiguous output redirect\.|Unmatched ['\"`]",
            re.M,
        ),
    ),
    ("nushell", re.compile(r"nu::(?:parser|shell)", re.I)),
    (
        "powershell",
        re.compile(r"is not recognized as (?:the name of a cmdlet|an internal or external)|ParserError:"),
    ),
    ("xonsh", re.compile(r"^xonsh: ", re.M)),
)
_LOST = re.compile(
    r"connection (?:lost|reset|closed|aborted)|broken pipe|timed? ?out.*keepalive|keepalive.*timed? ?out|disconnect",
    re.I,
)
_NO_SESSION = re.compile(
    r"open failed|channel open|session request failed|resource shortage|max ?sessions", re.I
)
_MISSING = re.compile(
    r"command not found: (?P<a>\S+)|unknown command:? '?(?P<b>[^\s']+)"
    r"|(?P<c>[^\s:'\"]+): (?:command not found|not found)(?!:)",
    re.I,
)


def judge(result: ExecResult, found_elsewhere: Sequence[str] = ()) -> Verdict:
    """The meaning of one result; `found_elsewhere`: paths where a missing command was found after all."""
    stderr = result.stderr.decode("utf-8", "replace")
    said = stderr + "\n" + result.stdout.decode("utf-8", "replace")
    if result.error and _NO_SESSION.search(result.error) and not _LOST.search(result.error):
        return Verdict(
            Outcome.UNKNOWN,
            Category.MAX_SESSIONS,
            f"The host gives no further session ({result.error}): busy, retrying.",
            "MaxSessions of its sshd; it is not down.",
            {"retry": True, "shown_as": "busy, retrying"},
        )
    if result.error or (result.code is None and not result.signal):
        return Verdict(
            Outcome.UNKNOWN,
            Category.CONNECTION_LOST,
            "The connection was lost before an exit status came: whether it was done is not known.",
            "Reconnect with back-off and look; what is shown is the last known state, with its age.",
            {"action": "reconnect with back-off"},
        )
    for shell, words in _FOREIGN:
        # fish exits with 0 after a syntax error; what a command that worked prints on stdout is its own business.
        if words.search(stderr if result.code == 0 else said):
            return Verdict(
                Outcome.FAILED,
                Category.SHELL_NOT_POSIX,
                f"The account's login shell is {shell}: it did not understand the command.",
                "Send it as /bin/sh -c '<single-quoted>'.",
                {"shell": shell, "fix": f"/bin/sh -c {quote_any(' '.join(result.command.split()))}"},
            )
    if result.code == 0:
        return Verdict(Outcome.DONE)
    missing = _missing(stderr or said, result.code)
    if missing is not None:
        if found_elsewhere:
            return Verdict(
                Outcome.FAILED,
                Category.PATH,
                f"{missing} is at {found_elsewhere[0]}, which the PATH of a shell without a terminal lacks.",
                "Its full path is used; the same PATH also hides the user's environment: name the interpreter by path.",
                {"tool": found_elsewhere[0]},
            )
        return Verdict(
            Outcome.FAILED,
            Category.NOT_FOUND,
            f"{missing} was not found on the PATH of a shell without a terminal.",
            "That is not proof that the host lacks it: look in the usual places, or give the path.",
            {"tool": None},
        )
    return Verdict(
        Outcome.FAILED, sentence=(stderr.strip().splitlines() or [f"exit code {result.code}"])[-1][:300]
    )


def _missing(said: str, code: int | None) -> str | None:
    found = _MISSING.search(said)
    if found is None and code == 127:
        # Said of a path; with any other code it is a file that the command itself missed.
        found = re.search(r"(?P<d>[^\s:'\"]+): no such file or directory", said, re.I)
    if found is not None:
        return next(group for group in found.groups() if group)
    return "the command" if code == 127 else None


def between(output: bytes, begin: bytes, end: bytes) -> bytes | None:
    """What stands between two marker lines; None when either is missing (then nothing was said to us).

    Banners, startup files and logout messages may print before, after, and even the word of a marker inside a
    line: only whole lines count, the last `begin` before the first `end` after it.
    """
    lines = output.replace(b"\r\n", b"\n").split(b"\n")
    stripped = [line.strip() for line in lines]
    try:
        last = max(index for index, line in enumerate(stripped) if line == end)
        first = max(index for index, line in enumerate(stripped[:last]) if line == begin)
    except ValueError:
        return None
    inner = lines[first + 1 : last]
    return b"\n".join(inner) + (b"\n" if inner else b"")


def session_limit(results: Iterable[str]) -> Verdict:
    """How many sessions to use at once, from what opening several at once gave ("ok" or the refusal's words).

    Two are left free for whoever else uses the connection's server.
    """
    words = list(results)
    opened = sum(word == "ok" for word in words)
    refused = [word for word in words if word != "ok"]
    if not refused:
        return Verdict(Outcome.DONE, detail={"limit_to": None})
    if opened == 0 and not any(_NO_SESSION.search(word) for word in refused):
        return Verdict(Outcome.UNKNOWN, Category.CONNECTION_LOST, f"No session was opened: {refused[0]}.")
    return Verdict(
        Outcome.UNKNOWN,
        Category.MAX_SESSIONS,
        f"The host gave {opened} of {len(words)} sessions: busy, retrying.",
        "MaxSessions of its sshd; it is not down.",
        {"limit_to": max(1, opened - 2), "retry": True, "shown_as": "busy, retrying"},
    )


def silent_death(
    hello: Mapping[str, Any], *, after_logout: bool = True, out_of_memory: bool | None = None
) -> Verdict:
    """A process that is gone without an exit status and without an error in its log: who may have done it.

    Most likely first, by what the host says of itself (`kill_user_processes`, `linger`).
    """
    suspects = ["cgroup/session manager"]
    if after_logout and hello.get("linger") is not True:
        suspects.insert(0, "site kills detached processes after logout")
    else:
        suspects.append("site kills detached processes after logout")
    oom = "host OOM killer"
    suspects.insert(0 if out_of_memory else len(suspects), oom)
    step = "Look into `journalctl -k` for the OOM killer."
    if hello.get("kill_user_processes"):
        step = (
            f"KillUserProcesses is on there: `loginctl enable-linger {hello.get('user') or '$USER'}`. {step}"
        )
    return Verdict(
        Outcome.UNKNOWN,
        Category.DIED_SILENTLY,
        "It is gone, without an exit status and without an error in its log.",
        step,
        {"suspects": suspects},
    )
