"""Inheritance: finds a profile and its bases, and lays one over the other, keeping where each value came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdash.config import paths, tomlfile
from specdash.config.keys import did_you_mean, kebab, key_of, option_of
from specdash.config.profile import TABLES, OnHost, Pair, Profile
from specdash.config.profile import load as load_profile
from specdash.config.thresholds import CheckSettings
from specdash.config.tomlfile import TomlFile
from specdash.errors import ConfigError

SCALARS = ("host", "hosts", "interface", "python", "launcher", "wrapper", "cwd", "log")
INSTEAD = {"host": "hosts", "hosts": "host"}
"""What a later layer sets takes the other of the two away."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a value was written."""

    profile: str
    path: Path
    line: int | None

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" if self.line else str(self.path)


@dataclass(frozen=True, slots=True)
class Layer:
    """One profile file."""

    name: str
    file: TomlFile
    profile: Profile


@dataclass(frozen=True, slots=True)
class Merged:
    """A profile with its bases laid under it.

    `options` is by full option string, in the order of the command line: what a profile sets comes after what
    its base set, so that it also wins where SGLang has two spellings of one option. `sources` has a key like
    `server.tp`, `speculation.algorithm`, `env.HF_HOME`, `cwd` for each value that is there.
    """

    name: str
    layers: tuple[Layer, ...]
    """The base of all first, the profile itself last."""
    scalars: Mapping[str, Any]
    options: Mapping[str, Any]
    env: Mapping[str, Any]
    check: CheckSettings
    sources: Mapping[str, Source] = field(default_factory=dict)
    on: Mapping[str, OnHost] = field(default_factory=dict)
    """What differs on one of several hosts, by host or group."""
    pd: Pair | None = None
    """A prefill/decode pair, as the last layer that has one wrote it."""

    @property
    def path(self) -> Path:
        return self.layers[-1].file.path

    @property
    def description(self) -> str:
        return self.layers[-1].profile.description

    def error(self, key: str, sentence: str, step: str = "") -> ConfigError:
        """A complaint about a value, wherever it was written."""
        return ConfigError(f"{self.sources.get(key, self.path)}: {sentence}", step)


def source_key(option: str) -> str:
    """The key of `Merged.sources` for an option string."""
    return ".".join(key_of(option))


def names() -> dict[str, Path]:
    """Every profile that can be had by name, and its file. The first folder that has a name wins."""
    found: dict[str, Path] = {}
    for folder in paths.profile_dirs():
        for path in sorted(folder.glob("*.toml")):
            found.setdefault(path.stem, path)
    return found


def find(name_or_path: str, beside: Path | None = None) -> Path:
    """The file of a profile. A text with a slash or `.toml` is a path (relative to `beside`, if given).

    Raises ConfigError with the nearest name.
    """
    if "/" in name_or_path or name_or_path.endswith(".toml"):
        path = Path(name_or_path).expanduser()
        path = beside / path if beside else path
        if path.is_dir() or not path.exists():
            raise ConfigError(f"There is no profile at {path}.")
        return path
    known = names()
    found = None
    if beside is not None and (beside / f"{name_or_path}.toml").is_file():
        found = beside / f"{name_or_path}.toml"
    found = found or known.get(name_or_path)
    if found is None:
        raise ConfigError(
            f'There is no profile "{name_or_path}".',
            did_you_mean(name_or_path, known) or f"Looked in {', '.join(map(str, paths.profile_dirs()))}.",
        )
    return found


def load(name_or_path: str) -> Merged:
    """The profile, merged with its bases. Raises ConfigError: missing, bad, a circle, an unset of nothing."""
    return merge(chain(find(name_or_path)))


def chain(path: Path) -> tuple[Layer, ...]:
    """The profile at `path` and its bases, the base of all first."""
    layers: list[Layer] = []
    seen: list[Path] = []
    at: Path | None = path
    while at is not None:
        real = at.resolve()
        if real in seen:
            circle = " → ".join([*(p.stem for p in seen[seen.index(real) :]), real.stem])
            last = layers[-1]
            raise last.file.error(("extends",), f"extends goes in a circle: {circle}.")
        seen.append(real)
        file = tomlfile.read(at)
        profile = load_profile(file)
        layers.append(Layer(at.stem, file, profile))
        at = _base(file, profile, seen)
    return tuple(reversed(layers))


