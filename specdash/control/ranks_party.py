"""The links to all hosts of one server: opened together, opened again when lost, and each loss said by name."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from specdash.errors import LinkError, LinkLost, SpecdashError
from specdash.host.link import Link

OpenLink = Callable[[str], Awaitable[Link]]
"""Host name → a new link. Raises LinkError."""
FIRST_WAIT_S, LAST_WAIT_S = 1.0, 15.0


class Party:
    """`links`: host → a link that worked when last used. `away`: host → why there is none."""

    def __init__(self, open_link: OpenLink, hosts: Iterable[str]) -> None:
        self._open = open_link
        self.hosts = tuple(dict.fromkeys(hosts))
        self.links: dict[str, Link] = {}
        self.away: dict[str, str] = {}
        self.since: dict[str, float] = {}
        """When a host went away, by the local monotonic clock."""
        self._next: dict[str, tuple[float, float]] = {}

    async def open(self, *, all_needed: bool = True) -> None:
        """All at once. With `all_needed`, raises the first host's LinkError, named; nothing is left open."""
        errors = await asyncio.gather(*(self._one(host) for host in self.hosts))
        lost = [error for error in errors if error is not None]
        if all_needed and lost:
            await self.close()
            raise lost[0]

    async def _one(self, host: str) -> LinkError | None:
        try:
            self.links[host] = await self._open(host)
        except LinkError as error:
            self._gone(host, error.sentence)
            named = error.sentence if host in error.sentence else f"{host}: {error.sentence}"
            error.sentence = named
            error.args = (error.words,)
            return error
        except TimeoutError:
            self._gone(host, "it did not answer in time")
            return LinkLost(f"{host} did not answer in time.")
        self.away.pop(host, None)
        self.since.pop(host, None)
        self._next.pop(host, None)
        return None

    def _gone(self, host: str, why: str) -> None:
        self.away[host] = why
        self.since.setdefault(host, time.monotonic())
        wait = min(LAST_WAIT_S, self._next.get(host, (0.0, FIRST_WAIT_S / 2))[1] * 2)
        self._next[host] = (time.monotonic() + wait, wait)

    async def call(
        self,
        host: str,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout: float = 30.0,
        blob: bytes = b"",
    ) -> dict[str, Any]:
        """One call on a host. LinkLost when there is no link, or when it broke: then its result is unknown."""
        link = self.links.get(host)
        if link is None:
            raise LinkLost(f"{host} is out of reach: {self.away.get(host, 'not connected')}")
        try:
            return await link.call(method, params, timeout=timeout, blob=blob)
        except LinkError as error:
            await self.lose(host, error.sentence)
            raise
        except TimeoutError:
            await self.lose(host, f"it did not answer {method} in {timeout:.0f} s")
            raise LinkLost(f"{host} did not answer within {timeout:.0f} s.") from None

    async def lose(self, host: str, why: str) -> None:
        """This link is no good any more; `again` opens another."""
        link = self.links.pop(host, None)
        self._gone(host, why)
        if link is not None:
            await _close(link)

    async def again(self, host: str) -> bool:
        """Whether there is a link now; a lost one is opened anew, not more often than the back-off lets."""
        if host in self.links:
            return True
        if time.monotonic() < self._next.get(host, (0.0, 0.0))[0]:
            return False
        return await self._one(host) is None

    def away_s(self, host: str) -> float:
        """Seconds for which a host has been out of reach; 0 when it is not."""
        return time.monotonic() - self.since[host] if host in self.since else 0.0

    async def close(self) -> None:
        links, self.links = list(self.links.values()), {}
        await asyncio.gather(*(_close(link) for link in links))


async def _close(link: Link) -> None:
    with contextlib.suppress(SpecdashError, OSError, TimeoutError):
        await asyncio.wait_for(link.close(), 5.0)
