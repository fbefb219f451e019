"""A bounded pool of threads for calls, each of which can be told that nobody waits for it any more."""

from __future__ import annotations

import queue
import threading
from typing import Callable, Dict, Tuple

WORKERS = 32
MAX_WAITING = 256

Work = Callable[[threading.Event], None]


class Pool:
    """Threads are made when needed and kept. Work must not raise."""

    def __init__(self) -> None:
        self._waiting: "queue.Queue[Tuple[int, Work, threading.Event]]" = queue.Queue(MAX_WAITING)
        self._lock = threading.Lock()
        self._events: Dict[int, threading.Event] = {}
        self._workers = 0
        self._outstanding = 0

    def submit(self, key: int, work: Work) -> bool:
        """False when too much is waiting already."""
        event = threading.Event()
        with self._lock:
            # Counted from here on, not from when a worker wakes up: nothing waits behind long work while
            # another worker could be had.
            try:
                self._waiting.put_nowait((key, work, event))
            except queue.Full:
                return False
            self._events[key] = event
            self._outstanding += 1
            if self._outstanding > self._workers and self._workers < WORKERS:
                self._workers += 1
                threading.Thread(target=self._run, daemon=True).start()
        return True

    def cancel(self, key: int) -> None:
        with self._lock:
            event = self._events.get(key)
        if event is not None:
            event.set()

    def cancel_all(self) -> None:
        with self._lock:
            for event in self._events.values():
                event.set()

    def _run(self) -> None:
        while True:
            key, work, event = self._waiting.get()
            try:
                if not event.is_set():
                    work(event)
            finally:
                with self._lock:
                    self._events.pop(key, None)
                    self._outstanding -= 1
