"""What launch, stop, adopt and switch share: the host's base folder, the packed program, following a run."""

from __future__ import annotations

import asyncio
import getpass
import platform
import re
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from specdash.errors import ActionFailed, RemoteError
from specdash.host.bundle import pack
from specdash.host.link import Link

RULES = "specdash.sglang.ready"
POLL_S = 0.4


def base(link: Link) -> str:
    """`<run_root>/hosts/<machine-id>` on the host: its `runs` and `switches` are in there."""
    return str(link.hello["base"])


def run_folder(link: Link, run_id: str) -> str:
    return f"{base(link)}/runs/{run_id}"


def program() -> bytes:
    """The supervisor (and switcher) with the rules it needs, as one file that `python -I` runs."""
    return pack(
        (
            "specdash.host.remote",
            "specdash.sglang.ready",
            "specdash.sglang.pulse",
            "specdash.sglang.acceptance",
        ),
        main="specdash.host.remote.supervisor:main",
    )


def running(requests: int) -> str:
    """ "1 request is running", "3 requests are running"."""
    return f"{requests} request is running" if requests == 1 else f"{requests} requests are running"


def new_id(name: str) -> str:
    """`<name>-<UTC time>-<4 hex>`: sorts by time within a profile, and says in a folder list what it is."""
    word = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:60] or "run"
    return f"{word}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"


def operator() -> str:
    """user@machine of this operator, for the records on the host."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "?"
    return f"{user}@{platform.node()}"


async def record(link: Link, run_id: str) -> dict[str, Any]:
    """The run's record (see host/remote/runs.py `record`). RemoteError `not_found` when there is none."""
    answer = await link.call("runs.read", {"base": base(link), "id": run_id, "positions": {}})
    found: dict[str, Any] = answer["record"]
    return found


async def order(link: Link, run_id: str, **what: Any) -> dict[str, Any]:
    """One command to the run's supervisor: `cmd` is stop, abort or status."""
    return await link.call(
        "runs.command", {"base": base(link), "id": run_id, "order": {"by": operator(), **what}}, timeout=60
    )


async def follow(
    link: Link, run_id: str, since: Mapping[str, Any] | None = None
) -> AsyncIterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """(record, new events) again and again, from the run's first event or from positions `since`."""
    positions: Mapping[str, Any] = dict(since or {})
    while True:
        answer = await link.call("runs.read", {"base": base(link), "id": run_id, "positions": positions})
        positions = answer["positions"]
        yield answer["record"], answer["events"]
        await asyncio.sleep(POLL_S)


async def fetch(link: Link, path: str, limit: int = 65536) -> bytes:
    """A small file of the host (a `host-file:` secret)."""
    try:
        answer = await link.call("file.read", {"path": path, "max_bytes": limit})
    except RemoteError as error:
        raise ActionFailed(
            f"The secret in {path} on the host cannot be read: {error.sentence}",
            "Correct the reference in the profile.",
        ) from None
    return bytes(answer["blob"])
