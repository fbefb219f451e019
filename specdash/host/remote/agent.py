"""The agent: lives as long as the connection, serves calls, samples and tails on one channel.

It runs from memory (see host/bootstrap.py), reads frames on the stdin it was given and writes frames on its
stdout; both are moved away first, so that nothing a library prints can get between the frames and no child
inherits them. It ends when stdin ends, or after `wire.SILENCE_S` without a word, and takes the commands
that it still runs with it. Nothing that must outlive the connection is a child of the agent's call.

A module in this package that serves calls has `CALLS` (name → handler(params, blob) → dict; key "blob" holds
raw bytes) and `SAMPLES` (name → sampler(params) → dict). The agent adds to params: `_cancelled`, a
threading.Event set when nobody waits for the answer any more, and for samplers `_state`, a dict that lives as
long as the subscription.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
import traceback
from typing import Any, Callable, Dict, Optional, Tuple

from specdash.host.remote import follow, wire
from specdash.host.remote.outbox import Closed, Outbox
from specdash.host.remote.pool import Pool

MODULES = (
    "hostinfo",
    "files",
    "children",
    "nethttp",
    "pyrun",
    "procs",
    "runs",
    "gpu",
    "stacks",
    "turns",
    "ranks",
    "network",
)
MAX_STREAMS = 64
POLL_S = 0.1
MIN_EVERY_S = 0.1

Handler = Callable[[Dict[str, Any], bytes], Dict[str, Any]]
Sampler = Callable[[Dict[str, Any]], Dict[str, Any]]


def load(names: Tuple[str, ...] = MODULES) -> Tuple[Dict[str, Handler], Dict[str, Sampler], Dict[str, str]]:
    """(calls, samples, reasons why modules are missing). A module that cannot load takes only itself away."""
    calls: Dict[str, Handler] = {}
    samples: Dict[str, Sampler] = {}
    missing: Dict[str, str] = {}
    for name in names:
        try:
            module = importlib.import_module("specdash.host.remote." + name)
        except Exception as error:
            missing[name] = "%s: %s" % (type(error).__name__, error)
            continue
        calls.update(getattr(module, "CALLS", {}))
        samples.update(getattr(module, "SAMPLES", {}))
    return calls, samples, missing


class Stream:
    """A tail or a sample subscription: one thread, until stopped."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self.credit = 0
        self.changed = threading.Condition()

    def stop(self) -> None:
        self.stopped.set()
        with self.changed:
            self.changed.notify_all()

    def grant(self, count: int) -> None:
        with self.changed:
            self.credit += count
            self.changed.notify_all()


