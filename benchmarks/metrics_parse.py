"""How long a metrics page takes: ours, from bytes to the numbers shown, against prometheus-client's plain parser.

    python -m benchmarks.metrics_parse [PAGE]

CPU time of this process, best of several, so that a busy machine does not decide. Without PAGE: a real page of an
H200, as it is, and grown to 140 kB (three models behind one router) and to 5 MB of HELP lines.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from specdash.monitor.events import Event, HttpSeen, LinkChanged, RunsListed, Tick
from specdash.monitor.reduce import reduce, start
from specdash.sglang import metrics

PAGE = Path(__file__).parents[1] / "tests" / "data" / "monitor" / "h200-ngram.prom"
LIMIT_MS = 5.0
"""For 140 kB, from bytes to series."""


def grown(body: bytes, size: int) -> bytes:
    """The page again under other model names, each copy whole, until it is at least `size` bytes."""
    out, copy = body, 0
    while len(out) < size:
        copy += 1
        out += body.replace(b'model_name="', b'model_name="copy%d' % copy)
    return out


def help_lines(body: bytes, size: int) -> bytes:
    line = b'# HELP sglang:num_running_reqs_of_a_kind Text with {braces="x"} and "quotes".\n'
    return line * (size // len(line)) + body


def best_ms(work: Callable[[], object], rounds: int = 7) -> float:
    taken = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return min(taken) * 1e3


def shown(body: bytes) -> Callable[[], object]:
    """One page and one tick through the reducer of a server that is watched for two minutes already."""
    state = start([("h", "")])
    state = reduce(state, Event(0.0, "h", LinkChanged("up")))
    run = {"id": "r", "alive": True, "http": {"port": 1}, "ready_boot_s": 1.0}
    state = reduce(state, Event(0.0, "h", RunsListed((run,))))
    clock = 0.0

    def work() -> None:
        nonlocal state, clock
        clock += 1.0
        state = reduce(state, Event(clock, "h", HttpSeen("metrics", 200, body), "r"))
        state = reduce(state, Event(clock, "", Tick()))

    for _ in range(120):
        work()
    return work


def main() -> int:
    body = Path(sys.argv[1]).read_bytes() if len(sys.argv) > 1 else PAGE.read_bytes()
    pages = {
        "as it is": body,
        "140 kB": grown(body, 140_000)[:140_000],
        "5 MB of HELP": help_lines(body, 5_000_000),
    }
    print(
        f"{'page':<14}{'kB':>7}{'read ms':>10}{'to the screen ms':>18}{'prometheus-client ms':>22}{'times':>7}"
    )
    slow = False
    for name, page in pages.items():
        text = page.decode("utf-8", "replace").rpartition("\n")[0] + "\n"

        def theirs(text: str = text) -> object:
            return sum(len(f.samples) for f in text_string_to_metric_families(text))

        ours, whole, other = (
            best_ms(lambda page=page: metrics.read(page)),
            best_ms(shown(page)),
            best_ms(theirs, 3),
        )
        print(
            f"{name:<14}{len(page) / 1e3:>7.0f}{ours:>10.2f}{whole:>18.2f}{other:>22.2f}{other / ours:>7.1f}"
        )
        slow = slow or (name == "140 kB" and ours > LIMIT_MS)
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
