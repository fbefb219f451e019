"""A launch profile as the operator wrote it: one TOML file, one model. Inheritance is `config.inherit`.

    extends = "kimi-k2.5-base"
    unset = ["server.log-level"]

    [speculation]
    algorithm = "EAGLE3"
    draft-model-path = "/data/eagle3/drafter"

Values of `[server]` and `[speculation]`: true is a switch, false leaves the switch out, text and numbers are
one value, a list is one option with several values (a list of lists repeats the option), a table is one JSON
value. `{ ref = "env:NAME" }` is a secret by reference; `{ bytes = "caf\\xe9" }` is text with bytes that are
not UTF-8, `\\xNN` each.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from specdash.config.keys import option_of
from specdash.config.secrets import is_reference, is_secret_env, is_secret_option
from specdash.config.thresholds import CheckSettings
from specdash.config.tomlfile import Key, TomlFile, dotted
from specdash.config.validate import load as load_model

DEFAULT_LAUNCHER = "-m sglang.launch_server"
TABLES = ("server", "speculation")
_SECRET_STEP = 'Write a reference instead: "env:NAME", "file:PATH" (here) or "host-file:PATH" (on the host).'


class BytesText(BaseModel):
    """Text with bytes that are not UTF-8."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bytes: str = Field(description=r"The text, each such byte as \\xNN; a backslash is doubled.")


def _host_text(value: object) -> str:
    found = plain(value)
    if not isinstance(found, str):
        raise ValueError("must be text")
    if "\0" in found:
        raise ValueError("has a NUL: no command line can carry that")
    return found


HostText = Annotated[str, PlainValidator(_host_text, json_schema_input_type=str | BytesText)]
"""Text that may hold any byte but NUL; pydantic's own `str` refuses surrogates."""


class OnHost(BaseModel):
    """`[on.HOST]`: what is different on one host of `hosts` (or on every host of a group of the config)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    python: HostText | None = Field(default=None, description="Interpreter on this host.")
    cwd: HostText | None = Field(default=None, description="Working directory on this host.")
    log: HostText | None = Field(default=None, description="Path that becomes a symlink to the log here.")
    interface: str | None = Field(
        default=None, min_length=1, description="Network interface of this host for the ranks' traffic."
    )
    address: str | None = Field(
        default=None, min_length=1, description="Address of this host that the other ranks reach."
    )
    server: dict[str, Any] = Field(
        default_factory=dict, description="SGLang's own options that differ on this host, e.g. paths."
    )
    env: dict[str, Any] = Field(default_factory=dict, description="Environment that differs on this host.")


class Part(OnHost):
    """`[pd.prefill]`, `[pd.decode]`, `[pd.router]`: one part of a prefill/decode pair."""

    host: str | None = Field(default=None, description="Where it runs; the profile's host when not given.")


class Pair(BaseModel):
    """`[pd]`: prefill and decode as two servers, with SGLang's router before them, as one run of three parts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prefill: Part = Field(default_factory=Part, description="The server that prefills.")
    decode: Part = Field(default_factory=Part, description="The server that decodes.")
    router: Part = Field(
        default_factory=Part, description="sglang_router; it has the profile's port, and its own options."
    )


