"""Reading algorithms and flags of an installed SGLang, end to end, beside `python -m sglang.launch_server --help`.

    python benchmarks/probe_vs_help.py /opt/specdash-engine/venv/bin/python [--runs 5] [--env PYTHONPATH=shims]

End to end: the call to the host, a new process of that interpreter, finding sglang, reading all files, JSON back.
The cache is off for *cold*; *warm* compares fingerprints, as any second probe does. Medians of wall-clock seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import tempfile
import time

from specdash.config.hosts import local_host
from specdash.control import probe
from specdash.host.open import open_link


def run_help(python: str, env: dict[str, str], runs: int) -> tuple[str, list[float]]:
    """(its text, seconds of each run)."""
    took: list[float] = []
    for _ in range(runs):
        began = time.perf_counter()
        argv = [python, "-m", "sglang.launch_server", "--help"]
        done = subprocess.run(argv, env={**os.environ, **env}, capture_output=True, text=True, check=True)
        took.append(time.perf_counter() - began)
    return done.stdout, took


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("python")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    args = parser.parse_args()
    env = dict(item.split("=", 1) for item in args.env)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = folder
        link = await open_link(local_host())
        cold, warm = [], []
        for _ in range(args.runs):
            began = time.perf_counter()
            found = await probe.probe(link, args.python, folder, env, use_cache=False)
            cold.append(time.perf_counter() - began)
        assert found.reading is not None, found.problem
        await probe.probe(link, args.python, folder, env)
        for _ in range(args.runs):
            began = time.perf_counter()
            again = await probe.probe(link, args.python, folder, env)
            warm.append(time.perf_counter() - began)
            assert again.cached
        await link.close()
    strings = set(found.reading.flags.by_string)
    text, helps = await asyncio.to_thread(run_help, args.python, env, max(1, args.runs // 2))
    shown = {word.strip(",[]") for word in text.split() if word.startswith(("--", "[--"))}
    missing = sorted(s for s in strings if s.startswith("--") and s not in shown and "=" not in s)
    result = {
        "sglang": found.reading.version,
        "help_s": round(statistics.median(helps), 3),
        "cold_s": round(statistics.median(cold), 3),
        "warm_s": round(statistics.median(warm), 3),
        "times_faster_cold": round(statistics.median(helps) / statistics.median(cold), 1),
        "times_faster_warm": round(statistics.median(helps) / statistics.median(warm), 1),
        "option_strings": len(strings),
        "not_in_help": missing[:10],
        "algorithms": list(found.reading.names or ()),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    asyncio.run(main())
