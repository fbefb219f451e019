"""The operator's own command for each alarm that comes: `[alerts] command = ["notify-send", "specdash"]`.

What it is about goes by environment, never by argument: text from a host could look like an option. One at a time,
each with a limit; those that come meanwhile wait, the oldest of too many are dropped and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable, Sequence

from specdash.tui.notices import Notice

LIMIT_S = 20.0
MOST_WAITING = 50


class Hook:
    """`tell` gets a sentence when the command cannot be run or fails; only when that is news."""

    def __init__(self, command: Sequence[str], tell: Callable[[str], None], limit_s: float = LIMIT_S) -> None:
        self.command = tuple(command)
        self.tell = tell
        self.limit_s = limit_s
        self.waiting: deque[Notice] = deque()
        self.dropped = 0
        self.said = ""
        self._task: asyncio.Task[None] | None = None

    def add(self, notice: Notice) -> None:
        """Run the command for this notice soon. Needs a running loop."""
        if not self.command:
            return
        self.waiting.append(notice)
        if len(self.waiting) > MOST_WAITING:
            self.waiting.popleft()
            self.dropped += 1
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work(), name="alert command")

    async def _work(self) -> None:
        while self.waiting:
            problem = await self._run(self.waiting.popleft())
            if problem and problem != self.said:
                self.tell(f"The alert command {self.command[0]} {problem}")
            self.said = problem

    async def _run(self, notice: Notice) -> str:
        """Empty, or what went wrong."""
        env = {
            **os.environ,
            "SPECDASH_ALERT_SEVERITY": notice.severity,
            "SPECDASH_ALERT_WHERE": notice.where.replace("\0", ""),
            "SPECDASH_ALERT_SENTENCE": notice.sentence.replace("\0", ""),
            "SPECDASH_ALERT_STEP": notice.step.replace("\0", ""),
            "SPECDASH_ALERT_DROPPED": str(self.dropped),
        }
        try:
            process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                env=env,
                start_new_session=True,
            )
        except (OSError, ValueError) as problem:
            return f"could not be run: {problem}."
        self.dropped = 0
        try:
            async with asyncio.timeout(self.limit_s):
                code = await process.wait()
        except TimeoutError:
            _kill(process)
            await process.wait()
            return f"took longer than {self.limit_s:.0f} s and was ended."
        except asyncio.CancelledError:
            _kill(process)
            raise
        return f"ended with exit code {code}." if code else ""

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()


def _kill(process: asyncio.subprocess.Process) -> None:
    """The command and what it started: it leads a session of its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, 9)