class Agent:
    def __init__(self, source: Any, out_fd: int) -> None:
        self._source = source
        self._out = Outbox(out_fd, self.quit)
        self._calls, self._samples, self._missing = load()
        self._pool = Pool()
        self._streams: Dict[int, Stream] = {}
        self._lock = threading.Lock()
        self._heard = time.monotonic()

    def serve(self) -> None:
        """Reads frames until the other side is gone; never returns."""
        _thread(self._out.run)
        _thread(self._watch_silence)
        parser, joiner = wire.Parser(), wire.Joiner()
        try:
            while True:
                data = self._source.read1(wire.PIECE)
                if not data:
                    break
                self._heard = time.monotonic()
                for header, payload in parser.feed(data):
                    frame = joiner.add(header, payload)
                    if frame is not None:
                        self._take(*frame)
        except (OSError, Closed):
            pass
        except wire.ProtocolError as error:
            sys.stderr.write("agent: %s\n" % error)
        except Exception:
            traceback.print_exc()
        finally:
            self.quit()

    def quit(self) -> None:
        """Ends this process and the commands it still runs."""
        self._pool.cancel_all()
        children = sys.modules.get("specdash.host.remote.children")
        if children is not None:
            children.kill_all()
        os._exit(0)

    def _watch_silence(self) -> None:
        while time.monotonic() - self._heard < wire.SILENCE_S:
            time.sleep(min(5.0, wire.SILENCE_S / 4))
        self.quit()

    # ---- dispatch (reading thread) ----

    def _take(self, header: Dict[str, Any], blob: bytes) -> None:
        kind, key = header.get("t"), int(header.get("id") or 0)
        if kind == "ping":
            self._out.urgent(wire.encode({"t": "pong", "id": key}))
        elif kind == "call":
            self._call(key, str(header.get("m")), dict(header.get("p") or {}), blob)
        elif kind == "tail":
            self._start_stream(key, self._tail, header)
        elif kind == "sample":
            self._start_stream(key, self._sample, header)
        elif kind == "credit":
            stream = self._streams.get(key)
            if stream is not None:
                stream.grant(int(header.get("n") or 0))
        elif kind == "cancel":
            self._cancel(key)
        # Anything else is from a newer specdash and may be ignored.

    def _call(self, key: int, method: str, params: Dict[str, Any], blob: bytes) -> None:
        def work(cancelled: threading.Event) -> None:
            params["_cancelled"] = cancelled
            try:
                self._answer(key, method, params, blob)
            except Closed:
                pass

        if not self._pool.submit(key, work):
            self._error(key, wire.CallError("busy", "the agent has too many calls waiting"))

    def _cancel(self, key: int) -> None:
        self._pool.cancel(key)
        with self._lock:
            stream = self._streams.pop(key, None)
        if stream is not None:
            stream.stop()
            self._out.drop(key)

    # ---- calls (worker threads) ----

    def _answer(self, key: int, method: str, params: Dict[str, Any], blob: bytes) -> None:
        try:
            handler = self._calls.get(method)
            if handler is None:
                raise self._unknown("call", method)
            result = dict(handler(params, blob))
            if method == "hello":
                result["missing_modules"] = self._missing
            for frame in wire.pieces(*_message("ok", key, result)):
                self._out.urgent(frame)
        except Exception as error:
            self._error(key, error)

    def _unknown(self, what: str, name: str) -> wire.CallError:
        why = "; ".join("%s could not load (%s)" % item for item in sorted(self._missing.items()))
        return wire.CallError(
            "unknown_" + what, "the agent has no %s %r%s" % (what, name, why and ": " + why)
        )

    def _error(self, key: int, error: Exception) -> None:
        if isinstance(error, Closed):
            raise error
        if isinstance(error, OSError):
            error = wire.os_error(error, "use " + repr(error.filename) if error.filename else "do this")
        if not isinstance(error, wire.CallError):
            traceback.print_exc(limit=8)
            where = traceback.extract_tb(error.__traceback__)[-1:]
            place = " (%s:%s)" % (os.path.basename(where[0].filename), where[0].lineno) if where else ""
            error = wire.CallError("bug", "the agent failed: %s: %s%s" % (type(error).__name__, error, place))
        self._out.urgent(
            wire.encode(
                {
                    "t": "err",
                    "id": key,
                    "code": error.code,
                    "sentence": error.sentence[:4000],
                    "step": error.step[:4000],
                }
            )
        )

    # ---- streams (own threads) ----

    def _start_stream(
        self, key: int, run: Callable[[int, Stream, Dict[str, Any]], None], header: Any
    ) -> None:
        stream = Stream()
        with self._lock:
            full = len(self._streams) >= MAX_STREAMS
            if not full:
                self._streams[key] = stream
        if full:
            self._error(key, wire.CallError("busy", "the agent already serves %d streams" % MAX_STREAMS))
            return

        def body() -> None:
            try:
                run(key, stream, header)
            except Closed:
                pass
            except Exception as error:
                try:
                    self._error(key, error)
                except Closed:
                    pass
            finally:
                with self._lock:
                    self._streams.pop(key, None)

        _thread(body)

    def _tail(self, key: int, stream: Stream, header: Dict[str, Any]) -> None:
        follower = follow.Follower(str(header["path"]), header.get("pos"))
        stream.grant(int(header.get("window") or wire.TAIL_WINDOW))
        try:
            while not stream.stopped.is_set():
                with stream.changed:
                    while stream.credit <= 0 and not stream.stopped.is_set():
                        stream.changed.wait()
                    credit = stream.credit
                chunks = follower.step(credit)
                for chunk, data in chunks:
                    with stream.changed:
                        stream.credit -= len(data)
                    chunk["id"] = key
                    self._out.chunk(key, wire.encode(chunk, data))
                if not chunks:
                    stream.stopped.wait(POLL_S)
        finally:
            follower.close()

    def _sample(self, key: int, stream: Stream, header: Dict[str, Any]) -> None:
        kind = str(header.get("kind"))
        sampler = self._samples.get(kind)
        if sampler is None:
            raise self._unknown("sample", kind)
        every = max(float(header.get("every") or 1.0), MIN_EVERY_S)
        params = dict(header.get("p") or {})
        params["_state"] = {}
        params["_cancelled"] = stream.stopped
        due = time.monotonic()
        while not stream.stopped.is_set():
            self._out.sample(key, wire.encode(*_message("sampled", key, dict(sampler(params)))))
            # Keeps the rhythm, but never runs after a backlog of missed turns.
            due = max(due + every, time.monotonic())
            stream.stopped.wait(max(due - time.monotonic(), 0.0))


def _message(kind: str, key: int, result: Dict[str, Any]) -> wire.Frame:
    blob = result.pop("blob", None)
    header: Dict[str, Any] = {"t": kind, "id": key, "r": result}
    if blob is not None:
        header["b"] = 1  # so that no bytes at all is still an answer with a blob
    return header, blob or b""


def _thread(run: Callable[[], None]) -> None:
    threading.Thread(target=run, daemon=True).start()


def _ignore(_number: int, _frame: Optional[Any]) -> None:
    """A handler, not SIG_IGN: what the agent starts must not inherit ignored signals."""


def main(source: Any) -> None:
    """`source`: the bootstrap's buffered reader on a private copy of stdin. Never returns."""
    os.umask(0o077)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, _ignore)
    out_fd = os.dup(1)
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    Agent(source, out_fd).serve()
