"""Why a run died: the first cause that its log on the host tells, with how its launcher ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdash.control import hostruns
from specdash.errors import SpecdashError
from specdash.host.link import Link
from specdash.sglang.causes import Cause, first_cause
from specdash.sglang.story import Story, feed, finish

LOG_END = 4 * 1024 * 1024
"""Bytes of the log's end that are read: a traceback is there, hours of decode lines before it are not needed."""


async def cause_of(link: Link, run_id: str, ended: Mapping[str, Any]) -> Cause | None:
    """First cause by the end of the run's log; `ended` has its exit_code and exit_signal, as a record has."""
    path = f"{hostruns.run_folder(link, run_id)}/server.log"
    try:
        size = int((await link.call("file.stat", {"path": path}))["size"])
        start = max(0, size - LOG_END)
        answer = await link.call(
            "file.read", {"path": path, "offset": start, "max_bytes": LOG_END}, timeout=60
        )
    except SpecdashError:
        return None
    story = finish(feed(Story(), bytes(answer["blob"])))
    return first_cause(story, exit_code=ended.get("exit_code"), signal=ended.get("exit_signal"))


def said(cause: Cause) -> str:
    """The cause and its first advice, in a sentence or two."""
    return " ".join([cause.sentence, *cause.advice[:1]])


async def why(link: Link, run_id: str, ended: Mapping[str, Any]) -> str:
    """`cause_of` in words; empty when the log tells none."""
    cause = await cause_of(link, run_id, ended)
    return "" if cause is None else said(cause)


async def of_ended(link: Link, run_id: str) -> tuple[str, Cause | None]:
    """The same for a run that has ended by itself; ("", None) for one that lives or was stopped before it ended."""
    try:
        answer = await link.call("runs.read", {"base": hostruns.base(link), "id": run_id, "positions": {}})
    except SpecdashError:
        return "", None
    record, ended = answer["record"], answer.get("exit") or {}
    if record.get("phase") != "exited" or ended.get("stop_asked"):
        return "", None
    cause = await cause_of(link, run_id, record)
    return ("", None) if cause is None else (said(cause), cause)
