"""A prefill/decode pair with SGLang's router before it, as one run of three parts: planned, and checked.

The parts are launched, told and stopped as the ranks of one server are (`ranks_launch`, `ranks_stop`): the router is
the first, has the profile's port, and the whole is ready when a generation comes back through it. The two servers
alone answer no plain request: a prefill server wants a decode server's bootstrap room with each.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace

from specdash.config.inherit import Merged
from specdash.config.profile import Pair
from specdash.control import preflight, ranks_wires
from specdash.control.plans import Check
from specdash.control.ranks import UNKNOWN, Init, Network, Rank, Ranks, network_env, overlay, own_address
from specdash.control.ranks_party import Party
from specdash.errors import ConfigError, LinkError, RemoteError
from specdash.sglang import envcheck
from specdash.sglang.commandline import LaunchSpec

LAUNCHER = ("-m", "sglang_router.launch_router")
MODULE = "sglang_router"
BOOTSTRAP = 8998
"""SGLang's own default of --disaggregation-bootstrap-port; written out, so that the plan shows it."""
PARTS = ("router", "prefill", "decode")
OURS = ("--disaggregation-mode", "--pd-disaggregation", "--prefill", "--decode")


@dataclass(frozen=True, slots=True)
class PairLayout:
    """What a profile says of its three parts, before any host is asked. `hosts` in the order of `PARTS`."""

    spec: LaunchSpec
    pair: Pair
    hosts: tuple[str, str, str]
    interface: str


def layout(merged: Merged, spec: LaunchSpec) -> PairLayout | None:
    """The pair of a profile; None: it has none. Raises ConfigError."""
    if merged.pd is None:
        return None
    for option, _ in spec.flags:
        if option in OURS:
            raise merged.error(
                f"server.{option[2:]}", f"{option} is filled in for each part.", "Leave it out."
            )
    pair = merged.pd
    hosts = (pair.router.host or spec.host, pair.prefill.host or spec.host, pair.decode.host or spec.host)
    return PairLayout(spec, pair, hosts, str(merged.scalars.get("interface") or ""))


def plan(found: PairLayout, networks: Mapping[str, Network]) -> Ranks:
    """One launch a part. Raises ConfigError: two parts of one host on one port, an interface that is not there."""
    spec, one_host = found.spec, len(set(found.hosts)) == 1
    port = envcheck.whole(spec.flags, ("--port",), 30000) or 30000
    bind = "127.0.0.1" if one_host else "0.0.0.0"
    servers: list[Rank] = []
    for at, (name, host) in enumerate(zip(PARTS[1:], found.hosts[1:], strict=True), 1):
        part = found.pair.prefill if name == "prefill" else found.pair.decode
        interface = part.interface or found.interface
        own = own_address(host, part, interface, networks.get(host))
        address = own or ("127.0.0.1" if one_host else _outward(host, networks))
        base = replace(spec, hosts=(), flags=tuple(p for p in spec.flags if p[0] not in ("--port", "--host")))
        one = overlay(base, part, host)
        more: list[tuple[str, object]] = []
        for option, value in (("--host", bind), ("--port", port + at)):
            if one.flag(option) is None:
                more.append((option, value))
        more.append(("--disaggregation-mode", name))
        if name == "prefill" and one.flag("--disaggregation-bootstrap-port") is None:
            more.append(("--disaggregation-bootstrap-port", BOOTSTRAP))
        env = {**network_env(interface, own), **one.env}
        servers.append(
            Rank(at, host, replace(one, flags=(*one.flags, *more), env=env), interface, address, name)
        )
    prefill, decode = servers
    router = _router(found, port, _url(prefill), _bootstrap(prefill), _url(decode))
    ports = [(r.host, r.spec.http()[1]) for r in (router, *servers)]
    if len(set(ports)) < len(ports):
        raise ConfigError(
            f"{spec.profile}: two parts would have one port of one host.", "Give [pd.decode.server] a port."
        )
    bind_at, number = router.spec.http()
    init = Init(bind_at, number, f"the router on {router.host}")
    return Ranks(spec.profile, (router, prefill, decode), init)


def _router(found: PairLayout, port: int, prefill: str, bootstrap: int, decode: str) -> Rank:
    part, host = found.pair.router, found.hosts[0]
    given = found.spec.flag("--host")
    flags: tuple[tuple[str, object], ...] = (
        ("--pd-disaggregation", True),
        ("--prefill", [prefill, str(bootstrap)]),
        ("--decode", decode),
        ("--host", given if isinstance(given, str) else "127.0.0.1"),
        ("--port", port),
    )
    bare = LaunchSpec(
        found.spec.profile, host, found.spec.python, LAUNCHER, flags, cwd=found.spec.cwd, log=found.spec.log
    )
    return Rank(0, host, overlay(bare, part, host), part.interface or "", part.address or "", "router")


