"""What ~/.ssh/config says: aliases, one alias explained, jumps, and files that asyncssh cannot read."""

from __future__ import annotations

from pathlib import Path

import asyncssh
import pytest

from specdash.errors import SshConfigUnsupported
from specdash.host import jumps, sshconfig
from specdash.host.hop import HopConnector, _Client

DATA = Path(__file__).parents[1] / "data" / "host"


def test_a_host_with_two_jumps_and_a_control_master():
    told = sshconfig.explain("gpubox", str(DATA / "C901.config"))
    assert (told.host, told.port, told.user, told.keepalive_s) == ("198.51.100.7", 2222, "ml", 30.0)
    assert told.jumps == ("b1", "me@b2:2200")
    assert told.ignored == ("ControlMaster", "ControlPath")
    way = jumps.hops("gpubox", str(DATA / "C901.config"))
    assert [
        (hop.name, hop.explained.host, hop.explained.port, hop.explained.user, hop.jump) for hop in way
    ] == [
        ("b1", "b1", 22, "ml", True),
        ("me@b2:2200", "b2", 2200, "me", True),
        ("gpubox", "198.51.100.7", 2222, "ml", False),
    ]


def test_options_of_other_hosts_are_not_said_to_be_ignored(tmp_path: Path):
    config = tmp_path / "config"
    config.write_text("Host a\n  ControlMaster auto\nHost b\n  strictHostKeyChecking no\n  User x\n")
    assert sshconfig.explain("b", str(config)).ignored == ("strictHostKeyChecking",)
    assert sshconfig.explain("c", str(config)).ignored == ()


def test_what_asyncssh_cannot_read_is_named_and_openssh_is_asked(monkeypatch: pytest.MonkeyPatch):
    file = str(DATA / "C902.config")
    monkeypatch.setattr(sshconfig.shutil, "which", lambda name: None)
    with pytest.raises(SshConfigUnsupported) as caught:
        sshconfig.explain("gpubox", file)
    assert (caught.value.path, caught.value.line) == (file, 3)
    assert "ServerAliveInterval" in caught.value.sentence and "1m" in caught.value.sentence
    assert "ssh -G" in caught.value.step


@pytest.mark.skipif(sshconfig.shutil.which("ssh") is None, reason="OpenSSH's ssh is not installed")
def test_openssh_s_reading_is_used():
    told = sshconfig.explain("gpubox", str(DATA / "C902.config"))
    assert (told.host, told.keepalive_s) == ("198.51.100.7", 60.0)
    assert "line 3" in told.note and "ssh -G gpubox" in told.note


@pytest.mark.skipif(sshconfig.shutil.which("ssh") is None, reason="OpenSSH's ssh is not installed")
def test_a_fallback_keeps_jumps_paths_with_spaces_and_proxy_commands(tmp_path: Path):
    config = tmp_path / "config"
    config.write_text(
        'Host a b\n  ConnectTimeout 1m\n  IdentityFile "/k/my key"\n  HostName h.example\n'
        "Host a\n  ProxyJump x@j1:2,j2\nHost b\n  ProxyCommand nc -X 'a b' %h %p\n"
    )
    told = sshconfig.explain("a", str(config))
    assert told.jumps == ("x@j1:2", "j2") and "/k/my key" in told.identities
    assert told.connect_timeout_s == 60.0
    assert "h.example 22" in sshconfig.explain("b", str(config)).proxy_command


def test_remote_command_does_not_spoil_the_parse():
    told = sshconfig.explain("gpubox", str(DATA / "C904.config"))
    assert (told.host, told.ignored) == ("198.51.100.7", ())


def test_aliases_without_patterns_and_with_includes(tmp_path: Path):
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "b.conf").write_text("Host inner\n  User x\n")
    config = tmp_path / "config"
    config.write_text(
        "Include conf.d/*.conf\n# Host not-this\nHost *\n  User x\nHost one two *.lab !three\nhost=four\nHost one\n"
        'Match host five\n  User y\nHost "broken\n'
    )
    assert sshconfig.aliases(str(config)) == ("inner", "one", "two", "four")
    assert sshconfig.aliases(str(tmp_path / "none")) == ()


def test_the_first_jump_may_have_its_own_and_circles_are_found(tmp_path: Path):
    config = tmp_path / "config"
    config.write_text(
        "Host gpu\n ProxyJump b\nHost b\n ProxyJump c\nHost x\n ProxyJump y\nHost y\n ProxyJump x\n"
    )
    assert [hop.name for hop in jumps.hops("gpu", str(config))] == ["c", "b", "gpu"]
    with pytest.raises(SshConfigUnsupported, match="circle: x → y → x"):
        jumps.hops("x", str(config))
    config.write_text("Host gpu\n ProxyJump none\n")
    assert [hop.name for hop in jumps.hops("gpu", str(config))] == ["gpu"]


@pytest.mark.parametrize(
    ("jump", "host", "port", "user"),
    [
        ("ssh://me@j:7", "j", 7, "me"),
        ("[2001:db8::1]:2200", "2001:db8::1", 2200, None),
        ("2001:db8::1", "2001:db8::1", 22, None),
        ("a@b@c", "c", 22, "a@b"),
    ],
)
def test_ways_to_write_a_jump(tmp_path: Path, jump: str, host: str, port: int, user: str | None):
    config = tmp_path / "config"
    config.write_text(f"Host gpu\n ProxyJump {jump}\n")
    first = jumps.hops("gpu", str(config))[0].explained
    assert (first.host, first.port) == (host, port)
    assert user is None or first.user == user


def test_user_and_port_of_the_caller_win_and_user_at_host_is_read(tmp_path: Path):
    config = tmp_path / "config"
    config.write_text("Host gpu\n User a\n Port 5\n")
    told = jumps.hops("gpu", str(config), user="b", port=6)[-1].explained
    assert (told.user, told.port) == ("b", 6)
    assert jumps.hops("c@gpu", str(config))[-1].explained.user == "c"


@pytest.mark.parametrize("written", ["", "Ciphers aes128-ctr\n", "Ciphers ^aes256-ctr\n"])
def test_ciphers_are_ours_to_order_only_where_the_config_leaves_them(tmp_path: Path, written: str):
    config = tmp_path / "config"
    config.write_text("Host h\n  User x\n" + written)
    hop = jumps.hops("h", str(config))[0]
    options = HopConnector(hop, None, 1.0, None, None)._options(_Client())
    options.pop("client_keys", None)
    made = asyncssh.SSHClientConnectionOptions(host="h", **options)
    first = made.encryption_algs[0].decode()
    assert first == (written.split()[1].lstrip("^") if written else "aes256-gcm@openssh.com")
    assert b"chacha20-poly1305@openssh.com" in made.encryption_algs or written == "Ciphers aes128-ctr\n"
