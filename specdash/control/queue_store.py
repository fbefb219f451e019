"""Where the operator's machine keeps queues, so that an interrupted one can be gone on with."""

from __future__ import annotations

import json
import os
from pathlib import Path

from specdash.config import paths
from specdash.control.queue import Queue
from specdash.errors import UsageError


def folder() -> Path:
    return paths.state_dir() / "queues"


def save(queue: Queue) -> None:
    """Whole or not at all, 0600. A disk that is full ends no queue: only going on is lost."""
    try:
        folder().mkdir(parents=True, exist_ok=True, mode=0o700)
        new = folder() / f".{queue.id}.{os.getpid()}"
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(queue.as_json(), file, indent=1)
        new.replace(folder() / f"{queue.id}.json")
    except OSError:
        pass


def load(ident: str) -> Queue:
    """Raises UsageError: no such queue, ended already, or its file cannot be read."""
    known = sorted(path.stem for path in folder().glob("*.json")) if folder().is_dir() else []
    if ident not in known:
        raise UsageError(
            f'No queue "{ident}" here.', f"There: {', '.join(known[-5:])}." if known else "None is kept here."
        )
    try:
        queue = Queue.from_json(json.loads((folder() / f"{ident}.json").read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(f"The record of {ident} cannot be read.", "Start a new one.") from None
    if queue.ended:
        raise UsageError(f"{ident} has ended: {queue.ended}", "Start a new one.")
    return queue