def _base(file: TomlFile, profile: Profile, seen: list[Path]) -> Path | None:
    if profile.extends is None:
        return None
    try:
        found = find(profile.extends, beside=file.path.parent)
        own = profile.extends == file.path.stem
        if own and found.resolve() in seen:
            # A profile in ./profiles may extend the one of the same name that came with specdash.
            others = (folder / f"{profile.extends}.toml" for folder in paths.profile_dirs())
            found = next((o for o in others if o.is_file() and o.resolve() not in seen), found)
        return found
    except ConfigError as problem:
        raise file.error(("extends",), f"the base is missing: {problem.sentence}", problem.step) from None


def merge(layers: tuple[Layer, ...]) -> Merged:
    """Lays later layers over earlier ones."""
    scalars: dict[str, Any] = {}
    options: dict[str, Any] = {}
    env: dict[str, Any] = {}
    check = CheckSettings()
    on: dict[str, OnHost] = {}
    pair: Pair | None = None
    sources: dict[str, Source] = {}
    for layer in layers:
        profile, file = layer.profile, layer.file

        def put(key: str, *written: str, layer: Layer = layer) -> None:
            sources.pop(key, None)
            sources[key] = Source(layer.name, layer.file.path, layer.file.line(written))

        for at, item in enumerate(profile.unset):
            gone, check = _unset(item, scalars, options, env, check)
            gone = gone or _unset_on(item, on)
            if item == "pd" and pair is not None:
                gone, pair = ["pd"], None
            if not gone:
                known = [
                    *scalars,
                    *(source_key(o) for o in options),
                    *(f"env.{n}" for n in env),
                    *TABLES,
                    "env",
                ]
                raise file.error(
                    ("unset", at), f'unset names "{item}", which no base sets.', did_you_mean(item, known)
                )
            for key in gone:
                sources.pop(key, None)
        for name in SCALARS:
            value = getattr(profile, name)
            if value is not None:
                scalars[name] = value
                other = INSTEAD.get(name)
                if other is not None and other in scalars:
                    del scalars[other]
                    sources.pop(other, None)
                put(name, name)
        for table in TABLES:
            for key, value in getattr(profile, table).items():
                option = option_of(table, key)
                options.pop(option, None)
                if value is not False:
                    options[option] = value
                put(source_key(option), table, key)
        for key, value in profile.env.items():
            env[key] = value
            put(f"env.{key}", "env", key)
        pair = profile.pd or pair
        for host, differs in profile.on.items():
            on[host] = _over(on.get(host), differs)
            put(f"on.{host}", "on", host)
        check = profile.check.over(check)
        for key in profile.check.model_fields_set:
            put(f"check.{kebab(key)}", "check", key)
    return Merged(layers[-1].name, layers, scalars, options, env, check, sources, on, pair)


def _over(base: OnHost | None, top: OnHost) -> OnHost:
    """One `[on.HOST]` laid over that of the base, key by key."""
    if base is None:
        return top
    changes = {name: getattr(top, name) for name in top.model_fields_set if name not in ("server", "env")}
    server = {option_of("server", key): value for key, value in base.server.items()}
    server.update({option_of("server", key): value for key, value in top.server.items()})
    return base.model_copy(update={**changes, "server": server, "env": {**base.env, **top.env}})


def _unset_on(item: str, on: dict[str, OnHost]) -> list[str]:
    """`unset = ["on"]` or `["on.HOST"]`."""
    table, _, host = item.partition(".")
    gone = [name for name in on if table == "on" and host in ("", name)]
    for name in gone:
        del on[name]
    return [f"on.{name}" for name in gone]


def _unset(
    item: str, scalars: dict[str, Any], options: dict[str, Any], env: dict[str, Any], check: CheckSettings
) -> tuple[list[str], CheckSettings]:
    """Takes one thing away. Returns the keys of `sources` that are gone; none: nothing was there."""
    table, _, key = item.partition(".")
    if not key and table in scalars:
        del scalars[table]
        return [table], check
    if table == "env":
        gone = [name for name in env if not key or name == key]
        for name in gone:
            del env[name]
        return [f"env.{name}" for name in gone], check
    if table == "check":
        fields = [f for f in check.model_fields_set if not key or f == key.replace("-", "_")]
        left = {f: getattr(check, f) for f in check.model_fields_set if f not in fields}
        return [f"check.{kebab(f)}" for f in fields], CheckSettings(**left)
    if table not in TABLES:
        return [], check
    if key:
        gone = [o for o in (option_of(table, key),) if o in options]
    else:
        gone = [o for o in options if key_of(o)[0] == table]
    for option in gone:
        del options[option]
    return [source_key(option) for option in gone], check
