"""Runs a function of a given bundle in another interpreter, seen as `python -m` there would see the world.

No `-I`: the working directory comes first on sys.path and PYTHONPATH counts, as for the server that will be
launched. The bundle, the arguments and the answer travel on private pipes, so nothing that is printed, and no
`json.py` in the working directory, can get in between.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import sys
import threading
import time
from typing import Any, Dict, List, Optional

from specdash.host.remote import children, memory, wire

MAX_OUTPUT = 64 * 1024
MAX_RESULT = 64 * 1024 * 1024
EXIT_GRACE_S = 2.0

# Old syntax on purpose: it must say its version also under a Python that could not run the bundle.
_FIRST = (
    "import os,sys\n"
    "result_fd, input_fd = int(sys.argv[1]), int(sys.argv[2])\n"
    "if sys.version_info < (3, 8):\n"
    "    os.write(result_fd, ('{\"old\": \"%d.%d.%d\"}' % tuple(sys.version_info[:3])).encode('ascii'))\n"
    "    sys.exit(0)\n"
    "path = list(sys.path)\n"
    "here = os.getcwd()\n"
    # Our own imports come from the interpreter, not from files that lie in the working directory.
    "sys.path[:] = [entry for entry in path if entry not in ('', here)]\n"
    # Only what is needed: a probe is short, and its imports are most of it.
    "import importlib, json\n"
    "sys.path[:] = path\n"
    "if sys.path and sys.path[0] == '':\n"
    "    sys.path[0] = here\n"  # what -m puts there
    "sys.argv[:] = ['-m']\n"
    "with os.fdopen(input_fd, 'rb') as stream:\n"
    "    head = json.loads(stream.readline().decode('ascii'))\n"
    "    code = stream.read(head['code'])\n"
    "    files = {name: stream.read(size) for name, size in head['files']}\n"
    "space = {'__name__': 'specdash_memory'}\n"
    "exec(compile(code, '<specdash memory>', 'exec', dont_inherit=True), space)\n"
    "space['install'](b'', files)\n"
    "try:\n"
    "    module = importlib.import_module(head['module'])\n"
    "    args = head['args']\n"
    "    function = getattr(module, head['func'])\n"
    "    value = function(**args) if isinstance(args, dict) else function(*args)\n"
    "    answer = json.dumps({'value': value})\n"
    "except Exception as error:\n"
    "    import traceback\n"
    "    answer = json.dumps({'error': '%s: %s' % (type(error).__name__, error),\n"
    "                         'trace': traceback.format_exc()[-4000:]})\n"
    "with os.fdopen(result_fd, 'wb') as stream:\n"
    "    stream.write(answer.encode('ascii'))\n"
)


def run(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    """`py.run` {python, cwd, env, module, func, args (list or dict), timeout (s)} + blob bundle.

    → {result, output (what it printed, last 64 KiB), took_s}. Codes: no_python, old_python, no_folder,
    py_failed (the function raised), py_died (no answer), timeout, denied.
    """
    python = os.path.expanduser(str(params.get("python") or sys.executable))
    cwd = params.get("cwd")
    timeout = float(params.get("timeout") or 30.0)
    code = _memory_source()
    files = sorted(memory.unpacked(blob).items())  # here, not in the child: zipfile takes it 8 ms to import
    head = {
        "code": len(code),
        "files": [(name, len(data)) for name, data in files],
        "module": str(params["module"]),
        "func": str(params["func"]),
        "args": params.get("args") or [],
    }
    message = json.dumps(head).encode("ascii") + b"\n" + code + b"".join(data for _, data in files)
    began = time.monotonic()
    input_read, input_write = os.pipe()
    result_read, result_write = os.pipe()
    try:
        child = children.Child(
            [python, "-c", _FIRST, str(result_write), str(input_read)],
            cwd,
            children.environment(params.get("env")),
            pass_fds=(result_write, input_read),
        )
    except OSError as error:
        _close(input_write, result_read)
        refused = children.start_error(error, [python], cwd)
        if refused.code == "not_found":
            refused = wire.CallError("no_python", "there is no interpreter %s" % python, "Check `python`.")
        raise refused from None
    finally:
        _close(input_read, result_write)
    assert child.popen.stdout is not None and child.popen.stderr is not None
    out = children.Drain(child.popen.stdout, MAX_OUTPUT, last=True)
    err = children.Drain(child.popen.stderr, MAX_OUTPUT, last=True)
    threading.Thread(target=_feed, args=(input_write, message), daemon=True).start()
    ended = False
    raw: Optional[bytes] = None
    try:
        raw = _receive(result_read, began + timeout, params.get("_cancelled"))
        ended = child.wait(EXIT_GRACE_S if raw is not None else 0.0, None)
    finally:
        status = child.end()
        _close(result_read)
    output = (out.result() + err.result()).decode("utf-8", "replace")
    child.popen.stdout.close()
    child.popen.stderr.close()
    if raw is None:
        raise wire.CallError(
            "timeout", "%s.%s in %s did not end within %g s" % (head["module"], head["func"], python, timeout)
        )
    return _answer(raw, python, output, status if ended else None, time.monotonic() - began)


def _answer(raw: bytes, python: str, output: str, status: Optional[int], took_s: float) -> Dict[str, Any]:
    last = (output.strip().splitlines() or [""])[-1][:500]
    try:
        answer = json.loads(raw.decode("ascii"))
    except ValueError:
        how = "with code %s" % status if status is None or status >= 0 else "by signal %d" % -status
        raise wire.CallError("py_died", "%s ended %s and gave no answer: %s" % (python, how, last)) from None
    if "old" in answer:
        raise wire.CallError(
            "old_python", "%s is Python %s; 3.8 or newer is needed" % (python, answer["old"])
        )
    if "error" in answer:
        sys.stderr.write(answer.get("trace", ""))
        raise wire.CallError("py_failed", answer["error"])
    return {"result": answer["value"], "output": output, "took_s": took_s}


def _receive(fd: int, deadline: float, cancelled: Optional[threading.Event]) -> Optional[bytes]:
    """All that comes on the pipe until its end; None when the time is over or nobody waits any more."""
    pieces: List[bytes] = []
    size = 0
    while time.monotonic() < deadline and not (cancelled is not None and cancelled.is_set()):
        poller = select.poll()
        poller.register(fd, select.POLLIN | select.POLLHUP)
        if not poller.poll(100):
            continue
        piece = os.read(fd, 65536)
        if not piece:
            return b"".join(pieces)
        size += len(piece)
        if size > MAX_RESULT:
            raise wire.CallError("too_big", "the answer is above %d bytes" % MAX_RESULT)
        pieces.append(piece)
    return None


def _feed(fd: int, data: bytes) -> None:
    try:
        with os.fdopen(fd, "wb") as pipe:
            pipe.write(data)
    except OSError:
        pass


def _close(*fds: int) -> None:
    for fd in fds:
        try:
            os.close(fd)
        except OSError:
            pass


def _memory_source() -> bytes:
    """The importer's own source, wherever this agent was loaded from."""
    loader: Any = importlib.import_module("specdash.host.remote.memory").__loader__
    return str(loader.get_source("specdash.host.remote.memory")).encode("utf-8")


CALLS = {"py.run": run}
SAMPLES: Dict[str, Any] = {}
