"""What every kind of case needs: its inputs, and tables of words. Knows no case and no product."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Answer = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One case's inputs, by what the file is without the case's own name: `C304.spec_info.py` → `spec_info.py`."""

    kind: str
    context: Mapping[str, Any]
    inputs: tuple[Path, ...]

    def files(self, ending: str = "") -> dict[str, bytes]:
        return {
            path.name.partition(".")[2]: path.read_bytes()
            for path in self.inputs
            if path.name.endswith(ending)
        }

    def jsons(self) -> list[Any]:
        return [json.loads(data) for data in self.files("json").values()]

    def texts(self) -> list[str]:
        return [data.decode("utf-8", "replace") for data in self.files().values()]


def at(value: Any, path: str) -> Any:
    for step in path.split("."):
        if step == "*":
            return [at(item, path.partition("*.")[2]) for item in value or ()]
        key: Any = int(step) if step.isdigit() else step
        try:
            value = (
                value[key]
                if isinstance(value, (Mapping, list, tuple)) and step != "_asdict"
                else getattr(value, step)
            )
        except (KeyError, IndexError, AttributeError, TypeError):
            value = getattr(value, step, None)
    value = value() if callable(value) else value
    return list(value) if isinstance(value, tuple) else value


def words(answer: Any, table: str) -> Answer:
    """`word=path word=path`, a word alone is its own path."""
    return {
        word: at(answer, path or word) for word, _, path in (pair.partition("=") for pair in table.split())
    }
