"""For all tests: bytecode is kept, as on any machine that does not forbid it (every `specdash` child then starts faster)."""

from __future__ import annotations

import os
import sys

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
