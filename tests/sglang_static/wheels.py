"""SGLang wheels for tests: from .wheels (or $SPECDASH_WHEELS), or from the package index where there is a network."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("SPECDASH_WHEELS") or ROOT / ".wheels")


class WheelTree:
    """A tree read straight from a wheel."""

    def __init__(self, wheel: Path) -> None:
        self._zip = zipfile.ZipFile(wheel)
        self._names: dict[str, set[str]] = {}
        for name in self._zip.namelist():
            parts = name.split("/")
            for i, part in enumerate(parts):
                self._names.setdefault("/".join(parts[:i]), set()).add(part)

    def read(self, path: str) -> bytes | None:
        try:
            return self._zip.read(path)
        except KeyError:
            return None

    def list(self, folder: str) -> list[str]:
        return sorted(self._names.get(folder.strip("/"), ()))


def cached() -> dict[str, Path]:
    """Version → wheel, of those that were downloaded."""
    return {file.name.split("-")[1]: file for file in sorted(FOLDER.glob("sglang-*.whl"))}


def wheel(version: str) -> Path | str:
    """The wheel of a version, downloaded once; or a sentence that says why there is none."""
    known = cached()
    if version in known:
        return known[version]
    FOLDER.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "-d",
        str(FOLDER),
        f"sglang=={version}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    known = cached()
    if version in known:
        return known[version]
    return f"sglang {version} could not be downloaded: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"


def unpacked(version: str, folder: Path) -> str:
    """Puts the Python files of a version into a folder; a sentence when there is no wheel of it."""
    found = wheel(version)
    if isinstance(found, str):
        return found
    with zipfile.ZipFile(found) as archive:
        names = [name for name in archive.namelist() if name.startswith("sglang/") and name.endswith(".py")]
        archive.extractall(folder, names)
    return ""


def library(name: str) -> Path | str:
    """A folder with a small package that SGLang's parser cannot do without, installed once beside the wheels."""
    folder = FOLDER / f"lib-{name}-{sys.version_info.major}.{sys.version_info.minor}"
    if not (folder / name).is_dir():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            return f"{name} could not be installed: {last}"
    return folder
