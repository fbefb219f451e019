"""What ~/.ssh/config says of a host: which aliases there are, and what one of them means.

asyncssh reads the file. Where it cannot and OpenSSH can (`ServerAliveInterval 1m`), OpenSSH itself is asked
with `ssh -G`, and what it answers is given to asyncssh in asyncssh's own words.
"""

from __future__ import annotations

import getpass
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from asyncssh.config import ConfigParseError, SSHClientConfig

from specdash.errors import SshConfigUnsupported

DEFAULT_PORT = 22
_SSH_G_TIMEOUT_S = 10
# What a connection of ours needs of `ssh -G`; the rest are OpenSSH's own defaults and algorithms.
_WANTED = {
    *("hostname", "port", "user", "proxyjump", "proxycommand", "identityfile", "certificatefile"),
    *("identityagent", "identitiesonly", "serveraliveinterval", "serveralivecountmax", "userknownhostsfile"),
    *(
        "globalknownhostsfile",
        "hostkeyalias",
        "connecttimeout",
        "addressfamily",
        "bindaddress",
        "compression",
    ),
}
_RAW = {"proxycommand", "userknownhostsfile", "globalknownhostsfile"}


@dataclass(frozen=True, slots=True)
class Explained:
    """What the config makes of one alias. `ignored`: options that have no effect here, as they are written."""

    alias: str
    host: str
    port: int = DEFAULT_PORT
    user: str = ""
    jumps: tuple[str, ...] = ()
    keepalive_s: float | None = None
    keepalive_count: int | None = None
    connect_timeout_s: float | None = None
    proxy_command: str = ""
    known_hosts: tuple[str, ...] | None = None
    global_known_hosts: tuple[str, ...] = ()
    host_key_alias: str = ""
    identities: tuple[str, ...] = ()
    ciphers: str = ""
    """As the config says; empty: it leaves them to us."""
    ignored: tuple[str, ...] = ()
    config: str | None = None
    """Config file to give to asyncssh; None: none."""
    generated: str = ""
    """Config text to give to asyncssh instead, made from `ssh -G`."""
    note: str = ""
    """A sentence when `ssh -G` had to be asked."""
    line: int | None = None
    """Then: the line of the file that only OpenSSH could read."""


class _Noting(dict[str, Any]):
    """asyncssh's table of options; tells which other options it was asked for."""

    def __init__(self, table: dict[str, Any], note: Any) -> None:
        super().__init__(table)
        self._note = note

    def __missing__(self, option: str) -> Any:
        self._note()
        raise KeyError(option)


