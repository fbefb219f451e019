"""Steady load on a server, and what the server itself said of each request:  load.py PORT STREAMS SECONDS

Prints one JSON object: tok_s (completion tokens of all finished requests over the wall time), accept_length
(completion tokens over verify steps, by the answers' meta_info), requests, failures by kind, and window_unix: [begin, end].
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter

WORDS = (
    "the quick brown fox jumps over lazy dog while def class return import self None True False print range"
)


def generate(port: int, seed: int, tokens: int) -> dict:
    pick = random.Random(seed)
    body = {
        "text": " ".join(pick.choice(WORDS.split()) for _ in range(40)),
        "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True},
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/generate",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)["meta_info"]


def _kind(error: Exception) -> str:
    """`ConnectionRefusedError` (nobody listened) is told apart from what broke after a connection was made."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return type(reason).__name__


def main(port: int, streams: int, seconds: float, tokens: int) -> None:
    told: list[dict] = []
    failures: Counter[str] = Counter()
    began = time.time()

    def stream(k: int) -> None:
        n = 0
        while time.time() - began < seconds:
            try:
                meta = generate(port, k * 1000 + n, tokens)
                told.append(dict(meta, at=time.time()))
            except Exception as e:
                failures[_kind(e)] += 1
                time.sleep(0.1)  # whoever is refused asks again: a switch is looked at from outside
            n += 1

    threads = [threading.Thread(target=stream, args=(k,)) for k in range(streams)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    took = time.time() - began
    completed = sum(int(m["completion_tokens"]) for m in told)
    verifies = sum(int(m.get("spec_verify_ct") or 0) for m in told)
    out = {
        "streams": streams,
        "seconds": round(took, 2),
        "tok_s": round(completed / took, 1),
        "accept_length": round(completed / verifies, 4) if verifies else None,
        "requests": len(told),
        "failures": dict(failures),
        "window_unix": [began, began + took],
        "last_meta_info": told[-1] if told else None,
    }
    print(json.dumps(out))


if __name__ == "__main__":
    main(
        int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else 256
    )
