"""How fast a big log comes over a real sshd on loopback, and how late samples are meanwhile.

    python benchmarks/tail_throughput.py [--mb 1000] [--sample-s 0.25]

Prints MB/s, the lateness of samples (how long after its due time one arrived; median and worst), round trips
and the memory of this process and of the agent. Needs OpenSSH's sshd (and root, or a user it lets in).
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import sshd

from specdash.host.open import open_link


def write_log(path: Path, megabytes: int) -> str:
    """Lines as a server logs them, with some bytes that are no UTF-8; returns the sha256."""
    digest = hashlib.sha256()
    block = b"".join(
        b"[2026-05-04 10:%02d:%02d TP0] Decode batch, #running-req: %d, gen throughput (token/s): %.2f \xff\n"
        % (n // 60 % 60, n % 60, n % 48, random.random() * 2000)
        for n in range(10_000)
    )
    with path.open("wb") as file:
        written = 0
        while written < megabytes * 1_000_000:
            piece = block[: megabytes * 1_000_000 - written]
            file.write(piece)
            digest.update(piece)
            written += len(piece)
    return digest.hexdigest()


def rss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return float("nan")


async def measure(megabytes: int, every_s: float) -> None:
    with tempfile.TemporaryDirectory() as folder, sshd.running() as server:
        log = Path(folder) / "server.log"
        expected = write_log(log, megabytes)
        began = time.monotonic()
        link = await open_link(server.host())
        print(f"open: {time.monotonic() - began:.2f} s (import of asyncssh included)")
        late: list[float] = []
        pings: list[float] = []

        async def watch() -> None:
            first = 0.0
            async for sample in link.sample("host", every_s):
                # Same machine, same clock: when it was taken against when it got here.
                late.append(time.clock_gettime(time.CLOCK_BOOTTIME) - sample["now_boot"])
                first = first or sample["now_boot"]

        async def ping() -> None:
            while True:
                pings.append(await link.ping())
                await asyncio.sleep(0.25)

        tasks = [asyncio.create_task(watch()), asyncio.create_task(ping())]
        digest, size = hashlib.sha256(), 0
        began = time.monotonic()
        stream = link.tail(str(log))
        async for chunk in stream:
            digest.update(chunk.data)
            size += len(chunk.data)
            if size >= megabytes * 1_000_000:
                break
        took = time.monotonic() - began
        await stream.aclose()
        for task in tasks:
            task.cancel()
        print(
            f"tail: {size / 1e6:.0f} MB in {took:.1f} s = {size / 1e6 / took:.0f} MB/s, exact: {digest.hexdigest() == expected}"
        )
        print(
            f"samples every {every_s:g} s: {len(late)} of {int(took / every_s)} came; "
            f"late by {statistics.median(late) * 1000:.0f} ms (median), {max(late) * 1000:.0f} ms (worst)"
        )
        print(f"ping meanwhile: {statistics.median(pings):.0f} ms (median), {max(pings):.0f} ms (worst)")
        agent = rss_mb(link.hello["agent_pid"])
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"peak memory: specdash {own:.0f} MB, agent {agent:.0f} MB; CPUs: {os.cpu_count()}")
        await link.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mb", type=int, default=1000)
    parser.add_argument("--sample-s", type=float, default=0.25)
    options = parser.parse_args()
    asyncio.run(measure(options.mb, options.sample_s))


if __name__ == "__main__":
    main()
