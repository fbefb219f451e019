"""Pieces of files and process tables as they come from a host: JSON lines, samples, families. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def json_lines(data: bytes) -> tuple[Mapping[str, Any], ...]:
    """Whole JSON objects of a piece of a JSON-lines file; a torn first or last line is left out."""
    out = []
    for line in data.split(b"\n"):
        try:
            item = json.loads(line)
        except ValueError:
            continue
        if isinstance(item, dict):
            out.append(item)
    return tuple(out)


def by_tree(samples: tuple[Mapping[str, Any], ...]) -> Iterator[tuple[Mapping[str, Any], ...]]:
    """Samples in pieces that each end with a process table: who is missing now must have been seen before."""
    begin = 0
    for at, sample in enumerate(samples, 1):
        if "tree" in sample:
            yield samples[begin:at]
            begin = at
    if begin < len(samples) or not samples:
        yield samples[begin:]


def family(listed: tuple[Mapping[str, Any], ...], pids: set[int]) -> list[Mapping[str, Any]]:
    """Rows of `pids` and all their descendants."""
    by_parent: dict[Any, list[Mapping[str, Any]]] = {}
    for row in listed:
        by_parent.setdefault(row.get("ppid"), []).append(row)
    found = [row for row in listed if row.get("pid") in pids]
    queue = list(found)
    seen = {row.get("pid") for row in found}
    while queue:
        for child in by_parent.get(queue.pop().get("pid"), ()):
            if child.get("pid") not in seen:
                seen.add(child.get("pid"))
                found.append(child)
                queue.append(child)
    return found