def _url(part: Rank) -> str:
    address = f"[{part.address}]" if ":" in part.address else part.address
    return f"http://{address}:{part.spec.http()[1]}"


def _bootstrap(prefill: Rank) -> int:
    return envcheck.whole(prefill.spec.flags, ("--disaggregation-bootstrap-port",), BOOTSTRAP) or BOOTSTRAP


def _outward(host: str, networks: Mapping[str, Network]) -> str:
    network = networks.get(host)
    if network is None:
        return UNKNOWN
    outward = network.outward()
    address = network.default or (outward[0] if len(outward) == 1 else "")
    if not address:
        raise ConfigError(
            f"{host}: which address the other parts reach it by cannot be chosen.", "Give `address`."
        )
    return address


async def check(party: Party, found: PairLayout) -> tuple[Ranks, tuple[Check, ...]]:
    """The parts as they would be launched, and all checks: each server's own, the router, the ways between them."""
    answers = await asyncio.gather(*(party.call(host, "network.look", {}) for host in party.hosts))
    nets = {host: Network.from_call(one) for host, one in zip(party.hosts, answers, strict=True)}
    parts = plan(found, nets)
    router, prefill, decode = parts.ranks
    own = await asyncio.gather(
        *(preflight.preflight(party.links[one.host], one.spec) for one in (prefill, decode))
    )
    checks = [await router_check(party, router)]
    ways = ((router, prefill, prefill.spec.http()[1]), (router, decode, decode.spec.http()[1]))
    for source, target, port in (*ways, (decode, prefill, _bootstrap(prefill))):
        checks.append(await _way(party, source, target, port))
    for one, told in zip((prefill, decode), own, strict=True):
        checks += [
            replace(c, name=f"{one.role}: {c.name}", sentence=f"{one.role}: {c.sentence}") for c in told
        ]
    return parts, tuple(checks)


async def router_check(party: Party, router: Rank) -> Check:
    """Whether the router's package is there. find_spec of a top-level name imports nothing."""
    code = f"import importlib.util as u;s=u.find_spec('{MODULE}');print(s and (s.origin or ''))"
    home = str(party.links[router.host].hello.get("home") or "/")
    cwd = (
        router.spec.cwd.replace("~", home, 1) if router.spec.cwd.startswith("~") else router.spec.cwd or home
    )
    asked = {
        "argv": [router.spec.python, "-c", code],
        "cwd": cwd,
        "env": dict(router.spec.env),
        "timeout": 20,
    }
    remedy = "Install sglang-router there, or give [pd.router] another `python`."
    try:
        answer = await party.call(router.host, "exec", asked)
    except RemoteError as error:
        return Check("router", "block", f"{router.host}: {error.sentence}", (), remedy, "no_router")
    where = bytes(answer["blob"]).decode("utf-8", "replace").strip()
    if answer["code"] != 0 or where in ("", "None"):
        said = f"{router.spec.python} on {router.host} has no {MODULE}."
        return Check("router", "block", said, (), remedy, "no_router")
    return Check("router", "ok", f"{MODULE} of {router.host} is {where}.")


async def _way(party: Party, source: Rank, target: Rank, port: int) -> Check:
    """A real connection from one part's host to where another will listen."""
    what = f"{source.role} on {source.host} to {target.role} at {target.address}:{port}"
    word = secrets.token_hex(8)
    asked = {"address": target.address, "port": port, "word": word, "seconds": 30}
    try:
        await party.call(target.host, "network.listen", asked)
    except RemoteError as error:
        return Check("way", "block", f"{target.host}: {error.sentence}", (), error.step, "part_port_in_use")
    try:
        to = {"address": target.address, "port": port, "word": word, "timeout": ranks_wires.CONNECT_S}
        answer = await party.call(source.host, "network.connect", to)
    finally:
        try:
            await party.call(target.host, "network.unlisten", {"word": word})
        except (RemoteError, LinkError):
            pass  # it ends by itself
    if answer.get("ok"):
        return Check("way", "ok", f"{what}: works.")
    problem = str(answer.get("problem") or "")
    said = f"{what}: {ranks_wires.WORDS.get(problem, problem)}."
    return Check(
        "way",
        "block",
        said,
        (),
        "Open that port between the hosts, or give another `address`.",
        "part_unreachable",
    )
