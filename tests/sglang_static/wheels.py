"""SGLang wheels for tests: from .wheels, or from the package index where there is a network."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".wheels"


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
    """Version → wheel, of those that lie in .wheels."""
    return {file.name.split("-")[1]: file for file in sorted(FOLDER.glob("sglang-*.whl"))}


def wheel(version: str) -> Path | str:
    """The wheel of a version, downloaded once; or a sentence that says why there is none."""
    known = cached()
    if version in known:
        return known[version]
    FOLDER.mkdir(exist_ok=True)
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
