"""Which product function answers which kind of case. The mapping itself is in `kind_*.py`, one file a kind.

A kind's function gets a `Case` and returns what the product concludes, in the words of the cases: only keys that
it maps. It never sees `expect`, an id, or the group. All `kind_*.py` and this file together stay below 150 lines.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Case:
    """One case's inputs, as the product would be given them."""

    kind: str
    context: dict[str, Any]
    inputs: tuple[Path, ...]

    def data(self, index: int = 0) -> bytes:
        return self.inputs[index].read_bytes()

    def json(self, index: int = 0) -> Any:
        return json.loads(self.data(index))

    def part(self, index: int = 0) -> str:
        """What the file is, without the case's own name: `C304.spec_info.py` → `spec_info.py`."""
        return self.inputs[index].name.partition(".")[2]


Answer = dict[str, Any]
ANSWERS: dict[str, list[Callable[[Case], Answer | None]]] = {}


def answers(*kinds: str) -> Callable[[Callable[[Case], Answer | None]], Callable[[Case], Answer | None]]:
    """Registers a function for kinds. None from it means: not this shape of input; the next one is asked."""

    def register(function: Callable[[Case], Answer | None]) -> Callable[[Case], Answer | None]:
        for kind in kinds:
            ANSWERS.setdefault(kind, []).append(function)
        return function

    return register


def answer(case: Case) -> Answer | None:
    """The product's answer; None when no function takes this case."""
    for function in ANSWERS.get(case.kind, []):
        found = function(case)
        if found is not None:
            return found
    return None


def load() -> None:
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module.name.startswith("kind_"):
            importlib.import_module(f"tests.cases.{module.name}")
