"""Short commands run for specdash: in their own group, bounded in time and output, never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from typing import IO, Any, Dict, List, Optional, Set

from specdash.host.remote import wire

MAX_STDERR = 64 * 1024
GRACE_S = 1.0
"""How long output is awaited after a command's end, when a grandchild holds the pipe open."""

_living: Set[int] = set()
_lock = threading.Lock()


class Drain(threading.Thread):
    """Reads a pipe to its end and keeps the first (or last) `limit` bytes."""

    def __init__(self, pipe: IO[bytes], limit: int, last: bool = False) -> None:
        threading.Thread.__init__(self, daemon=True)
        self._pipe = pipe
        self._limit = limit
        self._last = last
        self._data = bytearray()
        self.truncated = False
        self.start()

    def run(self) -> None:
        try:
            while True:
                piece = os.read(self._pipe.fileno(), 65536)
                if not piece:
                    return
                self._data += piece
                if len(self._data) > self._limit:
                    self.truncated = True
                    if self._last:
                        del self._data[: len(self._data) - self._limit]
                    else:
                        del self._data[self._limit :]
        except (OSError, ValueError):
            pass

    def result(self) -> bytes:
        self.join(GRACE_S)
        return bytes(self._data)


class Child:
    """A command in its own session, started without a shell. `end` is always called."""

    def __init__(
        self,
        argv: List[str],
        cwd: Optional[str],
        env: Dict[str, str],
        stdin: bool = False,
        pass_fds: Any = (),
    ) -> None:
        where = os.path.expanduser(cwd) if cwd else None
        with _lock:
            self.popen = subprocess.Popen(
                argv,
                cwd=where,
                env=env,
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                pass_fds=pass_fds,
            )
            _living.add(self.popen.pid)

    def wait(self, timeout: float, cancelled: Optional[threading.Event]) -> bool:
        """True when it ended by itself within `timeout` seconds. Does not reap."""
        deadline = time.monotonic() + timeout
        pause = 0.001
        while time.monotonic() < deadline and not (cancelled is not None and cancelled.is_set()):
            if os.waitid(os.P_PID, self.popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return True
            time.sleep(pause)
            pause = min(pause * 2, 0.05)
        return False

    def end(self) -> int:
        """Kills what is left of the group, reaps, and returns the code (negative: signal)."""
        # Before reaping, so that the group's number cannot belong to somebody else.
        _kill_group(self.popen.pid)
        code = self.popen.wait()
        with _lock:
            _living.discard(self.popen.pid)
        return code


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def kill_all() -> None:
    """For the agent's own end."""
    with _lock:
        for pid in _living:
            _kill_group(pid)


def environment(overlay: Optional[Dict[str, Any]]) -> Dict[str, str]:
    """The agent's environment with changes; a value of None takes a variable away."""
    env = dict(os.environ)
    for name, value in (overlay or {}).items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = str(value)
    return env


def start_error(error: OSError, argv: List[str], cwd: Optional[str]) -> wire.CallError:
    """Says whether the command or the folder is what is missing: both give the same errno."""
    if cwd and not os.path.isdir(os.path.expanduser(cwd)):
        return wire.CallError("no_folder", "the working directory %s does not exist" % cwd)
    return wire.os_error(error, "run %s" % argv[0])


def run(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    """`exec` {argv, cwd, env, timeout (s), max_bytes} + stdin blob.

    → {code (None when killed by us), signal, timed_out, truncated, stderr (last 64 KiB), took_s} + blob stdout.
    """
    argv = [str(word) for word in params.get("argv") or []]
    if not argv:
        raise wire.CallError("bad_call", "exec needs argv")
    limit = int(params.get("max_bytes") or 1024 * 1024)
    began = time.monotonic()
    try:
        child = Child(argv, params.get("cwd"), environment(params.get("env")), stdin=bool(blob))
    except (OSError, ValueError) as error:
        if isinstance(error, OSError):
            raise start_error(error, argv, params.get("cwd")) from None
        raise wire.CallError("bad_call", "could not run %r: %s" % (argv[0], error)) from None
    assert child.popen.stdout is not None and child.popen.stderr is not None
    out = Drain(child.popen.stdout, limit)
    err = Drain(child.popen.stderr, MAX_STDERR, last=True)
    if child.popen.stdin is not None:
        threading.Thread(target=_feed, args=(child.popen.stdin, blob), daemon=True).start()
    ended = False
    try:
        ended = child.wait(float(params.get("timeout") or 10.0), params.get("_cancelled"))
    finally:
        code = child.end()
    result = {
        "code": code if ended and code >= 0 else None,
        "signal": -code if ended and code < 0 else None,
        "timed_out": not ended,
        "stderr": err.result().decode("utf-8", "replace"),
        "took_s": time.monotonic() - began,
        "blob": out.result(),
        "truncated": out.truncated,
    }
    child.popen.stdout.close()
    child.popen.stderr.close()
    return result


def _feed(pipe: IO[bytes], data: bytes) -> None:
    try:
        pipe.write(data)
        pipe.close()
    except OSError:
        pass


CALLS = {"exec": run}
SAMPLES: Dict[str, Any] = {}
