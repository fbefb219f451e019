"""What `rocm-smi` prints, as the same GPU dicts as nvidia-smi's. Pure. Python 3.8.

Read by `explain` and tests; the sampler does not ask AMD tools yet.
"""

from __future__ import annotations

import csv
import json
import re
from typing import List, Mapping, Optional

from .smi_text import Gpu, blank, number


def rocm(text: str) -> List[Gpu]:
    """GPUs from `rocm-smi … --json` or `--csv`; bytes become MiB."""
    try:
        data = json.loads(text[text.index("{") :])
        cards = [(k, v) for k, v in data.items() if isinstance(v, dict) and k.startswith("card")]
    except ValueError:
        table = csv.DictReader(line for line in text.splitlines() if "," in line)
        cards = [
            (row.get("device") or "", row) for row in table if (row.get("device") or "").startswith("card")
        ]
    return [_rocm_gpu(name, {str(k): str(v) for k, v in card.items()}) for name, card in cards]


def _rocm_gpu(card: str, cells: Mapping[str, str]) -> Gpu:
    gpu = blank(int(re.sub(r"\D", "", card) or 0))
    told = {key.lower(): value for key, value in cells.items()}

    def pick(*needles: str) -> Optional[float]:
        for key, value in told.items():
            if all(n in key for n in needles) and number(value) is not None:
                return number(value)
        return None

    total, used = pick("vram total memory (b)"), pick("vram total used memory (b)")
    gpu["memory_total_mib"] = None if total is None else total / 1048576
    gpu["memory_used_mib"] = None if used is None else used / 1048576
    gpu["utilisation_pct"] = pick("gpu use (%)")
    gpu["power_w"] = pick("power (w)")
    gpu["temperature_c"] = pick("temperature", "junction")
    if gpu["temperature_c"] is None:
        gpu["temperature_c"] = pick("temperature", "edge")
    gpu["uuid"] = told.get("unique id", "")
    gpu["name"] = told.get("card series") or told.get("card model", "")
    gpu["memory_kind"] = "own" if total else ""
    return gpu
