"""Makes tests/data/numbers: what every source of a real engine says, second by second, and what a client counted.

    python -m tests.capture.make_numbers ENGINE_FOLDER [NAME …]

ENGINE_FOLDER as `.ci/engine` makes it (a real SGLang on CPU with tiny models). Each capture is xz-packed JSON lines:
`{"t": s, "kind": …}` with kinds about, log (bytes as Latin-1 text, polled once a second), http (endpoint, status,
body), level (streams from now on), client (tokens received so far) and request (one finished request as the client
saw it: began, first, ended in seconds, tokens, and verify and prompt tokens by its meta_info). The client reads
the engine's stream and counts by itself; it knows nothing of specdash. Series that specdash does not read are left
out of all metrics pages but the first.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import lzma
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specdash.sglang.metrics import WANTED
from tests.support import engine
from tests.support.sshd import free_port

OUT = Path(__file__).parents[1] / "data" / "numbers"
KEEP = re.compile(rf"^sglang:(?:{'|'.join(WANTED)})(?:_bucket|_sum|_count)?[{{ ]")
ENDPOINTS = {"metrics": "/metrics", "loads": "/v1/loads", "server_info": "/server_info"}
EAGLE3 = (
    "--speculative-algorithm EAGLE3 --speculative-draft-model-path {dir}/models/eagle3 --speculative-num-steps 3 "
    "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
)
SIMULATED = {
    "SGLANG_SIMULATE_ACC_LEN": "3.2",
    "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token",
}
WORDS = [
    "harbour",
    "boats",
    "planet",
    "bicycle",
    "ledger",
    "river",
    "copper",
    "violin",
    "garden",
    "thunder",
    "window",
    "silver",
    "market",
]
# Name: (flags, environment, seconds per level of streams, repetitive prompts)
RUNS: dict[str, tuple[str, dict[str, str], dict[int, float], bool]] = {
    "eagle3": (EAGLE3, {}, {1: 64, 2: 64, 4: 64}, False),
    "base": ("", {}, {1: 64, 2: 64, 4: 64}, False),
    "simulated": (EAGLE3, SIMULATED, {2: 45}, False),
    "ngram": ("--speculative-algorithm NGRAM --speculative-num-draft-tokens 8", {}, {1: 60}, True),
}
GAP_S = 8.0
"""Idle between levels."""
LAST_S = 20.0


class Capture:
    """Rows from several threads, in the order of their times."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.began = time.monotonic()
        self.lock = threading.Lock()

    def add(self, kind: str, **row: Any) -> None:
        with self.lock:
            self.rows.append({"t": round(time.monotonic() - self.began, 4), "kind": kind, **row})

    def write(self, path: Path) -> None:
        whole = False
        for row in self.rows:
            if row["kind"] == "http" and row["endpoint"] == "metrics":
                if whole:
                    row["body"] = "".join(x + "\n" for x in row["body"].split("\n") if KEEP.match(x))
                whole = True
        text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in self.rows)
        path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
        print(
            f"{path.name}: {len(self.rows)} rows, {len(text) >> 10} kB, packed {path.stat().st_size >> 10} kB"
        )


class Client:
    """Streams that ask again and again; tokens are counted from what the stream brings."""

    def __init__(self, port: int, capture: Capture, repetitive: bool) -> None:
        self.port, self.capture, self.repetitive = port, capture, repetitive
        self.tokens = 0
        self.lock = threading.Lock()
        self.stop = threading.Event()

    def run(self, streams: int, seconds: float) -> None:
        self.stop.clear()
        self.capture.add("level", streams=streams)
        threads = [threading.Thread(target=self._stream, args=(n,)) for n in range(streams)]
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        self.capture.add("level", streams=0)
        self.stop.set()
        for thread in threads:
            thread.join()

    def _stream(self, number: int) -> None:
        asked = 0
        while not self.stop.is_set():
            asked += 1
            if self.repetitive:
                prompt = "the quick brown fox jumps over the lazy dog and then runs away " * 4
            else:
                picked = (WORDS[(number * 5 + asked * k) % len(WORDS)] for k in range(1, 24))
                prompt = f"{number} {asked} " + " ".join(picked)
            self._request(prompt, 400 if self.repetitive else 160 + 40 * (asked % 4))

    def _request(self, prompt: str, tokens: int) -> None:
        sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
        body = json.dumps({"text": prompt, "sampling_params": sampling, "stream": True})
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        began = time.monotonic() - self.capture.began
        first, seen, meta = None, 0, {}
        link.request("POST", "/generate", body, {"Content-Type": "application/json"})
        answer = link.getresponse()
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            meta = json.loads(line[6:])["meta_info"]
            if first is None:
                first = time.monotonic() - self.capture.began
            with self.lock:
                self.tokens += meta["completion_tokens"] - seen
            seen = meta["completion_tokens"]
            if self.stop.is_set():
                break  # SGLang aborts a request whose client is gone
        link.close()
        done = seen == tokens
        self.capture.add(
            "request",
            began=round(began, 4),
            first=round(first or 0.0, 4),
            tokens=seen,
            whole=done,
            verify=meta.get("spec_verify_ct"),
            prompt=meta.get("prompt_tokens"),
            cached=meta.get("cached_tokens"),
        )


