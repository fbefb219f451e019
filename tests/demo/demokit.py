"""Run simulated engines without SSH, and wait for conditions with a deadline."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specdash.demo import house

WAIT_S = 40.0
TARGET = "data/models/Kimi-K2.5-INT4"


def until(what: Callable[[], Any], seconds: float = WAIT_S) -> Any:
    """The first true answer; AssertionError at the deadline."""
    end = time.monotonic() + seconds
    while True:
        found = what()
        if found:
            return found
        assert time.monotonic() < end, "deadline"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


class Engine:
    def __init__(self, home: Path, flags: list[str], env: dict[str, str]) -> None:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        if "--port" in flags:
            self.port = int(flags[flags.index("--port") + 1])
        self.log = home / f"{self.port}-{time.monotonic_ns()}.log"
        argv = [
            str(house.python(home)),
            "-m",
            "sglang.launch_server",
            "--model-path",
            TARGET,
            "--tp-size",
            "8",
        ]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [*argv, "--port", str(self.port), *flags], cwd=home, stdin=subprocess.DEVNULL, stdout=out,
                stderr=out, env={"HOME": str(home), "PATH": os.environ["PATH"], **env},
            )  # fmt: skip

    def text(self) -> str:
        return self.log.read_text("utf-8", "replace")

    def says(self, words: str) -> Any:
        return until(lambda: words in self.text() or self.process.poll() is not None) and words in self.text()

    def ready(self) -> Engine:
        assert self.says("fired up"), self.text()[-2000:]
        return self

    def get(self, path: str, body: Any = None) -> tuple[int, bytes]:
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", data, 30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as e:
            return e.code, e.read()

    def json(self, path: str, body: Any = None) -> Any:
        return json.loads(self.get(path, body)[1])

    def end(self) -> int:
        """Exit code as a shell would see it, after TERM."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)


def eagle3(drafter: str) -> list[str]:
    folder = f"data/eagle3/{drafter}" if "/" not in drafter else drafter
    return ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", folder,
            "--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"]  # fmt: skip
