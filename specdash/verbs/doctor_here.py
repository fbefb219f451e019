"""What `specdash doctor` looks at on the operator's machine. Nothing is connected to but the ssh agent's socket."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from specdash.verbs.context import Context

Status = Literal["ok", "warn", "fail"]
AGENT_S = 2.0
LEAST_COLUMNS, LEAST_LINES = 80, 24


@dataclass(frozen=True, slots=True)
class Item:
    """One thing looked at. `where`: "here" or the host's name; `remedy` is what to do when it is not ok."""

    where: str
    name: str
    status: Status
    sentence: str
    remedy: str = ""


def here(context: Context) -> Iterator[Item]:
    """Everything about this machine, in reading order. Never raises for what it finds."""
    yield python()
    yield from packages()
    yield from config(context)
    yield from profiles(context)
    yield from ssh(os.environ, Path("~/.ssh").expanduser(), _needs_ssh(context))
    yield terminal(os.environ, context.out.isatty(), shutil.get_terminal_size((0, 0)))
    yield locale(context)
    yield state()


def python() -> Item:
    told = f"Python {platform.python_version()} ({sys.executable}) on {platform.platform()}."
    return Item("here", "python", "ok", told)


def packages() -> Iterator[Item]:
    """Each requirement of specdash: installed, and in the range that it was tested with?"""
    try:
        wanted = [line for line in metadata.requires("specdash") or () if "extra ==" not in line]
    except metadata.PackageNotFoundError:
        yield Item(
            "here",
            "packages",
            "warn",
            "specdash runs from a checkout that is not installed.",
            "pip install -e .",
        )
        return
    good = []
    for line in wanted:
        match = re.match(r"([A-Za-z0-9._-]+)\s*([^;]*)", line)
        name, limits = (match.group(1), match.group(2).strip()) if match else (line, "")
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Item(
                "here", "packages", "fail", f"{name} is not installed.", f"pip install '{name}{limits}'"
            )
            continue
        if within(version, limits):
            good.append(f"{name} {version}")
        else:
            said = f"{name} {version} is installed; specdash is made for {limits}."
            yield Item("here", "packages", "warn", said, f"pip install '{name}{limits}'")
    if good:
        yield Item("here", "packages", "ok", ", ".join(good) + ".")


def within(version: str, limits: str) -> bool:
    """Whether a version is within `>=1.2,<2` (also ==, >, <=, !=). What cannot be read counts as within."""
    for limit in filter(None, (part.strip() for part in limits.strip("()").split(","))):
        match = re.match(r"(==|>=|<=|!=|<|>)\s*([0-9][0-9.]*)\Z", limit)
        if not match:
            continue
        have, want = _numbers(version), _numbers(match.group(2))
        size = max(len(have), len(want))
        a, b = (n + (0,) * (size - len(n)) for n in (have, want))
        checks = {"==": a == b, ">=": a >= b, "<=": a <= b, "!=": a != b, "<": a < b, ">": a > b}
        if not checks[match.group(1)]:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(word) for word in re.findall(r"\d+", version.split("+")[0])[:4])


def config(context: Context) -> Iterator[Item]:
    from specdash.config import paths
    from specdash.errors import SpecdashError

    path = paths.config_file()
    try:
        settings = context.settings
    except SpecdashError as problem:
        yield Item("here", "config", "fail", problem.sentence, problem.step)
        return
    if settings.path is None:
        said = f"No config file ({path}): hosts come from ~/.ssh/config."
        yield Item("here", "config", "ok", said)
        return
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o022:
        said = f"{path} can be changed by others (mode {mode:04o})."
        yield Item("here", "config", "warn", said, f"chmod 600 {path}")
    count = f"{len(settings.hosts)} hosts" if len(settings.hosts) != 1 else "1 host"
    yield Item("here", "config", "ok", f"{path}: {count}.")


def profiles(context: Context) -> Iterator[Item]:
    """Each profile that is found by name: well-formed, and are its secrets there?"""
    from specdash.config import inherit, secrets
    from specdash.config.settings import Settings
    from specdash.control import profiles as control
    from specdash.errors import SpecdashError

    try:
        settings = context.settings
    except SpecdashError:
        settings = Settings()
    good = 0
    for name in inherit.names():
        try:
            spec = control.resolve(name, settings)
        except SpecdashError as problem:
            yield Item("here", "profile", "fail", f"{name}: {problem.sentence}", problem.step)
            continue
        good += 1
        for reference in {*spec.secret_flags.values(), *spec.secret_env.values()}:
            try:
                warning = secrets.resolve(reference).warning
            except SpecdashError as problem:
                yield Item("here", "secret", "warn", f"{name}: {problem.sentence}", problem.step)
                continue
            if warning:
                yield Item("here", "secret", "warn", f"{name}: {warning}")
    yield Item("here", "profiles", "ok", f"{good} profile{'s' if good != 1 else ''} can be read.")


