"""One host's source: keeps a link to it, and turns what comes over it into events."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Protocol, cast

from specdash.config.hosts import Host
from specdash.errors import (
    AuthRefused,
    HostKeyChanged,
    HostKeyUnknown,
    LinkError,
    LinkLost,
    RemoteError,
    SpecdashError,
)
from specdash.host.link import AskHostKey, Link
from specdash.host.open import open_link as open_any
from specdash.monitor import bases
from specdash.monitor.events import (
    BaseMeasured,
    BasesRead,
    Body,
    Event,
    GpusSampled,
    HostSampled,
    HostSeen,
    LinkChanged,
    ProcessesSeen,
    RunsListed,
)
from specdash.monitor.follow_run import Auth, Emit, RunFollower, See
from specdash.monitor.logstore import LogStore
from specdash.monitor.state import ServerState
from specdash.monitor.untrusted import mapping, number, rows, text, texts
from specdash.sglang import redact, servers

GPU_EVERY_S = 1.0
HOST_EVERY_S = 2.0
RUNS_EVERY_S = 2.0
PING_EVERY_S = 5.0
PROCS_EVERY_S = 10.0
BASES_EVERY_S = 15.0
MOST_BASE_LOG = 4 << 20
"""Bytes from the end of an earlier base run's log that are read for its measurements."""
FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 30.0
REFUSED = (HostKeyUnknown, HostKeyChanged, AuthRefused)
"""Trying these again by itself would lock the operator out or ask for ever: only `retry()` does."""
MOST_HISTORY_LOG = 64 << 20
"""Bytes: a longer log is not read only to learn how long its load took."""
LIVE_PHASES = ("created", "starting", "ready", "stopping")


class OpenLink(Protocol):
    def __call__(
        self, host: Host, *, ask: AskHostKey | None = None, timeout_s: float = 15.0
    ) -> Awaitable[Link]: ...


DEFAULT = cast(OpenLink, open_any)
"""The real way to a host; tests and the demo may bring another."""


def backoff(attempt: int, rng: Callable[[], float] = random.random) -> float:
    """Seconds to wait after the `attempt`-th failure in a row: doubling with jitter of a half."""
    longest = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(attempt - 1, 20))
    return float(longest * (0.5 + rng() / 2))


