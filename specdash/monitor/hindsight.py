"""One server judged afterwards, from what somebody saw of it: the screen's own reducer, without a host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdash.monitor import memory, snapshot
from specdash.monitor.events import Event, HttpSeen, LinkChanged, LogRead, RunsListed, Tick
from specdash.monitor.reduce import reduce, start
from specdash.monitor.state import ServerState

_HOST, _RUN = "h", "r"
EVERY_S = 5.0
"""Pace at which a page that stays the same is taken to have been asked for."""


class Hindsight:
    """Give what was seen in the order of time (seconds on any clock); `ready`: it had answered before."""

    def __init__(self, ready: bool = True) -> None:
        record = {"id": _RUN, "alive": True, "http": {"port": 1}, "ready_boot_s": 1.0 if ready else None}
        self._state = start([(_HOST, "")])
        self.see(0.0, LinkChanged("up"))
        self.see(0.0, RunsListed((record,)))

    @property
    def server(self) -> ServerState:
        return self._state.hosts[_HOST].servers[_RUN]

    def see(self, at_s: float, body: Any) -> ServerState | None:
        """One body of `monitor.events`; what the server is then."""
        of_host = isinstance(body, (LinkChanged, RunsListed))
        place = ("", "") if isinstance(body, Tick) else (_HOST, "" if of_host else _RUN)
        self._state = reduce(self._state, Event(float(at_s), place[0], body, place[1]))
        return self._state.hosts[_HOST].servers.get(_RUN)

    def log(self, at_s: float, data: bytes) -> None:
        """All of a log, read at once."""
        self.see(at_s, LogRead(0, data, len(data)))

    def pages(
        self,
        endpoint: str,
        bodies: Sequence[bytes],
        status: int = 200,
        apart_s: float = 1.0,
        same_s: float = 0.0,
    ) -> float:
        """Answers of one endpoint, `apart_s` apart; the last one came again for `same_s` more. → the time after."""
        at = 0.0
        for body in bodies:
            self.see(at, HttpSeen(endpoint, status, body))
            at += apart_s
        end = at + same_s
        while bodies and at < end:
            at += EVERY_S
            self.see(at - 1, HttpSeen(endpoint, status, bodies[-1]))
        return at

    def conclude(self, at_s: float) -> dict[str, Any]:
        """The server in the words of `status --json`, and `gauge_is_stale`: a throughput that is not its own."""
        self.see(at_s, Tick())
        told = snapshot.of_server(self.server, at_s)
        gauge = sum(memory.of(self.server).gauges.get("gen_throughput", {}).values())
        told["gauge_is_stale"] = bool(gauge) and self.server.numbers.decode_tok_s.value != gauge
        return told
