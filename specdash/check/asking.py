"""A server's HTTP port: cheap questions first, and one real generation only where it is asked for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from specdash.check.states import Finding, State
from specdash.errors import HttpError, RemoteError
from specdash.host.http import TcpRoute, fetch
from specdash.host.link import HttpRequest, HttpResponse, Link
from specdash.host.turns import turn
from specdash.monitor import memory
from specdash.monitor.events import HttpSeen
from specdash.sglang import ready

if TYPE_CHECKING:
    from specdash.check.gather import Gatherer

HTTP_S = 3.0
GENERATE_S = 20.0
LAST_WORD_S = 1.0
"""A generation, or the wait for another one's, ends this long before the target's time is over."""
DENIED = (401, 403)
LOADS = ("/v1/loads", "/get_load")
ASKABLE = ("ready", "idle", "busy")


class Asker:
    """Asks the ports of one target's servers, and tells the gatherer's state what came."""

    def __init__(self, gatherer: Gatherer, link: Link | None) -> None:
        self._on = gatherer
        self._link = link
        self._auth: dict[str, str] = {}

    def port(self, run: str) -> int:
        server = self._on.server(run)
        return (server.run.http_port if server else None) or self._on.target.port or 0

    async def look(self, run: str, again: bool = False) -> None:
        """/ready or /model_info, then counters. Nothing that generates."""
        self._on.doing = f"asking port {self.port(run)}"
        denied = unknown = False
        if not again:
            answer = await self._ask(run, "ready", "/ready")
            if answer is not None and (answer.status == 404 or answer.status in DENIED):
                answer = await self._first(run, "model_info", ("/model_info", "/get_model_info"))
            if answer is None:
                return
            if answer is not None and answer.status == 503:
                return
            denied = answer is not None and answer.status in DENIED
            unknown = answer is not None and answer.status == 404
        metrics = await self._ask(run, "metrics", "/metrics") if self._metrics(run, again) else None
        if metrics is None or metrics.status != 200:
            answer = await self._first(run, "loads", LOADS)
            denied = denied or (answer is not None and answer.status in DENIED)
            if unknown and answer is not None and answer.status == 404:
                self._on.found.append(self._no_sglang(run))
        if denied and not again:
            self._on.found.append(self._locked(run))

    def _no_sglang(self, run: str) -> Finding:
        sentence = f"port {self.port(run)} answers HTTP, and has no page of SGLang's: another program has it"
        return Finding(State.CRITICAL, "not-sglang", sentence)

    def _locked(self, run: str) -> Finding:
        wrong = (
            "does not take the API key"
            if self._key(run)
            else "wants an API key that this check does not have"
        )
        return Finding(
            State.WARNING,
            "api-key",
            f"port {self.port(run)} {wrong}: requests and tokens are not seen",
            step="Give it with --api-key env:NAME or file:PATH; a run that specdash launched brings its own.",
        )

    def _metrics(self, run: str, again: bool) -> bool:
        """Whether to ask for metrics: not of a run that was launched without them."""
        server = self._on.server(run)
        if server is None:
            return False
        if again:
            return memory.of(server).metrics_at is not None
        return not server.run.argv or "--enable-metrics" in server.run.argv

    async def _first(self, run: str, endpoint: str, paths: tuple[str, ...]) -> HttpResponse | None:
        """The first spelling that this version has."""
        answer = None
        for path in paths:
            answer = await self._ask(run, endpoint, path)
            if answer is None or answer.status != 404:
                break
        return answer

    async def _ask(
        self, run: str, endpoint: str, path: str, method: str = "GET", body: bytes | None = None
    ) -> HttpResponse | None:
        server = self._on.server(run)
        facts = server.run if server else None
        target = self._on.target
        request = HttpRequest(
            method,
            path,
            self.port(run),
            facts.http_host if facts else target.address,
            await self._headers(run),
            body,
            facts.http_tls if facts else target.tls,
            verify=target.verify,
        )
        left = self._on.left_s() - LAST_WORD_S
        limit = max(0.2, min(GENERATE_S if endpoint == "generate" else HTTP_S, left))
        began = time.monotonic()
        try:
            if self._link is None:
                answer = await fetch(TcpRoute(), request, limit)
            else:
                answer = await self._link.http(request, timeout=limit)
        except (HttpError, RemoteError, TimeoutError) as problem:
            word = str(getattr(problem, "word", "") or getattr(problem, "code", "") or "timeout")
            if endpoint in ("ready", "model_info"):
                self._on.unanswered[run] = word
            self._on.emit(HttpSeen(endpoint, None, b"", word, time.monotonic() - began), run)
            if word == "tls":
                step = "Trust its certificate (SSL_CERT_FILE), or add --insecure if you know it."
                self._on.found.append(
                    Finding(State.CRITICAL, "tls", getattr(problem, "sentence", "TLS failed"), step=step)
                )
            return None
        if answer.status != 404 or endpoint == "metrics":
            self._on.emit(HttpSeen(endpoint, answer.status, answer.body, "", answer.took_s), run)
        return answer

    def _key(self, run: str) -> str:
        return self._on.target.api_key or self._auth.get(run, "")

    async def _headers(self, run: str) -> Mapping[str, str]:
        """The engine's key: what the operator gave, or what is in the run folder's own 0600 file; never shown."""
        server = self._on.server(run)
        own = server.run.folder if server is not None and not self._on.target.api_key else ""
        if own and self._link is not None and run not in self._auth:
            data = (await self._on.tail(self._link, f"{own}/auth", 65536))[1]
            self._auth[run] = data.decode("utf-8", "replace").strip()
        return ready.headers(self._key(run))

    async def generate(self, run: str) -> None:
        """One generation, if nobody generates there just now; else how the other one's ended."""
        server = self._on.server(run)
        if server is None or not await self._wanted_now(run):
            return
        port = self.port(run)
        self._on.doing = f"generating on port {port}"
        wait_s = max(0.0, self._on.left_s() - LAST_WORD_S)
        async with turn(self._link, server.run.http_host, port, wait_s=wait_s) as mine:
            if not mine.held:
                self._other(port, mine.result, mine.uid)
                return
            if not await self._wanted_now(
                run
            ):  # while another one was waited for, or one that was given up runs on
                return
            asked = ready.probe()
            answer = await self._ask(run, "generate", asked["path"], asked["method"], asked["body"].encode())
            if answer is None:
                good, sentence = False, "the generation got no answer"
            else:
                good, sentence = ready.judge(answer.status, answer.body)
            denied = answer is not None and answer.status in DENIED
            # That we have no key says nothing to those who have one: they take the next turn.
            mine.result = None if denied else {"good": good, "sentence": sentence[:300]}
        self._tell(port, good, sentence, unknown=denied)

    async def _wanted_now(self, run: str) -> bool:
        """`_wanted` by what the engine counts now: the gauges of its metrics lag by up to 30 s."""
        if self._usable(run):
            await self._first(run, "loads", LOADS)
        return self._wanted(run)

    def _usable(self, run: str) -> bool:
        server = self._on.server(run)
        return server is not None and server.status.alive is not False and server.health.state in ASKABLE

    def _wanted(self, run: str) -> bool:
        """Not where requests run (tokens that move prove more), not while it loads, not where it is down anyway."""
        server = self._on.server(run)
        if server is None or server.status.alive is False or self._on.moves(run):
            return False
        health = server.health
        refused = health.state == "warmup" and any("503" in seen for seen in health.evidence)
        return health.state not in ("starting", "down", "hung_suspected") and not refused

    def _other(self, port: int, result: Mapping[str, object] | None, uid: int | None) -> None:
        if result is not None:
            self._tell(
                port, result.get("good") is True, str(result.get("sentence") or ""), " (of another check)"
            )
            return
        who = f"user id {uid}" if uid is not None else "another process"
        sentence = f"port {port}: another check ({who}) is generating there, and has no result yet"
        self._on.found.append(Finding(State.WARNING, "generate", sentence))

    def _tell(self, port: int, good: bool, sentence: str, whose: str = "", unknown: bool = False) -> None:
        if good:
            finding = Finding(State.OK, "generate", f"port {port}: a generation came back{whose}")
        else:
            state = State.UNKNOWN if unknown else State.CRITICAL
            finding = Finding(state, "generate", f"port {port}: {sentence}{whose}")
        self._on.found.append(finding)
