"""One generation at a time for a port of this host, whoever asks: the checks and pulses of all users.

Whose turn it is holds an abstract unix socket: it goes with its process, so that it is never stale, and it is seen
where the port is (both belong to the network namespace). Who comes second connects to it, and is told how the
generation of the first one ended instead of making another.
"""

from __future__ import annotations

import json
import os
import select
import socket
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from specdash.host.remote import folder

MOST_WAIT_S = 120.0
LONGEST_RESULT = 4096
POLL_S = 0.2


def name(key: str) -> str:
    """`key`: a port of this host, or address:port of another one. Not by user: two users must not meet either."""
    return "\0specdash/turn/%s" % key[:80]


class Turn:
    """Held until `done`. Those who wait meanwhile sit in the socket's backlog; nobody has to serve them."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def done(self, result: Optional[Dict[str, Any]] = None) -> None:
        """Ends the turn; everybody who waits is told `result` (a small JSON object)."""
        said = json.dumps(result).encode("ascii") + b"\n" if result is not None else b""
        self.sock.setblocking(False)
        while True:
            try:
                other, _ = self.sock.accept()
            except OSError:
                break  # nobody waits any more
            with other:
                try:
                    other.send(
                        said if len(said) <= LONGEST_RESULT else b"",
                        socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT,
                    )
                except OSError:
                    pass  # gone meanwhile
        self.sock.close()


def take(key: str) -> Optional[Turn]:
    """The turn for a key, or None when another process has it."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(name(key))
        sock.listen(128)
        return Turn(sock)
    except OSError:
        sock.close()
        return None


def wait(key: str, seconds: float, stop: Callable[[], bool]) -> Dict[str, Any]:
    """Waits for the end of another one's turn: {"uid", "pid" of who has it, "result", "over"}.

    `result` is None where it was not told, or told by a user whose word is none for us. `over`: it is nobody's now.
    """
    end = time.monotonic() + seconds
    told: Dict[str, Any] = {"uid": None, "pid": None, "result": None, "over": True}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        try:
            sock.connect(name(key))
            who = folder.peer(sock)
        except BlockingIOError:  # the backlog is full: very many wait already
            time.sleep(min(POLL_S, max(0.0, seconds)))
            return dict(told, over=False)
        except OSError:
            return told
        told.update(uid=who["uid"], pid=who["pid"])
        data = b""
        while len(data) < LONGEST_RESULT and not data.endswith(b"\n"):
            left = end - time.monotonic()
            if left <= 0 or stop():
                return dict(told, over=False)
            if not select.select([sock], [], [], min(left, POLL_S))[0]:
                continue
            try:
                piece = sock.recv(LONGEST_RESULT)
            except OSError:
                break
            if not piece:
                break
            data += piece
    if who["uid"] in (os.getuid(), 0):
        try:
            result = json.loads(data.decode("ascii", "replace"))
            told["result"] = result if isinstance(result, dict) else None
        except ValueError:
            pass
    return told


def take_or_wait(key: str, seconds: float, stop: Callable[[], bool]) -> Tuple[Optional[Turn], Dict[str, Any]]:
    """(the turn, {}) or (None, what `wait` told): the first one's result, or that it is not over yet."""
    end = time.monotonic() + min(seconds, MOST_WAIT_S)
    while True:
        turn = take(key)
        if turn is not None:
            return turn, {}
        told = wait(key, max(0.0, end - time.monotonic()), stop)
        if told["result"] is not None or stop() or time.monotonic() >= end:
            return None, told


_HELD: Dict[str, List[Turn]] = {}
_LOCK = threading.Lock()


def _call_take(params: Dict[str, Any], _blob: bytes) -> Dict[str, Any]:
    """`turn.take` {port, wait_s} → {"mine": True}, or {"mine": False} + `wait`'s. Over when the agent ends, too."""
    key = str(int(params["port"]))
    cancelled: threading.Event = params.get("_cancelled") or threading.Event()
    turn, told = take_or_wait(key, float(params.get("wait_s") or 0.0), cancelled.is_set)
    if turn is None:
        return dict(told, mine=False)
    if cancelled.is_set():  # nobody hears the answer: nobody would end it
        turn.done()
        return {"mine": False}
    with _LOCK:
        _HELD.setdefault(key, []).append(turn)
    return {"mine": True}


def _call_done(params: Dict[str, Any], _blob: bytes) -> Dict[str, Any]:
    """`turn.done` {port, result}: ends the turn that this connection took. Safe to repeat."""
    with _LOCK:
        held = _HELD.pop(str(int(params["port"])), [])
    for turn in held:
        result = params.get("result")
        turn.done(result if isinstance(result, dict) else None)
    return {}


CALLS = {"turn.take": _call_take, "turn.done": _call_done}
