"""What one GPU sample costs on this host, by both readers:  python -I sampler_cost.py REPOSITORY SECONDS

CPU of this process and of its children (user and system), as the agent would pay it at one sample a second.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time


def cpu_of(pid: int) -> float:
    fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read(path: str) -> str:
    with open(path) as f:
        return f.read()


def nvml(seconds: float) -> dict:
    from specdash.host.remote import gpu_nvml

    began = time.perf_counter()
    reader = gpu_nvml.Nvml()
    out = {"open_ms": (time.perf_counter() - began) * 1000}
    walls, cpu0, n = [], time.process_time(), 0
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        t = time.perf_counter()
        gpus = reader.sample()
        walls.append((time.perf_counter() - t) * 1000)
        n += 1
        time.sleep(0.05)
    out["cpu_ms_per_sample"] = (time.process_time() - cpu0) * 1000 / n
    walls.sort()
    out.update(
        samples=n, wall_ms_median=walls[n // 2], wall_ms_p99=walls[int(n * 0.99)], wall_ms_max=walls[-1]
    )
    t = time.perf_counter()
    out["pcie"] = reader.pcie()
    out["pcie_ms"] = (time.perf_counter() - t) * 1000
    out["last"] = gpus
    out["rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    reader.close()
    return out


def smi(seconds: float) -> dict:
    from specdash.host.remote import gpu_smi

    path = gpu_smi.find()
    if path is None:
        return {"missing": "nvidia-smi"}
    reader = gpu_smi.Smi(path)
    t = time.perf_counter()
    first = reader.sample()
    out = {"path": path, "first_ms": (time.perf_counter() - t) * 1000}
    me = os.getpid()
    kids = read(f"/proc/{me}/task/{me}/children").split()
    out["children"] = {pid: read(f"/proc/{pid}/cmdline").replace("\0", " ") for pid in kids}
    cpu0, own0, began = sum(cpu_of(int(p)) for p in kids), time.process_time(), time.perf_counter()
    dead0 = resource.getrusage(resource.RUSAGE_CHILDREN)
    n = 0
    while time.perf_counter() - began < seconds:
        last = reader.sample()
        n += 1
        time.sleep(1.0)
    took = time.perf_counter() - began
    alive = read(f"/proc/{me}/task/{me}/children").split()
    dead = resource.getrusage(resource.RUSAGE_CHILDREN)
    out["asked"] = n
    out["children_cpu_s_per_s"] = (
        sum(cpu_of(int(p)) for p in alive if p in kids)
        - cpu0
        + dead.ru_utime
        + dead.ru_stime
        - dead0.ru_utime
        - dead0.ru_stime
    ) / took
    out["own_cpu_s_per_s"] = (time.process_time() - own0) / took
    out["first"], out["last"] = first, last
    reader.close()
    return out


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    told = {}
    for name, measure in (("nvml", nvml), ("smi", smi)):
        try:
            told[name] = measure(float(sys.argv[2]))
        except Exception as e:
            told[name] = {"failed": repr(e)}
    print(json.dumps(told, indent=1, default=str))
