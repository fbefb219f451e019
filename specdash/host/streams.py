"""httpcore's network stream over a pair of asyncio-like streams (asyncio's or asyncssh's), with TLS on top."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Any, Protocol

import httpcore

_PIECE = 65536


class Reader(Protocol):
    async def read(self, n: int = ..., /) -> bytes: ...


class Writer(Protocol):
    def write(self, data: bytes, /) -> None: ...

    async def drain(self) -> None: ...

    def close(self) -> None: ...


class Stream(httpcore.AsyncNetworkStream):
    """Time limits are the caller's: one limit covers the whole request."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._reader.read(max_bytes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._writer.write(buffer)
        await self._writer.drain()

    async def aclose(self) -> None:
        self._writer.close()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> Stream:
        tls = TlsStream(self._reader, self._writer, ssl_context, server_hostname)
        await tls.handshake()
        return tls

    def get_extra_info(self, info: str) -> Any:
        return None


class TlsStream(Stream):
    """TLS in memory: an SSH channel is no socket that asyncio could wrap."""

    def __init__(
        self, reader: Reader, writer: Writer, context: ssl.SSLContext, server_hostname: str | None
    ) -> None:
        super().__init__(reader, writer)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_hostname)

    async def handshake(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._more()
                continue
            await self._flush()
            return

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        while True:
            try:
                return self._tls.read(max_bytes)
            except ssl.SSLWantReadError:
                await self._flush()
                await self._more()
            except ssl.SSLZeroReturnError:
                return b""

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for piece in _cut(buffer):
            self._tls.write(piece)
            await self._flush()

    async def _flush(self) -> None:
        if self._outgoing.pending:
            self._writer.write(self._outgoing.read())
            await self._writer.drain()

    async def _more(self) -> None:
        data = await self._reader.read(_PIECE)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()


def _cut(buffer: bytes) -> Iterable[bytes]:
    return (buffer[at : at + _PIECE] for at in range(0, len(buffer), _PIECE))
