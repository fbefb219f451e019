"""How the agent gets going on a host through whatever shell the account has.

The command line is one line without a terminal. It says a random marker, then how Python starts: what a banner
or a startup file prints before the marker is no longer our business. Python then reads its program from stdin.
"""

from __future__ import annotations

import re
import secrets
import shlex
from dataclasses import dataclass

from specdash.host import bundle

MIN_PYTHON = (3, 8)
MAX_NOISE = 1024 * 1024
_SAFE = re.compile(r"[^'\\!\n\r\0]+")


def quote_any(text: str) -> str:
    """One word for sh, bash, zsh, dash, ksh, fish and csh alike.

    In fish a backslash inside single quotes is special, in csh `!` is: both go outside, where all agree.
    """
    if any(char in text for char in "\n\r\0"):
        raise ValueError("no line break or NUL can be in a remote command")
    words = [
        f"'{part}'" if _SAFE.fullmatch(part) else f"\\{part}" for part in re.findall(r"[^'\\!]+|['\\!]", text)
    ]
    return "".join(words) or "''"


def wrap(script: str) -> str:
    """A POSIX script as a command for any login shell."""
    return f"exec /bin/sh -c {quote_any(script)}"


def sh_path(path: str) -> str:
    """A path as a word for /bin/sh; a leading `~/` is the home folder."""
    if path.startswith("~/"):
        return f'"$HOME"/{shlex.quote(path[2:])}'
    return shlex.quote(path)


@dataclass(frozen=True, slots=True)
class Start:
    """One start of the agent: `script` for /bin/sh, and what the marker lines look like."""

    python: str
    marker: str
    script: str

    @classmethod
    def of(cls, python: str) -> Start:
        marker = "specdash-" + secrets.token_hex(8)
        # os.write, not print: nothing may stay in a buffer. No quote but " and no backslash: see quote_any.
        boot = (
            'import os,sys;os.write(1,(chr(10)+"MARKER py %d.%d.%d"%sys.version_info[:3]+chr(10)).encode());'
            'f=os.fdopen(os.dup(0),"rb");exec(f.read(int(f.readline())))'
        ).replace("MARKER", marker)
        word = sh_path(python)
        script = (
            f"if command -v {word} >/dev/null 2>&1; then "
            f"exec {word} -I -X utf8 -u -c {shlex.quote(boot)}; "
            f"else echo; echo {marker} none; exit 127; fi"
        )
        return cls(python, marker, script)


@dataclass(frozen=True, slots=True)
class Greeting:
    """What the marker line said; `version` is None when there is no such interpreter."""

    noise: bytes
    version: tuple[int, int, int] | None
    rest: bytes


def greeting(start: Start, output: bytes) -> Greeting | None:
    """Finds the marker line in what was printed so far; None while it is not there."""
    mark = re.search(
        rb"^" + start.marker.encode() + rb" (?:none|py (\d+)\.(\d+)\.(\d+))\r?\n", output, re.MULTILINE
    )
    if mark is None:
        return None
    version = None
    if mark.group(1) is not None:
        version = (int(mark.group(1)), int(mark.group(2)), int(mark.group(3)))
    return Greeting(output[: mark.start()].rstrip(b"\n"), version, output[mark.end() :])


def program() -> bytes:
    """What the started Python reads: the importer's source, then the modules, then frames."""
    archive = bundle.pack(bundle.AGENT_MODULES)
    first = (
        bundle.source(bundle.RUN_FROM_MEMORY)
        + "\ninstall(f.read(int(f.readline())))\n"
        + "from specdash.host.remote import agent\nagent.main(f)\n"
    ).encode()
    return b"%d\n%s%d\n%s" % (len(first), first, len(archive), archive)
