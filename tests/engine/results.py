"""What the suite of endings saw, as a page: docs/results/endings.md, written when SPECDASH_RESULTS names a folder.

Rows are kept by name, so that a part of the suite that is run again renews its own rows only.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

HEAD = "| what was done | cause named | what the operator reads | seconds | on |"


class Results:
    def __init__(self, python: str) -> None:
        self.python = python
        self.rows: dict[str, str] = {}

    def add(self, name: str, expected: str, found: str, told: str, took_s: float) -> None:
        cause = f"`{found}`" if found == expected else f"`{found}` (WRONG: expected `{expected}`)"
        # Folders of one run say nothing to a reader.
        text = re.sub(r" Its log says why: \S+/server\.log\.", "", " ".join(told.replace("|", "\\|").split()))
        text = text if len(text) <= 320 else text[:320].rsplit(" ", 1)[0] + " …"
        day = time.strftime("%Y-%m-%d", time.gmtime())
        self.rows[name] = f"| {name} | {cause} | {text} | {took_s:.0f} | {day} |"

    def write(self) -> None:
        """Called once, at the end of the module's tests."""
        folder = os.environ.get("SPECDASH_RESULTS")
        if not folder or not self.rows:
            return
        path = Path(folder) / "endings.md"
        rows = {**_old(path), **self.rows}
        good = sum("WRONG" not in row for row in rows.values())
        code = "import importlib.metadata as m; print(m.version('sglang'))"
        version = subprocess.run([self.python, "-c", code], capture_output=True, text=True).stdout.strip()
        lines = [
            "# Endings of a real engine",
            "",
            "Written by `tests/engine/test_endings.py`; the command is in [testing](../testing.md). Do not edit.",
            "",
            f"SGLang {version} on the CPU, launched by `specdash launch` over OpenSSH: {good} of {len(rows)} endings were "
            "named right. A row is written only after nothing was left of the run: no process, and its port free "
            "(where another program held the port: only that one).",
            "",
            HEAD,
            "| --- | --- | --- | --- | --- |",
            *(rows[name] for name in sorted(rows)),
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")


def _old(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    table = path.read_text().partition(HEAD)[2].splitlines()[2:]
    return {row.split(" | ")[0].removeprefix("| "): row for row in table if row.startswith("| ")}
