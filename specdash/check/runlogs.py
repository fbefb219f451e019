"""The logs of the runs that are looked at: their ends, and what the last check has not seen of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from specdash.check import news
from specdash.check.marks import BEFORE, Mark, Marks
from specdash.errors import RemoteError
from specdash.host.link import Link
from specdash.monitor import memory
from specdash.monitor.events import LogRead
from specdash.monitor.state import Reading, ServerState
from specdash.monitor.untrusted import text

if TYPE_CHECKING:
    from specdash.check.gather import Gatherer

LOG_TAIL = 256 * 1024


@dataclass(frozen=True, slots=True)
class LogSeen:
    """The end of a run's log as it was first read: which file, and where its last whole line ends."""

    device: int
    inode: int
    offset: int
    data: bytes

    @property
    def end(self) -> int:
        return self.offset + self.data.rfind(b"\n") + 1

    def before(self, position: int) -> bytes:
        return self.data[max(0, position - BEFORE - self.offset) : position - self.offset]


class RunLogs:
    """Reads over a gatherer's link, tells its state, and keeps the marks for the next check."""

    def __init__(self, gatherer: Gatherer, marks: Marks) -> None:
        self._on = gatherer
        self._marks = marks
        self._seen: dict[str, LogSeen] = {}

    async def first(self, link: Link, run: str) -> None:
        """Reads the end of the log; `tell` makes it known."""
        server = self._on.server(run)
        if server is None or not server.run.log_path:
            return
        facts, data = await self._on.tail(link, server.run.log_path, LOG_TAIL)
        if not facts:
            return
        offset = int(facts.get("offset", 0))
        if offset:  # begins in the middle of a line
            cut = data.find(b"\n") + 1
            offset, data = offset + cut, data[cut:]
        self._seen[run] = LogSeen(int(facts.get("device", 0)), int(facts.get("inode", 0)), offset, data)

    def tell(self, run: str) -> None:
        """The state learns what `first` read: after the run's records, by which its lines are dated."""
        seen = self._seen.get(run)
        if seen is not None:
            self._tell(run, seen.offset, seen.data)

    def _tell(self, run: str, offset: int, data: bytes) -> None:
        if data:
            self._on.emit(LogRead(offset, data, offset + len(data)), run)

    async def more(self, link: Link, run: str) -> None:
        """What was written meanwhile."""
        server = self._on.server(run)
        if server is None or not server.run.log_path or run not in self._seen:
            return
        begin = server.log.read
        params = {"path": server.run.log_path, "offset": begin, "max_bytes": LOG_TAIL}
        try:
            got = await link.call("file.read", params, timeout=self._on.left_s())
        except RemoteError:
            return
        self._tell(run, begin, bytes(got.get("blob", b"")))

    async def news(self, link: Link | None, run: str) -> None:
        """What the last check of this command line has not seen; and a mark for the next one."""
        server = self._on.server(run)
        if server is None or server.verdict.kind in ("dead", "stopped"):
            return
        where = text(self._on.host.facts.get("machine_id")) or self._on.name
        key = f"{self._on.target.name}/{where}/{run}/{self._on.target.address}:{server.run.http_port}"
        now, old, seen = news.now_unix(), self._marks.get(key), self._seen.get(run)
        name = server.run.profile or run
        said = "" if name == self._on.target.name else f"{name}: "
        if old is not None:
            if seen is not None and link is not None and old.same_file(seen.device, seen.inode):
                data, left_out = await self._since(link, server, old, seen)
                count, found = news.log_news(old, now, data, left_out, said)
                self._on.found += found
                self._on.log_errors[run] = Reading(
                    float(count), "errors", "log since the last check", self._on.state.now, now - old.at_unix
                )
            self._on.found += news.still(server, old, now, said)
        deaf_unix = None
        if run in self._on.unanswered and server.health.state in ("ready", "idle", "unknown"):
            deaf_unix = old.deaf_unix if old is not None and old.deaf_unix is not None else now
            self._on.found.append(news.deaf(server, self._on.unanswered[run], now - deaf_unix, said))
        newest = next((c for c in reversed(memory.of(server).counts) if c.running is not None), None)
        mark = Mark(now, deaf_unix=deaf_unix)
        if newest is not None:
            mark = replace(mark, running=newest.running, tokens=newest.tokens)
        if seen is not None:
            before = seen.before(seen.end).hex()
            mark = replace(mark, device=seen.device, inode=seen.inode, offset=seen.end, before=before)
        self._marks.put(key, mark)

    async def _since(self, link: Link, server: ServerState, old: Mark, seen: LogSeen) -> tuple[bytes, int]:
        """(whole log lines since the mark, bytes left out)."""
        if old.offset < seen.offset:
            return await news.new_log(link, server.run.log_path, old, seen.end, self._on.left_s())
        before = seen.before(old.offset)
        if old.offset > seen.end or not old.before.endswith(before.hex()):
            return b"", 0  # the file was emptied and grew again
        return seen.data[old.offset - seen.offset : seen.end - seen.offset], 0
