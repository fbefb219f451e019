"""Flag tables of released SGLangs, as our own reader read them from the wheels (tests/data/flag_tables)."""

from __future__ import annotations

import functools
import gzip
import json
from pathlib import Path

from specdash.sglang import flags
from specdash.sglang.versions import release

FOLDER = Path(__file__).parents[1] / "data" / "flag_tables"


@functools.lru_cache(maxsize=4)
def flag_table(version: str) -> flags.FlagTable:
    """The table of this version, else of the newest one before it; of the newest when there is none."""
    known = sorted((release(f.name[:-8]) or (), f) for f in FOLDER.glob("*.json.gz"))
    wanted = release(version)
    fitting = [f for number, f in known if wanted is None or number <= wanted]
    file = fitting[-1] if fitting else known[0][1]
    return flags.from_json(json.loads(gzip.decompress(file.read_bytes())))
