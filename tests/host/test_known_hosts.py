from __future__ import annotations

import os
import stat
from pathlib import Path

import asyncssh
import pytest

from specdash.host import knownhosts

KEY = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()


@pytest.mark.parametrize(
    ("patterns", "host", "port", "hit"),
    [
        ("box", "box", 22, True),
        ("BOX", "box", None, True),
        ("[box]:2222", "box", 2222, True),
        ("[box]:2222", "box", 22, False),
        ("box", "box", 2222, True),
        ("*.lab,!bad.lab", "good.lab", 22, True),
        ("*.lab,!bad.lab", "bad.lab", 22, False),
        ("[*.lab]:22?", "x.lab", 221, True),
        ("box,10.0.0.1", "10.0.0.1", 22, True),
        ("|1|broken", "box", 22, False),
    ],
)
def test_patterns(tmp_path: Path, patterns: str, host: str, port: int | None, hit: bool):
    file = tmp_path / "known"
    file.write_text(f"# comment\n\n{patterns} {KEY} remark\nbox ssh-ed25519 not-base64!\n")
    found = knownhosts.lookup([str(tmp_path / "none"), str(file)], host, port)
    assert bool(found) is hit
    if hit:
        assert (found[0].path, found[0].line, found[0].marker, found[0].text) == (str(file), 3, "", KEY)


def test_markers_are_told_apart(tmp_path: Path):
    file = tmp_path / "known"
    file.write_text(f"@cert-authority *.lab {KEY}\n@revoked * {KEY}\n")
    assert [e.marker for e in knownhosts.lookup([str(file)], "a.lab", 22)] == ["cert-authority", "revoked"]


def test_remembering_keeps_what_is_there_and_follows_links(tmp_path: Path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("one")
    link.symlink_to(real)
    assert knownhosts.remember(str(link), "two")
    assert link.is_symlink() and real.read_text() == "one\ntwo\n"
    assert stat.S_IMODE(real.stat().st_mode) == 0o600
    new = tmp_path / "deep" / "known_hosts"
    assert knownhosts.remember(str(new), "x") and new.read_text() == "x\n"
    assert stat.S_IMODE(new.parent.stat().st_mode) == 0o700
    assert os.listdir(new.parent) == ["known_hosts"]


def test_dev_null_is_never_replaced():
    assert not knownhosts.remember(os.devnull, "x")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
