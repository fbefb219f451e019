"""Follows one run over a living link: its supervisor's records, its log, its HTTP port. Resumes exactly.

`RunFollower` outlives links: positions stay, so that after a reconnect nothing is lost and nothing twice.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from specdash.errors import HttpError, RemoteError
from specdash.host.link import HttpRequest, Link, TailChunk, TailPosition
from specdash.monitor import memory, polls
from specdash.monitor.events import (
    Body,
    Event,
    HttpSeen,
    LogLost,
    LogRead,
    PulseSeen,
    RunRecorded,
    RunSampled,
)
from specdash.monitor.logstore import LogStore
from specdash.monitor.state import RunFacts, ServerState
from specdash.monitor.untrusted import mapping, rows

RECORDS_EVERY_S = 2.0
PULSE = "pulse.json"
"""In a run's folder: the last pulse, as `control.pulse.measure` returns it."""
PULSE_EVERY_S = 15.0
MOST_PULSE = 1 << 18
MOST_BUSY_S = 0.008
"""CPU seconds that one piece of log may cost before the loop looks at anything else."""
LEAST_PIECE, MOST_PIECE = 16 << 10, 256 << 10
TURNS = 3

Emit = Callable[[Event], None]
See = Callable[[str], ServerState | None]
Auth = Callable[[RunFacts], str]


