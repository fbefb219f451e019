"""The aliases of `~/.ssh/config`: only their names. What they mean is OpenSSH's and asyncssh's business."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

MAX_DEPTH = 16
"""As OpenSSH's own limit on nested Include."""


def aliases(path: Path | None = None) -> tuple[str, ...]:
    """Every concrete `Host` name, in order: no patterns, no negations. Unreadable files are as if empty."""
    found = (p for p in patterns(path) if not re.search(r"[*?!]", p))
    return tuple(dict.fromkeys(found))


def knows(name: str, path: Path | None = None) -> bool:
    """Whether a `Host` line other than a bare `*` speaks of this name."""
    return any(p != "*" and not p.startswith("!") and fnmatchcase(name, p) for p in patterns(path))


def patterns(path: Path | None = None) -> tuple[str, ...]:
    """All words of all `Host` lines, Include followed (relative to `~/.ssh`)."""
    return tuple(_read(path or Path("~/.ssh/config").expanduser(), 0))


def _read(path: Path, depth: int) -> Iterator[str]:
    try:
        text = path.read_bytes()[:1_000_000].decode("utf-8", "replace")
    except OSError:
        return
    for line in text.splitlines():
        match = re.match(r"\s*(host|include)(?:\s*=\s*|\s+)(.*)", line, re.I)
        if not match:
            continue
        words = [a or b for a, b in re.findall(r'"([^"]*)"|(\S+)', match.group(2))]
        comment = next((at for at, word in enumerate(words) if word.startswith("#")), len(words))
        for word in words[:comment]:
            if match.group(1).lower() == "host":
                yield word
            elif depth < MAX_DEPTH:
                wanted = Path(word).expanduser()
                wanted = wanted if wanted.is_absolute() else Path("~/.ssh").expanduser() / wanted
                for name in sorted(Path(wanted.anchor).glob(str(wanted.relative_to(wanted.anchor)))):
                    yield from _read(name, depth + 1)
