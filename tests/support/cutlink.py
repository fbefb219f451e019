"""A way to a TCP port that can be cut: what a link is to a laptop whose lid closes."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading


class Cuttable:
    """Forwards connections on `port` to another port of this machine. `cut` resets all; new ones are let in again."""

    def __init__(self, to: int) -> None:
        self.to = to
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._door.getsockname()[1])
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._door.accept()
                there = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                return
            with self._lock:
                self._pairs.append((here, there))
            threading.Thread(target=self._pump, args=(here, there), daemon=True).start()

    @staticmethod
    def _pump(here: socket.socket, there: socket.socket) -> None:
        with selectors.DefaultSelector() as both, contextlib.suppress(OSError, ValueError):
            both.register(here, selectors.EVENT_READ, there)
            both.register(there, selectors.EVENT_READ, here)
            while True:
                for key, _ in both.select():
                    data = key.fileobj.recv(65536)  # type: ignore[union-attr]
                    if not data:
                        return
                    key.data.sendall(data)

    def cut(self) -> None:
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for one in pair:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()

    def close(self) -> None:
        self._door.close()
        self.cut()
