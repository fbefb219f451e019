"""known_hosts: which keys are trusted for a name, where a wrong one stands, and remembering a new one.

asyncssh checks keys but neither says which line is in the way nor writes the file, so we read it ourselves.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

DEFAULT_FILES = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
DEFAULT_GLOBAL = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")


@dataclass(frozen=True, slots=True)
class Entry:
    """One line that is about the host. `marker` is "", "cert-authority" or "revoked"."""

    path: str
    line: int
    marker: str
    algorithm: str
    key: bytes
    """The public key, SSH wire format."""

    @property
    def text(self) -> str:
        return f"{self.algorithm} {base64.b64encode(self.key).decode()}"


def host_name(host: str, port: int | None) -> str:
    """The name as it stands in known_hosts."""
    return host if port in (None, 22) else f"[{host}]:{port}"


def lookup(files: Iterable[str], host: str, port: int | None) -> list[Entry]:
    """The lines about `host` and `port`; when there are none for the port, those for the host alone."""
    texts = [(path, text) for path in files if (text := _read(path)) is not None]
    found = _matching(texts, host_name(host, port))
    if not found and port not in (None, 22):
        found = _matching(texts, host)
    return found


def _read(path: str) -> str | None:
    try:
        return Path(path).expanduser().read_text("utf-8", "replace")
    except OSError:
        return None


def _matching(texts: list[tuple[str, str]], name: str) -> list[Entry]:
    found = []
    for path, text in texts:
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            marker = words.pop(0)[1:] if words[0].startswith("@") else ""
            if len(words) < 3 or not _matches(words[0], name):
                continue
            try:
                key = base64.b64decode(words[2], validate=True)
            except (binascii.Error, ValueError):
                continue  # as OpenSSH: a broken line is skipped
            found.append(Entry(str(Path(path).expanduser()), number, marker, words[1], key))
    return found


def _matches(patterns: str, name: str) -> bool:
    if patterns.startswith("|1|"):
        try:
            _, _, salt, digest = patterns.split("|")
            wanted = hmac.new(base64.b64decode(salt), name.lower().encode(), hashlib.sha1).digest()
            return hmac.compare_digest(wanted, base64.b64decode(digest))
        except (ValueError, binascii.Error):
            return False
    hit = False
    for pattern in patterns.lower().split(","):
        negated = pattern.startswith("!")
        # [ and ] are part of names with a port, never a character class.
        glob = pattern.lstrip("!").replace("[", "\0").replace("]", "\1")
        if fnmatch.fnmatchcase(name.lower().replace("[", "\0").replace("]", "\1"), glob):
            if negated:
                return False
            hit = True
    return hit


def remember(path: str, line: str) -> bool:
    """Appends `line`, all or nothing, file mode 0600. False where that is no plain file (/dev/null)."""
    file = Path(os.path.realpath(Path(path).expanduser()))
    if file.exists() and not file.is_file():
        return False
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    before = file.read_bytes() if file.exists() else b""
    if before and not before.endswith(b"\n"):
        before += b"\n"
    fd, beside = tempfile.mkstemp(prefix=".known_hosts-", dir=file.parent)
    try:
        with os.fdopen(fd, "wb") as out:
            out.write(before + line.encode() + b"\n")
            out.flush()
            os.fsync(out.fileno())
        Path(beside).replace(file)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise
    return True
