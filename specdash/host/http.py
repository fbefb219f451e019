"""HTTP to the engine's port as seen from the host: through a tunnel, by the agent, or directly.

Every request opens its own connection and closes it: an answer then also proves that the port takes new
connections, and no request can run into a connection that a restarted server has forgotten.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from specdash.errors import HttpError, RemoteError
from specdash.host.link import HttpRequest, HttpResponse
from specdash.host.mux import Mux

if TYPE_CHECKING:
    from specdash.host.streams import Reader, Writer

TUNNEL, AGENT, DIRECT = "tunnel", "agent", "direct"

_SENTENCES = {
    "refused": "nothing listens there",
    "timeout": "no answer within {timeout:g} s",
    "closed": "the connection was closed before the whole answer came",
    "reset": "the connection was reset",
    "too_big": "the answer is above {max_bytes} bytes",
    "tls": "TLS failed",
    "unreachable": "the address cannot be reached from the host",
}


class ForwardingForbidden(Exception):
    """The SSH server does not let us open connections from it."""


class Route(Protocol):
    """One way to the engine's port. `connect` raises OSError, ForwardingForbidden."""

    via: str

    async def connect(self, host: str, port: int) -> tuple[Reader, Writer]: ...


class TcpRoute:
    """For the local machine."""

    via = DIRECT

    async def connect(self, host: str, port: int) -> tuple[Reader, Writer]:
        return await asyncio.open_connection(host, port)


class AgentRoute:
    """Stands for "ask the agent"; it opens nothing itself."""

    via = AGENT

    async def connect(self, host: str, port: int) -> tuple[Reader, Writer]:
        raise ForwardingForbidden


def error(word: str, request: HttpRequest, timeout: float, detail: str = "") -> HttpError:
    """An HttpError with its word and a sentence."""
    why = _SENTENCES.get(word, word).format(timeout=timeout, max_bytes=request.max_bytes)
    where = f"{request.method} {request.host}:{request.port}{request.path.partition('?')[0]}"
    return HttpError(f"{where}: {why}{f' ({detail[:200]})' if detail else ''}.", word=word)


async def fetch(route: Route, request: HttpRequest, timeout: float) -> HttpResponse:
    """One request over `route`; `timeout` covers all of it. Raises HttpError or ForwardingForbidden."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(timeout):
            try:
                reader, writer = await route.connect(request.host, request.port)
            except ConnectionRefusedError:
                raise error("refused", request, timeout) from None
            except TimeoutError:
                raise
            except OSError as failure:
                raise error("unreachable", request, timeout, str(failure)) from None
            try:
                return await _exchange(reader, writer, request, timeout, began)
            finally:
                writer.close()
    except TimeoutError:
        raise error("timeout", request, timeout) from None


async def _exchange(
    reader: Reader, writer: Writer, request: HttpRequest, timeout: float, began: float
) -> HttpResponse:
    import httpcore  # 30 ms, and no command that asks no port needs it

    from specdash.host.streams import Stream

    stream = Stream(reader, writer)
    scheme = "https" if request.tls else "http"
    try:
        if request.tls:
            stream = await stream.start_tls(_tls(request.verify), request.host)
        origin = httpcore.Origin(scheme.encode(), request.host.encode(), request.port)
        connection = httpcore.AsyncHTTP11Connection(origin, stream)
        body = bytearray()
        url = httpcore.URL(
            scheme=scheme.encode(),
            host=request.host.encode(),
            port=request.port,
            target=request.path.encode(),
        )
        asked = httpcore.Request(request.method, url, headers=_headers(request), content=request.body or b"")
        answer = await connection.handle_async_request(asked)
        try:
            async for piece in answer.aiter_stream():
                body += piece
                if len(body) > request.max_bytes:
                    raise error("too_big", request, timeout)
        finally:
            await connection.aclose()
    except ssl.SSLError as failure:
        raise error("tls", request, timeout, failure.reason or str(failure)) from None
    except (ConnectionResetError, BrokenPipeError, httpcore.ReadError, httpcore.WriteError) as failure:
        raise error("reset", request, timeout, str(failure)) from None
    except (httpcore.RemoteProtocolError, EOFError) as failure:
        raise error("closed", request, timeout, str(failure)) from None
    except httpcore.LocalProtocolError as failure:
        raise error("bad_request", request, timeout, str(failure)) from None
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in answer.headers}
    return HttpResponse(answer.status, headers, bytes(body), time.monotonic() - began)


def _headers(request: HttpRequest) -> list[tuple[bytes, bytes]]:
    headers: Mapping[str, str] = request.headers or {}
    names = {name.lower() for name in headers}
    host = f"[{request.host}]" if ":" in request.host else request.host
    found = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    if "host" not in names:
        found.insert(0, (b"Host", f"{host}:{request.port}".encode()))
    if request.body is not None and "content-length" not in names:
        found.append((b"Content-Length", str(len(request.body)).encode()))
    found.append((b"Connection", b"close"))
    return found


def _tls(verify: bool) -> ssl.SSLContext:
    """Engines on a loopback port have self-signed certificates: the SSH connection is what proves the host."""
    context = ssl.create_default_context()
    if verify:
        return context
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def fetch_by_agent(mux: Mux, request: HttpRequest, timeout: float) -> HttpResponse:
    """The same through the agent's `http` call, for servers that forbid forwarding."""
    params = {
        "method": request.method,
        "path": request.path,
        "host": request.host,
        "port": request.port,
        "headers": dict(request.headers or {}),
        "has_body": request.body is not None,
        "tls": request.tls,
        "max_bytes": request.max_bytes,
        "timeout": timeout,
    }
    began = time.monotonic()
    try:
        # A little longer than the agent's own limit, which gives the better answer.
        result = await mux.call("http", params, timeout=timeout + 2.0, blob=request.body or b"")
    except RemoteError as failure:
        kind, _, word = failure.code.partition(".")
        if kind != "http" or not word:
            raise
        raise error(word, request, timeout, failure.sentence) from None
    except TimeoutError:
        raise error("timeout", request, timeout) from None
    return HttpResponse(result["status"], result["headers"], result["blob"], time.monotonic() - began)
