"""From a profile with several hosts to one exact launch a rank, and the rules by which the address is chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdash.config import inherit
from specdash.config.settings import Settings, load
from specdash.control import profiles, ranks, ranks_launch
from specdash.control.ranks import UNKNOWN, Layout, Network
from specdash.errors import ConfigError

NICS = (
    {"name": "lo", "up": True, "loopback": True, "addresses": ["127.0.0.1"]},
    {"name": "eth0", "up": True, "loopback": False, "addresses": ["192.168.0.5", "fd00::5"]},
    {"name": "ib0", "up": True, "loopback": False, "addresses": ["10.0.0.5"]},
    {"name": "eth9", "up": False, "loopback": False, "addresses": []},
)


def network(**changes: object) -> Network:
    fields = {"interfaces": NICS, "default": "192.168.0.5", "machine": "m1", "listening": frozenset({22})}
    return Network(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    text = "".join(f'[hosts.{name}]\nssh = "{name}.example"\n' for name in "abc")
    (tmp_path / "config.toml").write_text(text + '[groups]\nlab = ["a", "b"]\n')
    return load(tmp_path / "config.toml")


@pytest.fixture
def made(tmp_path: Path, settings: Settings):
    def make(text: str, hosts: tuple[str, ...] = (), name: str = "p") -> Layout | None:
        path = tmp_path / f"{name}.toml"
        path.write_text(text)
        merged = inherit.load(str(path))
        return ranks.layout(merged, profiles.to_spec(merged, settings), settings, hosts)

    return make


BASE = 'hosts = ["a", "b"]\npython = "/v/python"\n[server]\ntp-size = 16\nport = 31000\n'


def flags(found: ranks.Ranks, rank: int) -> dict[str, object]:
    return dict(found.ranks[rank].spec.flags)


def test_each_rank_gets_its_number_and_the_common_address(made) -> None:
    found = ranks.plan(made(BASE), {"a": network(), "b": network(machine="m2")})
    assert found.hosts == ("a", "b")
    assert [flags(found, r)["--node-rank"] for r in (0, 1)] == [0, 1]
    assert {flags(found, r)["--nnodes"] for r in (0, 1)} == {2}
    assert {flags(found, r)["--dist-init-addr"] for r in (0, 1)} == {"192.168.0.5:20000"}
    assert found.init.rule == "a's default route (eth0)"
    assert found.ranks[1].spec.argv()[-6:] == [
        *("--nnodes", "2", "--node-rank", "1", "--dist-init-addr", "192.168.0.5:20000")
    ]
    assert found.ranks[0].spec.hosts == ()


def test_an_interface_chooses_the_address_and_keeps_the_traffic(made) -> None:
    text = 'interface = "ib0"\n' + BASE + '[on.b]\ninterface = "eth0"\n[env]\nGLOO_SOCKET_IFNAME = "mine"\n'
    found = ranks.plan(made(text), {"a": network(), "b": network()})
    assert found.init.text == "10.0.0.5:20000" and found.init.rule == "ib0 of a"
    a, b = found.ranks[0].spec.env, found.ranks[1].spec.env
    assert a["NCCL_SOCKET_IFNAME"] == "=ib0" and b["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert a["SGLANG_HOST_IP"] == "10.0.0.5" and b["SGLANG_HOST_IP"] == "192.168.0.5"
    assert a["GLOO_SOCKET_IFNAME"] == "mine", "what the profile sets is never replaced"


@pytest.mark.parametrize(
    ("extra", "nets", "text", "rule"),
    [
        ('[server]\ndist-init-addr = "10.9.9.9:5000"\n', {}, "10.9.9.9:5000", "dist-init-addr"),
        ('[server]\ndist-init-addr = "[fd00::1]:5000"\n', {}, "[fd00::1]:5000", "dist-init-addr"),
        ('[on.a]\naddress = "10.1.1.1"\n', {}, "10.1.1.1:20000", "`address` of a"),
        ("", {}, f"{UNKNOWN}:20000", "was not asked"),
        ("", {"a": network(), "b": network()}, "127.0.0.1:20000", "one machine"),
        (
            "",
            {"a": network(default=None, interfaces=NICS[:2]), "b": network(machine="m2")},
            "192.168.0.5:20000",
            "only address",
        ),
        (
            "",
            {"a": network(listening=frozenset({20000, 20001})), "b": network(machine="m2")},
            "192.168.0.5:20002",
            "default route",
        ),
    ],
)
def test_the_rules_of_the_address(made, extra: str, nets, text: str, rule: str) -> None:
    found = ranks.plan(made('hosts = ["a", "b"]\n' + extra), nets)
    assert found.init.text == text
    assert rule in found.init.rule


def test_an_address_that_cannot_be_chosen_is_refused_with_what_is_there(made) -> None:
    nets = {"a": network(default=None), "b": network(machine="m2")}
    with pytest.raises(ConfigError, match=r"eth0 192\.168\.0\.5, ib0 10\.0\.0\.5"):
        ranks.plan(made(BASE), nets)
    with pytest.raises(ConfigError, match=r"interface ib7 is not there \(there: lo, eth0, ib0, eth9\)"):
        ranks.plan(made('interface = "ib7"\n' + BASE), nets)
    with pytest.raises(ConfigError, match="eth9 has no address"):
        ranks.plan(made('interface = "eth9"\n' + BASE), nets)
    with pytest.raises(ConfigError, match="is no ADDRESS:PORT"):
        ranks.plan(made('hosts = ["a", "b"]\n[server]\ndist-init-addr = "here"\n'), nets)


def test_attention_dp_needs_room_after_the_port(made) -> None:
    text = 'hosts = ["a", "b"]\n[server]\nenable-dp-attention = true\n'
    nets = {"a": network(listening=frozenset({20003})), "b": network(machine="m2")}
    assert ranks.plan(made(text), nets).init.port == 20016


def test_what_differs_on_a_host_is_laid_over_group_and_profile(made, settings: Settings) -> None:
    text = (
        'hosts = ["lab"]\npython = "/v/python"\n[server]\nmodel-path = "/m"\ntp = 4\n'
        '[on.lab]\ncwd = "/work"\n[on.lab.env]\nX = "1"\n'
        '[on.b]\npython = "/b/python"\n[on.b.server]\nmodel-path = "/mnt/m"\ntp = false\n[on.b.env]\nX = "2"\n'
        'MY_TOKEN = "env:T"\n'
    )
    a, b = ranks.plan(made(text), {}).ranks
    assert (a.spec.python, a.spec.cwd, a.spec.env["X"]) == ("/v/python", "/work", "1")
    assert (b.spec.python, b.spec.cwd, b.spec.env["X"]) == ("/b/python", "/work", "2")
    assert b.spec.flag("--model-path") == "/mnt/m" and a.spec.flag("--model-path") == "/m"
    assert b.spec.flag("--tp") is None and a.spec.flag("--tp") == 4
    assert b.spec.secret_env == {"MY_TOKEN": "env:T"} and not a.spec.secret_env


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('hosts = ["a", "b"]\n[server]\nnnodes = 3\n', "nnodes is 3 and there are 2 hosts"),
        ('hosts = ["a", "b"]\n[server]\nnode-rank = 1\n', "node-rank is filled in"),
        ('hosts = ["a", "b"]\n[on.z]\ncwd = "/"\n', '"z" is none of the hosts'),
        ('host = "a"\nhosts = ["a", "b"]\n', "host and hosts are both given"),
        ("hosts = []\n", "hosts is empty"),
        ('hosts = ["a", "b"]\n[on.b]\ncwdd = "/"\n', "cwdd"),
        ('hosts = ["a", "b"]\n[on.b.env]\nHF_TOKEN = "hf_abc"\n', "is a secret"),
    ],
)
def test_a_profile_that_cannot_be_says_where(made, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        made(text)


def test_one_host_is_no_layout_and_hosts_can_be_given(made) -> None:
    assert made('host = "a"\n') is None
    assert made('hosts = ["a"]\n') is None
    given = made('host = "a"\n', hosts=("b", "c", "a"))
    assert given is not None and given.hosts == ("b", "c", "a")


def test_a_child_replaces_hosts_by_a_host_and_merges_what_differs(made, tmp_path: Path) -> None:
    made(BASE + '[on.b]\ncwd = "/x"\n[on.b.server]\nmem_fraction_static = 0.5\n', name="base")
    child = 'extends = "base"\n[on.b]\npython = "/p"\n[on.b.server]\nmem-fraction-static = 0.6\n'
    b = ranks.plan(made(child), {}).ranks[1].spec
    assert (b.cwd, b.python) == ("/x", "/p")
    assert b.flag("--mem-fraction-static") == 0.6
    assert made('extends = "base"\nunset = ["on"]\nhost = "a"\n') is None


def test_ids_lead_from_a_rank_to_the_server() -> None:
    assert ranks.run_id("p-1", 3) == "p-1-r3"
    assert ranks.all_id("p-1-r3") == "p-1"
    assert ranks.all_id("p-1") == "p-1"


@pytest.mark.parametrize(
    ("server", "zero"),
    [
        ('host = "0.0.0.0"', {"host": "192.168.0.5", "port": 30000, "tls": False}),
        ('host = "10.0.0.5"\nport = 8000', {"host": "10.0.0.5", "port": 8000, "tls": False}),
        ("", {}),
    ],
)
def test_where_the_others_reach_rank_0(made, server: str, zero: dict[str, object]) -> None:
    found = ranks.plan(
        made('hosts = ["a", "b"]\n[server]\n' + server), {"a": network(), "b": network(machine="m2")}
    )
    assert ranks_launch.zero_of(found) == zero
