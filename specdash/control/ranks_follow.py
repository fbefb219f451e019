"""Watch all ranks of one server at once: what each host recorded, what each log tells, and who is out of reach."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from specdash.control import hostruns
from specdash.control.ranks_party import Party
from specdash.control.ranks_store import Member
from specdash.control.ranks_story import RankView
from specdash.errors import LinkError, RemoteError
from specdash.sglang.causes import first_cause
from specdash.sglang.story import Story, feed, finish

POLL_S = 0.4
PIECE = 1 << 20
"""Bytes of a log read at a time; a load writes far less a second."""
CALL_S = 15.0


class RankWatch:
    """One rank. `record` is what its host told last; None: nothing yet."""

    def __init__(self, party: Party, member: Member) -> None:
        self.party = party
        self.member = member
        self.record: Mapping[str, Any] | None = None
        self.story = Story()
        self.loaded = False
        self.ready_at: float | None = None
        self.problem = ""
        self.gone = ""
        """The host knows of no such run."""
        self._offset = 0
        self._positions: Mapping[str, Any] = {}
        self._ahead_s = 0.0
        """The host's wall clock less ours."""
        self._clock_read = False

    async def look(self) -> None:
        """One look; a host that cannot be asked is left as it was seen last."""
        host = self.member.host
        if not await self.party.again(host):
            return
        try:
            if not self._clock_read:
                before = time.time()
                told = await self.party.call(host, "network.look", {}, timeout=CALL_S)
                self._ahead_s = float(told["now_unix"]) - (before + time.time()) / 2
                self._clock_read = True
            base = hostruns.base(self.party.links[host])
            asked = {"base": base, "id": self.member.run, "positions": self._positions}
            answer = await self.party.call(host, "runs.read", asked, timeout=CALL_S)
            self.record, self._positions = answer["record"], answer["positions"]
            for event in answer["events"]:
                self._event(event)
            await self._read_log(host, f"{base}/runs/{self.member.run}/server.log")
        except RemoteError as error:
            if error.code == "not_found":
                self.gone = error.sentence
        except (LinkError, KeyError):
            pass  # `party.away` has why

    def _event(self, event: Mapping[str, Any]) -> None:
        kind = event.get("event")
        if kind == "rank_loaded":
            self.loaded = True
        elif kind == "ready":
            self.ready_at = float(event.get("boot_s") or 0.0)
        elif kind == "bind_failed":
            self.problem = str(event.get("sentence") or "It could not bind its port.")

    async def _read_log(self, host: str, path: str) -> None:
        while True:
            asked = {"path": path, "offset": self._offset, "max_bytes": PIECE}
            try:
                answer = await self.party.call(host, "file.read", asked, timeout=CALL_S)
            except RemoteError:
                return
            data = bytes(answer["blob"])
            self._offset += len(data)
            if data:
                self.story = feed(self.story, data)
            if len(data) < PIECE:
                return

    @property
    def ended(self) -> bool:
        phase = (self.record or {}).get("phase")
        return bool(self.gone) or phase in ("exited", "failed")

    def view(self) -> RankView:
        """This rank as the merged story takes it."""
        record, member = self.record or {}, self.member
        phase = self.story.phase
        if phase in ("ready", "serving", "unknown", "exited"):
            # Only rank 0's generation makes a server ready; and a process without a log line has just started.
            phase = "starting_http_or_warmup" if phase in ("ready", "serving") else "starting"
        bar = self.story.bar
        detail = f"{bar.done}/{bar.total}" if bar is not None and bar.total and bar.phase == phase else ""
        ended = self.ended
        code, number = record.get("exit_code"), record.get("exit_signal")
        cause = None
        if ended and record.get("phase") == "exited" and not record.get("stop_asked"):
            cause = first_cause(finish(self.story), exit_code=code, signal=number)
        at = record.get("ended_unix")
        return RankView(
            member.rank,
            member.host,
            member.run,
            "loaded" if self.loaded else phase,
            detail,
            self.ready_at is not None,
            ended,
            float(at) - self._ahead_s if at is not None else None,
            self.gone or how(record),
            cause,
            bool(record.get("stop_asked")),
            self.party.away.get(member.host, "") if member.host not in self.party.links else "",
            self.problem,
            member.role,
        )


def how(record: Mapping[str, Any]) -> str:
    """ "was ended by signal 9", "exited with code 1"; empty while it lives."""
    if record.get("phase") == "failed":
        return f"could not be started: {record.get('sentence') or 'no reason is known'}"
    if record.get("exit_signal") is not None:
        return f"was ended by signal {record['exit_signal']}"
    if record.get("exit_code") is not None:
        return f"exited with code {record['exit_code']}"
    return "ended, how is not known" if record.get("phase") == "exited" else ""


class Watch:
    """All ranks, each looked at by its own task: a host that hangs delays no other."""

    def __init__(self, party: Party, members: Sequence[Member]) -> None:
        self.ranks = [RankWatch(party, member) for member in members]
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Watch:
        self._tasks = [asyncio.create_task(self._go(rank)) for rank in self.ranks]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _go(self, rank: RankWatch) -> None:
        while True:
            await rank.look()
            self._changed.set()
            await asyncio.sleep(POLL_S)

    async def changed(self, seconds: float = 1.0) -> None:
        """Returns when something may be new, at the latest after so many seconds."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)
        self._changed.clear()
        for task in self._tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                raise task.exception() or RuntimeError()

    def views(self) -> list[RankView]:
        return [rank.view() for rank in self.ranks]
