"""Where the operator's files are. The same XDG places on Linux and macOS, as terminal programs do.

`SPECDASH_CONFIG` names another config file; profiles and secrets are then beside that one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from platformdirs.api import PlatformDirsABC


def config_file() -> Path:
    """`$SPECDASH_CONFIG`, or `~/.config/specdash/config.toml`. It need not exist."""
    named = os.environ.get("SPECDASH_CONFIG", "")
    return Path(named).expanduser() if named else _dirs().user_config_path / "config.toml"


def config_dir() -> Path:
    """The folder of the config file."""
    return config_file().parent


def secrets_dir() -> Path:
    """Where `profile import` moves secret values to."""
    return config_dir() / "secrets"


def data_dir() -> Path:
    """The index over runs."""
    return Path(_dirs().user_data_path)


def state_dir() -> Path:
    """Traces of unexpected errors, spilled logs."""
    return Path(_dirs().user_state_path)


def packaged_profiles() -> Path | None:
    """Profiles that came with specdash: in the wheel, or in the checkout that this runs from."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "_profiles", package.parent / "profiles"):
        if folder.is_dir():
            return folder
    return None


def profile_dirs() -> tuple[Path, ...]:
    """Where profiles are looked for by name, first found wins: `./profiles`, the config folder's, our own.

    `SPECDASH_PROFILES` names other folders instead (several by a colon), for who wants no `./profiles` to come first.
    """
    ours = packaged_profiles()
    named = [
        Path(part).expanduser() for part in os.environ.get("SPECDASH_PROFILES", "").split(os.pathsep) if part
    ]
    folders = named or [Path("profiles"), config_dir() / "profiles", *([ours] if ours else [])]
    seen: list[Path] = []
    for folder in folders:
        if folder.is_dir() and not any(folder.samefile(other) for other in seen):
            seen.append(folder)
    return tuple(seen)


def _dirs() -> PlatformDirsABC:
    from platformdirs.unix import Unix  # 10 ms that `--version` does not need

    return Unix("specdash", appauthor=False)
