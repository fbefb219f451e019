"""The network between the hosts of one server: real connections from each to the first, and to each other.

The port where the ranks meet is listened on at the first host, for this check, and every host connects to it over
the address that its rank would use. Gloo and NCCL then connect every rank with every other on ports that the
kernel picks: those ways are tried too, because a firewall often opens the known port only.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from specdash.control.plans import Check
from specdash.control.ranks import UNKNOWN, Network, Rank, Ranks
from specdash.control.ranks_party import Party
from specdash.errors import LinkError, RemoteError

CONNECT_S = 5.0
MOST_HOSTS = 16
"""Every pair is tried up to here; beyond it, only the ways to the first."""
WORDS = {
    "timeout": f"no answer within {CONNECT_S:.0f} s: a firewall drops it, or the address is another network's",
    "refused": "refused: a firewall rejects it",
    "no_route": "there is no route to it",
    "reset": "the connection was cut at once",
    "stranger": "another program answered",
}


@dataclass(frozen=True, slots=True)
class Wire:
    """One way that was tried. `problem` empty: it works. `kind`: init | pair."""

    kind: str
    source: str
    target: str
    address: str
    port: int
    problem: str = ""
    over: str = ""
    """Source address that was used."""
    instead: bool = False
    """Another port than the one that will be used, which was held."""


def gloo_address(rank: Rank, network: Network) -> str:
    """Where gloo listens on this host: GLOO_SOCKET_IFNAME's address, else what the host's name resolves to."""
    name = rank.spec.env.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    if name:
        found = network.addresses(name)
        return found[0] if found else ""
    return network.named or "127.0.0.1"


async def measure(
    party: Party, ranks: Ranks, networks: Mapping[str, Network], word: str, *, leaves: bool = False
) -> tuple[Wire, ...]:
    """Tries all ways. `leaves`: what serves now goes before the launch, so that its port may be held."""
    if ranks.init.address == UNKNOWN:
        return ()
    first = ranks.ranks[0].host
    out = list(await _toward(party, ranks, first, ranks.init.address, ranks.init.port, f"{word}-i", leaves))
    if len(ranks.ranks) <= MOST_HOSTS and not _one_machine(networks.values()):
        for rank in ranks.ranks:
            address = gloo_address(rank, networks[rank.host])
            if address and not _loopback(address):
                word_here = f"{word}-{rank.rank}"
                others = [one for one in ranks.ranks if one.host != rank.host]
                out += await _pair(party, rank.host, address, others, word_here)
    return tuple(out)


async def _toward(
    party: Party, ranks: Ranks, first: str, address: str, port: int, word: str, leaves: bool
) -> list[Wire]:
    asked = {"address": address, "port": port, "word": word, "seconds": 60}
    instead = False
    try:
        await party.call(first, "network.listen", asked)
    except RemoteError as error:
        if not leaves:
            return [Wire("init", first, first, address, port, error.sentence)]
        try:
            port = int((await party.call(first, "network.listen", {**asked, "port": 0}))["port"])
            instead = True
        except RemoteError as second:
            return [Wire("init", first, first, address, port, second.sentence)]
    try:
        return list(
            await asyncio.gather(
                *(
                    _connect(party, "init", one.host, one.address, first, address, port, word, instead)
                    for one in ranks.ranks
                )
            )
        )
    finally:
        await _quietly(party, first, word)


async def _pair(party: Party, host: str, address: str, others: list[Rank], word: str) -> list[Wire]:
    try:
        port = int(
            (await party.call(host, "network.listen", {"address": address, "port": 0, "word": word}))["port"]
        )
    except RemoteError as error:
        return [Wire("pair", host, host, address, 0, error.sentence)]
    try:
        tried = (
            _connect(party, "pair", one.host, one.address, host, address, port, word, False) for one in others
        )
        return list(await asyncio.gather(*tried))
    finally:
        await _quietly(party, host, word)


async def _connect(
    party: Party,
    kind: str,
    source: str,
    over: str,
    target: str,
    address: str,
    port: int,
    word: str,
    instead: bool,
) -> Wire:
    asked = {"address": address, "port": port, "word": word, "source": over, "timeout": CONNECT_S}
    try:
        answer = await party.call(source, "network.connect", asked)
    except RemoteError as error:
        return Wire(kind, source, target, address, port, error.sentence, over, instead)
    used = str(answer.get("source") or over)
    return Wire(kind, source, target, address, port, str(answer.get("problem") or ""), used, instead)


async def _quietly(party: Party, host: str, word: str) -> None:
    try:
        await party.call(host, "network.unlisten", {"word": word})
    except (RemoteError, LinkError):
        pass  # it ends by itself


def judge(ranks: Ranks, wires: Iterable[Wire]) -> list[Check]:
    """The ways as checks: where the ranks meet, and every rank with every other."""
    found = list(wires)
    init = [one for one in found if one.kind == "init"]
    pairs = [one for one in found if one.kind == "pair"]
    where = ranks.init.text
    out: list[Check] = []
    if not init:
        out.append(Check("init address", "not_checked", f"{where}: the ways to it were not tried."))
    bad = [one for one in init if one.problem]
    for one in bad:
        if one.source == one.target:
            said = f"{one.source} cannot use its own {where}: {WORDS.get(one.problem, one.problem)}"
            remedy = "Correct `dist-init-addr`, `address` or `interface`."
        else:
            said = f"{one.source} cannot reach {where} on {one.target}: {WORDS.get(one.problem, one.problem)}"
            remedy = f"Open port {ranks.init.port} between the hosts, or choose another `interface` or `dist-init-addr`."
        out.append(Check("init address", "block", _stop(said), _over(one), remedy, "init_unreachable"))
    if init and not bad:
        used = ", ".join(f"{one.source} from {one.over}" for one in init)
        also = " (tried on another port: the one to be used is still held)" if init[0].instead else ""
        out.append(Check("init address", "ok", f"{where} is reached by every host: {used}{also}."))
    for one in (one for one in pairs if one.problem):
        said = f"{one.source} cannot reach {one.address} on {one.target} on a port that the kernel picked"
        said += f": {WORDS.get(one.problem, one.problem)}"
        remedy = "Let the hosts reach each other on all ports of this network, or choose another `interface`."
        out.append(Check("between hosts", "block", _stop(said), _over(one), remedy, "hosts_unreachable"))
    if pairs and not any(one.problem for one in pairs):
        out.append(Check("between hosts", "ok", f"All {len(pairs)} ways between the hosts work."))
    return out


def _stop(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _over(one: Wire) -> tuple[str, ...]:
    return (f"from {one.over}",) if one.over else ()


def interfaces(ranks: Ranks, networks: Mapping[str, Network]) -> list[Check]:
    """NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME of each rank against what its host has."""
    out: list[Check] = []
    apart = not _one_machine(networks.values())
    for rank in ranks.ranks:
        network = networks.get(rank.host)
        if network is None:
            out.append(Check("interfaces", "not_checked", f"{rank.host} was not asked for its interfaces."))
            continue
        out += _named(rank, network)
        gloo = gloo_address(rank, network)
        if apart and gloo and _loopback(gloo) and not rank.spec.env.get("GLOO_SOCKET_IFNAME"):
            way = network.toward.get(ranks.init.address) or network.default
            name = network.interface_of(way or "") or next(
                (network.interface_of(a) for a in network.outward()), "NAME"
            )
            sentence = f"{rank.host}: gloo would listen on {gloo}, what its own name means there; the others cannot reach that."
            remedy = f'Write `interface = "{name}"` in the profile (or under [on.{rank.host}]).'
            out.append(Check("interfaces", "block", sentence, (), remedy, "gloo_on_loopback"))
        several = network.outward()
        if len(several) > 1 and not rank.spec.env.get("NCCL_SOCKET_IFNAME") and not _cpu(rank):
            names = ", ".join(network.interface_of(address) for address in several)
            sentence = f"{rank.host}: NCCL chooses among {names} by itself."
            out.append(Check("interfaces", "warn", sentence, (), "Write `interface`.", "nccl_chooses"))
    if not out:
        told = ", ".join(f"{r.host}: {r.interface or 'by their own choice'}" for r in ranks.ranks)
        out.append(Check("interfaces", "ok", f"NCCL and gloo use {told}."))
    return out


def _named(rank: Rank, network: Network) -> list[Check]:
    """Interfaces that the environment names must be there and up."""
    out = []
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        value = rank.spec.env.get(variable, "")
        exact = variable.startswith("GLOO") or value.startswith("=")
        if not value or value.startswith("^"):
            continue  # "^docker" tells NCCL which not to take
        wanted = [name for name in value.lstrip("=").split(",") if name]
        up = [str(one.get("name")) for one in network.interfaces if one.get("up")]
        lost = [
            name
            for name in wanted
            if not any(there == name if exact else there.startswith(name) for there in up)
        ]
        if lost and (exact or len(lost) == len(wanted)):
            sentence = f"{rank.host}: {variable} names {lost[0]}, which is not there or not up (up: {', '.join(up)})."
            out.append(Check("interfaces", "block", sentence, (), "Correct `interface`.", "no_interface"))
    return out


def _cpu(rank: Rank) -> bool:
    return bool(rank.spec.flag("--device") == "cpu")


def _loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _one_machine(networks: Iterable[Network]) -> bool:
    machines = {network.machine for network in networks}
    return len(machines) == 1 and "" not in machines