class RunFollower:
    def __init__(
        self, host: str, run: str, emit: Emit, see: See, store: LogStore, auth: Auth | None = None
    ) -> None:
        self.host, self.run = host, run
        self._emit, self._see, self._auth = emit, see, auth
        self.store = store
        self._positions: dict[str, Any] = {}
        self._tail: TailPosition | None = None
        self._base = 0
        """Bytes of earlier generations."""
        self._read_once = asyncio.Event()
        self.log_done = asyncio.Event()
        """Set once the reader has caught up with the file."""
        self._piece = MOST_PIECE
        self._plan = polls.Plan()
        self._secret: str | None = None
        self._last_pulse = b""
        self.ended = False

    def emit(self, body: Body, source: str) -> None:
        self._emit(Event(time.monotonic(), self.host, body, self.run, source=source))

    @property
    def whole(self) -> bool:
        """Its records have been read, and its log up to the file's end."""
        return self._read_once.is_set() and self.log_done.is_set()

    async def follow(self, link: Link) -> None:
        """Until cancelled or the run is over and read to its end. LinkLost goes to the caller."""
        async with asyncio.TaskGroup() as group:
            tail = group.create_task(self._log(link))
            http = group.create_task(self._http(link))
            pulse = group.create_task(self._pulse(link))
            await self._records(link)
            # The run is over: its log is read to the end, then all is known.
            await self.log_done.wait()
            tail.cancel()
            http.cancel()
            pulse.cancel()
        self.ended = True

    async def _records(self, link: Link) -> None:
        """Returns when the run has ended and everything it left is read."""
        base = link.hello.get("base", "")
        while True:
            params = {"base": base, "id": self.run, "positions": self._positions}
            try:
                got = await link.call("runs.read", params, timeout=20.0)
            except TimeoutError:
                continue
            except RemoteError as problem:
                self._read_once.set()
                if problem.code == "not_found":
                    return
                await asyncio.sleep(RECORDS_EVERY_S)
                continue
            events, samples = rows(got.get("events")), rows(got.get("samples"))
            if events:
                self.emit(RunRecorded(events), "supervisor")
            if samples:
                self.emit(RunSampled(samples), "supervisor")
            self._positions = dict(mapping(got.get("positions")))
            if events or samples:
                continue  # a call reads at most 1 MB of each: again until nothing is new
            self._read_once.set()
            record = mapping(got.get("record"))
            if (
                record.get("phase") in ("exited", "failed")
                and not record.get("alive")
                and not record.get("supervisor_alive")
            ):
                return
            await asyncio.sleep(RECORDS_EVERY_S)

    async def _log(self, link: Link) -> None:
        # The samples date the log's bytes, so they come first.
        await self._read_once.wait()
        server = self._see(self.run)
        path = server.run.log_path if server else ""
        while not path:
            self.log_done.set()
            await asyncio.sleep(RECORDS_EVERY_S)
            server = self._see(self.run)
            path = server.run.log_path if server else ""
        async for chunk in link.tail(path, self._tail):
            if chunk.gone:
                self.emit(LogLost(chunk.gone), "log")
                self.log_done.set()
                continue
            generation = self._tail.generation if self._tail else chunk.generation
            if chunk.generation != generation:
                self._base = self.store.size
                self.store.new_generation()
            offset = self.store.size
            self.store.append(chunk.data)
            self._tail = TailPosition(
                chunk.offset + len(chunk.data), chunk.device, chunk.inode, chunk.generation
            )
            await self._tell(chunk, offset)
            if chunk.offset + len(chunk.data) >= chunk.size:
                self.log_done.set()
            else:
                self.log_done.clear()

    async def _tell(self, chunk: TailChunk, offset: int) -> None:
        """A chunk as events, in pieces that each keep the loop busy for some milliseconds at most.

        Between them the loop turns a few times: a key goes through several hands until it is painted.
        """
        size, data, at = self._base + chunk.size, chunk.data, 0
        while True:
            piece = data[at : at + self._piece]
            began = time.thread_time()
            self.emit(LogRead(offset + at, piece, size, chunk.generation), "log")
            took = time.thread_time() - began
            at += len(piece)
            if took > MOST_BUSY_S:
                self._piece = max(self._piece // 2, LEAST_PIECE)
            elif took < MOST_BUSY_S / 3:
                self._piece = min(self._piece * 2, MOST_PIECE)
            for _ in range(TURNS):
                await asyncio.sleep(0)
            if at >= len(data):
                return

    async def _pulse(self, link: Link) -> None:
        """The last pulse of the run, whoever took it."""
        await self._read_once.wait()
        while True:
            server = self._see(self.run)
            if server is not None and server.run.folder:
                path = f"{server.run.folder}/{PULSE}"
                try:
                    got = await link.call("file.read", {"path": path, "max_bytes": MOST_PULSE})
                    data = bytes(got.get("blob", b""))
                    result = json.loads(data) if data and data != self._last_pulse else None
                except (RemoteError, TimeoutError, ValueError, RecursionError):
                    result = None  # there is none, or it is no pulse
                else:
                    self._last_pulse = data
                if isinstance(result, dict):
                    self.emit(PulseSeen(result), "supervisor")
            await asyncio.sleep(PULSE_EVERY_S)

    async def _http(self, link: Link) -> None:
        """One question at a time, at the pace that the plan says."""
        await self._read_once.wait()
        while True:
            server = self._see(self.run)
            now = time.monotonic()
            if (
                server is None
                or server.run.http_port is None
                or not server.status.alive  # not started, gone, or of an earlier boot: the port is another's
                or server.run.node_rank
            ):
                await asyncio.sleep(1.0)
                continue
            m = memory.of(server)
            if self._plan.wants_metrics is None:
                told = m.info.enable_metrics if m.info else None
                asked = "--enable-metrics" in server.run.argv
                if told is not None or asked:
                    self._plan = replace(self._plan, wants_metrics=asked or bool(told))
            ready = server.status.ready_boot_s is not None or m.was_ready
            question, due = polls.next_question(
                self._plan, now, ready=ready, supervised=bool(server.status.supervisor_alive)
            )
            if question is None:
                await asyncio.sleep(min(max(due - now, 0.05), 1.0))
                continue
            await self._ask(link, server, question)

    async def _key(self, link: Link, run: RunFacts) -> str:
        """The engine's API key: the caller's, else the run folder's own 0600 file. Read once, never logged."""
        if self._secret is None:
            self._secret = self._auth(run) if self._auth is not None else ""
            if not self._secret and run.folder:
                try:
                    got = await link.call("file.read", {"path": f"{run.folder}/auth", "max_bytes": 65536})
                    self._secret = bytes(got.get("blob", b"")).decode("utf-8", "replace").strip()
                except (RemoteError, TimeoutError):
                    self._secret = ""
        return self._secret

    async def _ask(self, link: Link, server: ServerState, question: polls.Question) -> None:
        run = server.run
        headers = {}
        if question.endpoint != "metrics" and (key := await self._key(link, run)):
            headers["Authorization"] = f"Bearer {key}"
        request = HttpRequest(
            "GET", question.path, run.http_port or 0, run.http_host, headers, tls=run.http_tls
        )
        began = time.monotonic()
        status: int | None = None
        size = 0
        try:
            answer = await link.http(request, timeout=question.timeout_s)
        except HttpError as problem:
            word = str(getattr(problem, "word", "")) or "failed"
            self.emit(HttpSeen(question.endpoint, None, b"", word, time.monotonic() - began), "http")
        except (RemoteError, TimeoutError) as problem:
            word = "timeout" if isinstance(problem, TimeoutError) else problem.code
            self.emit(HttpSeen(question.endpoint, None, b"", word, time.monotonic() - began), "http")
        else:
            status, size = answer.status, len(answer.body)
            self.emit(HttpSeen(question.endpoint, status, answer.body, "", answer.took_s), "http")
        self._plan = polls.answered(self._plan, question, status, time.monotonic(), size)
