"""Secrets by reference: `env:NAME` and `file:PATH` on this machine, `host-file:PATH` on the host.

A profile never holds a secret value. `resolve` reads the first two when a launch needs them; the third is
passed on by name and read on the host.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specdash.errors import ConfigError

SCHEMES = ("env:", "file:", "host-file:")
MAX_BYTES = 65_536

_ENV = re.compile(
    r"(?:\A|_)(?:TOKEN|API_?KEY|ACCESS_?KEY|KEY|CREDENTIALS?)\Z|PASSWORD|PASSWD|PASSPHRASE|SECRET"
)
_OPTION = re.compile(
    r"(?:\A|-)(?:key|credentials?|(?:auth|access|api|hf|bearer|hub|secret)-token)\Z|password|passwd|passphrase|secret"
)
_A_PLACE = re.compile(r"[-_](?:file|path|dir|name)\Z", re.I)


def is_secret_option(option: str) -> bool:
    """Whether an option's value is a secret by its name: `--api-key`, `--ssl-keyfile-password`, …"""
    name = option.lstrip("-").replace("_", "-").lower()
    return bool(_OPTION.search(name)) and not _A_PLACE.search(name)


def is_secret_env(name: str) -> bool:
    """Whether a variable's value is a secret by its name: `*_TOKEN`, `*_KEY`, `*PASSWORD*`, `*SECRET*`."""
    return bool(_ENV.search(name.upper())) and not _A_PLACE.search(name)


def is_reference(text: object) -> bool:
    return isinstance(text, str) and any(text.startswith(s) and len(text) > len(s) for s in SCHEMES)


@dataclass(frozen=True, slots=True)
class Secret:
    """A resolved reference. Exactly one of `value` and `host_path` is set."""

    reference: str
    value: str | None = None
    host_path: str | None = None
    warning: str = ""
    """A sentence when the file can be read by others."""

    def __repr__(self) -> str:
        return f"Secret({self.reference!r})"


def resolve(reference: str, environ: Mapping[str, str] | None = None) -> Secret:
    """What a reference stands for, now. One newline at the end of a file is not part of the secret.

    Raises ConfigError: no such scheme, variable not set, file missing, empty, too long, not ours.
    """
    scheme, _, rest = reference.partition(":")
    if not is_reference(reference):
        # Not quoted: it may be the secret itself.
        raise ConfigError("A secret is not given by reference.", f"Use one of {', '.join(SCHEMES)}.")
    if scheme == "env":
        value = (os.environ if environ is None else environ).get(rest)
        if not value:
            raise ConfigError(
                f"The variable {rest} (a secret by reference) is not set here.", f"export {rest}=…"
            )
        return Secret(reference, value=value)
    if scheme == "host-file":
        return Secret(reference, host_path=rest)
    path = Path(rest).expanduser()
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            raw = file.read(MAX_BYTES + 1)
    except OSError as problem:
        raise ConfigError(
            f"The secret's file {path} cannot be read: {problem.strerror}.",
            "Write the secret there, mode 0600.",
        ) from None
    text = os.fsdecode(raw)
    text = text[:-1] if text.endswith("\n") else text
    if not text or len(raw) > MAX_BYTES or "\0" in text:
        raise ConfigError(f"The secret's file {path} is empty, too long, or not text.")
    loose = stat.S_IMODE(mode) & 0o077
    warning = (
        f"{path} can be read by others (mode {stat.S_IMODE(mode):04o}): chmod 600 {path}" if loose else ""
    )
    return Secret(reference, value=text, warning=warning)


def store(folder: Path, name: str, value: str) -> str:
    """Writes a secret to its own 0600 file in `folder` (0700) and returns the reference.

    A file of that name with the same value is used again; with another value, a number is added: no secret
    that a profile refers to is ever overwritten.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    data = os.fsencode(value + "\n" if value.endswith("\n") else value)
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "secret"
    for attempt in range(1, 1000):
        path = folder.resolve() / (safe if attempt == 1 else f"{safe}-{attempt}")
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            if path.is_file() and path.read_bytes() == data:
                path.chmod(0o600)
                return f"file:{path}"
            continue
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        return f"file:{path}"
    raise ConfigError(f"{folder} has 1000 secrets called {safe}.", "Remove the old ones.")
