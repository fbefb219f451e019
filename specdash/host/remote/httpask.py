"""One HTTP request to the engine on this host, with a bounded answer. For programs that have no event loop."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from typing import Any, Dict, Mapping, Optional

MAX_BODY = 8 << 20


def ask(address: Mapping[str, Any], request: Mapping[str, Any], timeout: float) -> Dict[str, Any]:
    """{"status": int | None, "body": bytes, "problem": "" | refused | timeout | closed, "took_s"}.

    `address`: host, port, tls. `request`: method, path, headers, body (str). `timeout` bounds each wait and,
    in sum, the whole answer.
    """
    began = time.monotonic()
    host, port = str(address.get("host") or "127.0.0.1"), int(address["port"])
    connection: Optional[http.client.HTTPConnection] = None
    status: Optional[int] = None
    body, problem = b"", ""
    try:
        if address.get("tls"):
            # The engine is on this very machine and was named by its port: its certificate proves nothing more.
            context = ssl._create_unverified_context()
            connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
        else:
            connection = http.client.HTTPConnection(host, port, timeout=timeout)
        text = str(request.get("body") or "")
        connection.request(
            str(request["method"]),
            str(request["path"]),
            body=text.encode("utf-8") if text else None,
            headers=dict(request.get("headers") or {}),
        )
        answer = connection.getresponse()
        parts, size = [], 0
        while size < MAX_BODY and time.monotonic() - began < timeout:
            part = answer.read(min(65536, MAX_BODY - size))
            if not part:
                break
            parts.append(part)
            size += len(part)
        body, status = b"".join(parts), answer.status
    except ConnectionRefusedError:
        problem = "refused"
    except (socket.timeout, TimeoutError):
        problem = "timeout"
    except (OSError, http.client.HTTPException):
        problem = "closed"
    finally:
        if connection is not None:
            connection.close()
    return {"status": status, "body": body, "problem": problem, "took_s": round(time.monotonic() - began, 3)}


def decoded(answer: Mapping[str, Any]) -> Any:
    """The answer's JSON, or None."""
    try:
        return json.loads(bytes(answer["body"]).decode("utf-8", "replace"))
    except ValueError:
        return None
