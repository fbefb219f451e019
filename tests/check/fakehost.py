"""A FAKE host for the table of states: a link whose agent answers from a row of the table. Its HTTP is real."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from specdash.errors import RemoteError
from specdash.host.http import TcpRoute, fetch
from specdash.host.link import HttpRequest, HttpResponse

BOOT = "b" * 8
FOLDER = "/runs/r1"


def decode_lines(tok_s: float, accept: float = 0.0, seconds: int = 40) -> str:
    """A log that ends now: one request decodes, a line a second."""
    lines = []
    for ago in range(seconds, -1, -1):
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() - ago))
        spec = f"accept len: {accept:.2f}, accept rate: 0.30, " if accept else ""
        lines.append(
            f"[{at} TP0] Decode batch. #running-req: 1, #token: 100, token usage: 0.01, {spec}cuda graph: True, "
            f"gen throughput (token/s): {tok_s:.2f}, #queue-req: 0\n"
        )
    return "".join(lines)


class FakeHost:
    """`facts`: the row's `host` table: gpus, gpu_problem, category, sample, runs, files, processes, holder."""

    name = "box"

    def __init__(self, facts: Mapping[str, Any], port: int) -> None:
        self.facts, self.port = facts, port
        self.hello: Mapping[str, Any] = {
            "machine_id": "m" * 32,
            "boot_id": BOOT,
            "base": "/base",
            "user": "ops",
        }
        self.held = False

    async def ping(self) -> float:
        return 1.0

    async def close(self) -> None:
        pass

    async def http(self, request: HttpRequest, *, timeout: float = 5.0) -> HttpResponse:
        return await fetch(TcpRoute(), request, timeout)

    async def call(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout: float = 10.0,
        blob: bytes = b"",
    ) -> dict[str, Any]:
        params = params or {}
        if method in self.facts.get("fails", ()):
            raise RemoteError("bug", "The agent failed.")
        if method == "gpu.static":
            return self.gpus()
        if method == "runs.list":
            return {"runs": [self.run(**run) for run in self.facts.get("runs", [])]}
        if method == "file.read":
            return self.read(str(params["path"]), int(params.get("offset") or 0), int(params["max_bytes"]))
        if method == "procs.listeners":
            return dict(self.facts.get("holder", {"listening": False, "processes": []}))
        if method == "procs.list":
            return {"processes": []}
        if method == "turn.take":
            return {"mine": True}
        if method == "turn.done":
            return {}
        raise AssertionError(method)

    def gpus(self) -> dict[str, Any]:
        told = self.facts.get("gpus")
        rows = [{"memory_used_mib": 0.0, "memory_total_mib": 143771.0, **row} for row in told or []]
        return {
            "source": "nvml",
            "problem": self.facts.get("gpu_problem", "" if told else "no NVIDIA driver"),
            "category": self.facts.get("category", "" if told else "no_tool"),
            "gpus": [{"index": at, **row} for at, row in enumerate(rows)] if told is not None else None,
            "expected": self.facts.get("expected"),
        }

    def run(self, **more: Any) -> dict[str, Any]:
        now = time.time()
        http = {"host": "127.0.0.1", "port": self.port, "tls": False}
        base = {
            "id": "r1",
            "profile": "kimi",
            "folder": FOLDER,
            "http": http,
            "argv": ["python", "-m", "sglang.launch_server", "--enable-metrics"],
            "created_unix": now - 600,
            "phase": "ready",
            "pid": 100,
            "start": 5,
            "alive": True,
            "supervisor_alive": True,
            "boot_id": BOOT,
            "log": FOLDER + "/server.log",
        }
        return {**base, **more}

    def read(self, path: str, offset: int, most: int) -> dict[str, Any]:
        name = path.rsplit("/", 1)[-1]
        ready = (
            [{"boot_s": 1.0, "event": "ready"}]
            if self.run(**self.facts["runs"][0])["phase"] == "ready"
            else []
        )
        found = {"events.jsonl": ready, **self.facts.get("files", {})}.get(name)
        told = self.facts.get("decode" if path.startswith(FOLDER) else "base_decode")
        if told and name == "server.log":
            found = decode_lines(**told)
        if found is None:
            raise RemoteError("not_found", f"could not read {path}: there is no such file")
        if isinstance(found, list):
            found = "".join(json.dumps(row) + "\n" for row in found)
        data = str(found).encode()
        begin = max(0, len(data) + offset) if offset < 0 else offset
        return {
            "offset": begin,
            "blob": data[begin : begin + most],
            "size": len(data),
            "device": 1,
            "inode": 7,
            "eof": True,
        }

    async def _samples(self, kind: str) -> AsyncIterator[dict[str, Any]]:
        if kind == "host":
            sample = {"mem_total_kb": 1 << 30, "mem_available_kb": 1 << 29, "disk_free_bytes": 1 << 40}
            yield {
                "now_unix": time.time() + self.facts.get("clock_ahead_s", 0),
                **sample,
                **self.facts.get("sample", {}),
            }
        while kind == "procs":
            yield {"boot_id": BOOT, "processes": self.facts.get("processes", [])}

    def sample(
        self, kind: str, interval_s: float, params: Mapping[str, Any] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        return self._samples(kind)