class HostSource:
    """`run()` until cancelled. `link` is the living link or None."""

    def __init__(
        self,
        host: Host,
        emit: Emit,
        see: See,
        log: Callable[[str], LogStore],
        open_link: OpenLink,
        ask: AskHostKey | None = None,
        auth: Auth | None = None,
    ) -> None:
        self.host = host
        self.link: Link | None = None
        self._emit, self._see, self._log, self._open, self._ask, self._auth = (
            emit,
            see,
            log,
            open_link,
            ask,
            auth,
        )
        self._followers: dict[str, RunFollower] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wanted: set[str] = set()
        self._wake = asyncio.Event()
        self._listed: list[str] = []
        self._first_list = asyncio.Event()
        self._bases_read: set[tuple[str, bool]] = set()
        self.faults: list[str] = []
        """Sentences of what went wrong in a source and was tried again, newest last, bounded."""

    def emit(self, body: Body, source: str = "agent", host_at: float | None = None) -> None:
        self._emit(Event(time.monotonic(), self.host.name, body, source=source, host_at=host_at))

    def retry(self) -> None:
        """Try to connect now."""
        self._wake.set()

    def want(self, run: str) -> None:
        """Read an ended run's records and log too."""
        self._wanted.add(run)

    def whole(self, run: str) -> bool:
        """Whether all that there is of a run has been read: its records, and its log to the end it has now."""
        follower = self._followers.get(run)
        return follower is not None and follower.whole

    async def run(self) -> None:
        attempt = 0
        while True:
            attempt += 1
            self._wake.clear()
            self.emit(LinkChanged("connecting", attempt=attempt))
            wait: float | None
            try:
                link = await self._open(self.host, ask=self._ask)
            except LinkError as problem:
                refused = isinstance(problem, REFUSED)
                wait = None if refused else backoff(attempt)
                self.emit(LinkChanged("refused" if refused else "failed", str(problem), attempt, wait))
            except SpecdashError as problem:
                wait = LONGEST_RETRY_S
                self.emit(LinkChanged("failed", str(problem), attempt, wait))
            except (OSError, TimeoutError) as problem:
                wait = backoff(attempt)
                self.emit(LinkChanged("failed", f"{type(problem).__name__}: {problem}", attempt, wait))
            else:
                began = time.monotonic()
                sentence = await self._use(link)
                # A link that held for a while was good: start over with short waits.
                attempt = 0 if time.monotonic() - began > LONGEST_RETRY_S else attempt
                wait = backoff(max(attempt, 1))
                self.emit(LinkChanged("lost", sentence, attempt, wait))
            await self._rest(wait)

    async def _rest(self, wait: float | None) -> None:
        try:
            async with asyncio.timeout(wait):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _use(self, link: Link) -> str:
        """Serve from a living link until it is lost; returns why."""
        self.link = link
        try:
            self.emit(LinkChanged("up"))
            self.emit(HostSeen(dict(link.hello)), host_at=number(link.hello.get("now_boot")))
            async with asyncio.TaskGroup() as group:
                for name, work in (
                    ("gpu", self._gpus),
                    ("host", self._host),
                    ("runs", self._runs),
                    ("ping", self._ping),
                    ("procs", self._procs),
                    ("bases", self._bases),
                ):
                    group.create_task(self._guarded(name, work, link))
        except ExceptionGroup as problems:
            return str(_first(problems))
        finally:
            self.link = None
            await self._drop(link)
        return "The link ended."

    async def _drop(self, link: Link) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()
        try:
            await asyncio.wait_for(link.close(), 5.0)
        except Exception as problem:  # the link is gone already; its closing must not stop us
            self.fault(f"closing the link: {problem!r}")

    def fault(self, sentence: str) -> None:
        self.faults = [*self.faults, sentence][-50:]

    async def _guarded(self, name: str, work: Callable[[Link], Awaitable[None]], link: Link) -> None:
        """A part that fails is tried again and never takes the others down; only LinkLost ends all."""
        while True:
            try:
                await work(link)
            except Exception as problem:
                _raise_lost(problem)
                self.fault(f"{name}: {problem!r}")
            await asyncio.sleep(2.0)

    async def _gpus(self, link: Link) -> None:
        async for table in link.sample("gpu", GPU_EVERY_S):
            self.emit(GpusSampled(table), host_at=number(table.get("t_boot")))

    async def _host(self, link: Link) -> None:
        async for table in link.sample("host", HOST_EVERY_S, {"run_root": self.host.run_root}):
            self.emit(HostSampled(table), host_at=number(table.get("now_boot")))

    async def _ping(self, link: Link) -> None:
        while True:
            try:
                async with asyncio.timeout(PING_EVERY_S * 2):
                    rtt = await link.ping()
            except TimeoutError:
                rtt = None
            self.emit(LinkChanged("up", rtt_ms=rtt))
            await asyncio.sleep(PING_EVERY_S)

    async def _procs(self, link: Link) -> None:
        """SGLang's processes of the whole host, ours or not; secrets on command lines never get further."""
        async for table in link.sample("procs", PROCS_EVERY_S, {"words": list(servers.WORDS)}):
            shown = [
                {**row, "cmdline": redact.argv(texts(row.get("cmdline")))}
                for row in rows(table.get("processes"))
            ]
            self.emit(ProcessesSeen({**table, "processes": shown}), host_at=number(table.get("now_boot")))

    async def _bases(self, link: Link) -> None:
        """What earlier base runs of a target decoded, by the end of their logs: each is read once, once more ended."""
        await self._first_list.wait()
        while True:
            seen = [server for run in self._listed if (server := self._see(run)) is not None]
            for server in bases.wanted(seen):
                key = (server.run.id, bool(server.status.alive))
                if key in self._bases_read:
                    continue
                self._bases_read.add(key)
                try:
                    got = await link.call(
                        "file.read",
                        {"path": server.run.log_path, "offset": -MOST_BASE_LOG, "max_bytes": MOST_BASE_LOG},
                        timeout=60.0,
                    )
                except RemoteError as problem:
                    self.fault(f"base measurements of {server.run.id}: {problem}")
                    continue
                data = bytes(got.get("blob", b""))
                for record in await asyncio.to_thread(bases.of_log, self.host.name, server, data):
                    self.emit(BaseMeasured(record), "log")
            self.emit(BasesRead())
            await asyncio.sleep(BASES_EVERY_S)

    async def _runs(self, link: Link) -> None:
        base = link.hello.get("base", "")
        lister: AsyncIterator[dict[str, Any]] = link.sample("runs", RUNS_EVERY_S, {"base": base})
        async for listed in lister:
            records = rows(listed.get("runs"))
            self.emit(RunsListed(records), host_at=number(listed.get("now_boot")))
            self._listed = [text(record.get("id")) for record in records]
            self._first_list.set()
            self._sort_out(link, records)
            for name, task in list(self._tasks.items()):
                if task.done():
                    del self._tasks[name]
                    if not task.cancelled() and (problem := task.exception()) is not None:
                        _raise_lost(problem)
                        self.fault(f"run {name}: {problem!r}")

    def _sort_out(self, link: Link, records: tuple[Mapping[str, Any], ...]) -> None:
        """Follow every run that lives, the wanted ones, and the newest ended one when none lives."""
        live = [text(r.get("id")) for r in records if lives(r)]
        ids = {text(r.get("id")) for r in records}
        self._wanted.update(history_of(records))
        follow = [*live, *(run for run in self._wanted if run in ids)]
        if not live and records:
            newest = max(records, key=lambda r: number(r.get("created_unix")) or 0.0)
            follow.append(text(newest.get("id")))
        for run in dict.fromkeys(follow):
            known = self._followers.get(run)
            if not run or run in self._tasks or (known is not None and known.ended and run not in live):
                continue
            if known is None or known.ended:
                known = known or RunFollower(
                    self.host.name, run, self._emit, self._see, self._log(run), self._auth
                )
                known.ended = False
                self._followers[run] = known
            self._tasks[run] = asyncio.create_task(known.follow(link), name=f"run {run}")
        for run in [r for r in self._followers if r not in ids and r not in self._tasks]:
            del self._followers[run]


