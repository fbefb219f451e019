"""The table of states (states.toml): each row through the whole command line, with its exit code and its line.

The engine's port and the host's agent are fakes here; rows with real ones are in test_states_real.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import socket
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specdash import cli
from specdash.host import open as ways
from specdash.host.remote import turns
from tests.check import states_doc
from tests.check.fakehost import FakeHost
from tests.support.http_fake import HttpFake

HERE = Path(__file__).parent
ROWS: list[dict[str, Any]] = tomllib.loads((HERE / "states.toml").read_text("utf-8"))["state"]


def matches(wanted: str, line: str) -> bool:
    """`…` is anything."""
    return re.fullmatch(".*".join(map(re.escape, wanted.split("…"))), line, re.S) is not None


@contextlib.contextmanager
def trap(kind: str) -> Iterator[int]:
    """A port that is none: closed, silent, hangup (closes at once), banner and web (another protocol), ssh (its first
    line and no more), blackhole (no SYN is answered)."""
    with socket.socket() as sock, contextlib.ExitStack() as stack:
        sock.bind(("127.0.0.1", 0))
        port = int(sock.getsockname()[1])
        if kind == "blackhole":
            # A queue that is full drops what else comes, without a word.
            sock.listen(0)
            for _ in range(4):
                one = stack.enter_context(socket.socket())
                one.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    one.connect(("127.0.0.1", port))
        elif kind == "silent":
            sock.listen(16)
        elif kind != "closed":
            sock.listen(16)
            kept: list[socket.socket] = []

            def serve() -> None:
                with contextlib.suppress(OSError):
                    while True:
                        other, _ = sock.accept()
                        if kind == "banner":
                            other.recv(4096)
                        if kind in ("banner", "ssh"):
                            other.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                        if kind == "web":
                            other.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                        if kind == "ssh":
                            kept.append(other)
                        else:
                            other.close()

            threading.Thread(target=serve, daemon=True).start()
            stack.callback(lambda: [one.close() for one in kept])
            stack.callback(lambda: sock.shutdown(socket.SHUT_RDWR))
        yield port


@contextlib.contextmanager
def other_check(row: dict[str, Any], port: int) -> Iterator[None]:
    """Another one's turn to generate: it ends with the row's result, or not while we look."""
    if "turn" not in row:
        yield
        return
    mine = turns.take(str(port))
    assert mine is not None

    def end_when_waited_for() -> None:
        select.select([mine.sock], [], [], 20.0)
        mine.done(row["turn"])

    ends = threading.Thread(target=end_when_waited_for)
    if row["turn"]:
        ends.start()
    yield
    if row["turn"]:
        ends.join()
    else:
        mine.done()


class Place:
    """The operator's side of a row: config, profile, state folder."""

    def __init__(self, row: dict[str, Any], folder: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.row, self.folder, self.port = row, folder, port
        config = folder / "config.toml"
        far = f'[hosts.far]\nssh = "127.0.0.1"\nport = {port}\nuser = "ops"\nssh-config = "/dev/null"\n'
        config.write_text(row.get("config", f'[hosts.box]\nssh = ""\n{far}'))
        profiles = folder / "profiles"
        profiles.mkdir()
        check = row.get("profile", {}).get("check", {})
        rules = "".join(f"{key} = {json.dumps(value)}\n" for key, value in check.items())
        (profiles / "kimi.toml").write_text(
            f'host = "box"\n[server]\nmodel-path = "m/x"\nport = {port}\n[check]\n{rules}'
        )
        self.words = ["--config", str(config), "--check", self.target(), *self._words()]
        monkeypatch.chdir(folder)
        monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
        monkeypatch.delenv("SPECDASH_CONFIG", raising=False)
        monkeypatch.setenv("ROW_KEY", row.get("give_key", ""))

    def target(self) -> str:
        named = self.row.get("target", "http")
        places = {"http": f"127.0.0.1:{self.port}", "https": f"https://127.0.0.1:{self.port}"}
        return places.get(named, named)

    def _words(self) -> list[str]:
        words = list(self.row.get("words", []))
        words += [] if "--window" in words else ["--window", "0"]
        return [*words, *(["--api-key", "env:ROW_KEY"] if "give_key" in self.row else [])]

    def earlier(self, ago_s: float) -> None:
        """What is remembered was seen that long ago."""
        (mark,) = (self.folder / "state/specdash/check").iterdir()
        told = json.loads(mark.read_text())
        times = {key: told[key] - ago_s for key in ("at_unix", "deaf_unix") if told[key] is not None}
        mark.write_text(json.dumps({**told, **times}))


def case(row: dict[str, Any]) -> Any:
    """Rows that wait for a time to pass run with the long stories."""
    waits = row["code"] != 3 and ("--timeout" in row.get("words", []) or row.get("trap") == "web")
    return pytest.param(row, id=row["id"], marks=[pytest.mark.slow] if waits else [])


@pytest.mark.parametrize("row", [case(row) for row in ROWS])
def test_the_state_gives_its_code_and_its_line(
    row: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.ExitStack() as stack:
        fake = None
        if "engine" in row:
            kept = {key: row[key] for key in ("metrics", "key", "tls", "generate") if key in row}
            fake = stack.enter_context(HttpFake(row["engine"], **kept))
            if row.get("trusted"):
                monkeypatch.setenv("SSL_CERT_FILE", fake.certificate)
        port = fake.port if fake else stack.enter_context(trap(row.get("trap", "closed")))
        place = Place(row, tmp_path, port, monkeypatch)
        if "host" in row:
            now = time.strftime("%Y-%m-%d %H:%M:%S")
            facts = json.loads(json.dumps(row["host"]).replace("[NOW", f"[{now}"))

            async def open_link(*_: object, **__: object) -> FakeHost:
                return FakeHost(facts, port)

            monkeypatch.setattr(ways, "open_link", open_link)
        if "before" in row:
            log = facts["files"]["server.log"] if "lines" in row["before"] else ""
            if log:
                facts["files"]["server.log"] = "".join(log.splitlines(True)[: row["before"]["lines"]])
            cli.main(place.words)
            capsys.readouterr()
            place.earlier(row["before"]["ago_s"])
            if log:
                facts["files"]["server.log"] = log
        stack.enter_context(other_check(row, port))
        code = cli.main(place.words)
        told = capsys.readouterr()
        if fake and fake.certificate:
            os.unlink(fake.certificate)
        if "generations" in row:
            assert fake is not None and fake.generations == row["generations"]
    usage = code == 3 and not told.out.startswith("SPECDASH")
    line = told.err.removeprefix("specdash: ") if usage else told.out.removeprefix("SPECDASH ")
    said = line.partition(" | ")[0].rstrip("\n").replace(str(port), "PORT")
    assert (code, said.count("\n")) == (row["code"], 0), said
    assert matches(row["line"], said), said
    if row["id"] in ("log-errors", "log-errors-old"):
        assert f"'log_errors'={2 * row['code']}" in told.out
    if not usage:
        assert told.err == "", "a monitoring system wants one line"
        assert said.partition(":")[0] == {0: "OK", 1: "WARNING", 2: "CRITICAL", 3: "UNKNOWN"}[code]


def test_the_page_of_the_docs_is_made_from_the_table() -> None:
    wanted = states_doc.text()
    assert states_doc.PAGE.read_text("utf-8") == wanted, "renew it: python -m tests.check.states_doc"
    assert wanted.count("\n| ") > 60
