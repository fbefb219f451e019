"""What a word on the command line means: a profile, a host, a host's port, a URL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from specdash.config import sshconfig
from specdash.config.hosts import Host
from specdash.config.keys import did_you_mean
from specdash.config.settings import LOCAL, Settings
from specdash.config.thresholds import CheckSettings
from specdash.errors import HostUnknown, UsageError

_PORT = re.compile(r"(?:\[(?P<v6>[^\]]+)\]|(?P<name>[^:\[\]]+)):(?P<port>\d{1,5})\Z")


NO_RULES = CheckSettings()
EXPECTS = re.compile(r"expect[_-]running")


@dataclass(frozen=True, slots=True)
class Target:
    """`host` None: the port is asked from here, without a link. `address`, `port`: what to ask, if one port."""

    name: str
    kind: Literal["host", "profile", "port", "url"]
    host: Host | None = None
    profile: str = ""
    address: str = "127.0.0.1"
    port: int | None = None
    tls: bool = False
    settings: CheckSettings = NO_RULES
    verify: bool = False
    """Whether the port's certificate must be trusted: for an https URL, where no SSH proves the host."""
    api_key: str = field(default="", repr=False)
    """The value; where empty, a run folder's own."""


def parse(words: list[str], settings: Settings) -> list[Target]:
    """Targets for words (groups replaced by their hosts). Without words: every configured host, else `local`; and
    every profile that says itself, in its `[check]`, that its server is expected to run.

    Raises UsageError with the nearest name. ConfigError of a profile goes through.
    """
    names = list(settings.expand(words)) if words else [*settings.hosts] or [LOCAL]
    found = [_one(word, settings) for word in names]
    return found if words else [*found, *_expected(settings)]


def _expected(settings: Settings) -> Iterator[Target]:
    from specdash.config import inherit

    for name, path in inherit.names().items():
        if _may_expect(path):
            target = _profile(name, settings)
            if target.settings.expect_running:
                yield target


def _may_expect(path: Path) -> bool:
    """Most profiles do not say it: they need not be read as a whole. That tells why one cannot be read, too."""
    try:
        return bool(EXPECTS.search(path.read_text("utf-8", "replace")))
    except OSError:
        return True


def _one(word: str, settings: Settings) -> Target:
    rules = settings.check
    if not word.strip():
        raise UsageError("A target is empty.", "Name one, or none at all for every configured host.")
    if "://" in word:
        return _url(word, rules)
    if word in settings.hosts or word == LOCAL:
        return Target(word, "host", settings.host(word), settings=rules)
    from specdash.config import inherit  # the profile's model, which hosts do not need

    if word.endswith(".toml") or "/" in word or word in inherit.names():
        return _profile(word, settings)
    if sshconfig.knows(word):
        return Target(word, "host", settings.host(word), settings=rules)
    match = _PORT.match(word)
    if match:
        return _port(word, match, settings)
    try:
        return Target(word, "host", settings.host(word), settings=rules)
    except HostUnknown:
        known = [*settings.host_names(), *inherit.names()]
        raise UsageError(
            f'"{word}" is no host, profile, host:port or URL.',
            did_you_mean(word, known) or "See: specdash hosts",
        ) from None


def _url(word: str, rules: CheckSettings) -> Target:
    try:
        parts = urlsplit(word)
        port = parts.port
    except ValueError:
        raise UsageError(f'"{word}" is no URL.', "Write http://HOST:PORT") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise UsageError(f'"{word}" is no URL of a server.', "Write http://HOST:PORT")
    tls = parts.scheme == "https"
    name = f"{parts.hostname}:{port or (443 if tls else 80)}"  # never a user or password that the URL holds
    return Target(name, "url", None, "", parts.hostname, port or (443 if tls else 80), tls, rules, tls)


def _port(word: str, match: re.Match[str], settings: Settings) -> Target:
    name, port = match.group("v6") or match.group("name"), int(match.group("port"))
    if not 1 <= port <= 65535:
        raise UsageError(f'"{word}": {port} is no port.', "Ports go from 1 to 65535.")
    if name in settings.hosts or name == LOCAL or sshconfig.knows(name):
        return Target(word, "port", settings.host(name), "", "127.0.0.1", port, False, settings.check)
    return Target(word, "port", None, "", name, port, False, settings.check)


def _profile(word: str, settings: Settings) -> Target:
    from specdash.control.profiles import load  # not needed for hosts and ports, and costs 50 ms

    found = load(word, settings)
    spec = found.spec
    host = settings.host(spec.host or settings.defaults.host or LOCAL)
    address, port = spec.http()
    tls = spec.flag("--ssl-certfile") is not None
    rules = found.merged.check.over(settings.check)
    return Target(spec.profile or word, "profile", host, spec.profile or word, address, port, tls, rules)
