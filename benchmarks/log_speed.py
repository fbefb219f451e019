"""How fast a log becomes a story. Targets: 40 MB/s for the splitter, 200,000 records/s that say nothing.

    python benchmarks/log_speed.py [--seconds 1] [--only WORDS] [--profile]

Prints one line per kind of log: MB/s, records/s, and whether the target is met (exit code 1 when not). "hub": the
same through the log store and the reducer, as a followed log goes.
"""

from __future__ import annotations

import argparse
import cProfile
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import log_lines

from specdash.monitor.events import Event, LogRead
from specdash.monitor.logstore import LogStore
from specdash.monitor.reduce import reduce, start
from specdash.sglang.lines import split
from specdash.sglang.story import Story, feed

CHUNK = 256 * 1024


def tell(data: bytes) -> None:
    """As when the server serves: most of a long log is of that time."""
    story = feed(Story(), b"[2026-11-20 09:59:59] The server is fired up and ready to roll!\n")
    for at in range(0, len(data), CHUNK):
        story = feed(story, data[at : at + CHUNK])


def cut(data: bytes) -> None:
    rest = b""
    for at in range(0, len(data), CHUNK):
        _, rest = split(rest + data[at : at + CHUNK])


def whole(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store, state = LogStore("h", "r", Path(folder)), start([("h", "")])
        for at in range(0, len(data), CHUNK):
            piece = data[at : at + CHUNK]
            store.append(piece)
            state = reduce(state, Event(1000.0 + at / 4e7, "h", LogRead(at, piece, len(data)), "r"))
        store.close()


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


def cases() -> list[tuple[str, log_lines.Kind, Callable[[bytes], None], float, float]]:
    """(name, kind, work, least MB/s, least records/s)."""
    quiet = ("access lines", "nothing to say", "eight ranks", "frames, prints", "docker compose", "CR LF")
    seldom = ("progress bars", "JSON logging")  # a server writes some a second, or some thousand at most
    return [
        ("splitter", log_lines.busy, cut, 40.0, 0.0),
        *(
            (name, kind, tell, 5.0 if name in seldom else 40.0, 200_000.0 * (name in quiet))
            for name, kind in log_lines.KINDS.items()
        ),
        ("busy server", log_lines.busy, tell, 40.0, 0.0),
        ("hub: busy server", log_lines.busy, whole, 40.0, 0.0),
        ("hub: decode lines", log_lines.decode, whole, 40.0, 0.0),
        ("hub: access lines", log_lines.access, whole, 40.0, 0.0),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--mb", type=float, default=8.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    missed = 0
    for name, kind, work, least_mb, least_records in cases():
        if options.only not in name:
            continue
        data = log_lines.block(kind, int(options.mb * 1e6))
        records = max(data.count(b"\n"), data.count(b"\r"))
        if options.profile:
            cProfile.runctx("work(data)", {"work": work, "data": data}, {}, sort="tottime")
            continue
        took = measure(work, data, options.seconds)
        speed = len(data) / took / 1e6
        ok = speed >= least_mb and records / took >= least_records
        missed += not ok
        print(f"{name:24} {speed:8.1f} MB/s {records / took:12,.0f} records/s{'  ok' if ok else '  MISSED'}")
    return 1 if missed else 0


if __name__ == "__main__":
    random.seed(1)
    sys.exit(main())
