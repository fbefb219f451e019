"""The dashboard in a browser on this machine. It needs the extra: pip install 'specdash[serve]'.

It listens on loopback alone, and only the address that it prints, with its token, opens it. Each tab is a dashboard
of its own; closing the tab ends it, and servers go on. From another machine: ssh -L PORT:127.0.0.1:PORT HOST.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import shlex
import signal
import socket
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from specdash.errors import Refused, UsageError
from specdash.exits import Exit

if TYPE_CHECKING:
    from specdash.verbs.context import Context

EXAMPLES = """examples:
  specdash serve
  specdash serve --port 8044
  specdash --read-only serve"""

MOST_TABS = 8
"""Dashboards at once: each has its own connections to every host."""
PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>specdash</title>
<link rel="stylesheet" href="/static/css/xterm.css">
<style>
html, body {{ margin: 0; height: 100%; background: #101418; color: #ddd; font: 16px monospace; overflow: hidden }}
#terminal {{ height: 100% }}
#ended {{ display: none; padding: 2em }}
body.-closed #ended {{ display: block }}
body.-closed #terminal {{ display: none }}
</style>
<script src="/static/js/textual.js"></script></head>
<body><div id="ended">The dashboard has ended; servers go on. <a href="/" style="color: inherit">Open it again</a></div>
<div id="terminal" class="textual-terminal" data-session-websocket-url="{socket}" data-font-size="{font}"></div>
</body></html>
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="a loopback address")
    parser.add_argument("--port", type=_port, default=0, metavar="N", help="default: a free one")
    parser.add_argument("--font-size", type=int, default=15, metavar="PX", help="default: 15")


def run(args: argparse.Namespace, context: Context) -> Any:
    """Serves until it is interrupted. Refuses an address that others could reach."""
    address = loopback(args.host)
    if find_spec("textual_serve") is None or find_spec("aiohttp") is None:
        raise UsageError("serve needs textual-serve.", "Install it: pip install 'specdash[serve]'")
    if not context.settings.hosts:
        raise UsageError(
            "no host is configured.", "Run specdash in a terminal once, or: specdash config init"
        )
    return serve(context, address, args.port or _free(address), args.font_size)


def loopback(name: str) -> str:
    """The address; raises Refused unless only this machine can reach it."""
    import ipaddress

    try:
        address = ipaddress.ip_address("127.0.0.1" if name == "localhost" else name)
    except ValueError:
        raise UsageError(f"{name!r} is no address.", "Use 127.0.0.1 or ::1.") from None
    if not address.is_loopback:
        raise Refused(
            f"Not done: {name} can be reached from other machines.",
            "Serve on 127.0.0.1 and come through: ssh -L PORT:127.0.0.1:PORT HOST",
        )
    return str(address)


async def serve(context: Context, address: str, port: int, font: int) -> Exit:
    """Prints the address with its token, then serves until SIGINT, SIGTERM or SIGHUP."""
    web: Any = import_module("aiohttp.web")
    token = secrets.token_urlsafe(32)
    runner = web.AppRunner(application(context, address, port, token, font), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, address, port, shutdown_timeout=3.0).start()
    except OSError as problem:
        await runner.cleanup()
        raise UsageError(
            f"port {port} of {address} cannot be had: {problem.strerror}.", "Use another --port."
        ) from None
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    url = f"http://{authority(address, port)}/?token={token}"
    if context.json:
        context.print_json({"schema": "specdash/serve/1", "url": url})
    else:
        context.print(url)
        context.say("Whoever has this address can do what you can. Ctrl-C ends it.")
    context.out.flush()
    try:
        await ended.wait()
    finally:
        await runner.cleanup()
    return Exit.OK


def application(context: Context, address: str, port: int, token: str, font: int = 15) -> Any:
    """The aiohttp application: nothing in it answers without the token."""
    web: Any = import_module("aiohttp.web")
    origin = f"http://{authority(address, port)}"
    cookie = f"specdash-{port}"
    screens: Any = import_module("textual_serve.server").Server(
        command(context), host=address, port=port, title="specdash", public_url=origin
    )
    headers = {
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": (
            f"default-src 'none'; script-src 'self'; connect-src ws://{authority(address, port)}; img-src 'self' data:; "
            "style-src 'self' 'unsafe-inline'; font-src 'self' data:; frame-ancestors 'none'; base-uri 'none'"
        ),
    }

    async def guard(request: Any, handler: Any) -> Any:
        # A page of another site that resolves its name to us has that name here.
        if request.host != authority(address, port) and request.host != f"localhost:{port}":
            raise web.HTTPForbidden(text="Refused: this is not the address that specdash printed.\n")
        given = request.query.get("token") or request.cookies.get(cookie) or ""
        if not secrets.compare_digest(given.encode("utf-8", "surrogateescape"), token.encode()):
            raise web.HTTPForbidden(text="Refused: open the address that specdash serve printed.\n")
        return await handler(request)

    async def index(request: Any) -> Any:
        if "token" in request.query:
            # Out of the address bar and the history; the cookie goes to this port's pages alone.
            answer = web.Response(status=303, headers={**headers, "Location": "/"})
            answer.set_cookie(cookie, token, httponly=True, samesite="Strict", path="/")
            return answer
        page = PAGE.format(socket=f"ws://{request.host}/ws", font=font)
        policy = headers["Content-Security-Policy"].replace(authority(address, port), request.host)
        return web.Response(
            text=page, content_type="text/html", headers={**headers, "Content-Security-Policy": policy}
        )

    open_now = 0

    async def tab(request: Any) -> Any:
        nonlocal open_now
        if request.headers.get("Origin", "") not in ("", f"http://{request.host}"):
            raise web.HTTPForbidden(text="Refused: another page asked.\n")
        if open_now >= MOST_TABS:
            raise web.HTTPServiceUnavailable(text=f"{MOST_TABS} dashboards are open: close one.\n")
        open_now += 1
        try:
            return await screens.handle_websocket(request)
        finally:
            open_now -= 1

    app = web.Application(middlewares=[web.middleware(guard)])
    app.add_routes([web.get("/", index), web.get("/ws", tab), web.static("/static", screens.statics_path)])
    return app


def command(context: Context) -> str:
    """The line that a tab runs: this specdash, with the same config and the same rights."""
    os.environ["SPECDASH_SERVED"] = "1"
    os.environ["SPECDASH_ASCII"] = "0"  # a browser draws what this machine's locale may not
    words = [sys.executable, "-m", "specdash"]
    if context.read_only:
        words.append("--read-only")
    if context.config:
        words += ["--config", context.config]
    return f"exec {shlex.join(words)}"


def authority(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _free(address: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def _port(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 65535:
        raise argparse.ArgumentTypeError("ports go from 1 to 65535")
    return value
