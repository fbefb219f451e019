"""Starts the real engine with a pair's flaw, directly, and says how it went. Leaves no process behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdash.sglang.commandline import LaunchSpec
from tests.engine.pairs import Pair
from tests.support.engine import environment, python

DYING = re.compile(r"hit an exception|[Ss]ig(quit|QUIT)|Waiting for application shutdown|Killed")
"""In the log when the scheduler raised: the parent then waits a minute for core dumps before it goes."""
READY = "fired up and ready to roll"


@dataclass(frozen=True)
class End:
    """`how`: exited | dying | alive (it got ready) | timeout."""

    how: str
    code: int | None
    text: str
    took_s: float


@contextlib.contextmanager
def launch_of(pair: Pair, engine: Path, folder: Path) -> Iterator[LaunchSpec]:
    """The launch that has this flaw; the port is held while it lasts, where the pair says so."""
    target = folder / "target"
    _copy(engine / "models/base", target, dict(pair.target_config))
    if pair.change is not None:
        pair.change(target)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        if pair.listener:
            sock.listen()
        else:
            sock.close()
        flags: dict[str, Any] = {
            "--model-path": str(target),
            "--device": "cpu",
            "--attention-backend": "intel_amx",
            "--host": "127.0.0.1",
            "--port": port,
            "--max-total-tokens": 16384,
            "--max-running-requests": 16,
            "--mem-fraction-static": 0.1,
            "--grammar-backend": "none",
            "--cuda-graph-backend-decode": "disabled",
            "--cuda-graph-backend-prefill": "disabled",
            "--enable-metrics": True,
        }
        if pair.drafter:
            _copy(engine / "models" / pair.drafter, folder / "drafter", dict(pair.draft_config))
            if pair.draft_change is not None:
                pair.draft_change(folder / "drafter")
            flags["--speculative-draft-model-path"] = str(folder / "drafter")
        flags.update(pair.flags)
        kept = tuple((name, value) for name, value in flags.items() if value is not None)
        named = dict(kept)
        yield LaunchSpec(
            profile=pair.name,
            host="local",
            python=python(engine),
            launcher=("-m", "sglang.launch_server"),
            flags=kept,
            env={**environment(), **pair.env},
            cwd=str(folder),
            algorithm=str(named.get("--speculative-algorithm") or ""),
            drafter=str(named.get("--speculative-draft-model-path") or ""),
        )


def _copy(source: Path, target: Path, config: dict[str, Any]) -> None:
    shutil.copytree(source, target)
    file = target / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **config}))


def run(spec: LaunchSpec, cause: str, timeout_s: float = 300.0) -> End:
    """Start it and wait for an end, for the cause beside signs of dying, or for ready."""
    log = Path(spec.cwd) / "log"
    env = {**os.environ, **spec.env}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    began = time.monotonic()
    with log.open("wb") as out:
        child = subprocess.Popen(
            spec.argv(),
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
            env=env,
            cwd=spec.cwd,
            start_new_session=True,
        )
    how = "timeout"
    try:
        while time.monotonic() - began < timeout_s:
            text = log.read_text(errors="replace")
            if child.poll() is not None:
                how = "exited"
                break
            if re.search(cause, text) and DYING.search(text):
                how = "dying"
                break
            if READY in text:
                how = "alive"
                break
            time.sleep(0.3)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    return End(how, child.returncode, log.read_text(errors="replace"), time.monotonic() - began)
