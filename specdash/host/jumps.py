"""The chain of SSH connections from here to a host, jump hosts included."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from specdash.errors import SshConfigUnsupported
from specdash.host.sshconfig import Explained, explain


@dataclass(frozen=True, slots=True)
class Hop:
    """One SSH connection on the way. `name` is how it was written; `explained` what that means."""

    name: str
    explained: Explained
    jump: bool = field(default=False)


_JUMP = re.compile(
    r"(?:ssh://)?(?:(?P<user>.+)@)?(?P<host>\[[^\]]+\]|[^:\[\]]+|[0-9a-fA-F:]+:[0-9a-fA-F:]*)(?::(?P<port>\d+))?/?"
)


def hops(
    alias: str, path: str | None = None, *, user: str | None = None, port: int | None = None
) -> list[Hop]:
    """All connections from here to `alias`, the target last. The first jump host may have jumps of its own.

    Raises SshConfigUnsupported, also for jumps that lead in a circle.
    """
    name, at, host = alias.rpartition("@")
    return _hops(host, path, user or (name if at else None), port, ())


def _hops(
    alias: str, path: str | None, user: str | None, port: int | None, seen: tuple[str, ...]
) -> list[Hop]:
    if alias in seen or len(seen) > 8:
        raise SshConfigUnsupported(
            f"The jumps of {seen[0]} lead in a circle: {' → '.join((*seen, alias))}.", "Correct ProxyJump."
        )
    target = explain(alias, path, user=user, port=port)
    way: list[Hop] = []
    for number, jump in enumerate(target.jumps):
        found = _JUMP.fullmatch(jump)
        if found is None:
            raise SshConfigUnsupported(f"ProxyJump {jump!r} of {alias} is not [user@]host[:port].")
        host, its_port = found["host"].strip("[]"), int(found["port"]) if found["port"] else None
        if number == 0:
            way += [
                replace(hop, jump=True) for hop in _hops(host, path, found["user"], its_port, (*seen, alias))
            ]
        else:
            way.append(Hop(jump, explain(host, path, user=found["user"], port=its_port), jump=True))
    return [*way, Hop(alias, target)]
