"""The looking: over a link or straight at a port, everything becomes events for the monitor's reducer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

from specdash.check.targets import Target
from specdash.errors import HttpError, RemoteError
from specdash.host.http import TcpRoute, fetch
from specdash.host.link import HttpRequest, HttpResponse, Link
from specdash.monitor import memory
from specdash.monitor.events import (
    Body,
    Event,
    GpusSampled,
    HostSampled,
    HostSeen,
    HttpSeen,
    LinkChanged,
    LogRead,
    RunRecorded,
    RunSampled,
    RunsListed,
    Tick,
)
from specdash.monitor.reduce import reduce, start
from specdash.monitor.sources import lives
from specdash.monitor.state import FleetState, HostState, ServerState
from specdash.monitor.untrusted import rows
from specdash.sglang import ready

LOG_TAIL = 256 * 1024
SAMPLES_TAIL = 64 * 1024
EVENTS_TAIL = 256 * 1024
HTTP_S = 3.0
GENERATE_S = 20.0
MOST_LIVE = 16


class Gatherer:
    """One target's state while it is looked at. `doing` says what is waited for, for the timeout's sentence."""

    def __init__(self, target: Target, *, generate: bool, window_s: float, budget_s: float) -> None:
        self.target = target
        self.generate, self.window_s, self.budget_s = generate, window_s, budget_s
        self.name = target.host.name if target.host else target.name
        self.state: FleetState = start([(self.name, "")])
        self.doing = "starting"
        self.wall_skew_at: float | None = None
        self.problems: list[str] = []
        self.failed: list[str] = []
        """Generations that did not come back as they should."""
        self.rtt_ms: float | None = None
        self.stranger = ""
        """Who serves the target's port, where it is no run of ours."""
        self._auth: dict[str, str] = {}

    @property
    def host(self) -> HostState:
        return self.state.hosts[self.name]

    def emit(self, body: Body, run: str = "", source: str = "check") -> None:
        where = "" if isinstance(body, Tick) else self.name
        self.state = reduce(self.state, Event(time.monotonic(), where, body, run, source=source))

    def server(self, run: str) -> ServerState | None:
        return self.host.servers.get(run)

    async def over_link(self, link: Link) -> None:
        """The host, and every live run on it (or the target's alone)."""
        self.emit(LinkChanged("up"))
        self.emit(HostSeen(dict(link.hello)))
        self.doing = "reading the host"
        await asyncio.gather(self._gpus(link), self._host(link), self._runs(link))
        if self.target.port is not None and not self._served():
            await self._strange_port(link)
        runs = [run for run, server in self.host.servers.items() if self.looked_at(server)]
        await asyncio.gather(*(self._run(link, run) for run in runs[:MOST_LIVE]))
        self.emit(Tick())
        if self.window_s > 0 and any(self._moves(run) for run in runs):
            self.doing = f"watching for {self.window_s:g} s"
            await asyncio.sleep(self.window_s)
            await asyncio.gather(*(self._again(link, run) for run in runs[:MOST_LIVE] if self._moves(run)))
            self.emit(Tick())
        if self.generate:
            await self._generations(link, runs[:MOST_LIVE])
        self.emit(Tick())

    async def straight(self) -> None:
        """A port asked from here, with no link: HTTP is all there is."""
        run = self.target.name
        self.emit(LinkChanged("up"))
        self.emit(RunsListed((self._record(run),)))
        await self._http(None, run)
        self.emit(Tick())
        if self.window_s > 0 and self._moves(run):
            self.doing = f"watching for {self.window_s:g} s"
            await asyncio.sleep(self.window_s)
            await self._http(None, run, again=True)
        if self.generate:
            await self._generations(None, [run])
        self.emit(Tick())

    def _record(self, run: str, **more: Any) -> dict[str, Any]:
        http = {"host": self.target.address, "port": self.target.port, "tls": self.target.tls}
        return {"id": run, "http": http, **more}

    async def _gpus(self, link: Link) -> None:
        try:
            table = await link.call(
                "gpu.static", {"wait_s": min(8.0, self.budget_s / 2)}, timeout=self.budget_s
            )
        except RemoteError as problem:
            self.problems.append(f"GPUs: {problem.sentence}")
        else:
            self.emit(GpusSampled(table))

    async def _host(self, link: Link) -> None:
        params = {"run_root": self.target.host.run_root} if self.target.host else {}
        stream = link.sample("host", 5.0, params)
        async for table in stream:
            self.emit(HostSampled(table))
            self.wall_skew_at = time.time()
            break

    async def _runs(self, link: Link) -> None:
        try:
            listed = await link.call("runs.list", {"base": link.hello.get("base", "")}, timeout=self.budget_s)
        except RemoteError as problem:
            self.problems.append(f"runs: {problem.sentence}")
            return
        records = rows(listed.get("runs"))
        live = [record for record in records if lives(record)]
        # Of the ended runs only the newest can matter: it may have crashed just now.
        self.emit(RunsListed(tuple(live) if live else records[:1]))

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
                link.call("procs.listeners", {"port": self.target.port}, timeout=self.budget_s),
                link.call("procs.list", {}, timeout=self.budget_s),
            )
        except RemoteError as problem:
            self.problems.append(f"processes: {problem.sentence}")
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

    async def _run(self, link: Link, run: str) -> None:
        """A run's newest evidence: records, samples, the end of its log, and its port."""
        server = self.server(run)
        if server is None:
            return
        self.doing = f"reading {run}"
        if server.run.folder:
            folder = server.run.folder
            _, events = await self._tail(link, f"{folder}/events.jsonl", EVENTS_TAIL)
            _, samples = await self._tail(link, f"{folder}/samples.jsonl", SAMPLES_TAIL)
            self.emit(RunRecorded(json_lines(events)), run)
            self.emit(RunSampled(json_lines(samples)), run)
            await self._log(link, run)
        if server.status.alive is not False and server.run.http_port is not None and not server.run.node_rank:
            await self._http(link, run)

    async def _tail(self, link: Link, path: str, limit: int) -> tuple[int, bytes]:
        """(offset, the last `limit` bytes) of a file; nothing when it cannot be read."""
        try:
            got = await link.call(
                "file.read", {"path": path, "offset": -limit, "max_bytes": limit}, timeout=self.budget_s
            )
        except RemoteError:
            return 0, b""
        return int(got.get("offset", 0)), bytes(got.get("blob", b""))

    async def _log(self, link: Link, run: str) -> None:
        server = self.server(run)
        if server is None or not server.run.log_path:
            return
        seen = server.log.read
        if not seen:
            offset, data = await self._tail(link, server.run.log_path, LOG_TAIL)
            if offset:  # begins in the middle of a line
                cut = data.find(b"\n") + 1
                offset, data = offset + cut, data[cut:]
        else:
            try:
                params = {"path": server.run.log_path, "offset": seen, "max_bytes": LOG_TAIL}
                got = await link.call("file.read", params, timeout=self.budget_s)
            except RemoteError:
                return
            offset, data = seen, bytes(got.get("blob", b""))
        if data:
            self.emit(LogRead(offset, data, offset + len(data)), run)

    def _moves(self, run: str) -> bool:
        """Whether requests run, so that a second look tells whether tokens move."""
        server = self.server(run)
        if server is None or server.status.alive is False:
            return False
        counts = memory.of(server).counts
        if counts and counts[-1].running is not None:
            return counts[-1].running > 0
        return server.numbers.idle is False

    async def _again(self, link: Link, run: str) -> None:
        server = self.server(run)
        if server is not None and server.run.folder:
            _, samples = await self._tail(link, f"{server.run.folder}/samples.jsonl", 8192)
            newest = [s for s in json_lines(samples) if s not in server.samples]
            self.emit(RunSampled(tuple(newest)), run)
            await self._log(link, run)
        await self._http(link, run, again=True)

    async def _http(self, link: Link | None, run: str, again: bool = False) -> None:
        """Cheap questions only: /ready or /model_info, then counters. Nothing that generates."""
        self.doing = f"asking port {self._port(run)}"
        if not again:
            answer = await self._ask(link, run, "ready", "/ready")
            if answer is None:
                return
            if answer.status == 404 or answer.status in (401, 403):
                answer = await self._first(link, run, "model_info", ("/model_info", "/get_model_info"))
            if answer is not None and answer.status == 503:
                return
        metrics = await self._ask(link, run, "metrics", "/metrics") if self._metrics(run, again) else None
        if metrics is None or metrics.status != 200:
            await self._first(link, run, "loads", ("/v1/loads", "/get_load"))

    def _metrics(self, run: str, again: bool) -> bool:
        """Whether to ask for metrics: not of a run that was launched without them."""
        server = self.server(run)
        if server is None:
            return False
        if again:
            return memory.of(server).metrics_at is not None
        return not server.run.argv or "--enable-metrics" in server.run.argv

    def _port(self, run: str) -> int:
        server = self.server(run)
        return (server.run.http_port if server else None) or self.target.port or 0

    async def _first(
        self, link: Link | None, run: str, endpoint: str, paths: tuple[str, ...]
    ) -> HttpResponse | None:
        """The first spelling that this version has."""
        answer = None
        for path in paths:
            answer = await self._ask(link, run, endpoint, path)
            if answer is None or answer.status != 404:
                break
        return answer

    async def _ask(
        self,
        link: Link | None,
        run: str,
        endpoint: str,
        path: str,
        method: str = "GET",
        body: bytes | None = None,
    ) -> HttpResponse | None:
        server = self.server(run)
        facts = server.run if server else None
        request = HttpRequest(
            method,
            path,
            self._port(run),
            facts.http_host if facts else self.target.address,
            await self._headers(link, run),
            body,
            facts.http_tls if facts else self.target.tls,
        )
        limit = min(GENERATE_S if endpoint == "generate" else HTTP_S, self.budget_s)
        began = time.monotonic()
        try:
            if link is None:
                answer = await fetch(TcpRoute(), request, limit)
            else:
                answer = await link.http(request, timeout=limit)
        except (HttpError, RemoteError, TimeoutError) as problem:
            word = str(getattr(problem, "word", "") or getattr(problem, "code", "") or "timeout")
            self.emit(HttpSeen(endpoint, None, b"", word, time.monotonic() - began), run)
            return None
        if answer.status != 404 or endpoint == "metrics":
            self.emit(HttpSeen(endpoint, answer.status, answer.body, "", answer.took_s), run)
        return answer

    async def _headers(self, link: Link | None, run: str) -> Mapping[str, str]:
        """The engine's key, from the run folder's own 0600 file; never shown."""
        server = self.server(run)
        if link is None or server is None or not server.run.folder:
            return {"Content-Type": "application/json"}
        if run not in self._auth:
            _, data = await self._tail(link, f"{server.run.folder}/auth", 65536)
            self._auth[run] = data.decode("utf-8", "replace").strip()
        return ready.headers(self._auth[run])

    async def _generations(self, link: Link | None, runs: list[str]) -> None:
        """At most one generation per server, and none where requests run: moving tokens prove more."""
        for run in runs:
            server = self.server(run)
            if server is None or server.status.alive is False or self._moves(run):
                continue
            self.doing = f"generating on port {self._port(run)}"
            asked = ready.probe()
            answer = await self._ask(
                link, run, "generate", asked["path"], asked["method"], asked["body"].encode()
            )
            if answer is None:
                self.failed.append(f"port {self._port(run)}: the generation got no answer")
                continue
            good, sentence = ready.judge(answer.status, answer.body)
            if not good:
                self.failed.append(f"port {self._port(run)}: {sentence}")


def json_lines(data: bytes) -> tuple[Mapping[str, Any], ...]:
    """Whole JSON objects of a piece of a JSON-lines file; a torn first or last line is left out."""
    out = []
    for line in data.split(b"\n"):
        try:
            item = json.loads(line)
        except ValueError:
            continue
        if isinstance(item, dict):
            out.append(item)
    return tuple(out)


def family(listed: tuple[Mapping[str, Any], ...], pids: set[int]) -> list[Mapping[str, Any]]:
    """Rows of `pids` and all their descendants."""
    by_parent: dict[Any, list[Mapping[str, Any]]] = {}
    for row in listed:
        by_parent.setdefault(row.get("ppid"), []).append(row)
    found = [row for row in listed if row.get("pid") in pids]
    queue = list(found)
    seen = {row.get("pid") for row in found}
    while queue:
        for child in by_parent.get(queue.pop().get("pid"), ()):
            if child.get("pid") not in seen:
                seen.add(child.get("pid"))
                found.append(child)
                queue.append(child)
    return found