def watch(port: int, log: Path, capture: Capture, client: Client, over: threading.Event) -> None:
    """Everything once a second, each row with the time at which it was there."""
    offset = 0
    due = time.monotonic()
    while not over.is_set():
        due += 1.0
        capture.add("client", tokens=client.tokens)
        with log.open("rb") as file:
            file.seek(offset)
            data = file.read()
        if data:
            capture.add("log", offset=offset, data=data.decode("latin-1"))
            offset += len(data)
        for name, path in ENDPOINTS.items():
            began = time.monotonic()
            try:
                status, body = get(port, path)
            except (OSError, http.client.HTTPException) as problem:
                capture.add("http", endpoint=name, status=None, body="", problem=type(problem).__name__)
                continue
            took = round(time.monotonic() - began, 4)
            capture.add("http", endpoint=name, status=status, body=body, took_s=took)
        over.wait(max(0.0, due - time.monotonic()))


def get(port: int, path: str) -> tuple[int, str]:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(link):
        link.request("GET", path)
        answer = link.getresponse()
        return answer.status, answer.read().decode("latin-1")


@contextlib.contextmanager
def serving(folder: Path, flags: str, env: dict[str, str], log: Path) -> Iterator[int]:
    port = free_port()
    words = [
        engine.python(folder), "-m", "sglang.launch_server", "--model-path", f"{folder}/models/base",
        "--device", "cpu", "--attention-backend", "intel_amx", "--host", "127.0.0.1", "--port", str(port),
        "--max-total-tokens", "16384", "--mem-fraction-static", "0.3", "--grammar-backend", "none",
        "--cuda-graph-backend-decode=disabled", "--cuda-graph-backend-prefill=disabled", "--enable-metrics",
        *flags.format(dir=folder).split(),
    ]  # fmt: skip
    surroundings = {**os.environ, **engine.environment(), **env}
    surroundings.pop("PYTHONDONTWRITEBYTECODE", None)
    with log.open("wb") as out:
        child = subprocess.Popen(
            words, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=surroundings, start_new_session=True
        )
        try:
            deadline = time.monotonic() + 240
            while b"fired up" not in log.read_bytes():
                if child.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"it did not start:\n{log.read_text(errors='replace')[-2000:]}")
                time.sleep(0.5)
            yield port
        finally:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def make(folder: Path, name: str) -> None:
    flags, env, levels, repetitive = RUNS[name]
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "server.log"
        with serving(folder, flags, env, log) as port:
            capture = Capture()
            capture.add(
                "about", name=name, flags=flags.format(dir="DIR").split(), env=env, load=os.getloadavg()
            )
            client = Client(port, capture, repetitive)
            over = threading.Event()
            watcher = threading.Thread(target=watch, args=(port, log, capture, client, over))
            watcher.start()
            time.sleep(3.0)
            for streams, seconds in levels.items():
                client.run(streams, seconds)
                time.sleep(LAST_S if streams == max(levels) else GAP_S)
            over.set()
            watcher.join()
        capture.rows.sort(key=lambda row: row["t"])
        OUT.mkdir(parents=True, exist_ok=True)
        capture.write(OUT / f"{name}.jsonl.xz")


if __name__ == "__main__":
    for wanted in sys.argv[2:] or RUNS:
        make(Path(sys.argv[1]), wanted)
