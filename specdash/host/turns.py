"""Whose turn it is to generate on a port: at most one generation at a time, over all who check or measure.

    async with turn(link, "127.0.0.1", 30000, wait_s=5.0) as mine:
        if mine.held:
            …generate…
            mine.result = {"good": True}      # told to all who waited meanwhile
        elif mine.result is not None:
            …how the generation of another one ended…

The turn is kept on the host (see host/remote/turns.py), by the agent of this link; without a link, on this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from specdash.errors import RemoteError
from specdash.host.link import Link
from specdash.host.remote import turns

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass
class Mine:
    """`held`: generate now. Else `result` is how another one's generation ended, None while that is not known."""

    held: bool
    result: dict[str, Any] | None = None
    uid: int | None = None
    """Whose generation it is, where another one's."""
    over: bool = False


@contextlib.asynccontextmanager
async def turn(link: Link | None, address: str, port: int, *, wait_s: float) -> AsyncIterator[Mine]:
    """Waits up to `wait_s` for another one's turn to end. Raises LinkLost; RemoteError goes through."""
    if link is None:
        async with _here(str(port) if address in LOOPBACK else f"{address}:{port}", wait_s) as mine:
            yield mine
        return
    told = await link.call("turn.take", {"port": port, "wait_s": wait_s}, timeout=wait_s + 5.0)
    mine = _read(told, bool(told.get("mine")))
    try:
        yield mine
    finally:
        if mine.held:
            with contextlib.suppress(RemoteError, TimeoutError):
                await link.call("turn.done", {"port": port, "result": mine.result}, timeout=5.0)


@contextlib.asynccontextmanager
async def _here(key: str, wait_s: float) -> AsyncIterator[Mine]:
    given_up = threading.Event()

    def work() -> tuple[turns.Turn | None, dict[str, Any]]:
        got, told = turns.take_or_wait(key, wait_s, given_up.is_set)
        if got is not None and given_up.is_set():
            got.done()
        return got, told

    try:
        got, told = await asyncio.to_thread(work)
    except asyncio.CancelledError:
        given_up.set()
        raise
    mine = _read(told, got is not None)
    try:
        yield mine
    finally:
        if got is not None:
            got.done(mine.result)


def _read(told: dict[str, Any], held: bool) -> Mine:
    result, uid = told.get("result"), told.get("uid")
    return Mine(
        held,
        result if isinstance(result, dict) and not held else None,
        uid if isinstance(uid, int) else None,
        bool(told.get("over")),
    )
