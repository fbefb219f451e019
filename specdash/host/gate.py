"""How many SSH connections are being opened at the same time. A fleet must not open all of its own at once.

A handshake costs both sides some 50 ms of a processor, and a jump host that they share refuses the eleventh that has
not logged in yet (MaxStartups). A host that does not answer gives its turn up after a moment and goes on without one:
dead hosts cost the others nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from weakref import WeakKeyDictionary

AT_ONCE = 8
HOLD_S = 1.5

_gates: WeakKeyDictionary[asyncio.AbstractEventLoop, Gate] = WeakKeyDictionary()


class Gate:
    """At most `at_once` turns, each given back after `hold_s` at the latest."""

    def __init__(self, at_once: int = AT_ONCE, hold_s: float = HOLD_S) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._hold_s = hold_s

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits for a turn, in order of asking."""
        await self._free.acquire()
        held = True

        def give_back() -> None:
            nonlocal held
            if held:
                held = False
                self._free.release()

        timer = asyncio.get_running_loop().call_later(self._hold_s, give_back)
        try:
            yield
        finally:
            timer.cancel()
            give_back()


def turn() -> contextlib.AbstractAsyncContextManager[None]:
    """A turn of this event loop's gate."""
    loop = asyncio.get_running_loop()
    gate = _gates.get(loop)
    if gate is None:
        gate = _gates[loop] = Gate()
    return gate.turn()
