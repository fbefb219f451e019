"""From a profile to a `LaunchSpec`, and back from a `LaunchSpec` to the tables of a profile."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specdash.config import inherit
from specdash.config.inherit import Merged, source_key
from specdash.config.keys import key_of
from specdash.config.profile import DEFAULT_LAUNCHER, plain, reference_of, to_escapes
from specdash.config.secrets import is_secret_env, is_secret_option, store
from specdash.config.settings import LOCAL, Settings
from specdash.sglang.commandline import LaunchSpec, spoken, value_text
from specdash.sglang.shell_import import ShellLaunch


@dataclass(frozen=True, slots=True)
class Resolved:
    """A profile, ready to launch, with what is needed to explain it."""

    spec: LaunchSpec
    merged: Merged

    @property
    def name(self) -> str:
        return self.merged.name


def resolve(name_or_path: str, settings: Settings) -> LaunchSpec:
    """The launch that a profile means. Raises ConfigError with file, line, key; HostUnknown for its host."""
    return load(name_or_path, settings).spec


def load(name_or_path: str, settings: Settings) -> Resolved:
    """Same as `resolve`, with layers, thresholds and the file and line of every value."""
    merged = inherit.load(name_or_path)
    return Resolved(to_spec(merged, settings), merged)


def to_spec(merged: Merged, settings: Settings) -> LaunchSpec:
    """The launch that merged layers mean. The host is not looked up here: a profile may be read anywhere."""
    flags: list[tuple[str, Any]] = []
    secret_flags: dict[str, str] = {}
    for option, value in merged.options.items():
        reference = reference_of(value) or (
            str(plain(value)) if is_secret_option(option) and value != "" else ""
        )
        if reference:
            secret_flags[option] = reference
        else:
            flags.append((option, plain(value)))
    env: dict[str, str] = {}
    secret_env: dict[str, str] = {}
    for name, value in merged.env.items():
        reference = reference_of(value) or (str(plain(value)) if is_secret_env(name) and value != "" else "")
        if reference:
            secret_env[name] = reference
        else:
            env[name] = value_text(plain(value))
    algorithm, drafter = spoken(tuple(flags))
    hosts = settings.expand(tuple(merged.scalars.get("hosts") or ()))
    own_host = merged.scalars.get("host") or settings.defaults.host or LOCAL
    parts = merged.pd
    pair = tuple(p.host or own_host for p in (parts.router, parts.prefill, parts.decode)) if parts else ()
    spec = LaunchSpec(
        profile=merged.name,
        host=hosts[0] if hosts else own_host,
        python=merged.scalars.get("python") or settings.defaults.python or "python3",
        launcher=_launcher(merged),
        flags=tuple(flags),
        env=env,
        cwd=merged.scalars.get("cwd", ""),
        log=merged.scalars.get("log", ""),
        secret_flags=secret_flags,
        secret_env=secret_env,
        algorithm=algorithm,
        drafter=drafter,
        wrapper=tuple(merged.scalars.get("wrapper", ())),
        hosts=pair or (hosts if len(hosts) > 1 else ()),
    )
    try:
        spec.http()
    except ValueError:
        raise merged.error(
            source_key("--port"), "port must be a number from 1 to 65535.", "Write port = 30000."
        ) from None
    return spec


def _launcher(merged: Merged) -> tuple[str, ...]:
    given = merged.scalars.get("launcher", DEFAULT_LAUNCHER)
    if not isinstance(given, str):
        return tuple(given)
    try:
        words = tuple(shlex.split(given))
    except ValueError:
        words = ()
    if not words:
        raise merged.error(
            "launcher", f'launcher "{given}" cannot be split into words.', "Write a list of words."
        )
    return words


def to_tables(spec: LaunchSpec) -> dict[str, Any]:
    """The profile that resolves to `spec`, as data for TOML: exact, and without `extends`.

    An option that is there twice keeps its last value, as argparse does.
    """
    where: dict[str, Any] = {"hosts": list(spec.hosts)} if spec.hosts else {"host": spec.host}
    out: dict[str, Any] = {**where, "python": toml_text(spec.python)}
    launcher = " ".join(spec.launcher)
    if launcher != DEFAULT_LAUNCHER:
        plain_words = launcher == "sglang serve"
        out["launcher"] = launcher if plain_words else toml_value(spec.launcher)
    if spec.wrapper:
        out["wrapper"] = toml_value(spec.wrapper)
    for name in ("cwd", "log"):
        if getattr(spec, name):
            out[name] = toml_text(getattr(spec, name))
    tables: dict[str, dict[str, Any]] = {"server": {}, "speculation": {}}
    options: dict[str, Any] = {}
    for option, value in spec.flags:
        options.pop(option, None)
        options[option] = value
    for option, reference in spec.secret_flags.items():
        options[option] = toml_text(reference) if is_secret_option(option) else {"ref": toml_text(reference)}
    for option, value in options.items():
        table, key = key_of(option)
        tables[table][key] = toml_value(value)
    env: dict[str, Any] = {name: toml_text(value) for name, value in spec.env.items()}
    for name, reference in spec.secret_env.items():
        env[name] = toml_text(reference) if is_secret_env(name) else {"ref": toml_text(reference)}
    out.update({name: table for name, table in (*tables.items(), ("env", env)) if table})
    return out


def with_stored_secrets(found: ShellLaunch, folder: Path, name: str) -> LaunchSpec:
    """The spec of an imported line, each secret that was in it moved to its own 0600 file in `folder`."""
    flags = {
        option: store(folder, f"{name}-{option.lstrip('-')}", v) for option, v in found.literal_flags.items()
    }
    env = {
        variable: store(folder, f"{name}-{variable}", value) for variable, value in found.literal_env.items()
    }
    spec = found.spec
    return replace(spec, secret_flags={**spec.secret_flags, **flags}, secret_env={**spec.secret_env, **env})


def toml_value(value: Any) -> Any:
    """A flag's value as TOML holds it. Text that is not UTF-8 becomes `{ bytes = … }`."""
    if isinstance(value, str):
        return toml_text(value)
    if isinstance(value, (list, tuple)):
        return [toml_value(item) for item in value]
    return value


def toml_text(text: str) -> Any:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return {"bytes": to_escapes(text)}
    return text