def history_of(records: tuple[Mapping[str, Any], ...]) -> set[str]:
    """Earlier loads whose phases tell how long a run that loads now should take: the newest two of its profile."""
    out: set[str] = set()
    loading = [r for r in records if lives(r) and r.get("phase") in ("created", "starting")]
    for profile in {text(r.get("profile")) for r in loading} - {""}:
        done = [
            r
            for r in records
            if r.get("profile") == profile
            and number(r.get("ready_boot_s")) is not None
            and (number(r.get("log_size")) or 0.0) <= MOST_HISTORY_LOG
        ]
        done.sort(key=lambda r: number(r.get("created_unix")) or 0.0, reverse=True)
        out.update(text(r.get("id")) for r in done[:2])
    return out


def lives(record: Mapping[str, Any]) -> bool:
    return bool(
        record.get("alive") or record.get("supervisor_alive") or mapping(record).get("phase") in LIVE_PHASES
    )


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner


def _raise_lost(problem: BaseException) -> None:
    if isinstance(problem, LinkLost):
        raise problem
    if isinstance(problem, BaseExceptionGroup):
        lost, _ = problem.split(LinkLost)
        if lost is not None:
            raise _first(lost)


def lives_now(server: ServerState) -> bool:
    """A run that may still do something, by the state."""
    status = server.status
    return bool(status.alive or status.supervisor_alive) and status.phase_hint not in ("exited", "failed")
