"""What the agent has to say, in order of urgency: answers first, then samples, then log bytes.

One thread writes. Every queue is bounded: answers by bytes, samples by one per subscription (the newest
wins), tails by one chunk each (and by their credit). So a 1 GB log can never make a sample late by more than
what is already on the wire.
"""

from __future__ import annotations

import collections
import os
import threading
from typing import Any, Callable, Deque, Dict

MAX_URGENT = 16 * 1024 * 1024


class Closed(Exception):
    """The other side is gone."""


class Outbox:
    def __init__(self, fd: int, on_broken: Callable[[], None]) -> None:
        self._fd = fd
        self._on_broken = on_broken
        self._ready = threading.Condition()
        self._urgent: Deque[bytes] = collections.deque()
        self._urgent_bytes = 0
        self._samples: Dict[int, bytes] = {}
        self._chunks: Dict[int, bytes] = {}
        self._closed = False

    def urgent(self, frame: bytes) -> None:
        """Queue an answer; waits while too many bytes are queued. Raises Closed."""
        with self._ready:
            while self._urgent_bytes > MAX_URGENT and not self._closed:
                self._ready.wait()
            self._check()
            self._urgent.append(frame)
            self._urgent_bytes += len(frame)
            self._ready.notify_all()

    def sample(self, key: int, frame: bytes) -> None:
        """Queue a sample in place of an older one of the same subscription."""
        with self._ready:
            self._check()
            self._samples[key] = frame
            self._ready.notify_all()

    def chunk(self, key: int, frame: bytes) -> None:
        """Queue log bytes; waits until the chunk before it is on its way."""
        with self._ready:
            while key in self._chunks and not self._closed:
                self._ready.wait()
            self._check()
            self._chunks[key] = frame
            self._ready.notify_all()

    def drop(self, key: int) -> None:
        with self._ready:
            self._samples.pop(key, None)
            self._chunks.pop(key, None)
            self._ready.notify_all()

    def close(self) -> None:
        with self._ready:
            self._closed = True
            self._ready.notify_all()

    def _check(self) -> None:
        if self._closed:
            raise Closed()

    def run(self) -> None:
        """The writing thread."""
        try:
            while True:
                with self._ready:
                    frame = self._take()
                    while frame is None and not self._closed:
                        self._ready.wait()
                        frame = self._take()
                    if frame is None:
                        return
                    self._ready.notify_all()
                view = memoryview(frame)
                while view:
                    view = view[os.write(self._fd, view) :]
        except OSError:
            self.close()
            self._on_broken()

    def _take(self) -> Any:
        if self._urgent:
            frame = self._urgent.popleft()
            self._urgent_bytes -= len(frame)
            return frame
        for waiting in (self._samples, self._chunks):
            if waiting:
                # dicts keep insertion order, so the one that waits longest goes first: fair among tails.
                return waiting.pop(next(iter(waiting)))
        return None
