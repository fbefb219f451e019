"""`specdash serve`: nothing answers without the token, nothing listens beyond this machine, and a browser shows the screen."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from specdash.errors import Refused, UsageError
from specdash.verbs import serve
from specdash.verbs.context import Context

aiohttp = pytest.importorskip("aiohttp")
web = pytest.importorskip("aiohttp.web")
pytest.importorskip("textual_serve")

TOKEN = "right-token"
CONFIG = '[hosts.local]\nlabel = "here"\n'


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    for name in ("SPECDASH_SERVED", "SPECDASH_ASCII", "SPECDASH_CONFIG"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    (tmp_path / "config.toml").write_text(CONFIG)
    return Context(config=str(tmp_path / "config.toml"))


@asynccontextmanager
async def served(context: Context) -> AsyncIterator[tuple[Any, str]]:
    port = serve._free("127.0.0.1")
    runner = web.AppRunner(serve.application(context, "127.0.0.1", port, TOKEN))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        yield session, f"http://127.0.0.1:{port}"
    await runner.cleanup()


@pytest.mark.parametrize(
    "path", ["/", "/?token=", "/?token=wrong", "/ws", "/static/js/textual.js", "/static/", "/x"]
)
async def test_refused_without_the_token(context: Context, path: str) -> None:
    async with served(context) as (session, url), session.get(url + path) as answer:
        assert answer.status == 403
        assert TOKEN not in await answer.text()


async def test_the_token_opens_it_and_leaves_the_address_bar(context: Context) -> None:
    async with served(context) as (session, url):
        async with session.get(f"{url}/?token={TOKEN}", allow_redirects=False) as answer:
            assert answer.status == 303 and answer.headers["Location"] == "/"
            cookie = answer.headers["Set-Cookie"]
            assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
        async with session.get(url + "/") as answer:
            text = await answer.text()
            assert answer.status == 200 and TOKEN not in text and "http://" not in text.replace(url, "")
            assert answer.headers["Referrer-Policy"] == "no-referrer"
            assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Host": "127.0.0.1:1"}])
async def test_a_name_that_was_made_to_point_here_is_refused(
    context: Context, headers: dict[str, str]
) -> None:
    async with (
        served(context) as (session, url),
        session.get(f"{url}/?token={TOKEN}", headers=headers) as answer,
    ):
        assert answer.status == 403


async def test_another_page_cannot_open_the_socket(context: Context) -> None:
    async with served(context) as (session, url):
        told = {"Origin": "http://evil.example"}
        async with session.get(f"{url}/ws?token={TOKEN}", headers=told) as answer:
            assert answer.status == 403


@pytest.mark.parametrize("address", ["0.0.0.0", "192.168.1.4", "::", "8.8.8.8"])
def test_only_loopback(address: str) -> None:
    with pytest.raises(Refused, match="other machines"):
        serve.loopback(address)


def test_addresses() -> None:
    assert (serve.loopback("localhost"), serve.loopback("::1")) == ("127.0.0.1", "::1")
    with pytest.raises(UsageError):
        serve.loopback("gpu1.example")


def test_a_tab_has_the_same_rights(context: Context) -> None:
    context.read_only = True
    assert "--read-only" in serve.command(context) and str(context.config) in serve.command(context)


def children(pid: int) -> list[int]:
    told = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    return [int(word) for word in told.stdout.split()]


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_dashboard_ends_with_its_server(context: Context, tmp_path: Path, number: int) -> None:
    """Also when the server is killed: nothing is left behind that nobody sees."""
    env = {**os.environ, "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    argv = [sys.executable, "-m", "specdash", "--config", str(context.config), "serve"]
    process = subprocess.Popen(
        argv, stdout=subprocess.PIPE, text=True, env=env, cwd=Path(__file__).parents[2]
    )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()

        async def use() -> list[int]:
            async with aiohttp.ClientSession() as session:
                address = url.replace("/?", "/ws?") + "&width=80&height=24"
                async with session.ws_connect(address) as socket:
                    seen = b""
                    async with asyncio.timeout(90):
                        while b"HOSTS" not in seen:
                            message = await socket.receive()
                            seen += message.data if isinstance(message.data, bytes) else b""
                    found = children(process.pid)
                    os.kill(process.pid, number)
                    return found

        (tab,) = asyncio.run(use())
        process.wait(30)
        end = time.monotonic() + 30
        while Path(f"/proc/{tab}").exists():
            assert time.monotonic() < end, "the dashboard lives on"
            time.sleep(0.1)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stdout.close()


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.xdist_group("story")
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_the_story_in_a_browser() -> None:
    pytest.importorskip("pyte")
    from benchmarks.browser import run

    run()
