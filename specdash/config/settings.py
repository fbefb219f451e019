"""`config.toml`: hosts, groups, defaults, thresholds, keys and theme.

    theme = "textual-dark"
    read-only = false

    [defaults]
    host = "gpu1"

    [hosts.gpu1]
    ssh = "gpu1.example"      # alias of ~/.ssh/config, or an address
    [groups]
    lab = ["gpu1", "gpu2"]
    [check]
    warn = ["accept<1.8"]
    [keys]
    launch = "ctrl+l"
    [alerts]
    command = ["notify-send", "specdash"]

No file is a fine file: hosts then come from `~/.ssh/config` by alias, and `local` is always there.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from specdash.config import paths, sshconfig, tomlfile
from specdash.config.hosts import LOCAL, Host
from specdash.config.keys import did_you_mean
from specdash.config.thresholds import CheckSettings
from specdash.config.validate import load as load_model
from specdash.errors import ConfigError, HostUnknown

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")


class Defaults(BaseModel):
    """`[defaults]`: what holds when neither profile nor command line says it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field(default="", description="Host of profiles that name none.")
    python: str = Field(default="", description="Interpreter on the host of profiles that name none.")
    profile: str = Field(default="", description="Profile that the screen selects first.")


class Alerts(BaseModel):
    """`[alerts]`: what the screen does when an alarm comes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bell: bool = Field(default=True, description="Ring the terminal's bell for what is critical.")
    command: tuple[str, ...] = Field(
        default=(),
        description="Command and arguments, run without a shell for every alarm (warning or critical), which it "
        "finds in SPECDASH_ALERT_SEVERITY, _WHERE, _SENTENCE and _STEP.",
    )


class Settings(BaseModel):
    """The config file as a whole."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    theme: str = Field(default="", description="Textual theme of the screen.")
    read_only: bool = Field(default=False, description="Refuse everything that changes a host.")
    defaults: Defaults = Field(default_factory=Defaults, description="What holds when nothing else says it.")
    hosts: dict[str, Host] = Field(default_factory=dict, description="Hosts by name.")
    groups: dict[str, tuple[str, ...]] = Field(default_factory=dict, description="Names for several hosts.")
    check: CheckSettings = Field(default_factory=CheckSettings, description="Thresholds for every target.")
    alerts: Alerts = Field(default_factory=Alerts, description="What the screen does when an alarm comes.")
    keys: dict[str, str] = Field(
        default_factory=dict, description='Keys of the screen: action = "key", several separated by commas.'
    )
    _path: Path | None = PrivateAttr(default=None)

    @property
    def path(self) -> Path | None:
        """The file that this was read from; None when there is none."""
        return self._path

    def host(self, name: str) -> Host:
        """A host by name: configured, `local`, an alias of `~/.ssh/config`, or plainly an address.

        Raises HostUnknown with the nearest name.
        """
        found = self.hosts.get(name)
        if found is not None:
            return found
        if name == LOCAL:
            return Host(name=LOCAL)
        if sshconfig.knows(name):
            return Host(name=name, ssh=name)
        user, at, rest = name.rpartition("@")
        if name and not name.startswith("-") and (at or "." in name or ":" in name):
            return _address(name, user, rest)
        raise HostUnknown(
            f'No host "{name}" in {self.path or paths.config_file()} or ~/.ssh/config.',
            did_you_mean(name, self.host_names()) or "Run: specdash hosts",
        )

    def host_names(self) -> tuple[str, ...]:
        """Every host that has a name: configured ones, `local`, then the aliases of `~/.ssh/config`."""
        return tuple(dict.fromkeys([*self.hosts, LOCAL, *sshconfig.aliases()]))

    def expand(self, names: list[str] | tuple[str, ...]) -> tuple[str, ...]:
        """Names with groups replaced by their hosts, none twice, order kept."""
        out: list[str] = []
        for name in names:
            out.extend(self.groups.get(name, (name,)))
        return tuple(dict.fromkeys(out))


