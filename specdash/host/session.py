"""From a fresh channel to a living agent: the greeting, the program, the hello. SSH and local share it."""

from __future__ import annotations

import asyncio
from typing import Any

from specdash.config.hosts import Host
from specdash.errors import LinkError, LinkLost, NoPython
from specdash.host import bootstrap
from specdash.host.link import Json
from specdash.host.mux import Mux, Transport

_KEEP_STDERR = 4096
_LAST_WORDS_S = 1.0


class Session:
    """What a channel's callbacks feed. `mux` is there once the agent's program was sent."""

    def __init__(self, name: str, start: bootstrap.Start, by_hand: str = "") -> None:
        """`by_hand`: the command with which the operator can try the same login."""
        self.name = name
        self.by_hand = by_hand
        self.start = start
        self.mux: Mux | None = None
        self.stderr = b""
        self.ended_why = ""
        self._closed = False
        self._output = bytearray()
        self._greeted: asyncio.Future[bootstrap.Greeting] = asyncio.get_running_loop().create_future()

    def data(self, data: bytes) -> None:
        if self.mux is not None:
            self.mux.feed(data)
            return
        self._output += data
        greeting = bootstrap.greeting(self.start, bytes(self._output[-bootstrap.MAX_NOISE :]))
        if greeting is not None and not self._greeted.done():
            self._greeted.set_result(greeting)
        elif len(self._output) > bootstrap.MAX_NOISE:
            self._fail(
                self._no_agent(f"printed more than {bootstrap.MAX_NOISE} bytes and did not start Python")
            )

    def error_data(self, data: bytes) -> None:
        self.stderr = (self.stderr + data)[-_KEEP_STDERR:]

    def ended(self, why: str) -> None:
        """The channel closed. `why` is a phrase without a full stop."""
        self._closed = True
        why = self.ended_why = self.ended_why or why
        if self.mux is not None:
            tail = self.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
            self.mux.lost(why + (f" ({tail[0][:200]})" if tail else ""))
        self._fail(self._no_agent(why))

    def exited(self, why: str) -> None:
        """The program ended; what it said last may still be on its way, so the end comes with the channel's."""
        self.ended_why = self.ended_why or why
        asyncio.get_running_loop().call_later(_LAST_WORDS_S, self.ended, why)

    def _fail(self, error: LinkError) -> None:
        if not self._greeted.done():
            self._greeted.set_exception(error)
            self._greeted.exception()

    def _no_agent(self, why: str) -> LinkError:
        said = bytes(self._output[-600:] + b"\n" + self.stderr[-600:]).decode("utf-8", "replace")
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        words = f' It said: "{" / ".join(lines[-3:])[:400]}".' if lines else ""
        by_hand = (
            f", and try `{self.by_hand}`: an account with a forced command or no shell cannot be used"
            if self.by_hand
            else ""
        )
        return LinkError(
            f"{self.name} took the login but did not run the agent: {why}.{words}",
            f"Check that {self.start.python} is a Python 3.8 or newer{by_hand}.",
        )

    async def begin(self, transport: Transport) -> Mux:
        """Waits for the greeting, sends the program. Raises NoPython or LinkError."""
        greeting = await self._greeted
        check_version(self.name, self.start.python, greeting.version)
        mux = Mux(self.name, transport)
        self.mux = mux
        transport.write(bootstrap.program())
        mux.start()
        if greeting.rest:
            mux.feed(greeting.rest)
        if self._closed:
            mux.lost(self.ended_why)
        return mux

    def hint(self, error: LinkLost) -> LinkError:
        """For an agent that died while it said hello."""
        return self._no_agent(error.sentence.rstrip("."))


def check_version(name: str, python: str, version: tuple[int, int, int] | None) -> None:
    step = f'Set `python = "/path/to/python3"` for host {name} (3.8 or newer; nothing else is needed there).'
    if version is None:
        raise NoPython(f"There is no Python at {python!r} on {name}.", step)
    if version[:2] < bootstrap.MIN_PYTHON:
        raise NoPython(f"{python} on {name} is Python {'.'.join(map(str, version))}: too old.", step)


async def say_hello(session: Session, mux: Mux, host: Host, timeout_s: float) -> dict[str, Any]:
    """The agent's first answer. LinkError when it died before it, NoPython-like troubles included."""
    try:
        hello: dict[str, Json] = await mux.call("hello", {"run_root": host.run_root}, timeout=timeout_s)
    except LinkLost as error:
        raise session.hint(error) from None
    return hello
