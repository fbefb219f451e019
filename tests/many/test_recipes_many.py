"""docs/many-hosts.md and docs/recipes: every specdash line parses, every TOML is valid, and what the aliases rest on holds."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

from specdash import cli
from specdash.config import inherit
from specdash.config.settings import Settings, load

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / "many-hosts.md", *sorted((DOCS / "recipes").glob("*.md"))]


def blocks(page: Path, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_specdash_line_parses(page: Path) -> None:
    lines = [
        line for block in blocks(page, "sh") for line in block.splitlines() if line.startswith("specdash ")
    ]
    assert lines
    for line in lines:
        verb, rest, _ = cli._split(shlex.split(line)[1:])
        assert verb is not None, line
        cli.verb_parser(verb).parse_args(rest)


def test_the_profile_and_the_config_are_valid(tmp_path: Path) -> None:
    profile, pair = blocks(DOCS / "many-hosts.md", "toml")
    (tmp_path / "kimi-pd.toml").write_text(pair)
    assert inherit.load(str(tmp_path / "kimi-pd.toml")).pd is not None
    (tmp_path / "kimi-2x8.toml").write_text(profile)
    found = inherit.load(str(tmp_path / "kimi-2x8.toml"))
    assert found.scalars["hosts"] == ("gpu1", "gpu2") and found.on["gpu2"].interface == "ib1"
    (config,) = blocks(DOCS / "recipes" / "slurm.md", "toml")
    (tmp_path / "config.toml").write_text(config)
    assert load(tmp_path / "config.toml").expand(["gpu"]) == ("node01", "node02")


def test_slurms_list_of_hosts_becomes_one_word() -> None:
    done = subprocess.run(
        ["sh", "-c", "printf 'node01\\nnode02\\n' | paste -sd, -"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "node01,node02"


def test_an_alias_that_skypilot_wrote_is_a_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`Include ~/.sky/generated/ssh/*`, as `sky launch` adds it on top of the user's file."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".sky/generated/ssh").mkdir(parents=True)
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text(
        "Include ~/.sky/generated/ssh/*\n\nHost other\n  HostName 10.0.0.9\n"
    )
    for name, address in (("spec", "34.1.2.3"), ("spec-worker1", "34.1.2.4")):
        text = f"Host {name}\n  HostName {address}\n  User ubuntu\n  IdentityFile ~/.sky/key\n  Port 22\n"
        (tmp_path / f".sky/generated/ssh/{name}").write_text(text)
    settings = Settings()
    assert {"spec", "spec-worker1"} <= set(settings.host_names())
    assert settings.host("spec-worker1").ssh == "spec-worker1"


def test_the_probe_of_the_pod_is_valid_yaml_of_one_command() -> None:
    (block,) = blocks(DOCS / "recipes" / "kubernetes.md", "yaml")
    words = tomllib.loads("x = " + re.search(r"command: (\[.*\])", block).group(1))["x"]  # type: ignore[union-attr]
    assert words[0] == "specdash", "only 0 is ready: no shell that forgives other codes"
    verb, rest, _ = cli._split(words[1:])
    assert verb == "check" and cli.verb_parser(verb).parse_args(rest).generate
