"""specdash's end of the agent's channel: calls, samples and tails over one stream of frames."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Protocol

from specdash.errors import LinkLost, RemoteError
from specdash.host.link import Json, TailChunk, TailPosition
from specdash.host.remote import wire

PING_EVERY_S = 10.0
SILENT_AFTER_S = 35.0
"""No byte from the agent for so long, though it was pinged: the connection is dead."""


class Transport(Protocol):
    """The raw channel: SSH or a local process."""

    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None: ...

    def abort(self) -> None: ...


class _Stream:
    def __init__(self) -> None:
        self.error: Exception | None = None
        self.changed = asyncio.Event()


class _Tail(_Stream):
    def __init__(self) -> None:
        super().__init__()
        self.chunks: deque[TailChunk] = deque()
        self.held = 0
        """Bytes in `chunks`: what the window allows, unless the other side does not keep to it."""

    def take(self) -> TailChunk:
        """The next bytes: small chunks that wait in a row are one, since each costs its reader as much as some kB."""
        chunk = self.chunks.popleft()
        parts, length = [chunk.data], len(chunk.data)
        while self.chunks and length + len(self.chunks[0].data) <= wire.PIECE:
            after = self.chunks[0]
            same = (after.generation, after.device, after.inode, after.offset) == (
                chunk.generation, chunk.device, chunk.inode, chunk.offset + length,
            )  # fmt: skip
            if chunk.gone or after.gone or not same:
                break
            parts.append(self.chunks.popleft().data)
            length += len(after.data)
            chunk = replace(chunk, size=after.size)
        return chunk if len(parts) == 1 else replace(chunk, data=b"".join(parts))


class _Sample(_Stream):
    def __init__(self) -> None:
        super().__init__()
        self.newest: dict[str, Json] | None = None


class Mux:
    """Not a Link yet: knows frames, not how the host was reached."""

    def __init__(self, name: str, transport: Transport) -> None:
        self.name = name
        self._transport = transport
        self._parser = wire.Parser()
        self._joiner = wire.Joiner()
        self._ids = itertools.count(1)
        self._calls: dict[int, asyncio.Future[dict[str, Json]]] = {}
        self._pings: dict[int, asyncio.Future[None]] = {}
        self._tails: dict[int, _Tail] = {}
        self._samples: dict[int, _Sample] = {}
        self._lost: LinkLost | None = None
        self._heard = time.monotonic()
        self._heartbeat: asyncio.Task[None] | None = None
        self.ended = asyncio.Event()

    def start(self) -> None:
        self._heartbeat = asyncio.get_running_loop().create_task(self._beat())

    # ---- fed by the transport ----

    def feed(self, data: bytes) -> None:
        self._heard = time.monotonic()
        if self._lost is not None:
            return
        try:
            for header, payload in self._parser.feed(data):
                frame = self._joiner.add(header, payload)
                if frame is not None:
                    self._take(*frame)
        except (wire.ProtocolError, KeyError, TypeError, ValueError) as error:
            self.lost(f"the agent on {self.name} sent something that is not its protocol: {error}")
            self._transport.abort()

    def lost(self, why: str) -> None:
        """The channel is gone: everything that waits ends with LinkLost. Only the first reason counts."""
        if self._lost is not None:
            return
        self._lost = LinkLost(
            f"The connection to {self.name} was lost: {why}.",
            "What was asked for may or may not have been done there; connect again and look.",
        )
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        waiting: list[asyncio.Future[dict[str, Json]] | asyncio.Future[None]] = []
        waiting += self._calls.values()
        waiting += self._pings.values()
        for future in waiting:
            if not future.done():
                future.set_exception(self._error())
        streams: list[_Stream] = [*self._tails.values(), *self._samples.values()]
        for stream in streams:
            stream.error = self._error()
            stream.changed.set()
        self.ended.set()

    def check(self) -> None:
        """Raises LinkLost when the channel is gone."""
        if self._lost is not None:
            raise self._error()

    def _error(self) -> LinkLost:
        assert self._lost is not None
        return LinkLost(self._lost.sentence, self._lost.step)

    def _take(self, header: dict[str, Json], payload: bytes) -> None:
        kind, key = header["t"], header.get("id", 0)
        if kind == "chunk":
            tail = self._tails.get(key)
            if tail is not None:
                tail.held += len(payload)
                if tail.held > wire.TAIL_WINDOW + wire.MAX_PAYLOAD:
                    raise wire.ProtocolError("more log bytes than were asked for")
                tail.chunks.append(
                    TailChunk(
                        data=payload,
                        offset=int(header["offset"]),
                        size=int(header["size"]),
                        generation=int(header["generation"]),
                        device=int(header["device"]),
                        inode=int(header["inode"]),
                        gone=str(header.get("gone", "")),
                    )
                )
                tail.changed.set()
        elif kind == "sampled":
            sample = self._samples.get(key)
            if sample is not None:
                sample.newest = _result(header, payload)
                sample.changed.set()
        elif kind == "ok":
            future = self._calls.pop(key, None)
            if future is not None and not future.done():
                future.set_result(_result(header, payload))
        elif kind == "err":
            self._take_error(key, header)
        elif kind == "pong":
            pong = self._pings.pop(key, None)
            if pong is not None and not pong.done():
                pong.set_result(None)

    def _take_error(self, key: int, header: dict[str, Json]) -> None:
        error = RemoteError(str(header["code"]), str(header["sentence"]), str(header.get("step", "")))
        future = self._calls.pop(key, None)
        if future is not None and not future.done():
            future.set_exception(error)
        stream: _Stream | None = self._tails.get(key) or self._samples.get(key)
        if stream is not None:
            stream.error = error
            stream.changed.set()

    # ---- asked by the rest of specdash ----

    async def _send(self, header: dict[str, Json], blob: bytes = b"") -> None:
        for frame in wire.pieces(header, blob):
            self.check()
            self._transport.write(frame)
            await self._transport.drain()

    def _send_now(self, header: dict[str, Json]) -> None:
        """For small frames where nobody can wait."""
        if self._lost is None:
            self._transport.write(wire.encode(header))

    async def call(
        self,
        method: str,
        params: Mapping[str, Json] | None = None,
        *,
        timeout: float = 10.0,
        blob: bytes = b"",
    ) -> dict[str, Json]:
        """See Link.call."""
        self.check()
        key = next(self._ids)
        future: asyncio.Future[dict[str, Json]] = asyncio.get_running_loop().create_future()
        self._calls[key] = future
        try:
            async with asyncio.timeout(timeout):
                await self._send({"t": "call", "id": key, "m": method, "p": dict(params or {})}, blob)
                return await future
        except TimeoutError:
            raise TimeoutError(f"{self.name} did not answer {method} within {timeout:g} s") from None
        finally:
            if self._calls.pop(key, None) is not None:
                self._send_now({"t": "cancel", "id": key})
            if future.done() and not future.cancelled():
                future.exception()  # looked at, so that asyncio does not complain about it

    async def tail(self, path: str, position: TailPosition | None = None) -> AsyncIterator[TailChunk]:
        """See Link.tail."""
        key, tail = next(self._ids), _Tail()
        pos = position or TailPosition()
        self._tails[key] = tail
        owed = 0
        try:
            await self._send(
                {
                    "t": "tail",
                    "id": key,
                    "path": path,
                    "window": wire.TAIL_WINDOW,
                    "pos": {
                        "offset": pos.offset,
                        "device": pos.device,
                        "inode": pos.inode,
                        "generation": pos.generation,
                        "before": pos.before.decode("latin-1"),
                    },
                }
            )
            while True:
                while tail.chunks:
                    chunk = tail.take()
                    tail.held -= len(chunk.data)
                    yield chunk
                    owed += len(chunk.data)
                    if owed >= wire.TAIL_WINDOW // 4:
                        self._send_now({"t": "credit", "id": key, "n": owed})
                        owed = 0
                if tail.error is not None:
                    raise tail.error
                tail.changed.clear()
                await tail.changed.wait()
        finally:
            del self._tails[key]
            self._send_now({"t": "cancel", "id": key})

    async def sample(
        self, kind: str, interval_s: float, params: Mapping[str, Json] | None = None
    ) -> AsyncIterator[dict[str, Json]]:
        """See Link.sample."""
        key, sample = next(self._ids), _Sample()
        self._samples[key] = sample
        try:
            await self._send(
                {"t": "sample", "id": key, "kind": kind, "every": interval_s, "p": dict(params or {})}
            )
            while True:
                newest, sample.newest = sample.newest, None
                if newest is not None:
                    yield newest
                    continue
                if sample.error is not None:
                    raise sample.error
                sample.changed.clear()
                await sample.changed.wait()
        finally:
            del self._samples[key]
            self._send_now({"t": "cancel", "id": key})

    async def ping(self) -> float:
        """Round trip to the agent's reading thread in milliseconds."""
        self.check()
        key = next(self._ids)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pings[key] = future
        began = time.perf_counter()
        try:
            self._send_now({"t": "ping", "id": key})
            await future
        finally:
            self._pings.pop(key, None)
        return (time.perf_counter() - began) * 1000.0

    async def _beat(self) -> None:
        """Keeps the agent alive (it ends when it hears nothing) and finds out when it is not."""
        while True:
            self._send_now({"t": "ping", "id": 0})
            await asyncio.sleep(PING_EVERY_S)
            silent = time.monotonic() - self._heard
            if silent > SILENT_AFTER_S:
                self.lost(f"no answer for {silent:.0f} s")
                self._transport.abort()


def _result(header: dict[str, Json], payload: bytes) -> dict[str, Json]:
    answer = dict(header["r"])
    if header.get("b"):
        answer["blob"] = payload
    return answer
