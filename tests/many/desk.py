"""An operator's desk with several machines, and profiles of one real server over two of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.many.machines import NIC, Machine
from tests.support import engine as engines


class ManyDesk:
    """config.toml with all machines, profiles, and `specdash` as a command."""

    def __init__(self, home: Path, machines: list[Machine], port: int = 30000) -> None:
        self.home = home
        self.machines = {one.name: one for one in machines}
        self.port = port
        (home / "profiles").mkdir(parents=True)
        names = ", ".join(f'"{name}"' for name in self.machines)
        tables = "".join(one.table() for one in machines)
        (home / "config.toml").write_text(f"{tables}\n[groups]\nboth = [{names}]\n")

    def profile(self, name: str, text: str) -> str:
        (self.home / "profiles" / f"{name}.toml").write_text(text)
        return name

    def env(self) -> dict[str, str]:
        return {
            **os.environ,
            "SPECDASH_CONFIG": str(self.home / "config.toml"),
            "HOME": str(self.home),
            "XDG_CACHE_HOME": str(self.home / "cache"),
            "XDG_STATE_HOME": str(self.home / "state"),
            "XDG_DATA_HOME": str(self.home / "data"),
        }

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "specdash", *words]

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*words),
            env=self.env(),
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )

    def run(self, *words: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            env=self.env(),
            cwd=self.home,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout,
        )

    def json(self, *words: str, code: int = 0, timeout: float = 240) -> dict[str, Any]:
        done = self.run(*words, "--json", timeout=timeout)
        assert done.returncode == code, f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def records(self, host: str) -> list[dict[str, Any]]:
        return list(self.json("runs", host)["runs"])

    def record(self, host: str, run: str) -> dict[str, Any]:
        return next(one for one in self.records(host) if one["id"] == run)

    def generate(self, host: str = "a", tokens: int = 24) -> dict[str, Any]:
        body = {"text": engines.WORDS, "sampling_params": {"max_new_tokens": tokens, "temperature": 0}}
        request = urllib.request.Request(
            f"http://{self.machines[host].address}:{self.port}/generate",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            found: dict[str, Any] = json.loads(answer.read())
        return found

    def left(self, ident: str) -> dict[str, dict[int, str]]:
        """Living processes of a server, by rank's run: the tests' own look at /proc, not specdash's."""
        return {
            f"{ident}-r{rank}": found
            for rank in range(len(self.machines))
            if (found := dict.fromkeys(engines.marked(f"{ident}-r{rank}"), ""))
        }


def engine_profile(engine: Path, port: int = 30000, extra: str = "", server: str = "") -> str:
    """One server over `a` and `b`: a rank of a real SGLang on each."""
    env: Mapping[str, str] = {**engines.environment(), "SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
    told = "\n".join(f'{key} = "{value}"' for key, value in env.items())
    base = engines.base_profile(engine, port).replace(
        'host = "gpu"', f'hosts = ["a", "b"]\ninterface = "{NIC}"', 1
    )
    base = base.replace('host = "127.0.0.1"', f'host = "0.0.0.0"\ntp-size = 2\n{server}')
    return f"{base.split('[env]')[0]}[env]\n{told}\n{extra}"
