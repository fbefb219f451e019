"""tail -F semantics of the follower, over real files."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from specdash.host.remote.follow import Follower


class Reader:
    """Collects what a follower gives, per generation, and checks that offsets fit."""

    def __init__(self, path: Path, position: dict | None = None) -> None:
        self.follower = Follower(str(path), position)
        self.data: dict[int, bytearray] = {}
        self.start: dict[int, int] = {}
        self.gone: list[str] = []
        self.last: dict = {}

    def look(self, times: int = 4, limit: int = 1 << 20) -> Reader:
        for _ in range(times):
            for header, data in self.follower.step(limit):
                self.last = header
                self.gone.append(header["gone"])
                kept = self.data.setdefault(header["generation"], bytearray())
                start = self.start.setdefault(header["generation"], header["offset"])
                assert header["offset"] == start + len(kept), "a gap or an overlap"
                kept += data
        return self

    def position(self) -> dict:
        whole = self.data[self.last["generation"]]
        offset = self.start[self.last["generation"]] + len(whole)
        return {
            "offset": offset,
            "device": self.last["device"],
            "inode": self.last["inode"],
            "generation": self.last["generation"],
            "before": bytes(whole[-64:]).decode("latin-1"),
        }


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_bytes_are_exact_whatever_they_are(tmp_path: Path):
    log = tmp_path / "log"
    bad = b"\r\x1b[31m\0\0\xff\xfe caf\xe9 \xe6\xa8\n" + bytes(range(256))
    log.write_bytes(bad)
    reader = Reader(log).look()
    append(log, b"more")
    assert bytes(reader.look().data[0]) == bad + b"more"


def test_missing_then_there_then_missing_then_another(tmp_path: Path):
    log = tmp_path / "log"
    reader = Reader(log).look()
    assert len([word for word in reader.gone if word]) == 1, "said once, not at every look"
    log.write_bytes(b"one\n")
    reader.look()
    assert bytes(reader.data[0]) == b"one\n" and reader.last["gone"] == ""
    log.unlink()
    reader.look()
    assert "No such file" in reader.gone[-1]
    log.write_bytes(b"two\n")
    reader.look()
    assert bytes(reader.data[1]) == b"two\n"
    assert reader.gone[-1] == ""


def test_rotation_loses_nothing_also_what_is_still_written_to_the_old_name(tmp_path: Path):
    log, old = tmp_path / "log", tmp_path / "log.1"
    log.write_bytes(b"a" * 100)
    reader = Reader(log).look()
    append(log, b"b" * 50)
    log.rename(old)
    append(old, b"c" * 7)
    log.write_bytes(b"new")
    reader.look(6)
    assert bytes(reader.data[0]) == b"a" * 100 + b"b" * 50 + b"c" * 7
    assert bytes(reader.data[1]) == b"new"


def test_a_deleted_log_is_still_read_while_its_writer_writes(tmp_path: Path):
    log = tmp_path / "log"
    with log.open("wb", buffering=0) as writer:
        writer.write(b"one")
        reader = Reader(log).look()
        log.unlink()
        reader.look()
        writer.write(b"two")
        assert bytes(reader.look().data[0]) == b"onetwo"


def test_copytruncate_starts_a_generation(tmp_path: Path):
    log = tmp_path / "log"
    log.write_bytes(b"x" * 1000)
    reader = Reader(log).look()
    os.truncate(log, 0)
    reader.look()
    assert reader.last["generation"] == 1 and reader.last["size"] == 0
    append(log, b"fresh")
    assert bytes(reader.look().data[1]) == b"fresh"


def test_truncated_and_grown_past_the_offset_between_two_looks(tmp_path: Path):
    log = tmp_path / "log"
    log.write_bytes(b"old line\n" * 10)
    reader = Reader(log).look()
    os.truncate(log, 0)
    append(log, b"new line!\n" * 100)
    assert bytes(reader.look().data[1]) == b"new line!\n" * 100


@pytest.mark.parametrize("cut", [1, 64, 4096, 65537])
def test_resume_is_exact(tmp_path: Path, cut: int):
    log = tmp_path / "log"
    whole = random.Random(1).randbytes(200_000)
    log.write_bytes(whole)
    first = Reader(log).look(3, limit=cut)
    append(log, b"later")
    second = Reader(log, first.position()).look(10)
    assert bytes(first.data[0] + second.data[0]) == whole + b"later"
    assert second.last["generation"] == 0


def test_resume_after_a_rotation_reads_the_rest_of_the_old_file(tmp_path: Path):
    log = tmp_path / "log"
    log.write_bytes(b"seen ")
    position = Reader(log).look().position()
    append(log, b"unseen")
    log.rename(tmp_path / "log.1")
    log.write_bytes(b"new")
    reader = Reader(log, position).look(8)
    assert bytes(reader.data[0]) == b"unseen"
    assert bytes(reader.data[1]) == b"new"


def test_resume_on_a_reused_inode_number_is_another_file(tmp_path: Path):
    log = tmp_path / "log"
    log.write_bytes(b"the first run's log, all of it")
    position = Reader(log).look().position()
    # Same inode, other content: what a file system that reuses numbers gives.
    with log.open("r+b") as file:
        file.write(b"the other run's log, and it is longer than the first")
    reader = Reader(log, position).look()
    assert bytes(reader.data[1]) == b"the other run's log, and it is longer than the first"


def test_a_named_pipe_or_a_folder_does_not_hang(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        reader = Reader(tmp_path / name).look()
        assert "not a regular file" in reader.gone[-1]


def test_the_limit_is_kept(tmp_path: Path):
    log = tmp_path / "log"
    log.write_bytes(bytes(10_000))
    follower = Follower(str(log))
    follower.step(100)
    assert [len(data) for _, data in follower.step(100)] == [100]
