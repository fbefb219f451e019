"""The log store: exact bytes, lines by number, search both ways, a million lines."""

from __future__ import annotations

import hashlib
import os
import re
import time
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specdash.monitor import logstore
from specdash.monitor.logstore import LogStore, sweep
from tests.support.examples import examples

pieces = st.lists(
    st.one_of(
        st.binary(max_size=60),
        st.integers(0, 100).map(lambda n: b"x\n" * n),
        st.sampled_from([b"\n", b"\r", b"a\nb"]),
    ),
    max_size=12,
)


@settings(
    max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(pieces, st.sampled_from([16, 64, logstore.BLOCK]))
def test_it_is_the_same_as_splitting_the_whole(tmp_path: Path, parts: list[bytes], block: int) -> None:
    with mock.patch.object(logstore, "BLOCK", block):
        check_against_split(tmp_path, parts)


def check_against_split(tmp_path: Path, parts: list[bytes]) -> None:
    store = LogStore("h", "r", tmp_path)
    try:
        for part in parts:
            store.append(part)
        whole = b"".join(parts)
        lines = whole.split(b"\n")
        if lines[-1] == b"":
            lines.pop()
        assert store.size == len(whole)
        assert store.line_count == len(lines)
        assert [store.line(i) for i in range(len(lines))] == lines
        assert store.lines(0, len(lines) + 5) == lines
        assert store.sha256() == hashlib.sha256(whole).hexdigest()
        for index in range(len(lines)):
            assert store.line_at(store.line_offset(index)) == index
        for direction in (1, -1):
            order = range(len(lines)) if direction > 0 else range(len(lines) - 1, -1, -1)
            want = next((i for i in order if re.search(rb"b$", lines[i])), None)
            start = 0 if direction > 0 else len(lines) - 1
            assert store.search(rb"b$", start, direction) == want
        with pytest.raises(IndexError):
            store.line(len(lines))
    finally:
        store.close()


def test_a_million_lines_stay_fast_and_small(tmp_path: Path) -> None:
    store = LogStore("h", "r", tmp_path)
    block = b"".join(b"[2026-05-04 10:00:00 TP0] Decode batch, number %d of many\n" % i for i in range(1000))
    began = time.process_time()
    for _ in range(1000):
        store.append(block)
    took = time.process_time() - began
    assert store.line_count == 1_000_000
    assert took < 10
    began = time.monotonic()
    for index in range(0, 1_000_000, 5000):
        assert store.line(index + 7) == b"[2026-05-04 10:00:00 TP0] Decode batch, number 7 of many"
    assert (time.monotonic() - began) / 200 < 0.01
    assert store._before.itemsize * len(store._before) < store.size / 1000
    store.close()


def test_the_spill_file_is_private_and_goes_away(tmp_path: Path) -> None:
    store = LogStore("h/../x", "r\n", tmp_path)
    assert store.path.parent == tmp_path
    assert store.path.stat().st_mode & 0o777 == 0o600
    store.close()
    assert not store.path.exists()


def test_what_a_killed_specdash_left_is_swept(tmp_path: Path) -> None:
    store = LogStore("h", "r", tmp_path)
    dead = tmp_path / "h.r.4194303.log"
    dead.write_bytes(b"x")
    other = tmp_path / "notes.txt"
    other.write_bytes(b"x")
    assert sweep(tmp_path) == [dead.name]
    assert store.path.exists() and other.exists()
    assert str(os.getpid()) in store.path.name
    store.close()
