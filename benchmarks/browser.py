"""The same story in a browser: `python benchmarks/browser.py`. `specdash serve` on the demo host, in headless Chromium.

Keys are real key events of the page; what the page was sent is drawn by a terminal emulator for the judging, and each
capture comes with the browser's own picture, in artefacts/story/browser/ (not in git). Needs chromium, aiohttp, pyte.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.story import POLL_S, ROOT, Missing, Terminal, story

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
    "--window-size=1400,900",
    "--hide-scrollbars",
]
HOOK = """
window.received = [];
const Real = WebSocket;
window.WebSocket = class extends Real {
  constructor(...words) {
    super(...words);
    this.addEventListener('message', (e) => {
      if (typeof e.data === 'string') return;
      const take = (buffer) => window.received.push(btoa(Array.from(new Uint8Array(buffer), (b) => String.fromCharCode(b)).join('')));
      e.data instanceof Blob ? e.data.arrayBuffer().then(take) : take(e.data);
    });
    const send = this.send.bind(this);
    this.send = (data) => {
      try { const told = JSON.parse(data); if (told[0] === 'resize') window.cells = told[1]; } catch (_) {}
      return send(data);
    };
    const asked = new URL(words[0]).searchParams;
    window.cells = window.cells || {width: +asked.get('width'), height: +asked.get('height')};
  }
};
"""
KEYS = {
    "Enter": ("Enter", 13, "\r"),
    "Tab": ("Tab", 9, ""),
    "Escape": ("Escape", 27, ""),
    "Right": ("ArrowRight", 39, ""),
}


class Page:
    """One page of a headless Chromium, over its DevTools socket, in a thread of its own."""

    def __init__(self, folder: Path) -> None:
        import asyncio

        program = shutil.which("chromium") or "chromium"
        words = [program, *FLAGS, f"--user-data-dir={folder / 'chromium'}", "about:blank"]
        self.process = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.number = 0
        self.waiting: dict[int, Any] = {}
        told, end = folder / "chromium" / "DevToolsActivePort", time.monotonic() + 60
        while not (told.exists() and told.read_text().count("\n")):
            assert time.monotonic() < end, "chromium does not start"
            time.sleep(POLL_S)
        self._run(self._connect(told.read_text().split()[0]))

    def _run(self, work: Any, limit_s: float = 60.0) -> Any:
        import asyncio

        return asyncio.run_coroutine_threadsafe(work, self.loop).result(limit_s)

    async def _connect(self, port: str) -> None:
        import asyncio

        import aiohttp

        self.session = aiohttp.ClientSession()
        async with self.session.get(f"http://127.0.0.1:{port}/json/list") as answer:
            pages = [one for one in await answer.json(content_type=None) if one["type"] == "page"]
        self.socket = await self.session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0)
        self.reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self.socket:
            told = json.loads(message.data)
            waits = self.waiting.pop(told.get("id"), None)
            if waits is not None and not waits.done():
                waits.set_result(told)

    async def _ask(self, method: str, params: dict[str, Any]) -> Any:
        import asyncio

        self.number += 1
        waits = self.waiting[self.number] = asyncio.get_running_loop().create_future()
        await self.socket.send_str(json.dumps({"id": self.number, "method": method, "params": params}))
        told = await asyncio.wait_for(waits, 50)
        assert "error" not in told, told
        return told["result"]

    def ask(self, method: str, **params: Any) -> Any:
        return self._run(self._ask(method, params))

    def js(self, code: str) -> Any:
        return self.ask("Runtime.evaluate", expression=code, returnByValue=True)["result"].get("value")

    def open(self, url: str) -> None:
        self.ask("Page.enable")
        self.ask("Page.addScriptToEvaluateOnNewDocument", source=HOOK)
        self.ask("Page.navigate", url=url)

    def close(self) -> None:
        async def end() -> None:
            await self.socket.close()
            await self.session.close()

        try:
            self._run(end(), 10)
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(10)
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Browser(Terminal):
    """The terminal of the story, in a page."""

    def __init__(self, page: Page, artefacts: Path) -> None:
        import pyte

        self.page, self.artefacts, self.count = page, artefacts, 0
        artefacts.mkdir(parents=True, exist_ok=True)
        for old in (*artefacts.glob("*.txt"), *artefacts.glob("*.png")):
            old.unlink()
        self.drawn = pyte.Screen(80, 24)
        self.stream = pyte.ByteStream(self.drawn)
        self.stream.use_utf8 = True
        # pyte reads some private sequences as text: they draw nothing, so they are left out.
        self.unread = re.compile(rb"\x1b\[[<>=][0-9;]*[a-zA-Z]|\x1b\[\?[0-9;]*\$p")

    def screen(self) -> str:
        cells = self.page.js("window.cells") or {}
        wide, high = int(cells.get("width") or 80), int(cells.get("height") or 24)
        if (wide, high) != (self.drawn.columns, self.drawn.lines):
            self.drawn.resize(high, wide)
        for part in self.page.js("window.received.splice(0)") or ():
            self.stream.feed(self.unread.sub(b"", base64.b64decode(part)))
        return "\n".join(row.rstrip() for row in self.drawn.display) + "\n"

    def press(self, *keys: str) -> None:
        for key in keys:
            typed = (key, ord(key.upper()) if key.isalnum() else 0, key) if len(key) == 1 else None
            name, code, text = typed or KEYS[key]
            told = {"key": name, "code": name, "windowsVirtualKeyCode": code}
            self.page.ask(
                "Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **told
            )
            self.page.ask("Input.dispatchKeyEvent", type="keyUp", **told)

    def type(self, text: str) -> None:
        self.press(*text)

    def keep(self, name: str) -> str:
        self.count += 1
        text = self.screen()
        stem = self.artefacts / f"{self.count:02}-{name}"
        stem.with_suffix(".txt").write_text(text, encoding="utf-8")
        picture = self.page.ask("Page.captureScreenshot", format="png")["data"]
        stem.with_suffix(".png").write_bytes(base64.b64decode(picture))
        return text

    def ended(self, limit_s: float) -> int:
        """0 once the page says that the dashboard has ended."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            if self.page.js("document.body.classList.contains('-closed')"):
                self.keep("ended")
                return 0
            time.sleep(POLL_S)
        raise Missing(f"the page did not close\n{self.screen()}")


@contextmanager
def served(config: Path, home: Path, *words: str) -> Iterator[str]:
    """`specdash serve` with that config: the address that it printed."""
    env = {**os.environ, "HOME": str(home), "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}
    argv = [sys.executable, "-m", "specdash", "--config", str(config), *words, "serve"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, env=env, cwd=home, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def run() -> float:
    """Seconds that the story took in the browser. Raises Missing with the screen."""
    from specdash.demo.session import start

    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="specdash-browser-") as folder,
        start(10.0, join=False) as session,
        served(session.config_file, Path(folder)) as url,
    ):
        page = Page(Path(folder))
        try:
            page.open(url)
            story(Browser(page, ROOT / "artefacts" / "story" / "browser"))
        finally:
            page.close()
    return time.monotonic() - began


if __name__ == "__main__":
    print(f"browser: {run():.0f} s")
