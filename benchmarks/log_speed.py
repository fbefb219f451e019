"""How fast a log becomes a story. Targets: 40 MB/s for the splitter, 200,000 records/s that say nothing.

    python benchmarks/log_speed.py [--seconds 2]

Prints one line per kind of log: MB/s, records/s, and whether the target is met (exit code 1 when not).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator

from specdash.sglang.lines import split
from specdash.sglang.story import Story, feed

CHUNK = 256 * 1024
CHATTER = b"[2026-11-20 10:%02d:%02d TP%d] Registering %d weight views of layer group %d for the host tier of the cache\n"
ACCESS = b'[2026-11-20 10:%02d:%02d] INFO:     127.0.0.1:%d - "POST /generate HTTP/1.1" 200 OK\n'
DECODE = (
    b"[2026-11-20 10:%02d:%02d TP0] Decode batch, #running-req: %d, #token: %d, token usage: 0.22, accept len: 2.01, "
    b"accept rate: 0.34, cuda graph: True, gen throughput (token/s): 2210.40, #queue-req: 57\n"
)
FRAME = (
    b'  File "/opt/venv/lib/python3.12/site-packages/torch/nn/modules/module.py", line %d, in _call_impl\n'
)


def rows(kind: str, count: int) -> Iterator[bytes]:
    for i in range(count):
        minute, second = i // 60 % 60, i % 60
        if kind == "chatter":
            yield CHATTER % (minute, second, i % 8, i % 97, i % 13)
        elif kind == "access":
            yield ACCESS % (minute, second, 30000 + i % 9999)
        elif kind == "decode":
            yield DECODE % (minute, second, i % 48, i)
        elif kind == "plain":
            yield FRAME % (i % 2000)
        elif kind == "mixed":
            yield (
                (DECODE % (minute, second, i % 48, i))
                if i % 10 == 0
                else ACCESS % (minute, second, 30000 + i % 9999)
            )
        elif kind == "bars":
            yield b"\rCapturing batches (bs=%d avail_mem=8.11 GB):   4%%|#| %d/23 [00:01<00:10,  2.0it/s]" % (
                i % 48,
                i % 23,
            )


def tell(data: bytes) -> None:
    story = Story()
    for start in range(0, len(data), CHUNK):
        story = feed(story, data[start : start + CHUNK])


def cut(data: bytes) -> None:
    rest = b""
    for start in range(0, len(data), CHUNK):
        _, rest = split(rest + data[start : start + CHUNK])


def measure(work: Callable[[bytes], None], data: bytes, seconds: float) -> float:
    """Best CPU seconds per pass: a busy machine must not decide."""
    best, end = float("inf"), time.process_time() + seconds
    while True:
        began = time.process_time()
        work(data)
        now = time.process_time()
        best = min(best, now - began)
        if now >= end:
            return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--records", type=int, default=60_000)
    options = parser.parse_args()
    missed = 0
    for name, kind, work, least_mb, least_records in (
        ("splitter", "mixed", cut, 40.0, 0.0),
        ("nothing to say", "chatter", tell, 0.0, 200_000.0),
        ("access lines", "access", tell, 0.0, 200_000.0),
        ("frames, prints", "plain", tell, 0.0, 200_000.0),
        ("one in ten decodes", "mixed", tell, 0.0, 0.0),
        ("decode lines", "decode", tell, 0.0, 0.0),
        ("progress bars", "bars", tell, 0.0, 0.0),
    ):
        data = b"".join(rows(kind, options.records))
        took = measure(work, data, options.seconds)
        speed, records = len(data) / took / 1e6, options.records / took
        ok = speed >= least_mb and records >= least_records
        missed += not ok
        target = "" if not (least_mb or least_records) else "  ok" if ok else "  MISSED"
        print(f"{name:20} {speed:8.1f} MB/s {records:12,.0f} records/s{target}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
