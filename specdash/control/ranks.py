"""One server over several hosts, planned: from a profile with `hosts` to one exact launch a rank. Pure.

The address that all ranks meet at, `--dist-init-addr`, is chosen by rule, and the plan says by which:

1. `dist-init-addr` under `[server]`, as it is written.
2. `address` of the first host (`[on.HOST]`), with the first free port from 20000 on.
3. The address of `interface` on the first host.
4. The first host's address on its default route; without a route, its only address that is not loopback.
5. 127.0.0.1, where all hosts are one machine and one network.

With an interface or an address, each rank also gets NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME and SGLANG_HOST_IP,
so that all of its traffic goes there. What the profile sets itself is never replaced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specdash.config.inherit import Merged
from specdash.config.keys import option_of
from specdash.config.profile import OnHost, plain, reference_of
from specdash.config.secrets import is_secret_env, is_secret_option
from specdash.config.settings import Settings
from specdash.errors import ConfigError
from specdash.sglang import envcheck
from specdash.sglang.commandline import LaunchSpec, value_text

INIT = ("--dist-init-addr", "--nccl-init-addr")
OURS = ("--nnodes", "--node-rank")
"""Flags that specdash fills in; a profile that gives them must agree."""
FIRST_PORT, LAST_PORT = 20000, 20200
UNKNOWN = "ADDRESS-OF-RANK-0"
"""Stands for an address that only the first host can tell, in a command line that was made without asking it."""


@dataclass(frozen=True, slots=True)
class Network:
    """What `network.look` told of one host."""

    interfaces: tuple[Mapping[str, Any], ...] = ()
    default: str | None = None
    """Source address of its default route."""
    named: str | None = None
    """What the host's own name resolves to there: gloo's choice where no interface is set."""
    machine: str = ""
    listening: frozenset[int] = frozenset()
    toward: Mapping[str, str | None] = field(default_factory=dict)

    @classmethod
    def from_call(cls, answer: Mapping[str, Any]) -> Network:
        return cls(
            tuple(answer.get("interfaces") or ()),
            answer.get("default"),
            answer.get("named"),
            str(answer.get("machine") or ""),
            frozenset(int(port) for port in answer.get("listening") or ()),
            dict(answer.get("toward") or {}),
        )

    def addresses(self, interface: str) -> tuple[str, ...]:
        found = next((one for one in self.interfaces if one.get("name") == interface), None)
        return tuple(str(a) for a in (found or {}).get("addresses") or ())

    def interface_of(self, address: str) -> str:
        """The interface that has this address; empty: none has."""
        for one in self.interfaces:
            if address in (one.get("addresses") or ()):
                return str(one.get("name") or "")
        return ""

    def names(self) -> tuple[str, ...]:
        return tuple(str(one.get("name")) for one in self.interfaces)

    def outward(self) -> tuple[str, ...]:
        """The first address of each interface that is up and not loopback."""
        return tuple(
            str(one["addresses"][0])
            for one in self.interfaces
            if one.get("up") and not one.get("loopback") and one.get("addresses")
        )


@dataclass(frozen=True, slots=True)
class Init:
    """Where the ranks meet, and by which rule that was chosen, in words."""

    address: str
    port: int
    rule: str

    @property
    def text(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class Rank:
    rank: int
    host: str
    spec: LaunchSpec
    """The whole launch of this rank; its `host` is this host."""
    interface: str = ""
    """For its traffic, where the profile sets one; empty: the engine's libraries choose."""
    address: str = ""
    """That others reach it by, where known."""
    role: str = ""
    """What it is where the parts of a server are no equal ranks: "router", "prefill", "decode"."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """One server over several hosts."""

    profile: str
    ranks: tuple[Rank, ...]
    init: Init

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(one.host for one in self.ranks)


@dataclass(frozen=True, slots=True)
class Layout:
    """What a profile says of its hosts, before any host is asked."""

    spec: LaunchSpec
    hosts: tuple[str, ...]
    interface: str
    on: Mapping[str, OnHost]


def layout(merged: Merged, spec: LaunchSpec, settings: Settings, hosts: Sequence[str] = ()) -> Layout | None:
    """The layout of a profile, or of it on other `hosts`; None: it is for one host. Raises ConfigError."""
    names = settings.expand(tuple(hosts or merged.scalars.get("hosts") or ()))
    if len(names) < 2:
        return None
    on = {name: differs(name, merged.on, settings.groups) for name in names}
    for name in merged.on:
        if name not in names and name not in settings.groups and not hosts:
            raise merged.error(f"on.{name}", f'[on.{name}]: "{name}" is none of the hosts.', "Correct it.")
    given = envcheck.whole(spec.flags, ("--nnodes",), len(names))
    if given != len(names):
        raise merged.error(
            "server.nnodes", f"nnodes is {given} and there are {len(names)} hosts.", "Leave nnodes out."
        )
    if spec.flag("--node-rank") is not None:
        raise merged.error("server.node-rank", "node-rank is filled in for each host.", "Leave it out.")
    return Layout(spec, names, str(merged.scalars.get("interface") or ""), on)


def differs(host: str, on: Mapping[str, OnHost], groups: Mapping[str, Sequence[str]]) -> OnHost:
    """What is different on a host: tables of its groups in the config's order, then its own."""
    found = OnHost()
    for name in [*(g for g, members in groups.items() if host in members and g in on), host]:
        one = on.get(name)
        if one is not None:
            changes = {k: getattr(one, k) for k in one.model_fields_set if k not in ("server", "env")}
            both = {"server": {**found.server, **one.server}, "env": {**found.env, **one.env}}
            found = found.model_copy(update={**changes, **both})
    return found


