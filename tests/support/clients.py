"""Clients of a server that is stopped under them, each of their requests told apart by how it ended.

A request is *accepted* when the server began it: its id is in the server's own log, or a byte of its answer came.
Four ends: finished; refused (nothing listens, or 503); unseen (the connection was closed and the server never began
the request: safe to send again); lost (the server began it, and no whole answer came). A stop may refuse, never lose.
"""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

KINDS = ("plain", "stream", "kept")


@dataclass(frozen=True)
class Asked:
    rid: str
    kind: str
    began: float
    ended: float
    how: str
    """finished, refused, or cut (by the log's word it is then unseen or lost)."""
    detail: str = ""
    answered: int = 0
    """Bytes of the answer that came."""


class Clients:
    """`kinds`: one thread each. plain: an answer in one piece; stream: server-sent events; kept: connection reused."""

    _turn = itertools.count()

    def __init__(
        self, port: int, kinds: Iterable[str] = KINDS, tokens: int = 40, pause_s: float = 0.05
    ) -> None:
        self.port, self.tokens, self.pause_s = port, tokens, pause_s
        self.asked: list[Asked] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._go, args=(kind,), daemon=True) for kind in kinds]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(120)

    def served(self) -> int:
        return sum(one.how == "finished" for one in self.asked)

    def wait_served(self, more: int, seconds: float = 60.0) -> None:
        """Until `more` requests than now have finished."""
        wanted, until = self.served() + more, time.monotonic() + seconds
        while self.served() < wanted:
            assert time.monotonic() < until, f"no {more} answers within {seconds} s: {self.asked[-3:]}"
            time.sleep(0.02)

    def count(self, logs: Iterable[Path], since: float = 0.0) -> Counter[str]:
        """finished, refused, unseen, lost; `logs`: those of the servers, which name each request that they begin."""
        text = b"".join(log.read_bytes() for log in logs)
        return Counter(self._end(one, text) for one in self.asked if one.ended >= since)

    def lost(self, logs: Iterable[Path]) -> list[Asked]:
        text = b"".join(log.read_bytes() for log in logs)
        return [one for one in self.asked if self._end(one, text) == "lost"]

    @staticmethod
    def _end(one: Asked, text: bytes) -> str:
        if one.how != "cut":
            return one.how
        return "lost" if one.answered or one.rid.encode() in text else "unseen"

    def _go(self, kind: str) -> None:
        connection: http.client.HTTPConnection | None = None
        while not self._over.is_set():
            rid = f"{kind}-{self.port}-{next(self._turn):06d}"
            began, how, detail, got = time.monotonic(), "cut", "", b""
            try:
                if connection is None:
                    connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
                    connection.connect()
                connection.request(
                    "POST", "/generate", self._body(rid, kind), {"Content-Type": "application/json"}
                )
                answer = connection.getresponse()
                while piece := answer.read1(65536):
                    got += piece
                answer.close()  # else the connection is not free for the next request
                how, detail = self._judge(kind, answer.status, got)
            except ConnectionRefusedError as error:
                how, detail = "refused", repr(error)
            except (OSError, http.client.HTTPException, ValueError) as error:
                detail = repr(error)
            self.asked.append(Asked(rid, kind, began, time.monotonic(), how, detail, len(got)))
            if connection is not None and (kind != "kept" or how != "finished"):
                connection.close()
                connection = None
            self._over.wait(self.pause_s if how == "finished" else 0.1)

    def _body(self, rid: str, kind: str) -> str:
        asked = {
            "text": "the quick brown fox jumps over the lazy dog and then runs away from the slow cat ",
            "rid": rid,
            "stream": kind == "stream",
            "sampling_params": {"max_new_tokens": self.tokens, "temperature": 0},
        }
        return json.dumps(asked)

    def _judge(self, kind: str, status: int, got: bytes) -> tuple[str, str]:
        if status == 503:
            return "refused", "503"
        if status != 200:
            return "cut", f"status {status}"
        if kind == "stream":
            return ("finished", "") if b"data: [DONE]" in got else ("cut", "a stream without its end")
        tokens = json.loads(got)["meta_info"]["completion_tokens"]
        return ("finished", "") if tokens == self.tokens else ("cut", f"{tokens} tokens")
