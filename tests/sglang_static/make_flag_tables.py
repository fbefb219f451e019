"""Writes tests/data/flag_tables from the wheels in .wheels: `python tests/sglang_static/make_flag_tables.py`."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from specdash.sglang import flags  # noqa: E402
from tests.sglang_static.wheels import WheelTree, cached  # noqa: E402


def table_of(tree: WheelTree) -> dict[str, object]:
    """The reader's own JSON, without help texts (they are SGLang's sentences) and places."""
    found = flags.as_json(flags.read(tree), with_help=False)
    for entry in found.values():
        for key in ("path", "line", "deprecated"):
            entry[key] = {"path": "", "line": 0, "deprecated": "deprecated" if entry["deprecated"] else ""}[
                key
            ]
        entry["stops"] = "refused" if entry["stops"] else ""
    return found


if __name__ == "__main__":
    for version, wheel in cached().items():
        data = json.dumps(table_of(WheelTree(wheel)), separators=(",", ":"), sort_keys=True).encode()
        file = ROOT / "tests" / "data" / "flag_tables" / f"{version}.json.gz"
        file.write_bytes(gzip.compress(data, 9, mtime=0))
        print(version, file.stat().st_size)