def plan(found: Layout, networks: Mapping[str, Network]) -> Ranks:
    """One launch a rank. A host that is not in `networks` was not asked; its address may then be `UNKNOWN`.

    Raises ConfigError when an interface is not there, or when no address can be chosen.
    """
    init = choose_init(found, networks)
    ranks = []
    for number, host in enumerate(found.hosts):
        other = found.on[host]
        interface = other.interface or found.interface
        address = own_address(host, other, interface, networks.get(host))
        spec = overlay(found.spec, other, host)
        flags = tuple(pair for pair in spec.flags if pair[0] not in (*OURS, *INIT))
        ours: tuple[tuple[str, Any], ...] = (
            ("--nnodes", len(found.hosts)),
            ("--node-rank", number),
            ("--dist-init-addr", init.text),
        )
        env = {**network_env(interface, address), **spec.env}
        spec = replace(spec, flags=(*flags, *ours), env=env, hosts=())
        ranks.append(Rank(number, host, spec, interface, address))
    return Ranks(found.spec.profile, tuple(ranks), init)


def network_env(interface: str, address: str) -> dict[str, str]:
    """The environment that keeps a rank's traffic on an interface; empty where none is chosen.

    NCCL takes "=eth1" as exactly that name (without the sign, as a prefix); gloo takes names only. SGLANG_HOST_IP is
    what SGLang tells others as its own address (`get_local_ip_auto`), else that of the default route.
    """
    out = {"NCCL_SOCKET_IFNAME": f"={interface}", "GLOO_SOCKET_IFNAME": interface} if interface else {}
    return {**out, "SGLANG_HOST_IP": address} if address and UNKNOWN not in address else out


def overlay(spec: LaunchSpec, other: OnHost, host: str) -> LaunchSpec:
    """The spec with what differs on a host laid over it."""
    flags, secret_flags = list(spec.flags), dict(spec.secret_flags)
    for key, raw in other.server.items():
        option = option_of("server", key)
        flags = [pair for pair in flags if pair[0] != option]
        secret_flags.pop(option, None)
        reference = reference_of(raw) or (str(plain(raw)) if is_secret_option(option) and raw != "" else "")
        if reference:
            secret_flags[option] = reference
        elif raw is not False:
            flags.append((option, plain(raw)))
    env, secret_env = dict(spec.env), dict(spec.secret_env)
    for name, raw in other.env.items():
        env.pop(name, None)
        secret_env.pop(name, None)
        reference = reference_of(raw) or (str(plain(raw)) if is_secret_env(name) and raw != "" else "")
        if reference:
            secret_env[name] = reference
        else:
            env[name] = value_text(plain(raw))
    return replace(
        spec,
        host=host,
        python=other.python or spec.python,
        cwd=other.cwd if other.cwd is not None else spec.cwd,
        log=other.log if other.log is not None else spec.log,
        flags=tuple(flags),
        env=env,
        secret_flags=secret_flags,
        secret_env=secret_env,
    )


