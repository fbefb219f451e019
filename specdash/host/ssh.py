"""A host over SSH: the connection (with its jumps), the agent on one session, tunnels to the engine."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import asyncssh

from specdash.config.hosts import Host
from specdash.errors import HostBusy, LinkError, LinkLost
from specdash.host import bootstrap, http
from specdash.host.agentlink import AgentLink
from specdash.host.hop import HopConnector
from specdash.host.jumps import Hop, hops
from specdash.host.link import AskHostKey
from specdash.host.ourkeys import ssh_line
from specdash.host.session import Session, say_hello

if TYPE_CHECKING:
    from specdash.host.streams import Reader, Writer

_SESSION_TRIES = 4
_SESSION_PAUSE_S = 0.4
_PROBE_S = 2.0


class _Channel(asyncssh.SSHClientSession[bytes]):
    """The agent's exec channel. Also the Mux's transport."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._chan: asyncssh.SSHClientChannel[bytes] | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self._chan = chan

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
        if datatype == asyncssh.EXTENDED_DATA_STDERR:
            self._session.error_data(data)
        else:
            self._session.data(data)

    def exit_status_received(self, status: int) -> None:
        self._session.exited(f"it ended with code {status}")

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:
        self._session.exited(f"it was ended by SIG{signal}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._writable.set()
        self._session.ended(str(exc) if exc is not None else "the channel was closed")

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def write(self, data: bytes) -> None:
        if self._chan is not None and not self._chan.is_closing():
            with contextlib.suppress(OSError):
                self._chan.write(data)

    async def drain(self) -> None:
        await self._writable.wait()

    def abort(self) -> None:
        if self._chan is not None:
            self._chan.abort()


class TunnelRoute:
    """Connections that the SSH server opens for us (direct-tcpip): not counted by MaxSessions."""

    via = http.TUNNEL

    def __init__(self, connection: asyncssh.SSHClientConnection, name: str) -> None:
        self._connection = connection
        self._name = name

    async def connect(self, host: str, port: int) -> tuple[Reader, Writer]:
        try:
            reader, writer = await self._connection.open_connection(host, port, encoding=None)
        except asyncssh.ChannelOpenError as error:
            if error.code == asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED:
                raise http.ForwardingForbidden from None
            reason = error.reason.lower()
            if "refused" in reason:
                raise ConnectionRefusedError(error.reason) from None
            if "timed out" in reason:
                raise TimeoutError from None
            if "connection closed" in reason or "connection lost" in reason:
                raise LinkLost(f"The connection to {self._name} was lost: {error.reason}.") from None
            raise OSError(error.reason) from None
        except asyncssh.Error as error:
            raise LinkLost(f"The connection to {self._name} was lost: {error.reason}.") from None
        return _TunnelReader(reader, self._name), writer


class _TunnelReader:
    def __init__(self, reader: asyncssh.SSHReader[bytes], name: str) -> None:
        self._reader = reader
        self._name = name

    async def read(self, n: int = -1) -> bytes:
        try:
            return await self._reader.read(n)
        except asyncssh.Error as error:
            raise LinkLost(f"The connection to {self._name} was lost: {error.reason}.") from None


async def open_ssh(host: Host, *, ask: AskHostKey | None = None, timeout_s: float = 15.0) -> AgentLink:
    """See open_link."""
    # Reading the config may run `Match exec` commands and `ssh -G`: not on the event loop.
    way = await asyncio.to_thread(hops, host.ssh, host.ssh_config, user=host.user, port=host.port)
    way[-1] = replace(way[-1], name=host.name)
    connections: list[asyncssh.SSHClientConnection] = []
    try:
        with contextlib.ExitStack() as files:
            for hop in way:
                hop = files.enter_context(_with_config(hop))
                connector = HopConnector(
                    hop, ask, timeout_s, host.known_hosts, host.identity if not hop.jump else None
                )
                connections.append(await connector.connect(connections[-1] if connections else None))
        return await _start_agent(host, connections, way[-1].explained.note, timeout_s)
    except BaseException:
        await _close(connections)
        raise


@contextlib.contextmanager
def _with_config(hop: Hop) -> Iterator[Hop]:
    """Lays down, for as long as it is needed, the config that was made from `ssh -G`."""
    if not hop.explained.generated:
        yield hop
        return
    with tempfile.NamedTemporaryFile("w", prefix="specdash-ssh-", suffix=".config") as file:
        file.write(hop.explained.generated)
        file.flush()
        yield replace(hop, explained=replace(hop.explained, config=file.name))


async def _start_agent(
    host: Host, connections: list[asyncssh.SSHClientConnection], note: str, timeout_s: float
) -> AgentLink:
    connection = connections[-1]
    start = bootstrap.Start.of(host.python)
    by_hand = ssh_line(host.ssh, host.user, host.port, host.identity) + " /bin/sh -c true"
    session = Session(host.name, start, by_hand)
    try:
        async with asyncio.timeout(timeout_s):
            channel = await _open_session(connection, session, bootstrap.wrap(start.script))
            mux = await session.begin(channel)
            hello, route = await asyncio.gather(
                say_hello(session, mux, host, timeout_s), _find_route(connection, host.name)
            )
    except TimeoutError:
        raise LinkError(
            f"{host.name} took the login, but the agent did not start within {timeout_s:g} s.",
            "Does a startup file of the account's shell wait for something?",
        ) from None
    if note:
        hello["ssh_config_note"] = note

    async def close() -> None:
        await _close(connections)

    return AgentLink(mux, hello, route, close)


async def _open_session(connection: asyncssh.SSHClientConnection, session: Session, command: str) -> _Channel:
    channel = _Channel(session)
    for attempt in range(1, _SESSION_TRIES + 1):
        try:
            # Always our own command and no terminal: RemoteCommand and RequestTTY must not reach the agent.
            await connection.create_session(
                lambda: channel, command, encoding=None, request_pty=False, term_type=None
            )
            return channel
        except asyncssh.ChannelOpenError as error:
            if attempt == _SESSION_TRIES:
                raise HostBusy(
                    f"{session.name} is up and took the login, but gives no session: {error.reason}.",
                    "MaxSessions of its sshd is used up; try again in a moment.",
                ) from None
            await asyncio.sleep(_SESSION_PAUSE_S * attempt)
        except asyncssh.Error as error:
            raise LinkError(f"{session.name}: the SSH connection broke: {error.reason}.") from None
    raise AssertionError("unreachable")


async def _find_route(connection: asyncssh.SSHClientConnection, name: str) -> http.Route:
    """Whether the server lets us open connections, found out once on a port where nothing listens."""
    tunnel = TunnelRoute(connection, name)
    try:
        async with asyncio.timeout(_PROBE_S):
            _, writer = await tunnel.connect("127.0.0.1", 1)
            writer.close()
    except http.ForwardingForbidden:
        return http.AgentRoute()
    except (OSError, TimeoutError, LinkLost):
        pass
    return tunnel


async def _close(connections: list[Any]) -> None:
    for connection in reversed(connections):
        connection.close()
        try:
            async with asyncio.timeout(2.0):
                await connection.wait_closed()
        except TimeoutError:
            connection.abort()
