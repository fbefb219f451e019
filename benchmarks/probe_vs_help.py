"""Reading algorithms and flags of an installed SGLang, end to end, beside `python -m sglang.launch_server --help`.

    python benchmarks/probe_vs_help.py /opt/specdash-engine/venv/bin/python [--runs 5] [--env PYTHONPATH=shims]

End to end: the call to the host, a new process of that interpreter, finding sglang, reading all files, JSON back.
The cache is off for *cold*; *warm* compares fingerprints, as any second probe does. Medians of wall-clock seconds,
and processor seconds (ours, the agent's and the interpreter's together), which a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from specdash.config.hosts import local_host
from specdash.control import probe
from specdash.host.open import open_link


def cpu_s() -> float:
    """Processor seconds of this process and of its children that ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def run_help(python: str, env: dict[str, str], runs: int) -> tuple[str, list[float]]:
    """(its text, seconds of each run)."""
    took: list[float] = []
    for _ in range(runs):
        began = time.perf_counter()
        argv = [python, "-m", "sglang.launch_server", "--help"]
        done = subprocess.run(argv, env={**os.environ, **env}, capture_output=True, text=True, check=True)
        took.append(time.perf_counter() - began)
    return done.stdout, took


async def probes(
    python: str, folder: str, env: dict[str, str], runs: int, cached: bool
) -> tuple[probe.Probe, list[float], float]:
    """(what was read, seconds of each probe, processor seconds of one). One link for all of them."""
    took, used = [], []
    for count in (
        1,
        1,
        runs + 1,
    ):  # the first fills the cache; the difference of the others leaves the link and its agent out
        began_cpu = cpu_s()
        link = await open_link(local_host())
        for _ in range(count):
            began = time.perf_counter()
            found = await probe.probe(link, python, folder, env, use_cache=cached)
            took.append(time.perf_counter() - began)
        await link.close()
        used.append(cpu_s() - began_cpu)
    assert found.reading is not None, found.problem
    assert found.cached is cached
    return found, took[3:], (used[2] - used[1]) / runs


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("python")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    args = parser.parse_args()
    env = dict(item.split("=", 1) for item in args.env)
    here = Path.cwd()  # the probe runs in another folder
    env = {name: str(here / value) if name == "PYTHONPATH" else value for name, value in env.items()}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = folder
        found, cold, cold_cpu = await probes(args.python, folder, env, args.runs, cached=False)
        _, warm, warm_cpu = await probes(args.python, folder, env, args.runs, cached=True)
    began = cpu_s()
    count = max(1, args.runs // 2)
    text, helps = await asyncio.to_thread(run_help, args.python, env, count)
    help_cpu = (cpu_s() - began) / count
    strings = set(found.reading.flags.by_string)
    shown = {word.strip(",[]") for word in text.split() if word.startswith(("--", "[--"))}
    missing = sorted(s for s in strings if s.startswith("--") and s not in shown and "=" not in s)
    result = {
        "sglang": found.reading.version,
        "help_s": round(statistics.median(helps), 3),
        "cold_s": round(statistics.median(cold), 3),
        "warm_s": round(statistics.median(warm), 3),
        "help_cpu_s": round(help_cpu, 3),
        "cold_cpu_s": round(cold_cpu, 3),
        "warm_cpu_s": round(warm_cpu, 3),
        "times_faster_cold": round(statistics.median(helps) / statistics.median(cold), 1),
        "times_faster_warm": round(statistics.median(helps) / statistics.median(warm), 1),
        "times_less_cpu_cold": round(help_cpu / cold_cpu, 1),
        "times_less_cpu_warm": round(help_cpu / warm_cpu, 1),
        "option_strings": len(strings),
        "not_in_help": missing[:10],
        "algorithms": list(found.reading.names or ()),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    asyncio.run(main())
