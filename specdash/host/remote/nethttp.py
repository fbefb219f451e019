"""HTTP to the engine's port from the host itself, for SSH servers that forbid forwarding."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from typing import Any, Dict

from specdash.host.remote import wire


def fetch(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    """`http` {method, path, host, port, headers, has_body, tls, max_bytes, timeout (s)} + body blob.

    → {status, headers (lower case), took_s} + blob. Codes: http.refused, http.timeout, http.closed,
    http.reset, http.too_big, http.tls, http.unreachable. The time limit covers the whole of it.
    """
    timeout = float(params.get("timeout") or 5.0)
    limit = int(params.get("max_bytes") or 8000000)
    headers = {str(name): str(value) for name, value in (params.get("headers") or {}).items()}
    headers.setdefault("Connection", "close")
    began = time.monotonic()
    where = (str(params.get("host") or "127.0.0.1"), int(params["port"]))
    if params.get("tls"):
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            where[0], where[1], timeout=timeout, context=context
        )
    else:
        connection = http.client.HTTPConnection(where[0], where[1], timeout=timeout)
    late = threading.Event()

    def cut() -> None:
        # A server that drips a byte now and then never trips a socket's own time limit.
        late.set()
        sock = connection.sock
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    watchdog = threading.Timer(timeout, cut)
    watchdog.daemon = True
    watchdog.start()
    try:
        connection.request(
            str(params.get("method") or "GET"),
            str(params.get("path") or "/"),
            body=blob if params.get("has_body") else None,
            headers=headers,
        )
        response = connection.getresponse()
        body = bytearray()
        while True:
            piece = response.read(65536)
            body += piece
            if len(body) > limit:
                raise wire.CallError("http.too_big", "the answer is above %d bytes" % limit)
            if not piece:
                break
        if response.length or late.is_set():
            # read(n) says nothing of an answer that ends early; what is missing is still counted in `length`.
            raise http.client.IncompleteRead(bytes(body[:0]), response.length)
        return {
            "status": response.status,
            "headers": {name.lower(): value for name, value in response.getheaders()},
            "took_s": time.monotonic() - began,
            "blob": bytes(body),
        }
    except wire.CallError:
        raise
    except Exception as error:
        raise wire.CallError("http." + _word(error, late.is_set()), str(error)) from None
    finally:
        watchdog.cancel()
        connection.close()


def _word(error: Exception, late: bool) -> str:
    if late or isinstance(error, socket.timeout):
        return "timeout"
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if isinstance(error, ssl.SSLError):
        return "tls"
    if isinstance(
        error, (http.client.RemoteDisconnected, http.client.IncompleteRead, http.client.BadStatusLine)
    ):
        return "closed"
    if isinstance(error, (ConnectionResetError, BrokenPipeError)):
        return "reset"
    if isinstance(error, OSError):
        return "unreachable"
    if isinstance(error, http.client.HTTPException):
        return "closed"
    raise error


CALLS = {"http": fetch}
SAMPLES: Dict[str, Any] = {}
