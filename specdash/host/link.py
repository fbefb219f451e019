"""The way to a host, as the rest of specdash sees it. SSH and local give the same.

A `Link` is one connection with one agent on it. It does not reconnect: when it breaks, every call and
stream ends with `LinkLost` and its owner (monitor's host source, or a verb) opens a new one. A call that
ended so has an *unknown* result: effects are made safe to repeat on the host, not guessed here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Json = Any

HELLO_KEYS = """What the agent's `hello` returns (all on the host):
hostname, user, uid, home, machine_id, boot_id, python (version str), executable, kernel, shell,
now_unix, now_boot (CLOCK_BOOTTIME s), cpus, mem_total_kb, mem_available_kb, clock_ticks,
base (the folder ~/.specdash/hosts/<machine-id>), container (bool), linger (bool|None),
kill_user_processes (bool|None), can_forward (bool)."""


@dataclass(frozen=True, slots=True)
class TailChunk:
    """Bytes of a followed file. `offset` is the file's own offset within `generation`.

    `generation` goes up when the file was replaced (other inode) or truncated. `gone` is a sentence while
    the file cannot be read; data is then empty. `inode` and `device` let a later tail resume exactly.
    """

    data: bytes
    offset: int
    size: int
    generation: int
    device: int
    inode: int
    gone: str = ""


@dataclass(frozen=True, slots=True)
class TailPosition:
    """Where to resume: same device and inode → from `offset`; else from 0 with a new generation.

    `before`: the last up to 64 bytes before `offset`, when known. They tell a file that was truncated and grew
    again, or got a used inode number, from the one that was read.
    """

    offset: int = 0
    device: int = 0
    inode: int = 0
    generation: int = 0
    before: bytes = b""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request to the engine's port as seen *from the host*."""

    method: str
    path: str
    port: int
    host: str = "127.0.0.1"
    headers: Mapping[str, str] | None = None
    body: bytes | None = None
    tls: bool = False
    max_bytes: int = 8_000_000
    verify: bool = False
    """Whether the certificate must be trusted here: over a link, SSH is what proves the host."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    status: int
    headers: Mapping[str, str]
    body: bytes
    took_s: float


class Link(Protocol):
    """One reachable host with a living agent."""

    @property
    def name(self) -> str: ...

    @property
    def hello(self) -> Mapping[str, Json]:
        """What the agent said of the host; see HELLO_KEYS."""
        ...

    async def call(
        self,
        method: str,
        params: Mapping[str, Json] | None = None,
        *,
        timeout: float = 10.0,
        blob: bytes = b"",
    ) -> dict[str, Json]:
        """One agent call. Binary input travels as `blob`; binary output comes as key "blob" (bytes).

        Raises RemoteError (the agent said no), LinkLost, or TimeoutError (the call is cancelled there).
        """
        ...

    def tail(self, path: str, position: TailPosition | None = None) -> AsyncIterator[TailChunk]:
        """Follow a file for ever, from `position` (default: first byte). Bytes exact, none twice."""
        ...

    def sample(
        self, kind: str, interval_s: float, params: Mapping[str, Json] | None = None
    ) -> AsyncIterator[dict[str, Json]]:
        """A stream of samples (`gpu`, `host`, `procs`, `runs`, …), newest wins when we are slow."""
        ...

    async def http(self, request: HttpRequest, *, timeout: float = 5.0) -> HttpResponse:
        """Raises HttpError with one word in `.args`-independent attribute `word`: refused, timeout, closed."""
        ...

    async def ping(self) -> float:
        """Round trip to the agent in milliseconds."""
        ...

    async def close(self) -> None: ...


AskHostKey = Callable[[str, str], Awaitable[bool]]
"""(host, "SHA256:…") → accept and remember? None in its place means: never accept."""
