"""The pulse of a serving run: fixed prompts through the engine's port, read by the rules in `sglang.pulse`."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Protocol

from specdash.control import hostruns
from specdash.errors import ActionFailed, HttpError, RemoteError
from specdash.host.link import HttpRequest, Link
from specdash.monitor.events import Event, PulseSeen
from specdash.monitor.follow_run import PULSE
from specdash.sglang import pulse as rules
from specdash.sglang import server_info
from specdash.sglang.ready import headers


class Emits(Protocol):
    """What is needed of `monitor.hub.Hub`."""

    def emit(self, event: Event) -> None: ...

    def link(self, host: str) -> Link: ...


async def tell(hub: Emits, host: str, run_id: str, *, keep: bool = True) -> dict[str, Any]:
    """`measure` over the hub's own link, and everybody who looks at the hub is told. Errors as there."""
    result = await measure(hub.link(host), run_id, keep=keep)
    hub.emit(Event(time.monotonic(), host, PulseSeen(result), run_id, source="control"))
    return result


async def measure(link: Link, run_id: str, *, keep: bool = False) -> dict[str, Any]:
    """Pulse a run: `sglang.pulse.together` plus "run", "passes", "judged" (keep, roll_back or ask), "sentence",
    "running_before" (requests of others that ran, None where not told) and "measured_boot_s".

    It generates on a serving engine, one request at a time: some seconds of one stream. `keep`: the result becomes
    `pulse.json` in the run's folder, where every specdash finds it. Raises ActionFailed when the run does not serve.
    """
    record = await hostruns.record(link, run_id)
    if not record["alive"]:
        raise ActionFailed(f"Run {run_id} does not run: it has no pulse.")
    auth = ""
    if record.get("folder") and not record.get("ended"):
        raw = await _auth(link, str(record["folder"]))
        auth = raw.decode("utf-8", "replace").strip()
    others = await _running(link, record["http"], auth)
    passes: list[dict[str, Any]] = []
    while rules.more(passes, str(record.get("algorithm") or "")):
        passes.append(rules.read([await _ask(link, record["http"], one) for one in rules.requests(auth)]))
        if not passes[-1]["ok"]:
            break
    verdict = rules.judge(passes, str(record.get("algorithm") or ""))
    result = {
        **verdict["pulse"],
        "run": run_id,
        "passes": passes,
        "judged": verdict["decision"],
        "sentence": verdict["sentence"],
        "running_before": others,
        "measured_boot_s": (await link.call("runs.list", {"base": hostruns.base(link)})).get("now_boot"),
    }
    if keep and result["ok"] and record.get("folder"):
        path = f"{record['folder']}/{PULSE}"
        await link.call("file.write", {"path": path}, blob=json.dumps(result).encode())
    return result


async def _running(link: Link, http: Mapping[str, Any], auth: str) -> int | None:
    """Requests that run already: with them, tok/s is not that of one stream alone."""
    got = await _ask(link, http, {"method": "GET", "path": "/v1/loads", "headers": headers(auth), "body": ""})
    data = server_info.load_json(got["body"]) if got["status"] == 200 else None
    told = [rank.running for rank in server_info.read_loads(data)] if data is not None else []
    known = [count for count in told if count is not None]
    return sum(known) if known else None


async def _auth(link: Link, folder: str) -> bytes:
    try:
        return bytes((await link.call("file.read", {"path": f"{folder}/auth", "max_bytes": 65536}))["blob"])
    except RemoteError:
        return b""  # the run has no key


async def _ask(link: Link, http: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    wanted = HttpRequest(
        method=request["method"],
        path=request["path"],
        port=int(http["port"]),
        host=str(http.get("host") or "127.0.0.1"),
        headers=request["headers"],
        body=str(request["body"]).encode(),
        tls=bool(http.get("tls")),
    )
    try:
        got = await link.http(wanted, timeout=rules.TIMEOUT_S)
    except HttpError as error:
        return {"status": None, "body": b"", "took_s": 0.0, "problem": getattr(error, "word", "closed")}
    return {"status": got.status, "body": got.body, "took_s": got.took_s, "problem": ""}