def own_address(host: str, other: OnHost, interface: str, network: Network | None) -> str:
    """A rank's own address: written, or that of its interface. Empty: the engine finds one itself."""
    if other.address:
        return other.address
    if not interface or network is None:
        return ""
    found = network.addresses(interface)
    if not found:
        there = ", ".join(network.names()) or "none"
        said = "has no address" if interface in network.names() else "is not there"
        raise ConfigError(
            f"{host}: interface {interface} {said} (there: {there}).",
            f"Correct `interface`, for all hosts or under [on.{host}], or give `address` there.",
        )
    return found[0]


def choose_init(found: Layout, networks: Mapping[str, Network]) -> Init:
    """Where the ranks meet; see the module's rules."""
    written = found.spec.flag(*INIT)
    first = found.hosts[0]
    if written is not None:
        address, _, port = str(written).rpartition(":")
        if not address or not port.isdigit() or not 0 < int(port) < 65536:
            raise ConfigError(
                f"{found.spec.profile}: dist-init-addr {written!r} is no ADDRESS:PORT.",
                "Correct it, or leave it out.",
            )
        return Init(address.strip("[]"), int(port), "as the profile's dist-init-addr")
    network = networks.get(first)
    other = found.on[first]
    interface = other.interface or found.interface
    free = choose_port(found.spec, network.listening if network is not None else frozenset())
    if other.address:
        return Init(other.address, free, f"`address` of {first}")
    if network is None:
        what = f"interface {interface}" if interface else "its default route"
        return Init(UNKNOWN, free, f"{first} was not asked for the address of {what}")
    if interface:
        return Init(own_address(first, other, interface, network), free, f"{interface} of {first}")
    machines = {networks[h].machine if h in networks else h for h in found.hosts}
    if len(machines) == 1 and network.machine:
        return Init("127.0.0.1", free, "all hosts are one machine")
    if network.default:
        name = network.interface_of(network.default)
        return Init(network.default, free, f"{first}'s default route{f' ({name})' if name else ''}")
    outward = network.outward()
    if len(outward) == 1:
        name = network.interface_of(outward[0])
        return Init(outward[0], free, f"{first}'s only address that is not loopback ({name})")
    there = ", ".join(f"{network.interface_of(a)} {a}" for a in outward) or "none"
    raise ConfigError(
        f"{found.spec.profile}: the address that all ranks meet at cannot be chosen ({first} has: {there}).",
        'Write `interface = "…"`, or `dist-init-addr = "ADDRESS:PORT"` under [server].',
    )


def choose_port(spec: LaunchSpec, taken: frozenset[int]) -> int:
    """The first port from 20000 on that nobody listens on at rank 0, with room for what is derived from it."""
    own = envcheck.whole(spec.flags, ("--port",), 30000)
    dp = any(option in ("--enable-dp-attention", "--attn-dp-size") for option, _ in spec.flags)
    width = 16 if dp else 1  # attention DP has its sockets on the ports after it
    for port in range(FIRST_PORT, LAST_PORT, width):
        wanted = range(port, port + width)
        if not any(p in taken or p == own for p in wanted):
            return port
    return FIRST_PORT


_NAMED = re.compile(r"^(?P<all>.+)-r(?P<rank>\d+)$")


def run_id(all_id: str, rank: int) -> str:
    """The id of one rank's run: `<id of all>-r<rank>`."""
    return f"{all_id}-r{rank}"


def all_id(rank_run: str) -> str:
    """The other way; the id itself where it is none of a rank."""
    found = _NAMED.match(rank_run)
    return found.group("all") if found else rank_run
