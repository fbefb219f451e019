"""Writes TOML that people will edit, and never over a file that is there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdash.errors import ConfigError


def profile_text(tables: Mapping[str, Any], comments: tuple[str, ...] = ()) -> str:
    """A profile as TOML: top keys first, tables after them, in the order given.

    `comments` are the lines on top, each without its `#`.
    """
    import tomlkit

    document = tomlkit.document()
    for key, value in tables.items():
        if not _is_table(key, value):
            document.add(_key(key), _item(value))
    for key, value in tables.items():
        if _is_table(key, value):
            table = tomlkit.table()
            for name, inner in value.items():
                table.add(_key(name), _item(inner))
            document.add(tomlkit.nl())
            document.add(key, table)
    top = "".join(f"#{''.join(c if c.isprintable() else '?' for c in line)}\n" for line in comments)
    return top + tomlkit.dumps(document)


def _is_table(key: str, value: Any) -> bool:
    return isinstance(value, Mapping) and key in ("server", "speculation", "env", "check")


def _key(name: str) -> Any:
    import tomlkit

    return tomlkit.key(name)


def _item(value: Any) -> Any:
    import tomlkit

    if isinstance(value, Mapping):
        table = tomlkit.inline_table()
        for name, inner in value.items():
            table.add(_key(name), _item(inner))
        return table
    if isinstance(value, list | tuple):
        array = tomlkit.array()
        for inner in value:
            array.append(_item(inner))
        return array
    return tomlkit.item(value)


def create(path: Path, text: str, *, replace: bool = False) -> None:
    """Writes a new file whole or not at all. Raises ConfigError when it is there and `replace` is not set."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not replace:
        raise ConfigError(f"{path} is there already.", "Choose another name, or say --force.")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        if replace:
            part.replace(path)
        else:
            os.link(part, path)
    except FileExistsError:
        raise ConfigError(f"{path} is there already.", "Choose another name, or say --force.") from None
    except OSError as problem:
        raise ConfigError(f"{path} cannot be written: {problem.strerror}.") from None
    finally:
        part.unlink(missing_ok=True)
