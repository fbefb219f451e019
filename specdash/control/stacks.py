"""Where a run that hangs is stuck: the stacks of all its processes, shown and kept in its folder.

A look, not an action: nothing is paused, signalled or ended. On a read-only host the file is not kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specdash.control import hostruns
from specdash.host.link import Link
from specdash.sglang import redact

TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the run. `how`: "py-spy" (Python frames) or "kernel" (threads by /proc only)."""

    pid: int
    start: int
    title: str
    state: str
    how: str
    problem: str
    """Why there are no Python frames; empty when there are."""


@dataclass(frozen=True, slots=True)
class Stacks:
    run: str
    text: str
    """Untrusted: from the host. Secrets are replaced; no markup."""
    path: str
    """Where it is kept on the host; empty when it is not."""
    processes: tuple[Process, ...]
    step: str = ""
    """What would show more; empty when all was seen."""


async def take(link: Link, run_id: str, *, keep: bool = True, py_spy: str = "") -> Stacks:
    """Ask the host. `py_spy`: path of another py-spy, or "none" for /proc alone.

    Raises RemoteError `not_found`, or `ended` when no process of the run is there.
    """
    asked = {"base": hostruns.base(link), "id": run_id, "keep": keep, "py_spy": py_spy}
    answer = await link.call("runs.stacks", asked, timeout=TIMEOUT_S)
    processes = tuple(_process(row) for row in answer["processes"])
    text = redact.text(bytes(answer["blob"]).decode("utf-8", "replace"))
    return Stacks(run_id, text, str(answer["path"]), processes, _step(processes))


def _process(row: dict[str, Any]) -> Process:
    return Process(
        int(row["pid"]),
        int(row["start"]),
        redact.text(str(row["title"])),
        str(row["state"]),
        str(row["how"]),
        str(row["problem"]),
    )


def _step(processes: tuple[Process, ...]) -> str:
    problems = " ".join(process.problem for process in processes)
    if "not installed" in problems:
        return "For Python frames install py-spy beside the server's interpreter: pip install py-spy."
    if "ermission" in problems:
        return "For Python frames py-spy needs to be allowed to read the process: run it as root, or set kernel.yama.ptrace_scope=0."
    return ""