def _address(name: str, user: str, rest: str) -> Host:
    host, port = rest, None
    match = re.fullmatch(r"\[([^\]]+)\](?::(\d+))?|([^:]+):(\d+)", rest)
    if match:
        host = match.group(1) or match.group(3)
        digits = match.group(2) or match.group(4)
        port = int(digits) if digits else None
    fields: dict[str, Any] = {"name": name, "ssh": host, "user": user or None}
    if port is not None:
        if not 1 <= port <= 65535:
            raise HostUnknown(f'"{name}": {port} is no port.', "Ports go from 1 to 65535.")
        fields["port"] = port
    try:
        return Host(**fields)
    except ValueError:
        raise HostUnknown(f'"{name}" is no address.', "Write [user@]host[:port].") from None


def load(path: Path | None = None) -> Settings:
    """The settings of `path`, or of the usual place; a missing usual file is the empty one.

    Raises ConfigError with file, line, key and the nearest valid key. A file that was named (by argument or
    `SPECDASH_CONFIG`) must exist.
    """
    import os

    named = path is not None or bool(os.environ.get("SPECDASH_CONFIG"))
    place = path or paths.config_file()
    if not named and not place.exists():
        return Settings()
    file = tomlfile.read(place)
    hosts = file.data.get("hosts")
    if isinstance(hosts, list):
        file = _hosts_by_name(file, hosts)
    settings = load_model(Settings, _with_names(file))
    settings = settings.model_copy(
        update={"hosts": {name: _named(file, name, host) for name, host in settings.hosts.items()}}
    )
    settings._path = place
    _cross_check(settings, file)
    return settings


def _with_names(file: tomlfile.TomlFile) -> tomlfile.TomlFile:
    """Each host's table with the name of the table as its `name`, which the model needs."""
    hosts = file.data.get("hosts")
    if not isinstance(hosts, dict):
        return file
    named = {k: {"name": k, **v} if isinstance(v, dict) else v for k, v in hosts.items()}
    return tomlfile.TomlFile(file.path, {**file.data, "hosts": named}, file.lines)


def _hosts_by_name(file: tomlfile.TomlFile, items: list[Any]) -> tomlfile.TomlFile:
    """`[[hosts]]` with `name = …` is the same as `[hosts.NAME]`."""
    tables: dict[str, Any] = {}
    lines = dict(file.lines)
    for at, item in enumerate(items):
        name = item.get("name") if isinstance(item, dict) else None
        if not isinstance(name, str) or not name:
            raise file.error(("hosts", at), 'a [[hosts]] table needs name = "…".')
        if name in tables:
            raise file.error(("hosts", at, "name"), f'the host "{name}" is there twice.')
        tables[name] = item
        for key, line in file.lines.items():
            if key[:2] == ("hosts", at):
                lines[("hosts", name, *key[2:])] = line
    return tomlfile.TomlFile(file.path, {**file.data, "hosts": tables}, lines)


def _named(file: tomlfile.TomlFile, name: str, host: Host) -> Host:
    key = ("hosts", name)
    if not _NAME.match(name):
        raise file.error(
            key, f'"{name}" is no name for a host.', "Use letters, digits, dot, dash, underscore."
        )
    if host.name not in ("", name):
        raise file.error(
            (*key, "name"), f'the table is called "{name}" but name says "{host.name}".', "Drop name."
        )
    if not host.ssh and name != LOCAL and "ssh" not in host.model_fields_set:
        return host.model_copy(update={"name": name, "ssh": name})
    return host.model_copy(update={"name": name})


def _cross_check(settings: Settings, file: tomlfile.TomlFile) -> None:
    for group, members in settings.groups.items():
        if group in settings.hosts or group == LOCAL:
            raise file.error(("groups", group), f'"{group}" is both a group and a host.')
        for at, member in enumerate(members):
            try:
                settings.host(member)
            except HostUnknown as problem:
                raise file.error(("groups", group, at), f"{problem.sentence}", problem.step) from None
    if settings.defaults.host:
        try:
            settings.host(settings.defaults.host)
        except HostUnknown as problem:
            raise file.error(("defaults", "host"), problem.sentence, problem.step) from None
    taken: dict[str, str] = {}
    for action, keys in settings.keys.items():
        for key in keys.split(","):
            if not key.strip():
                raise file.error(("keys", action), "a key is empty.", 'Write action = "key".')
            other = taken.setdefault(key.strip(), action)
            if other != action:
                raise file.error(("keys", action), f'"{key.strip()}" is already the key of {other}.')


__all__ = ["LOCAL", "ConfigError", "Defaults", "Host", "Settings", "load"]
