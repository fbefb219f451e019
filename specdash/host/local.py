"""The local machine as a host: the same agent, as a subprocess."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from typing import cast

from specdash.config.hosts import Host
from specdash.errors import LinkError
from specdash.host import bootstrap
from specdash.host.agentlink import AgentLink
from specdash.host.http import TcpRoute
from specdash.host.session import Session, say_hello

_KILL_AFTER_S = 2.0


class _Process(asyncio.SubprocessProtocol):
    """The agent's pipes. Also the Mux's transport."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._process: asyncio.SubprocessTransport | None = None
        self._stdin: asyncio.WriteTransport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.exited = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._process = cast(asyncio.SubprocessTransport, transport)
        self._stdin = cast(asyncio.WriteTransport, self._process.get_pipe_transport(0))

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 1:
            self._session.data(data)
        else:
            self._session.error_data(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._writable.set()
        if fd == 1:
            self._session.ended("the agent closed its output")

    def process_exited(self) -> None:
        self._writable.set()
        code = self._process.get_returncode() if self._process is not None else None
        self._session.exited(f"the agent ended with code {code}")
        self.exited.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def write(self, data: bytes) -> None:
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.write(data)

    async def drain(self) -> None:
        await self._writable.wait()

    def abort(self) -> None:
        if self._stdin is not None:
            self._stdin.abort()

    async def close(self) -> None:
        """The agent ends when its stdin ends; if it does not, it is killed."""
        if self._process is None:
            return
        if self._stdin is not None:
            self._stdin.close()
        try:
            async with asyncio.timeout(_KILL_AFTER_S):
                await self.exited.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
        self._process.close()


async def open_local(host: Host, timeout_s: float) -> AgentLink:
    """Raises LinkError where this machine is not Linux, NoPython, or TimeoutError as LinkError."""
    if sys.platform != "linux":
        raise LinkError(
            f"This machine is {sys.platform}: SGLang hosts are Linux.",
            "Configure a host with `ssh`, or try `specdash demo`.",
        )
    start = bootstrap.Start.of(_interpreter(host))
    session = Session(host.name, start)
    process = _Process(session)
    loop = asyncio.get_running_loop()
    # Its own session: Control-C in our terminal must not reach the agent, which ends with its stdin.
    await loop.subprocess_exec(lambda: process, "/bin/sh", "-c", start.script, start_new_session=True)
    try:
        async with asyncio.timeout(timeout_s):
            mux = await session.begin(process)
            hello = await say_hello(session, mux, host, timeout_s)
    except TimeoutError:
        await process.close()
        raise LinkError(f"The agent on {host.name} did not answer within {timeout_s:g} s.") from None
    except BaseException:
        await process.close()
        raise
    return AgentLink(mux, hello, TcpRoute(), process.close)


def _interpreter(host: Host) -> str:
    """`python3` may be missing where specdash itself came with its own Python: then that one."""
    if host.python == "python3" and shutil.which("python3") is None:
        return os.fspath(sys.executable)
    return host.python
