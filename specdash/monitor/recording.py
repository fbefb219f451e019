"""Event streams as JSON lines: what a bug report brings, and what a test replays.

One event a line; bytes as {"b64": …}. The file is 0600. Server info is redacted on the way in; log bytes
are kept exactly (that is the point of a recording), so share it like the log itself.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from specdash.errors import UsageError
from specdash.monitor import events
from specdash.monitor.events import Event, HttpSeen
from specdash.sglang import server_info

BODIES: Mapping[str, type[Any]] = {
    name: cls
    for name, cls in vars(events).items()
    if isinstance(cls, type) and dataclasses.is_dataclass(cls) and cls is not Event
}


class Recorder:
    """Appends events to a file. Stops by itself at `max_bytes`."""

    def __init__(self, path: Path, max_bytes: int = 2 << 30) -> None:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._file: TextIO = os.fdopen(handle, "w", encoding="ascii")
        self._left = max_bytes

    def add(self, event: Event) -> None:
        if self._file.closed:
            return
        line = dumps(event)
        self._left -= len(line) + 1
        if self._left < 0:
            self.close()
            return
        self._file.write(line + "\n")

    def close(self) -> None:
        self._file.close()


def dumps(event: Event) -> str:
    """One event as a line of JSON."""
    body = event.body
    if isinstance(body, HttpSeen) and body.endpoint == "server_info" and body.body:
        data = server_info.load_json(body.body)
        body = dataclasses.replace(body, body=json.dumps(data).encode() if data is not None else b"")
    fields = {f.name: _out(getattr(body, f.name)) for f in dataclasses.fields(body)}
    whole = {
        "at": event.at,
        "host": event.host,
        "run": event.run,
        "rank": event.rank,
        "source": event.source,
        "host_at": event.host_at,
        "kind": type(body).__name__,
        "body": fields,
    }
    return json.dumps({k: v for k, v in whole.items() if v not in ("", None) and (k, v) != ("rank", 0)})


def loads(line: str) -> Event:
    """Raises UsageError when the line is no event."""
    try:
        raw = json.loads(line)
        kind = BODIES[raw["kind"]]
        names = {f.name for f in dataclasses.fields(kind)}
        fields = {k: _in(v) for k, v in raw.get("body", {}).items() if k in names}
        return Event(
            float(raw["at"]),
            str(raw.get("host", "")),
            kind(**fields),
            str(raw.get("run", "")),
            int(raw.get("rank", 0)),
            str(raw.get("source", "")),
            raw.get("host_at"),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise UsageError(
            f"This line is no recorded event: {problem!r}.", "Is it a file of specdash's --record?"
        ) from None


def replay(path: Path) -> Iterator[Event]:
    """The events of a recording, in order. A torn last line ends it."""
    with path.open(encoding="ascii", errors="replace") as file:
        for line in file:
            if not line.endswith("\n"):
                return
            yield loads(line)


def _out(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, Mapping):
        return {str(k): _out(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_out(item) for item in value]
    return value


def _in(value: Any, top: bool = True) -> Any:
    if isinstance(value, dict):
        if set(value) == {"b64"}:
            return base64.b64decode(value["b64"])
        return {k: _in(v, False) for k, v in value.items()}
    if isinstance(value, list):
        items = [_in(item, False) for item in value]
        return tuple(items) if top else items
    return value
