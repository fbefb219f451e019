"""Lines of keys, and errors that say where."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdash.config import tomlfile
from specdash.errors import ConfigError

TEXT = '''
a = 1
"q.x" . b = "# no comment"
[hosts.gpu1]      # c
x = """
y = 3
"""
z = [ 1, # c
 {p = 1},
 3]
[[arr]]
n = '['
[[arr]]
n = { a = 1, b.c = [2] }
[arr.sub]
k = 2026-01-01T00:00:00Z
'''


def test_lines() -> None:
    lines = tomlfile.parse(TEXT, Path("f.toml")).lines
    expected = {
        ("a",): 2,
        ("q.x", "b"): 3,
        ("hosts", "gpu1"): 4,
        ("hosts", "gpu1", "x"): 5,
        ("hosts", "gpu1", "z"): 8,
        ("hosts", "gpu1", "z", 1, "p"): 9,
        ("hosts", "gpu1", "z", 2): 10,
        ("arr", 0, "n"): 12,
        ("arr", 1): 13,
        ("arr", 1, "n", "b", "c"): 14,
        ("arr", 1, "sub", "k"): 16,
    }
    assert {key: lines[key] for key in expected} == expected
    assert ("hosts", "gpu1", "y") not in lines


def test_where_falls_back_to_the_table_around() -> None:
    file = tomlfile.parse(TEXT, Path("f.toml"))
    assert file.where(("hosts", "gpu1", "gone")) == "f.toml:4"
    assert file.where(("none",)) == "f.toml"


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"a = 1\nb = \n", "f.toml:2:5"),
        (b"a = 1\na = 2\n", "f.toml:"),
        (b"a = '\xff'\n", "f.toml:1: not UTF-8"),
        (b"[x\n", "f.toml:1:3"),
    ],
)
def test_bad_toml_is_named_with_its_line(raw: bytes, words: str) -> None:
    Path("f.toml").write_bytes(raw)
    with pytest.raises(ConfigError) as caught:
        tomlfile.read(Path("f.toml"))
    assert words in caught.value.sentence


def test_missing_and_unreadable() -> None:
    for path in (Path("gone.toml"), Path(".")):
        with pytest.raises(ConfigError):
            tomlfile.read(path)
