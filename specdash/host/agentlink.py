"""The Link: a Mux on a living agent, a way to the engine's port, and how to close it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from specdash.errors import HttpError
from specdash.host import http
from specdash.host.link import HttpRequest, HttpResponse, Json, TailChunk, TailPosition
from specdash.host.mux import Mux


class AgentLink:
    """Implements `Link`."""

    def __init__(
        self,
        mux: Mux,
        hello: dict[str, Json],
        route: http.Route,
        close: Callable[[], Awaitable[None]],
    ) -> None:
        self.name = mux.name
        self._mux = mux
        self._route = route
        self._close = close
        self._hello = hello
        self._hello.update(http_via=route.via, can_forward=route.via != http.AGENT)

    @property
    def hello(self) -> Mapping[str, Json]:
        return self._hello

    async def call(
        self,
        method: str,
        params: Mapping[str, Json] | None = None,
        *,
        timeout: float = 10.0,
        blob: bytes = b"",
    ) -> dict[str, Json]:
        return await self._mux.call(method, params, timeout=timeout, blob=blob)

    def tail(self, path: str, position: TailPosition | None = None) -> AsyncIterator[TailChunk]:
        return self._mux.tail(path, position)

    def sample(
        self, kind: str, interval_s: float, params: Mapping[str, Json] | None = None
    ) -> AsyncIterator[dict[str, Json]]:
        return self._mux.sample(kind, interval_s, params)

    async def http(self, request: HttpRequest, *, timeout: float = 5.0) -> HttpResponse:
        self._mux.check()
        if self._route.via != http.AGENT:
            try:
                return await http.fetch(self._route, request, timeout)
            except HttpError:
                # A connection that broke because the whole link broke says nothing about the engine.
                self._mux.check()
                raise
            except http.ForwardingForbidden:
                # The server's administrator said no: for good, and not the engine's fault.
                self._route = http.AgentRoute()
                self._hello.update(http_via=http.AGENT, can_forward=False)
        return await http.fetch_by_agent(self._mux, request, timeout)

    async def ping(self) -> float:
        return await self._mux.ping()

    async def ended(self) -> None:
        """Returns when the link is gone, closed by us or lost."""
        await self._mux.ended.wait()

    async def close(self) -> None:
        self._mux.lost("it was closed")
        with contextlib.suppress(OSError):
            await self._close()

    async def __aenter__(self) -> AgentLink:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
