"""A link that comes back: what an action of many hours holds in place of a `Link`.

A link that is lost is opened again, with waits that grow to a minute, for as long as the owner has patience. What
no waiting can change (a changed host key, an ssh config that cannot be read) ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from specdash.errors import (
    HostKeyChanged,
    HostKeyUnknown,
    LinkError,
    LinkLost,
    NoPython,
    SshConfigUnsupported,
)
from specdash.host.link import Link

T = TypeVar("T")
HOPELESS = (HostKeyChanged, HostKeyUnknown, NoPython, SshConfigUnsupported)
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0


class Keeper:
    """`say` hears each loss and each return. `patience_s`: how long a host may be away; None: for ever."""

    def __init__(
        self,
        opener: Callable[[], Awaitable[Link]],
        say: Callable[[str], None],
        *,
        patience_s: float | None = None,
        first_wait_s: float = FIRST_WAIT_S,
    ) -> None:
        self._opener = opener
        self._say = say
        self._patience_s = patience_s
        self._first_wait_s = first_wait_s
        self._link: Link | None = None

    async def link(self) -> Link:
        """The present link, or a new one. Raises LinkError when there is no hope or no patience left."""
        if self._link is not None:
            return self._link
        began, wait = time.monotonic(), self._first_wait_s
        told = ""
        while True:
            try:
                self._link = await self._opener()
                if told:
                    self._say(f"The link is back after {time.monotonic() - began:.0f} s.")
                return self._link
            except HOPELESS:
                raise
            except (LinkError, TimeoutError) as problem:
                said = getattr(problem, "sentence", "") or "The host did not answer in time."
                away = time.monotonic() - began
                if self._patience_s is not None and away > self._patience_s:
                    raise LinkLost(f"{said} Given up after {away:.0f} s.") from None
                if said != told:
                    self._say(f"{said} Trying again; what runs on the host goes on.")
                    told = said
                await asyncio.sleep(wait)
                wait = min(wait * 2, LONGEST_WAIT_S)

    async def lost(self, problem: BaseException) -> None:
        """Let go of a link that broke, or whose host does not answer."""
        self._say(
            f"{getattr(problem, 'sentence', '') or 'The host did not answer in time.'} Connecting again."
        )
        await self.close()

    async def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(link.close(), 5.0)

    async def keep(self, work: Callable[[Link], Awaitable[T]]) -> T:
        """`work(link)`, again on a new link whenever the old one breaks: only for work that is safe to repeat."""
        wait = self._first_wait_s
        while True:
            link = await self.link()
            try:
                return await work(link)
            except HOPELESS:
                raise
            except (LinkError, TimeoutError) as problem:
                await self.lost(problem)
                await asyncio.sleep(wait)
                wait = min(wait * 2, LONGEST_WAIT_S)
