"""The registry of known-bad combinations: each entry can hold, says its source, and holds only for its versions."""

from __future__ import annotations

from typing import Any

import pytest

from specdash.sglang import known_bad
from specdash.sglang.known_bad import Bad


def launch_of(bad: Bad) -> tuple[str, str, list[tuple[str, Any]], dict[str, str]]:
    """A launch that meets every condition of an entry."""
    version = bad.first or bad.last or "0.5.9"
    flags: dict[str, Any] = dict.fromkeys(bad.flags, True)
    flags.update({flag: values[0] for flag, values in bad.values})
    if bad.above_one:
        flags[bad.above_one[0]] = 2
    env = {name: values[0] for name, values in bad.env}
    return version, bad.algorithms[0] if bad.algorithms else "EAGLE", list(flags.items()), env


@pytest.mark.parametrize("bad", known_bad.REGISTRY, ids=lambda b: b.id)
def test_each_entry_can_hold(bad: Bad) -> None:
    version, algorithm, flags, env = launch_of(bad)
    assert bad in known_bad.find(version, algorithm, flags, env)
    assert bad.source and bad.advice and bad.status in ("warn", "block")
    if bad.first:
        assert bad not in known_bad.find("0.3.0", algorithm, flags, env)
    if bad.last:
        assert bad not in known_bad.find("9.9", algorithm, flags, env)
    if flags:
        assert bad not in known_bad.find(version, algorithm, [], env)
    for name in bad.without:
        assert bad not in known_bad.find(version, algorithm, [*flags, (name, True)], env)
    for name in bad.env_without:
        assert bad not in known_bad.find(version, algorithm, flags, {**env, name: "1"})


def test_ids_are_unique_and_a_plain_launch_meets_none() -> None:
    assert len({bad.id for bad in known_bad.REGISTRY}) == len(known_bad.REGISTRY)
    assert known_bad.find("0.5.23", "", [("--enable-metrics", True)], {}) == []
