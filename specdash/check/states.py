"""The states of the Monitoring Plugins contract, and one thing found. Light: nothing heavy is imported for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class State(IntEnum):
    """The Monitoring Plugins contract."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


_ORDER = (State.OK, State.WARNING, State.UNKNOWN, State.CRITICAL)


@dataclass(frozen=True, slots=True)
class Finding:
    state: State
    name: str
    """Short stable word: link, gpu, memory, disk, clock, run, health, verdict, threshold, …"""
    sentence: str
    evidence: tuple[str, ...] = ()
    step: str = ""


def worst(states: Iterable[State]) -> State:
    """CRITICAL before UNKNOWN before WARNING before OK; OK of nothing."""
    return max(states, key=_ORDER.index, default=State.OK)