def _needs_ssh(context: Context) -> bool:
    from specdash.config import sshconfig
    from specdash.errors import SpecdashError

    try:
        return any(not host.is_local for host in context.settings.hosts.values()) or bool(sshconfig.aliases())
    except SpecdashError:
        return True


def ssh(env: Mapping[str, str], folder: Path, needed: bool) -> Iterator[Item]:
    """The ssh agent and its keys, and the key files. A warning only where an SSH host is known."""
    bad: Status = "warn" if needed else "ok"
    sock, count = env.get("SSH_AUTH_SOCK", ""), None
    if sock:
        try:
            count = agent_keys(sock)
        except (OSError, ValueError) as problem:
            said = f"SSH_AUTH_SOCK is {sock}, but no agent answers there ({problem})."
            yield Item("here", "ssh-agent", bad, said, "Start one: eval $(ssh-agent); ssh-add")
        else:
            yield Item("here", "ssh-agent", "ok", f"The agent holds {count} key{'s' if count != 1 else ''}.")
    files = [folder / name for name in ("id_ed25519", "id_ecdsa", "id_rsa")]
    there = [file for file in files if file.is_file()]
    for file in there:
        mode = stat.S_IMODE(file.stat().st_mode)
        if mode & 0o077:
            said = f"{file} can be read by others (mode {mode:04o}): ssh refuses such a key."
            yield Item("here", "ssh-key", "warn", said, f"chmod 600 {file}")
    if there:
        yield Item("here", "ssh-key", "ok", f"Keys: {', '.join(str(file) for file in there)}.")
    elif not count:
        said = f"No agent with a key, and no key file in {folder}."
        yield Item("here", "ssh-key", bad, said, "ssh-keygen -t ed25519, or name `identity` for the host.")


def agent_keys(path: str) -> int:
    """How many identities an ssh agent holds (request 11, answer 12 of the agent protocol). OSError, ValueError."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(AGENT_S)
        sock.connect(path)
        sock.sendall(b"\0\0\0\x01\x0b")
        head = b""
        while len(head) < 9:
            more = sock.recv(9 - len(head))
            if not more:
                raise ValueError("it hung up")
            head += more
    if head[4] != 12:
        raise ValueError("it refuses to list its keys")
    return int.from_bytes(head[5:9], "big")


def terminal(env: Mapping[str, str], is_terminal: bool, size: os.terminal_size) -> Item:
    if not is_terminal:
        return Item("here", "terminal", "ok", "The output is no terminal; --check and the verbs need none.")
    term, problems = env.get("TERM", ""), []
    if term in ("", "dumb", "unknown"):
        problems.append(f'TERM is "{term}"')
    if size.columns < LEAST_COLUMNS or size.lines < LEAST_LINES:
        problems.append(f"it is {size.columns} by {size.lines}")
    colours = "24-bit colour" if env.get("COLORTERM") in ("truecolor", "24bit") else "256 colours or fewer"
    said = f"TERM={term}, {size.columns} by {size.lines}, {colours}" + (
        ", NO_COLOR" if env.get("NO_COLOR") else ""
    )
    if problems:
        remedy = f"The dashboard wants {LEAST_COLUMNS} by {LEAST_LINES} and a TERM such as xterm-256color."
        return Item("here", "terminal", "warn", f"{said}: {' and '.join(problems)}.", remedy)
    return Item("here", "terminal", "ok", f"{said}.")


def locale(context: Context) -> Item:
    encoding = getattr(context.out, "encoding", None) or "unknown"
    said = f"Text goes out as {encoding} (LC_ALL={os.environ.get('LC_ALL', '')}, LANG={os.environ.get('LANG', '')})."
    if context.ascii:
        return Item("here", "locale", "warn", f"{said} Only ASCII is drawn.", "export LC_ALL=C.UTF-8")
    return Item("here", "locale", "ok", said)


def state() -> Item:
    """The folder for traces, caches and queues: can it be written, and is there room?"""
    from specdash.config import paths

    place = paths.state_dir()
    above = next(folder for folder in (place, *place.parents) if folder.exists())
    if not os.access(above, os.W_OK | os.X_OK):
        return Item(
            "here", "state", "warn", f"{place} cannot be written.", "Set XDG_STATE_HOME to a folder of yours."
        )
    free = shutil.disk_usage(above).free
    said = f"{place}, {free / (1 << 30):.1f} GiB free."
    if free < 1 << 28:
        return Item("here", "state", "warn", said, "Logs are followed into a spill file there: make room.")
    return Item("here", "state", "ok", said)
