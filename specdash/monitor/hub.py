"""The one place where events come together: sources feed it, the reducer folds, readers are told.

Reduces at once, per event, on the loop's thread; tells subscribers at most ten times a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from specdash.config.hosts import Host
from specdash.errors import HostUnknown, LinkLost
from specdash.host.link import AskHostKey, Link
from specdash.monitor import logstore
from specdash.monitor.events import Event, LinkChanged, Tick
from specdash.monitor.follow_run import Auth
from specdash.monitor.logstore import LogStore
from specdash.monitor.recording import Recorder
from specdash.monitor.reduce import reduce, start
from specdash.monitor.sources import DEFAULT, HostSource, OpenLink
from specdash.monitor.state import FleetState, HostState, ServerState

NOTIFY_S = 0.1
TICK_S = 1.0

Callback = Callable[[FleetState], None]


class Hub:
    """`state` is always the newest. All methods belong to the event loop's thread.

    `auth` gives a run's API key (a value, from a reference; never logged) or "". `read_only` is only
    carried for `control.perform`, which refuses below the screen.
    """

    def __init__(
        self,
        hosts: Iterable[Host],
        ask: AskHostKey | None = None,
        read_only: bool = False,
        *,
        open_link: OpenLink = DEFAULT,
        auth: Auth | None = None,
        cache: Path | None = None,
    ) -> None:
        self.hosts: dict[str, Host] = {host.name: host for host in hosts}
        self.read_only = read_only
        self.state: FleetState = start((host.name, host.label) for host in self.hosts.values())
        self.faults: list[str] = []
        """Sentences of what the reducer or a subscriber could not do: bugs, kept so that they are seen."""
        self._ask, self._open, self._auth, self._cache = ask, open_link, auth, cache
        self._sources: dict[str, HostSource] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ticker: asyncio.Task[None] | None = None
        self._subscribers: list[Callback] = []
        self._told: asyncio.TimerHandle | None = None
        self._logs: dict[tuple[str, str], LogStore] = {}
        self._recorder: Recorder | None = None
        self._running = False

    async def start(self) -> None:
        """Begins to connect to every host; returns at once."""
        self._running = True
        logstore.sweep(self._cache or logstore.cache_folder())
        for host in self.hosts.values():
            self._begin(host)
        self._ticker = asyncio.create_task(self._ticks(), name="ticks")

    def add_host(self, host: Host) -> None:
        """One more host, while running too. A host of that name is left as it is."""
        if host.name in self.hosts:
            return
        self.hosts[host.name] = host
        hosts = {**self.state.hosts, host.name: HostState(host.name, host.label)}
        self.state = replace(self.state, hosts=MappingProxyType(hosts))
        if self._running:
            self._begin(host)

    def _begin(self, host: Host) -> None:
        name = host.name

        def see(run: str) -> ServerState | None:
            found = self.state.hosts.get(name)
            return found.servers.get(run) if found else None

        source = HostSource(
            host, self.emit, see, lambda run: self.log(name, run), self._open, self._ask, self._auth
        )
        self._sources[name] = source
        self._tasks[name] = asyncio.create_task(source.run(), name=f"host {name}")

    async def close(self) -> None:
        """Ends all sources and links, and removes the spilled logs. Nothing on any host is touched."""
        self._running = False
        tasks = [*self._tasks.values(), *([self._ticker] if self._ticker else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
        if self._told is not None:
            self._told.cancel()
            self._told = None
        self.stop_recording()
        for store in self._logs.values():
            store.close()
        self._logs.clear()

    async def __aenter__(self) -> Hub:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ticks(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.emit(Event(time.monotonic(), "", Tick(), source="clock"))
            for name, task in list(self._tasks.items()):
                if task.done() and not task.cancelled() and self._running:
                    problem = task.exception()
                    self._fault(f"source of {name} ended: {problem!r}")
                    self.emit(
                        Event(time.monotonic(), name, LinkChanged("failed", f"internal error: {problem!r}"))
                    )
                    self._begin(self.hosts[name])

    def emit(self, event: Event) -> None:
        """Folds one event into the state and lets readers know soon."""
        if self._recorder is not None:
            self._recorder.add(event)
        try:
            self.state = reduce(self.state, event)
        except Exception as problem:  # a bug in a rule must not end the watch over a server
            self._fault(f"{type(event.body).__name__}: {problem!r}")
            return
        if self._told is None and self._subscribers:
            with contextlib.suppress(RuntimeError):
                self._told = asyncio.get_running_loop().call_later(NOTIFY_S, self._tell)

    def settle(self) -> None:
        """Judge all that was read by now, for a reader that will not wait for the next tick."""
        self.emit(Event(time.monotonic(), "", Tick(), source="clock"))

    def _fault(self, sentence: str) -> None:
        self.faults = [*self.faults, sentence][-50:]

    def _tell(self) -> None:
        self._told = None
        for callback in list(self._subscribers):
            try:
                callback(self.state)
            except Exception as problem:  # one reader's bug is not the others'
                self._fault(f"subscriber: {problem!r}")

    def subscribe(self, callback: Callback) -> Callable[[], None]:
        """Calls `callback(state)` at most ten times a second; returns how to stop it."""
        self._subscribers.append(callback)

        def stop() -> None:
            with contextlib.suppress(ValueError):
                self._subscribers.remove(callback)

        return stop

    async def until(self, wanted: Callable[[FleetState], bool], timeout_s: float) -> bool:
        """Waits until the state is as wanted; False when that took too long."""
        if wanted(self.state):
            return True
        event = asyncio.Event()
        stop = self.subscribe(lambda state: event.set() if wanted(state) else None)
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
            return True
        except TimeoutError:
            return wanted(self.state)
        finally:
            stop()

    def link(self, host: str) -> Link:
        """The living link of a host. Raises LinkLost while there is none, HostUnknown for another name."""
        source = self._sources.get(host)
        if source is None:
            raise HostUnknown(f'"{host}" is not watched.', "Name it on the command line or in the config.")
        if source.link is None:
            found = self.state.hosts.get(host)
            why = found.link.sentence if found else ""
            raise LinkLost(f"{host} is not connected now.", why)
        return source.link

    def log(self, host: str, run: str) -> LogStore:
        """The bytes of a run's log as far as they were read."""
        store = self._logs.get((host, run))
        if store is None:
            store = self._logs[host, run] = LogStore(host, run, self._cache)
        return store

    def want(self, host: str, run: str) -> None:
        """Read an ended run too (its records and log)."""
        if host in self._sources:
            self._sources[host].want(run)

    def whole(self, host: str, run: str) -> bool:
        """Whether a run's records and log have been read to their ends. A wanted run gets there."""
        source = self._sources.get(host)
        return source is not None and source.whole(run)

    def retry(self, host: str) -> None:
        """Connect now instead of waiting; after a refused key this is the only way."""
        if host in self._sources:
            self._sources[host].retry()

    def record(self, path: Path) -> None:
        """Record every event from now on."""
        self.stop_recording()
        self._recorder = Recorder(path)

    def stop_recording(self) -> None:
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None
