"""On a machine with a GPU: `python tests/gpu/measure.py [SECONDS]`. Compares the sampler with nvidia-smi in the
same second, field by field, and measures what it costs at 1 Hz, by either source. Prints JSON; exit 1: apart."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from specdash.host.remote import gpu, gpu_board, gpu_smi, smi_text

SLACK = {
    "memory_used_mib": 64, "memory_total_mib": 1, "utilisation_pct": 100, "power_w": 60, "power_limit_w": 1,
    "temperature_c": 3, "sm_clock_mhz": 400, "memory_clock_mhz": 100, "ecc_uncorrected": 0,
}  # fmt: skip


def cpu_s() -> float:
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def rss_kb() -> int:
    return next(
        int(line.split()[1])
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmRSS")
    )


def measure(board: gpu_board.Board, seconds: int) -> dict:
    sampler = gpu.Sampler(board.take, board.close)
    start, rss = time.perf_counter(), rss_kb()
    first = sampler.get(10)
    init_s = time.perf_counter() - start
    c0, t0, own0 = cpu_s(), time.perf_counter(), time.process_time()
    walls = []
    for _ in range(seconds):
        t = time.perf_counter()
        last = sampler.get(5)
        walls.append(time.perf_counter() - t)
        time.sleep(max(0, 1 - walls[-1]))
    truth_text = subprocess.run(
        [gpu_smi.find() or "nvidia-smi", "--query-gpu=" + ",".join(gpu_smi.QUERY), "--format=csv"],
        stdout=subprocess.PIPE, check=False,
    ).stdout.decode()  # fmt: skip
    span = time.perf_counter() - t0
    child = 0.0
    if board.smi is not None and board.smi.loop is not None:
        ticks = Path(f"/proc/{board.smi.loop.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
        child = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    own = time.process_time() - own0
    truth = smi_text.gpus(truth_text, gpu_smi.QUERY)
    apart = []
    for ours, theirs in zip(last["gpus"] or [], truth, strict=True):
        for key, slack in SLACK.items():
            a, b = ours[key], theirs[key]
            if (a is None) != (b is None) or (a is not None and abs(a - b) > slack):
                apart.append([ours["index"], key, a, b])
        apart += [
            [ours["index"], k, ours[k], theirs[k]]
            for k in ("uuid", "name", "mig", "throttle")
            if ours[k] != theirs[k]
        ]
    board.close()
    return {
        "source": last["source"], "driver": last["driver"], "gpus": len(last["gpus"] or []), "init_s": round(init_s, 3),
        "own_core_pct": round(100 * own / span, 3), "loop_core_pct": round(100 * child / span, 3),
        "sample_ms": round(1000 * sorted(walls)[len(walls) // 2], 2), "rss_mib": round(rss_kb() / 1024, 1),
        "rss_before_mib": round(rss / 1024, 1), "first_problem": first["problem"], "apart": apart, "last": last,
        "cpu_all_s": round(cpu_s() - c0, 3),
    }  # fmt: skip


if __name__ == "__main__":
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    by_smi = gpu_board.Board()
    by_smi.smi = gpu_smi.Smi(gpu_smi.find() or "nvidia-smi")
    results = [measure(gpu_board.Board(), seconds), measure(by_smi, seconds)]
    print(json.dumps(results, indent=1))
    sys.exit(any(r["apart"] for r in results))