class _Config(SSHClientConfig):
    """asyncssh's reader, which also notes the matching options that it skips."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.skipped: list[tuple[Path, int]] = []
        self._handlers = _Noting(SSHClientConfig._handlers, self._note)

    def _note(self) -> None:
        self.skipped.append((self._path, self._line_no))


def default_path() -> Path:
    return Path("~/.ssh/config").expanduser()


def explain(
    alias: str, path: str | None = None, *, user: str | None = None, port: int | None = None
) -> Explained:
    """What the config at `path` (default ~/.ssh/config) says of `alias`.

    `user` and `port` win over it. Raises SshConfigUnsupported when neither asyncssh nor OpenSSH can tell.
    """
    file = Path(path).expanduser() if path else default_path()
    if not path and not file.is_file():
        return _explained(_load(None, alias, user, port), alias, None)
    try:
        return _explained(_load(file, alias, user, port), alias, str(file))
    except (ConfigParseError, OSError, UnicodeDecodeError) as error:
        trouble = unsupported(error, file)
    text = _ask_openssh(alias, file, user, port)
    if text is None:
        raise trouble
    note = f"{trouble.sentence} OpenSSH was asked instead (`ssh -G {alias}`)."
    return replace(_from_text(text, alias), generated=text, note=note, line=trouble.line)


def unsupported(error: Exception, file: Path) -> SshConfigUnsupported:
    """The error with file, line and what stands there."""
    found = re.match(r"(?P<path>.*) line (?P<line>\d+): (?P<why>.*)", str(error), re.DOTALL)
    where, line, why = (
        (found["path"], int(found["line"]), found["why"]) if found else (str(file), 0, str(error))
    )
    written = _line(Path(where), line)
    return SshConfigUnsupported(
        f"{where}{f' line {line}' if line else ''} cannot be read here: {why}{f' (`{written}`)' if written else ''}.",
        "Write it in a plainer form (seconds instead of `1m`, for example), or install the `ssh` program: "
        "then its reading of the file (`ssh -G`) is used.",
        path=where,
        line=line,
    )


def aliases(path: str | None = None) -> tuple[str, ...]:
    """The names after `Host`, without patterns, in the order of the file, includes too; empty without a file."""
    file = Path(path).expanduser() if path else default_path()
    found: dict[str, None] = {}
    _collect(file, file.parent if path else default_path().parent, found, 0)
    return tuple(found)


def _collect(file: Path, folder: Path, found: dict[str, None], depth: int) -> None:
    try:
        lines = file.read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    for line in lines:
        words = _words(line)
        if len(words) < 2:
            continue
        if words[0].lower() == "host":
            found.update((word, None) for word in words[1:] if not re.search(r"[*?!]", word))
        elif words[0].lower() == "include" and depth < 16:
            for pattern in words[1:]:
                for inner in _glob(pattern, folder):
                    _collect(inner, folder, found, depth + 1)


def _words(line: str) -> list[str]:
    line = re.sub(r"^\s*([A-Za-z]+)\s*=\s*", r"\1 ", line)
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return []


def _glob(pattern: str, folder: Path) -> list[Path]:
    target = Path(pattern).expanduser()
    if target.is_absolute():
        return sorted(Path(target.anchor).glob(str(target.relative_to(target.anchor))))
    return sorted(folder.glob(pattern))


def _line(file: Path, number: int) -> str:
    try:
        return file.read_text("utf-8", "replace").splitlines()[number - 1].strip() if number else ""
    except (OSError, IndexError):
        return ""


def _load(file: Path | None, alias: str, user: str | None, port: int | None) -> _Config:
    given: tuple[Any, ...] = (() if user is None else user, alias, () if port is None else port)
    paths = [] if file is None else [str(file)]
    return cast(_Config, _Config.load(None, paths, False, False, False, getpass.getuser(), *given))


def _explained(config: _Config, alias: str, path: str | None) -> Explained:
    def get(option: str) -> Any:
        return config.get(option)

    jump = str(get("ProxyJump") or "")
    command = get("ProxyCommand")
    keepalive, timeout = get("ServerAliveInterval"), get("ConnectTimeout")
    own = get("UserKnownHostsFile")
    ignored = dict.fromkeys(
        _words(_line(file, line))[0] for file, line in config.skipped if _words(_line(file, line))
    )
    return Explained(
        alias=alias,
        host=str(get("Hostname") or alias),
        port=int(get("Port") or DEFAULT_PORT),
        user=str(get("User") or getpass.getuser()),
        jumps=()
        if jump.lower() == "none"
        else tuple(part.strip() for part in jump.split(",") if part.strip()),
        keepalive_s=None if keepalive is None else float(keepalive),
        keepalive_count=get("ServerAliveCountMax"),
        connect_timeout_s=None if timeout is None else float(timeout),
        proxy_command=" ".join(command) if isinstance(command, list) else str(command or ""),
        known_hosts=None if own is None else tuple(own),
        global_known_hosts=tuple(get("GlobalKnownHostsFile") or ()),
        host_key_alias=str(get("HostKeyAlias") or ""),
        identities=tuple(str(name) for name in get("IdentityFile") or ()),
        ciphers=str(get("Ciphers") or ""),
        ignored=tuple(ignored),
        config=path,
    )


def _ask_openssh(alias: str, file: Path, user: str | None, port: int | None) -> str | None:
    """`ssh -G` as config text for asyncssh; None without the program or when it fails too."""
    program = shutil.which("ssh")
    if program is None or alias.startswith("-"):
        return None
    argv = [program, "-F", str(file), *(["-l", user] if user else []), *(["-p", str(port)] if port else [])]
    try:
        done = subprocess.run(
            [*argv, "-G", "--", alias],
            capture_output=True,
            timeout=_SSH_G_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    lines = []
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        option, _, value = line.partition(" ")
        if option in _WANTED and value and value.lower() not in ("none", "any"):
            lines.append(f"{option} {value if option in _RAW else shlex.quote(value)}")
    return "\n".join(lines) + "\n"


def _from_text(text: str, alias: str) -> Explained:
    import tempfile

    with tempfile.NamedTemporaryFile("w", prefix="specdash-ssh-", suffix=".config") as file:
        file.write(text)
        file.flush()
        return replace(_explained(_load(Path(file.name), alias, None, None), alias, None), config=None)
