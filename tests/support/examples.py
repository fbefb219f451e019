"""How many examples hypothesis tries: a fifth on a stranger's first run, all of them in `.ci/run` (SPECDASH_THOROUGH=1)."""

from __future__ import annotations

import os


def examples(most: int) -> int:
    return most if os.environ.get("SPECDASH_THOROUGH") else max(6, most // 5)