class Profile(BaseModel):
    """One profile file, before inheritance."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    description: str = Field(default="", description="One line for people.")
    extends: str | None = Field(
        default=None, description="Profile that this one starts from: a name, or a path."
    )
    unset: tuple[str, ...] = Field(
        default=(),
        description='What of the base not to take over: "server.log-level", "speculation", "env.NAME".',
    )
    host: str | None = Field(default=None, description="Host to launch on.")
    hosts: tuple[str, ...] | None = Field(
        default=None,
        description="One server over several hosts (or groups of the config): rank 0 on the first, and so on.",
    )
    interface: str | None = Field(
        default=None, min_length=1, description="Network interface of the ranks' traffic, on all hosts."
    )
    on: dict[str, OnHost] = Field(
        default_factory=dict, description="What differs on one of `hosts`, by host or group."
    )
    python: HostText | None = Field(
        default=None, description="Interpreter on the host, whose SGLang is launched."
    )
    launcher: HostText | tuple[HostText, ...] | None = Field(
        default=None,
        description='"-m sglang.launch_server" (the default) or "sglang serve"; a list for odd words.',
    )
    wrapper: tuple[HostText, ...] | None = Field(
        default=None, description='Command in front of the interpreter, e.g. ["numactl", "--interleave=all"].'
    )
    cwd: HostText | None = Field(
        default=None, description="Working directory on the host; the user's home when not given."
    )
    log: HostText | None = Field(
        default=None, description="Path on the host that becomes a symlink to the run's log."
    )
    pd: Pair | None = Field(
        default=None, description="A prefill/decode pair with SGLang's router, as one run of three parts."
    )
    server: dict[str, Any] = Field(
        default_factory=dict, description="SGLang's own options without their dashes, kebab or snake."
    )
    speculation: dict[str, Any] = Field(
        default_factory=dict, description="SGLang's options that begin with --speculative-, without that."
    )
    env: dict[str, Any] = Field(default_factory=dict, description="Environment of the engine.")
    check: CheckSettings = Field(default_factory=CheckSettings, description="Thresholds of this profile.")


def load(file: TomlFile) -> Profile:
    """The profile in a file. Raises ConfigError with file, line and key."""
    profile = load_model(Profile, file, "SGLang's own options go under [server] or [speculation].")
    for table in TABLES:
        _options(file, (table,), table, getattr(profile, table))
    for name, value in profile.env.items():
        _env_value(file, ("env",), name, value)
    for field in ("python", "launcher", "hosts"):
        if getattr(profile, field) in ("", ()):
            raise file.error((field,), f"{field} is empty.")
    if profile.host is not None and profile.hosts is not None:
        raise file.error(("hosts",), "host and hosts are both given.", "Keep one of them.")
    for host, other in profile.on.items():
        _differs(file, ("on", host), other)
    if profile.pd is not None:
        if profile.hosts is not None:
            raise file.error(("pd",), "pd and hosts are both given.", "Each part of a pair has one host.")
        for part in ("prefill", "decode", "router"):
            _differs(file, ("pd", part), getattr(profile.pd, part))
    return profile


def _differs(file: TomlFile, at: Key, other: OnHost) -> None:
    _options(file, (*at, "server"), "server", other.server)
    for name, value in other.env.items():
        _env_value(file, (*at, "env"), name, value)


def _options(file: TomlFile, at: Key, table: str, given: dict[str, Any]) -> None:
    seen: dict[str, str] = {}
    for key, value in given.items():
        option = option_of(table, key)
        if not re.match(r"--?[^-\s=][^\s=]*\Z", option) or not option.isprintable():
            raise file.error((*at, key), f'"{key}" cannot be an option of SGLang.')
        if option in seen:
            raise file.error((*at, key), f'{option} is given twice, as "{seen[option]}" and as "{key}".')
        seen[option] = key
        _flag_value(file, (*at, key), option, value)


def plain(value: Any) -> Any:
    """A value as it is launched: `{ bytes = … }` becomes text with surrogates, floats that are whole stay so."""
    if isinstance(value, dict) and set(value) == {"bytes"}:
        return from_escapes(str(value["bytes"]))
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def reference_of(value: Any) -> str:
    """The secret reference that a value is, by `{ ref = … }`; else empty."""
    return str(plain(value["ref"])) if isinstance(value, dict) and set(value) == {"ref"} else ""


def from_escapes(text: str) -> str:
    r"""`caf\xe9` → text whose bytes are those (surrogates where not UTF-8). `\\` is a backslash."""
    raw = re.sub(
        rb"\\(?:x([0-9A-Fa-f]{2})|\\)",
        lambda m: bytes([int(m.group(1), 16)]) if m.group(1) else b"\\",
        text.encode("utf-8", "surrogateescape"),
    )
    return raw.decode("utf-8", "surrogateescape")


def to_escapes(text: str) -> str:
    r"""The other way: surrogates become `\xNN`, backslashes are doubled."""
    return "".join(
        "\\\\" if c == "\\" else f"\\x{ord(c) - 0xDC00:02x}" if 0xDC80 <= ord(c) <= 0xDCFF else c
        for c in text
    )


def _flag_value(file: TomlFile, key: Key, option: str, value: Any) -> None:
    reference = reference_of(value)
    if is_secret_option(option) and value not in (False, ""):
        if not (is_reference(reference) or is_reference(plain(value))):
            raise file.error(key, f'"{dotted(key)}" is a secret, and profiles hold no secrets.', _SECRET_STEP)
        return
    if isinstance(value, dict) and "ref" in value and set(value) == {"ref"} and not is_reference(reference):
        raise file.error(key, f'"{dotted(key)}": ref is no reference.', _SECRET_STEP)
    if isinstance(value, dict) and not reference and set(value) != {"bytes"}:
        _json(file, key, value)
    elif isinstance(value, list):
        nested = [isinstance(item, list) for item in value]
        if any(nested) and not all(nested):
            raise file.error(key, f'"{dotted(key)}" mixes lists and values.')
        for at, item in enumerate(value):
            for inner in item if isinstance(item, list) else [item]:
                _word(file, (*key, at), inner)
                if isinstance(inner, str) and re.match(r"-(?!\d+\Z|\d*\.\d+\Z).", inner):
                    raise file.error(
                        (*key, at), f'"{inner}" in a list would be read as an option of its own.'
                    )
    elif not isinstance(value, bool) and not reference:
        _word(file, key, value)


def _word(file: TomlFile, key: Key, value: Any) -> None:
    if isinstance(value, dict) and set(value) == {"bytes"} and isinstance(value["bytes"], str):
        value = from_escapes(value["bytes"])
    if isinstance(value, str):
        _text(file, key, value)
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise file.error(key, f'"{dotted(key)}" must be text or a number.', "Put quotes around it.")


def _text(file: TomlFile, key: Key, value: str) -> None:
    if "\0" in value:
        raise file.error(key, f'"{dotted(key)}" has a NUL: no command line can carry that.')


def _json(file: TomlFile, key: Key, value: Any) -> None:
    if isinstance(value, dict):
        for name, item in value.items():
            _json(file, (*key, name), item)
    elif isinstance(value, list):
        for at, item in enumerate(value):
            _json(file, (*key, at), item)
    elif not isinstance(value, str | int | float | bool):
        raise file.error(key, f'"{dotted(key)}" is a date: JSON has none.', "Put quotes around it.")


def _env_value(file: TomlFile, at: Key, name: str, value: Any) -> None:
    key: Key = (*at, name)
    if not name or "=" in name or "\0" in name:
        raise file.error(key, f'"{name}" cannot be the name of a variable.')
    reference = reference_of(value)
    if is_secret_env(name) and value != "":
        if not (is_reference(reference) or is_reference(plain(value))):
            raise file.error(key, f'"{dotted(key)}" is a secret, and profiles hold no secrets.', _SECRET_STEP)
    elif isinstance(value, bool):
        raise file.error(
            key, f'"{dotted(key)}" must be text or a number.', 'Write "1", "true" or what it reads.'
        )
    elif isinstance(value, dict) and set(value) == {"ref"}:
        if not is_reference(reference):
            raise file.error(key, f'"{dotted(key)}": ref is no reference.', _SECRET_STEP)
    else:
        _word(file, key, value)
