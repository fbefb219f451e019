"""HTTP to the engine's port: directly, by the agent, through a tunnel. All three must say the same."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from engine_port import engine_port, self_signed
from sshd import free_port

from specdash.config.hosts import local_host
from specdash.errors import HttpError
from specdash.host import http
from specdash.host.link import HttpRequest
from specdash.host.open import open_link

WAYS = [
    "direct",
    "agent",
    pytest.param("tunnel", marks=pytest.mark.sshd),
    pytest.param("forbidden", marks=pytest.mark.sshd),
]


@pytest.fixture(params=WAYS)
async def link(request: pytest.FixtureRequest):
    way = request.param
    if way in ("tunnel", "forbidden"):
        start = request.getfixturevalue("sshd")
        server = start(*(["AllowTcpForwarding no"] if way == "forbidden" else []))
        opened = await open_link(server.host())
        assert opened.hello["http_via"] == {"tunnel": "tunnel", "forbidden": "agent"}[way]
        assert opened.hello["can_forward"] is (way == "tunnel")
    else:
        opened = await open_link(local_host())
        assert opened.hello["http_via"] == "direct"
        if way == "agent":
            opened._route = http.AgentRoute()
    yield opened
    await opened.close()


async def test_status_headers_and_body_come_as_they_are(link):
    async with engine_port() as port:
        request = HttpRequest(
            "POST", "/generate?x=1", port, headers={"Authorization": "Bearer k"}, body=b"\0\xff{}"
        )
        answer = await link.http(request)
        assert answer.status == 503 and answer.headers["x-odd"] == "café"
        head, _, body = answer.body.partition(b"\r\n\r\n")
        assert body == b"\0\xff{}" and head.startswith(b"POST /generate?x=1 HTTP/1.1\r\n")
        assert b"authorization: bearer k" in head.lower() and f"127.0.0.1:{port}".encode() in head
        assert (await link.http(HttpRequest("GET", "/chunked", port))).body == b"abc"
        got = await link.http(HttpRequest("GET", "/big", port, max_bytes=3_000_000))
        assert len(got.body) == 3_000_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("/silent", "timeout"),
        ("/drip", "timeout"),
        ("/cut", "closed"),
        ("/junk", "closed"),
        ("/big", "too_big"),
    ],
)
async def test_trouble_has_a_word_and_a_sentence_in_time(link, path, word):
    async with engine_port() as port:
        began = time.monotonic()
        with pytest.raises(HttpError) as caught:
            await link.http(HttpRequest("GET", path, port, max_bytes=1_000_000), timeout=1.0)
        assert caught.value.word == word
        assert str(port) in caught.value.sentence
        assert time.monotonic() - began < 3.0


async def test_a_closed_port_is_refused(link):
    with pytest.raises(HttpError) as caught:
        await link.http(HttpRequest("GET", "/health", free_port()))
    assert caught.value.word == "refused"


@pytest.mark.slow
async def test_tls_with_a_certificate_of_its_own(link, tmp_path: Path):
    async with engine_port(self_signed(tmp_path)) as port:
        assert (await link.http(HttpRequest("GET", "/x", port, tls=True))).status == 503
        got = await link.http(HttpRequest("GET", "/big", port, tls=True))
        assert len(got.body) == 3_000_000
    async with engine_port() as port:
        with pytest.raises(HttpError) as caught:
            await link.http(HttpRequest("GET", "/x", port, tls=True), timeout=2.0)
        assert caught.value.word in ("tls", "closed", "timeout")


async def test_many_at_once(link):
    async with engine_port() as port:
        answers = await asyncio.gather(
            *(link.http(HttpRequest("GET", f"/{n}", port), timeout=20) for n in range(25))
        )
        assert [f"/{n} ".encode() in answer.body for n, answer in enumerate(answers)] == [True] * 25
