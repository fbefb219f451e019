"""When is a server ready, and does it still work on requests? Rules only; a supervisor on the host applies them.

Ready means that *this run's own process* listens on the port and a real generation came back. "The server is
fired up" alone is not: a server that could not bind its port prints it too, after its warm-up talked to
another server on that port. Facts: SGLang 0.4.1 to 0.5.23, seen on 0.5.9 and 0.5.23.

The supervisor calls: `scan` on the log, `probe` and `judge` for the generation, `loads` and `running` for a
drain, `starting_signal` and `serving_signal` for a stop. It needs no other knowledge of the engine.
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, List, Mapping, Optional, Tuple

PROBE_INTERVAL_S = 20.0
"""Least time between two probes. SGLang gives up on its own health generation after 20 s; a probe that is
repeated faster than that leaves requests in the scheduler that pile up."""
PROBE_TIMEOUT_S = 120.0
"""Longer than the engine's own limit, so that we never abandon a request that it still works on."""
QUIET_BEFORE_PROBE_S = 15.0
"""With the port open but no ready line (custom logging), wait this long before the first probe."""
STARTING_SIGNAL = "SIGINT"
"""TERM during a load kills the launcher alone and leaks its detokenizer; INT cleans up."""
SERVING_SIGNAL = "SIGINT"
"""To the launcher alone (to the whole group it looks like a crash). INT is the stop of its HTTP server, uvicorn: the
port closes at once, what was accepted is answered to its end, then it ends its children. TERM is SGLang's own drain,
which goes on accepting: under steady traffic it never ends, and what comes in at its very end is cut. Seen on 0.5.23:
requests in flight, plain and streamed, were all answered after INT (tests/engine/test_switching.py counts them); a
second INT gives up what is left."""
SERVING_SIGNAL_CLOSES = True
"""After SERVING_SIGNAL no new connection is accepted, and the process ends when the last answer is out."""

_MARKS: Tuple[Tuple[str, "re.Pattern[bytes]"], ...] = (
    (
        "bind_failed",
        re.compile(rb"error while attempting to bind on address|\[Errno 98\].{0,80}address already in use"),
    ),
    ("fired_up", re.compile(rb"The server is fired up and ready to roll!")),
    ("listening", re.compile(rb"Uvicorn running on ")),
    ("rank_ready", re.compile(rb"Dummy health check server started")),
)
_CARRY = 400


def scan(data: bytes, carry: bytes = b"") -> Tuple[List[str], bytes]:
    """Marks in a piece of the log (each once, in the order of the table), and the bytes to carry to the next piece.

    Marks: "bind_failed", "fired_up", "listening", "rank_ready" (a rank above 0 never says *fired up*). A mark
    may be told twice when pieces overlap; the reader keeps a set.
    """
    text = carry + data
    return [name for name, pattern in _MARKS if pattern.search(text)], text[-_CARRY:]


def probe(auth: str = "") -> Dict[str, Any]:
    """The smallest real generation: {"method", "path", "headers", "body" (str)}."""
    body = {"text": "1 2 3", "sampling_params": {"max_new_tokens": 2, "temperature": 0}}
    return {"method": "POST", "path": "/generate", "headers": headers(auth), "body": json.dumps(body)}


def headers(auth: str = "") -> Dict[str, str]:
    found = {"Content-Type": "application/json"}
    if auth:
        found["Authorization"] = "Bearer " + auth
    return found


def judge(status: Optional[int], body: bytes) -> Tuple[bool, str]:
    """Did the probe's answer prove that the server generates? (yes, sentence when not)."""
    if status is None:
        return False, "The port accepted the connection but gave no answer."
    if status in (401, 403):
        return False, "The server wants an API key that this run does not know (HTTP %d)." % status
    if status == 503:
        return False, "The server answers 503: it is warming up or shutting down."
    if status != 200:
        return False, "The generation was answered with HTTP %d." % status
    try:
        answer = json.loads(body.decode("utf-8", "replace"))
    except ValueError:
        return False, "The answer to the generation is no JSON: another program may hold the port."
    first = answer[0] if isinstance(answer, list) and answer else answer
    meta = first.get("meta_info") if isinstance(first, dict) else None
    if not isinstance(meta, dict):
        return False, "The answer to the generation has no meta_info: this is not SGLang's /generate."
    tokens = meta.get("completion_tokens")
    if isinstance(tokens, int) and tokens < 1:
        return False, "The generation came back with no token."
    return True, ""


def loads(auth: str = "") -> List[Dict[str, Any]]:
    """Requests that may tell how much work is in the engine, best first. None of them generates."""
    return [
        {"method": "GET", "path": path, "headers": headers(auth), "body": ""}
        for path in ("/v1/loads", "/get_load", "/metrics")
    ]


def running(path: str, status: Optional[int], body: bytes) -> Optional[int]:
    """Requests running and waiting, by one of `loads`' answers; None when it does not tell."""
    if status != 200:
        return None
    if path == "/metrics":
        return _from_metrics(body)
    try:
        answer = json.loads(body.decode("utf-8", "replace"))
    except ValueError:
        return None
    items = answer.get("loads") if isinstance(answer, dict) else answer
    if not isinstance(items, list) or not items:
        return None
    total = 0
    for item in items:
        if not isinstance(item, Mapping):
            return None
        # /v1/loads: num_running_reqs + num_waiting_reqs. /get_load: num_reqs is both, num_waiting_reqs is part of it.
        here = item.get("num_reqs")
        if not isinstance(here, int):
            parts = [item.get("num_running_reqs"), item.get("num_waiting_reqs")]
            if not all(isinstance(part, int) for part in parts):
                return None
            here = sum(part for part in parts if isinstance(part, int))
        total += here
    return total


def _from_metrics(body: bytes) -> Optional[int]:
    total: Optional[float] = None
    for line in body.splitlines():
        if (
            line.startswith((b"sglang:num_running_reqs{", b"sglang:num_queue_reqs{"))
            and b"priority=" not in line
        ):
            try:
                total = (total or 0.0) + float(line.rpartition(b" ")[2])
            except ValueError:
                return None
    return None if total is None else int(total)
