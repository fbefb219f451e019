"""The looking: over a link or straight at a port, everything becomes events for the monitor's reducer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from specdash.check import findings
from specdash.check.asking import Asker
from specdash.check.marks import Marks
from specdash.check.runlogs import RunLogs
from specdash.check.states import Finding, State
from specdash.check.tables import by_tree, family, json_lines
from specdash.check.targets import Target
from specdash.config.thresholds import CheckSettings
from specdash.errors import RemoteError
from specdash.host.link import Link
from specdash.monitor import bases, foreign, memory
from specdash.monitor.events import (
    BaseMeasured,
    Body,
    Event,
    GpusSampled,
    HostSampled,
    HostSeen,
    LinkChanged,
    ProcessesSeen,
    RunRecorded,
    RunSampled,
    RunsListed,
    Tick,
)
from specdash.monitor.reduce import reduce, start
from specdash.monitor.sources import lives
from specdash.monitor.state import FleetState, HostState, Reading, ServerState
from specdash.monitor.untrusted import rows
from specdash.sglang import servers

SAMPLES_TAIL = 64 * 1024
EVENTS_TAIL = 256 * 1024
BASE_LOG_TAIL = 1 << 20
MOST_LIVE = 16
LOOKS = 4
MOST_WINDOWS = 3
SPARE_S = 1.5
ORPHAN_S = 1.0
"""A worker whose launcher just ends is no leftover: it must be there this much later still."""


class Gatherer:
    """One target's state while it is looked at. `doing` says what is waited for, for the timeout's sentence."""

    def __init__(
        self,
        target: Target,
        rules: CheckSettings,
        *,
        generate: bool,
        window_s: float,
        ends_at: float,
        marks: Marks | None = None,
    ) -> None:
        """`ends_at`: local monotonic time at which the target's time is over."""
        self.target, self.rules = target, rules
        self.generate, self.window_s, self.ends_at = generate, window_s, ends_at
        self.name = target.host.name if target.host else target.name
        self.state: FleetState = start([(self.name, "")])
        self.doing = "starting"
        self.wall_skew_at: float | None = None
        self.found: list[Finding] = []
        """What the looking itself found, beside what the state tells."""
        self.rtt_ms: float | None = None
        self.stranger = ""
        """Who serves the target's port, where it is no run of ours."""
        self.unanswered: dict[str, str] = {}
        """Run → in one word, why its port gave no answer."""
        self.log_errors: dict[str, Reading[float]] = {}
        """Run → errors in its log since the last check; nothing where there was none."""
        self._records: tuple[Mapping[str, Any], ...] = ()
        self._logs = RunLogs(self, marks or Marks(None))

    @property
    def host(self) -> HostState:
        return self.state.hosts[self.name]

    def emit(self, body: Body, run: str = "", source: str = "check") -> None:
        where = "" if isinstance(body, Tick) else self.name
        self.state = reduce(self.state, Event(time.monotonic(), where, body, run, source=source))

    def server(self, run: str) -> ServerState | None:
        return self.host.servers.get(run)

    def left_s(self) -> float:
        return max(0.0, self.ends_at - time.monotonic())

    def _incomplete(self, what: str, problem: RemoteError) -> None:
        self.found.append(Finding(State.WARNING, "incomplete", f"{what}: {problem.sentence}"))

    async def over_link(self, link: Link) -> None:
        """The host, and every live run on it (or the target's alone)."""
        self.emit(LinkChanged("up"))
        self.emit(HostSeen(dict(link.hello)))
        self.doing = "reading the host"
        await asyncio.gather(self._gpus(link), self._host(link), self._runs(link))
        if self.target.port is not None and not self._served():
            await self._strange_port(link)
        runs = [run for run, server in self.host.servers.items() if self.looked_at(server)][:MOST_LIVE]
        asker = Asker(self, link)
        await asyncio.gather(self._leftovers(link), *(self._run(link, asker, run) for run in runs))
        await asyncio.gather(self._bases(link, runs), self._watch(link, asker, runs))
        await self._end(link, asker, runs)

    async def straight(self) -> None:
        """A port asked from here, with no link: HTTP is all there is."""
        run = self.target.name
        asker = Asker(self, None)
        self.emit(LinkChanged("up"))
        self.emit(RunsListed((self._record(run),)))
        await asker.look(run)
        await self._watch(None, asker, [run])
        await self._end(None, asker, [run])

    async def _watch(self, link: Link | None, asker: Asker, runs: list[str]) -> None:
        """Looks again where requests run: a rate needs two steps of a counter, so three looks or more."""
        self.emit(Tick())
        windows = 0
        while self.window_s > 0 and windows < MOST_WINDOWS and any(self.moves(run) for run in runs):
            if windows and (not self._rates_wanted(runs) or self.left_s() < self.window_s + SPARE_S):
                return
            self.doing = f"watching for {self.window_s:g} s"
            for _ in range(LOOKS):
                await asyncio.sleep(self.window_s / LOOKS)
                await asyncio.gather(*(self._again(link, asker, run) for run in runs if self.moves(run)))
            self.emit(Tick())
            windows += 1

    def _rates_wanted(self, runs: list[str]) -> bool:
        """A limit asks for a rate that is not known yet though requests run."""
        return any(
            self.moves(run)
            and (server := self.server(run)) is not None
            and findings.pending(server, self.rules)
            for run in runs
        )

    async def _end(self, link: Link | None, asker: Asker, runs: list[str]) -> None:
        if self.generate:
            for run in runs:
                await asker.generate(run)
        self.emit(Tick())
        for run in runs:
            await self._logs.news(link, run)

    def _record(self, run: str, **more: Any) -> dict[str, Any]:
        http = {"host": self.target.address, "port": self.target.port, "tls": self.target.tls}
        return {"id": run, "http": http, **more}

    async def _gpus(self, link: Link) -> None:
        try:
            left = self.left_s()
            table = await link.call("gpu.static", {"wait_s": min(8.0, left / 2)}, timeout=left)
        except RemoteError as problem:
            self._incomplete("GPUs", problem)
        else:
            self.emit(GpusSampled(table))

    async def _host(self, link: Link) -> None:
        params = {"run_root": self.target.host.run_root} if self.target.host else {}
        async for table in link.sample("host", 5.0, params):
            self.emit(HostSampled(table))
            self.wall_skew_at = time.time()
            break

    async def _leftovers(self, link: Link) -> None:
        """SGLang workers without a launcher: looked at twice, where the first look finds any."""
        if self.target.kind != "host":
            return
        try:
            async for table in link.sample("procs", ORPHAN_S, {"words": list(servers.WORDS)}):
                again = bool(self.host.processes)
                self.emit(ProcessesSeen(table))
                here = dict(self.host.processes)
                here["seen_before"] = tuple(
                    (r.get("pid"), r.get("start")) for r in rows(table.get("processes"))
                )
                if again or not foreign.orphans(replace(self.host, processes=here)):
                    break
        except RemoteError as problem:
            self._incomplete("processes", problem)

    async def _runs(self, link: Link) -> None:
        try:
            listed = await link.call("runs.list", {"base": link.hello.get("base", "")}, timeout=self.left_s())
        except RemoteError as problem:
            self._incomplete("runs", problem)
            return
        records = self._records = rows(listed.get("runs"))
        live = [record for record in records if lives(record)]
        # Of the ended runs only the newest can matter: it may have crashed just now.
        self.emit(RunsListed(tuple(live) if live else records[:1]))

    async def _bases(self, link: Link, runs: list[str]) -> None:
        """What the newest base run of a target decoded, where a drafter works on that target now: for break-even."""
        if not any(self.moves(run) for run in runs):
            return
        listed = Event(time.monotonic(), self.name, RunsListed(self._records))
        every = reduce(start([(self.name, "")]), listed).hosts[self.name].servers.values()
        for server in bases.wanted(every):
            _, data = await self.tail(link, server.run.log_path, BASE_LOG_TAIL)
            found = await asyncio.to_thread(bases.of_log, self.name, server, data)
            for record in found:
                self.emit(BaseMeasured(record))
            if found:
                return

    def looked_at(self, server: ServerState) -> bool:
        target = self.target
        if (
            target.kind == "profile"
            and server.run.profile != target.profile
            and server.run.http_port != target.port
        ):
            return False
        return target.kind != "port" or server.run.http_port == target.port

    def _served(self) -> bool:
        return any(s.run.http_port == self.target.port and s.status.alive for s in self.host.servers.values())

    async def _strange_port(self, link: Link) -> None:
        """Nobody of ours serves the target's port: who does, and what processes is that?"""
        self.doing = f"asking who listens on port {self.target.port}"
        run = f"port {self.target.port}"
        try:
            holder, listed = await asyncio.gather(
                link.call("procs.listeners", {"port": self.target.port}, timeout=self.left_s()),
                link.call("procs.list", {}, timeout=self.left_s()),
            )
        except RemoteError as problem:
            self._incomplete("processes", problem)
            holder, listed = {}, {}
        pids = {row.get("pid") for row in rows(holder.get("processes"))}
        here = self.target.address in ("127.0.0.1", "::1", "localhost")
        if here and holder.get("listening") is False:
            return  # nothing there: whoever reads this says so
        record = self._record(run, alive=True) if pids else self._record(run)
        self.stranger = (
            f"pid {', '.join(str(pid) for pid in sorted(p for p in pids if isinstance(p, int)))}"
            if pids
            else "a process that this user cannot see"
        )
        self.emit(RunsListed((*({"id": ident} for ident in self.host.servers), record)))
        tree = [
            dict(row)
            for row in family(rows(listed.get("processes")), {p for p in pids if isinstance(p, int)})
        ]
        if tree:
            self.emit(RunSampled(({"tree": tree},)), run)

    async def _run(self, link: Link, asker: Asker, run: str) -> None:
        """A run's newest evidence: records, samples, the end of its log, and its port."""
        server = self.server(run)
        if server is None:
            return
        self.doing = f"reading {run}"
        if server.run.folder:
            folder = server.run.folder
            (_, events), (_, samples), _ = await asyncio.gather(
                self.tail(link, f"{folder}/events.jsonl", EVENTS_TAIL),
                self.tail(link, f"{folder}/samples.jsonl", SAMPLES_TAIL),
                self._logs.first(link, run),
            )
            self.emit(RunRecorded(json_lines(events)), run)
            for some in by_tree(json_lines(samples)):
                self.emit(RunSampled(some), run)
            self._logs.tell(run)
        server = self.server(run) or server
        if server.status.alive is not False and server.run.http_port is not None and not server.run.node_rank:
            await asker.look(run)

    async def tail(self, link: Link, path: str, limit: int) -> tuple[Mapping[str, Any], bytes]:
        """(facts, the last `limit` bytes) of a file; nothing when it cannot be read."""
        try:
            got = await link.call(
                "file.read", {"path": path, "offset": -limit, "max_bytes": limit}, timeout=self.left_s()
            )
        except RemoteError:
            return {}, b""
        return got, bytes(got.get("blob", b""))

    def moves(self, run: str) -> bool:
        """Whether requests run, so that a second look tells whether tokens move."""
        server = self.server(run)
        if server is None or server.status.alive is False:
            return False
        counts = memory.of(server).counts
        if counts and counts[-1].running is not None:
            return counts[-1].running > 0
        return server.numbers.idle is False

    async def _again(self, link: Link | None, asker: Asker, run: str) -> None:
        server = self.server(run)
        if link is not None and server is not None and server.run.folder:
            _, samples = await self.tail(link, f"{server.run.folder}/samples.jsonl", 8192)
            newest = [s for s in json_lines(samples) if s not in server.samples]
            self.emit(RunSampled(tuple(newest)), run)
            await self._logs.more(link, run)
        await asker.look(run, again=True)
