"""The pulse of a serving run: fixed prompts through the engine's port, read by the rules in `sglang.pulse`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdash.control import hostruns
from specdash.errors import ActionFailed, HttpError, RemoteError
from specdash.host.link import HttpRequest, Link
from specdash.sglang import pulse as rules


async def measure(link: Link, run_id: str) -> dict[str, Any]:
    """Pulse a run: `sglang.pulse.together` plus "run", "passes" and "judged" (keep, roll_back or ask).

    It generates on a serving engine, one request at a time: some seconds of one stream. Raises ActionFailed when
    the run does not serve.
    """
    record = await hostruns.record(link, run_id)
    if not record["alive"]:
        raise ActionFailed(f"Run {run_id} does not run: it has no pulse.")
    auth = ""
    if record.get("folder") and not record.get("ended"):
        raw = await _auth(link, str(record["folder"]))
        auth = raw.decode("utf-8", "replace").strip()
    passes: list[dict[str, Any]] = []
    while rules.more(passes, str(record.get("algorithm") or "")):
        passes.append(rules.read([await _ask(link, record["http"], one) for one in rules.requests(auth)]))
        if not passes[-1]["ok"]:
            break
    verdict = rules.judge(passes, str(record.get("algorithm") or ""))
    return {
        **verdict["pulse"],
        "run": run_id,
        "passes": passes,
        "judged": verdict["decision"],
        "sentence": verdict["sentence"],
    }


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
