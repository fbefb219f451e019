"""config.toml and the hosts that come from it, from ssh config, or from nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdash.config import paths
from specdash.config.settings import Settings, load
from specdash.errors import ConfigError, HostUnknown


def write(text: str) -> Path:
    path = paths.config_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


FULL = """
theme = "nord"
read-only = true
[defaults]
host = "gpu1"
[hosts.gpu1]
ssh = "198.51.100.7"
port = 2222
run_root = "/data/specdash"
[hosts.gpu2]
[groups]
lab = ["gpu1", "gpu2"]
[check]
warn = ["accept<1.8"]
crit = ["tok/s<40"]
timeout-s = 5
[keys]
launch = "ctrl+l,L"
"""


def test_a_whole_file() -> None:
    path = write(FULL)
    settings = load()
    assert settings.path == path and settings.read_only and settings.theme == "nord"
    host = settings.host("gpu1")
    assert (host.name, host.ssh, host.port, host.run_root) == ("gpu1", "198.51.100.7", 2222, "/data/specdash")
    assert settings.host("gpu2").ssh == "gpu2", "a table without ssh is the alias of its name"
    assert settings.expand(["lab", "gpu1", "x"]) == ("gpu1", "gpu2", "x")
    assert settings.check.timeout_s == 5 and settings.check.crit == ("tok/s<40",)
    assert settings.keys == {"launch": "ctrl+l,L"}


def test_hosts_as_a_list() -> None:
    write('[[hosts]]\nname = "a"\nssh = "b"\n[[hosts]]\nname = "c"\n')
    assert load().host("a").ssh == "b"
    write('[[hosts]]\nname = "a"\n[[hosts]]\nname = "a"\n')
    with pytest.raises(ConfigError, match=r":4: .*twice"):
        load()
    write('[[hosts]]\nname = "a"\n[[hosts]]\nname = "b"\nprot = 1\n')
    with pytest.raises(ConfigError, match=r':5: unknown key "hosts.b.prot"'):
        load()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('them = "x"', ["config.toml:1:", '"them"', '"theme"']),
        ("[hosts.a]\nssh = 'a'\nprot = 22", ["config.toml:3:", "hosts.a.prot", '"port"']),
        ("[hosts.a]\nport = 'x'", ["config.toml:2:", "hosts.a.port", "integer"]),
        ("[hosts.a]\nport = 70000", ["config.toml:2:", "hosts.a.port", "65535"]),
        ("[hosts.a]\nread-only = true\nread_only = true", ["config.toml:3:", "twice"]),
        ("[check]\nwarn = [\n  'accept<1',\n  'accept'\n]", ["config.toml:4:", "check.warn", "no rule"]),
        ("[groups]\nlab = ['nope']", ["config.toml:2:", "nope"]),
        ("[defaults]\nhost = 'gpu9'\n[hosts.gpu1]", ["config.toml:2:", "gpu9", "gpu1"]),
        ("[keys]\na = 'x'\nb = 'x'", ["config.toml:3:", "already"]),
        ("[hosts.'a b']\nssh='x'", ["config.toml:1:", "no name"]),
        ("hosts = 3", ["config.toml:1:", "hosts"]),
    ],
)
def test_what_is_off_is_named(text: str, words: list[str]) -> None:
    write(text)
    with pytest.raises(ConfigError) as caught:
        load()
    for word in words:
        assert word in str(caught.value)


def test_no_file_is_fine_but_a_named_one_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load() == Settings()
    with pytest.raises(ConfigError, match="not there"):
        load(Path("gone.toml"))
    monkeypatch.setenv("SPECDASH_CONFIG", "/nowhere/config.toml")
    with pytest.raises(ConfigError, match="not there"):
        load()


def test_specdash_config_moves_everything(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = home / "other" / "my.toml"
    other.parent.mkdir()
    other.write_text('theme = "x"')
    monkeypatch.setenv("SPECDASH_CONFIG", str(other))
    assert load().theme == "x"
    assert paths.secrets_dir() == other.parent / "secrets"


def test_hosts_of_ssh_config(home: Path) -> None:
    (home / ".ssh" / "config").write_text(
        'Host gpubox "quoted one" !no\n  HostName 198.51.100.7\nHost=lab-*\nInclude more/*\nMatch host x\nHost *\n  User me\n'
    )
    (home / ".ssh" / "more").mkdir()
    (home / ".ssh" / "more" / "a").write_text("host inner # a comment\nInclude ../config\n")
    settings = Settings()
    assert settings.host_names() == ("local", "gpubox", "quoted one", "inner")
    assert settings.host("gpubox").ssh == "gpubox"
    assert settings.host("lab-7").ssh == "lab-7"
    assert settings.host("local").ssh == ""
    with pytest.raises(HostUnknown) as caught:
        settings.host("gpubix")
    assert '"gpubox"' in caught.value.step


def test_plain_addresses() -> None:
    found = Settings().host("me@[2001:db8::1]:2222")
    assert (found.ssh, found.user, found.port) == ("2001:db8::1", "me", 2222)
    assert Settings().host("a.example:22").ssh == "a.example"
    assert Settings().host("198.51.100.7").ssh == "198.51.100.7"
    for bad in ("", "-oProxyCommand=x", "a.b:99999"):
        with pytest.raises(HostUnknown):
            Settings().host(bad)
