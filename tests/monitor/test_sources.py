"""The host source against a made link: retries, refusals, polls that never harm, exact resume."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from specdash.config.hosts import Host
from specdash.errors import HostKeyChanged, HttpError, LinkError, LinkLost
from specdash.host.link import HttpRequest, HttpResponse, TailChunk, TailPosition
from specdash.monitor import polls, sources
from specdash.monitor.hub import Hub

LOG = b"".join(b"[2026-05-04 10:00:%02d] line %d\n" % (i % 60, i) for i in range(500))


class FakeLink:
    """A host with one run whose log is LOG. `cut_after` bytes of log the link breaks."""

    def __init__(
        self, name: str, cut_after: int | None = None, routes: Mapping[str, int] | None = None
    ) -> None:
        self.name = name
        self.hello = {"base": "/b", "now_boot": 1000.0, "boot_id": "b"}
        self.cut_after = cut_after
        self.routes = routes or {}
        self.asked: Counter[str] = Counter()
        self.in_flight = 0
        self.most_in_flight = 0
        self.positions: list[TailPosition | None] = []
        self.broken = asyncio.Event()
        self.record = {
            "id": "r",
            "folder": "/b/runs/r",
            "alive": True,
            "supervisor_alive": True,
            "phase": "ready",
            "ready_boot_s": 999.0,
            "http": {"host": "127.0.0.1", "port": 30000},
            "argv": ["x"],
        }

    async def call(
        self, method: str, params: Any = None, *, timeout: float = 10.0, blob: bytes = b""
    ) -> dict[str, Any]:
        if self.broken.is_set():
            raise LinkLost("cut")
        if method == "runs.read":
            return {"record": self.record, "events": [], "samples": [], "positions": {}}
        raise LinkLost(f"unexpected {method}") if method not in ("file.read",) else _not_found()

    async def tail(self, path: str, position: TailPosition | None = None) -> AsyncIterator[TailChunk]:
        self.positions.append(position)
        offset = position.offset if position else 0
        while offset < len(LOG):
            if self.cut_after is not None and offset >= self.cut_after:
                self.broken.set()
                raise LinkLost("cut")
            data = LOG[offset : offset + 997]
            yield TailChunk(data, offset, len(LOG), 0, 1, 2)
            offset += len(data)
        await asyncio.Event().wait()

    async def sample(self, kind: str, interval_s: float, params: Any = None) -> AsyncIterator[dict[str, Any]]:
        while True:
            if self.broken.is_set():
                raise LinkLost("cut")
            yield {"runs": [self.record]} if kind == "runs" else {"gpus": None, "now_boot": 1000.0}
            await asyncio.sleep(0.05)

    async def http(self, request: HttpRequest, *, timeout: float = 5.0) -> HttpResponse:
        self.asked[request.path] += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(0.01)
            status = self.routes.get(request.path, 404)
            if status == 0:
                raise HttpError("nothing", word="timeout")
            body = json.dumps({"loads": [{"num_running_reqs": 0, "num_waiting_reqs": 0}]}).encode()
            return HttpResponse(status, {}, body, 0.01)
        finally:
            self.in_flight -= 1

    async def ping(self) -> float:
        return 1.0

    async def close(self) -> None:
        pass


def _not_found() -> Exception:
    from specdash.errors import RemoteError

    return RemoteError("not_found", "no such file")


def make_hub(links: list[Any], tmp_path: Path) -> tuple[Hub, list[Any]]:
    opened: list[Any] = []

    async def opener(host: Host, *, ask: Any = None, timeout_s: float = 15.0) -> Any:
        item = links[min(len(opened), len(links) - 1)]
        opened.append(item)
        if isinstance(item, Exception):
            raise item
        return item

    return Hub([Host(name="h", ssh="h")], open_link=opener, cache=tmp_path), opened  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "FIRST_RETRY_S", 0.02)


async def test_a_cut_link_resumes_at_the_byte_and_nothing_is_read_twice(tmp_path: Path) -> None:
    first, second = FakeLink("h", cut_after=5000), FakeLink("h")
    hub, _ = make_hub([first, second], tmp_path)
    async with hub:
        assert await hub.until(
            lambda s: "r" in s.hosts["h"].servers and s.hosts["h"].servers["r"].log.read == len(LOG), 10
        )
        assert hub.log("h", "r").read(0, len(LOG) + 10) == LOG
        assert hub.state.hosts["h"].servers["r"].story.size == len(LOG)
    assert second.positions and second.positions[0] is not None
    assert second.positions[0].offset >= 5000


async def test_a_changed_key_is_not_tried_again_until_asked(tmp_path: Path) -> None:
    hub, opened = make_hub([HostKeyChanged("changed", "remove line 3"), FakeLink("h")], tmp_path)
    async with hub:
        assert await hub.until(lambda s: s.hosts["h"].link.status == "refused", 5)
        assert "remove line 3" in hub.state.hosts["h"].link.sentence
        await asyncio.sleep(0.2)
        assert len(opened) == 1
        with pytest.raises(LinkLost):
            hub.link("h")
        hub.retry("h")
        assert await hub.until(lambda s: s.hosts["h"].link.status == "up", 5)


async def test_a_host_that_cannot_be_reached_is_tried_again_with_longer_waits(tmp_path: Path) -> None:
    hub, opened = make_hub([LinkError("refused")] * 3 + [FakeLink("h")], tmp_path)
    async with hub:
        assert await hub.until(lambda s: s.hosts["h"].link.status == "up", 5)
    assert len(opened) == 4
    waits = [sources.backoff(n, lambda: 1.0) for n in range(1, 30)]
    assert waits == sorted(waits) and waits[-1] == sources.LONGEST_RETRY_S


async def test_polls_use_what_is_there_one_at_a_time_and_nothing_that_generates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(polls.PACE, "loads", 0.03)
    link = FakeLink("h", routes={"/v1/loads": 200, "/server_info": 500})
    hub, _ = make_hub([link], tmp_path)
    async with hub:
        assert await hub.until(
            lambda s: "r" in s.hosts["h"].servers and s.hosts["h"].servers["r"].health.state == "idle", 5
        )
        await hub.until(lambda s: link.asked["/v1/loads"] > 5, 5)
    assert link.most_in_flight == 1
    assert link.asked["/server_info"] == 1  # a 500 leaves a traceback in the server's log: never again
    assert set(link.asked) == {"/v1/loads", "/server_info"}


def test_a_poll_plan_falls_back_once_and_slows_down_when_nothing_comes() -> None:
    plan = polls.Plan()
    question, _ = polls.next_question(plan, 0.0, ready=True, supervised=True)
    assert question is not None and question.path == "/server_info"
    plan = polls.answered(plan, question, 404, 0.0)
    question, _ = polls.next_question(plan, 0.0, ready=True, supervised=True)
    assert question is not None and question.path in ("/get_server_info", "/v1/loads")
    plan = polls.answered(polls.Plan(), polls.Question("loads", "/v1/loads", 5.0), None, 0.0)
    slower = polls.answered(plan, polls.Question("loads", "/v1/loads", 5.0), None, 0.0)
    assert dict(slower.due)["loads"] > dict(plan.due)["loads"] > polls.LOADS_EVERY_S
    assert polls.next_question(polls.Plan(), 0.0, ready=False, supervised=True)[0] is None


async def test_a_subscriber_is_told_at_most_ten_times_a_second_and_its_bug_is_not_ours(
    tmp_path: Path,
) -> None:
    hub, _ = make_hub([FakeLink("h")], tmp_path)
    calls: list[float] = []

    def broken(_: Any) -> None:
        raise RuntimeError("bug")

    async with hub:
        hub.subscribe(broken)
        hub.subscribe(lambda s: calls.append(s.now))
        await asyncio.sleep(0.55)
    assert 1 <= len(calls) <= 7
    assert any("bug" in fault for fault in hub.faults)
