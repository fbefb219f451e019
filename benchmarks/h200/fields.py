"""Every field of the GPU sampler beside `nvidia-smi`, in the same second, under loads that move each of them.

    PYTHONPATH=DIR_OF_PYNVML python3 benchmarks/h200/fields.py REPOSITORY OUT.json     (a Python that also has torch)

Loads on every GPU at once: none, large matrix products (power, clocks, the power cap), copies host to device and
device to host (PCIe). Each row: what our two readers said just before and just after one `nvidia-smi --query-gpu`,
and what it said. A field agrees when nvidia-smi's value lies between ours, widened by the tolerance written beside it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from typing import Any

PAIRS, SETTLE_S = 6, 3.0
LOAD = """
import sys, time, torch
kind, index, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
gpu = torch.device("cuda", index)
if kind == "matmul":
    a, b = (torch.randn(16384, 16384, device=gpu, dtype=torch.bfloat16) for _ in "ab")
    step = lambda: torch.mm(a, b)
else:
    here = torch.empty(256 << 20, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(256 << 20, dtype=torch.uint8, device=gpu)
    step = (lambda: there.copy_(here, non_blocking=True)) if kind == "to_gpu" else (
        lambda: here.copy_(there, non_blocking=True))
moved, until, began = 0, time.time() + seconds, time.time()
print("ready", flush=True)
while time.time() < until:
    for _ in range(8):
        step()
    torch.cuda.synchronize(gpu)
    moved += 8
print(moved * 256 / (time.time() - began), flush=True)
"""
# field of ours → (tolerance absolute, tolerance relative): what two readers a tenth of a second apart may differ by
TOLERANCE = {
    "memory_used_mib": (1.0, 0.0),
    "memory_total_mib": (1.0, 0.0),
    "utilisation_pct": (10.0, 0.0),
    "power_w": (5.0, 0.05),
    "power_limit_w": (0.01, 0.0),
    "temperature_c": (1.0, 0.0),
    "sm_clock_mhz": (30.0, 0.02),
    "memory_clock_mhz": (0.0, 0.0),
    "ecc_uncorrected": (0.0, 0.0),
}
EXACT = ("uuid", "name", "throttle", "mig", "bus_id")


def smi_rows() -> list[dict[str, Any]]:
    from specdash.host.remote import gpu_smi, smi_text

    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=" + ",".join(gpu_smi.QUERY), "--format=csv"],
        capture_output=True,
        text=True,
    )
    return smi_text.gpus(done.stdout, gpu_smi.QUERY)


def raw_reasons() -> list[str]:
    """The tool's own words: every reason by its own field, so that our reading of the bits is not judged by itself."""
    fields = (
        "sw_power_cap,hw_slowdown,hw_thermal_slowdown,hw_power_brake_slowdown,sw_thermal_slowdown,sync_boost"
    )
    query = ",".join("clocks_event_reasons." + f for f in fields.split(","))
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=" + query, "--format=csv,noheader"], capture_output=True, text=True
    )
    names = [
        "power cap",
        "hardware slowdown",
        "hot (hardware limit)",
        "power brake",
        "hot (software limit)",
        "sync boost",
    ]
    return [
        " + ".join(n for n, cell in zip(names, line.split(", "), strict=False) if cell.strip() == "Active")
        for line in done.stdout.splitlines()
    ]


def dmon_pcie(seconds: int) -> dict[int, list[tuple[float, float]]]:
    """GPU → (rx, tx) MB/s as `nvidia-smi dmon -s t` prints once a second."""
    done = subprocess.run(
        ["nvidia-smi", "dmon", "-s", "t", "-c", str(seconds)], capture_output=True, text=True
    )
    found: dict[int, list[tuple[float, float]]] = {}
    for line in done.stdout.splitlines():
        cells = line.split()
        if (
            cells
            and re.fullmatch(r"\d+", cells[0])
            and len(cells) >= 3
            and cells[1].isdigit()
            and cells[2].isdigit()
        ):
            found.setdefault(int(cells[0]), []).append((float(cells[1]), float(cells[2])))
    return found


def between(ours: list[Any], theirs: Any, slack: tuple[float, float]) -> bool:
    if theirs is None or any(o is None for o in ours):
        return theirs is None and all(o is None for o in ours)
    room = slack[0] + slack[1] * abs(theirs)
    return bool(min(ours) - room <= theirs <= max(ours) + room)


def compare(reader: Any, bad: list[str], tally: dict[str, list[int]], phase: str) -> dict[str, Any]:
    worst: dict[str, Any] = {}
    for _ in range(PAIRS):
        before = reader.sample()
        theirs, reasons = smi_rows(), raw_reasons()
        after = reader.sample()
        for a, t, b, reason in zip(before, theirs, after, reasons, strict=False):
            for field, slack in TOLERANCE.items():
                good = between([a[field], b[field]], t[field], slack)
                told = tally.setdefault(field, [0, 0])
                told[0 if good else 1] += 1
                worst[f"gpu{a['index']}.{field}"] = [a[field], t[field], b[field]]
                if not good:
                    bad.append(
                        f"{phase} gpu{a['index']} {field}: ours {a[field]} .. {b[field]}, nvidia-smi {t[field]}"
                    )
            for field in EXACT:
                mine = {json.dumps(a[field]), json.dumps(b[field])}
                good = json.dumps(t[field]) in mine
                tally.setdefault(field, [0, 0])[0 if good else 1] += 1
                if not good:
                    bad.append(
                        f"{phase} gpu{a['index']} {field}: ours {a[field]}, {b[field]}, nvidia-smi {t[field]}"
                    )
            words = {" + ".join(x["throttle"] or []) for x in (a, b)}
            same = {"".join(sorted(w)) for w in words} & {"".join(sorted(reason))}
            tally.setdefault("throttle in the tool's own words", [0, 0])[0 if same else 1] += 1
            worst[f"gpu{a['index']}.throttle"] = [a["throttle"], reason, b["throttle"]]
            if not same:
                bad.append(f"{phase} gpu{a['index']} throttle words: ours {words}, nvidia-smi {reason!r}")
        time.sleep(0.5)
    return worst


def pcie(reader: Any) -> dict[str, Any]:
    """Ours read about every 0.3 s while dmon runs for five seconds: ranges of both, MiB/s and MB/s as told."""
    ours: dict[int, list[tuple[Any, Any]]] = {}
    got: dict[int, list[tuple[float, float]]] = {}
    watch = threading.Thread(target=lambda: got.update(dmon_pcie(5)))
    watch.start()
    while watch.is_alive():
        for index, pair in reader.pcie().items():
            ours.setdefault(index, []).append(pair)
        time.sleep(0.2)
    out: dict[str, Any] = {}
    for index, pairs in ours.items():
        for name, at in (("rx", 0), ("tx", 1)):
            mine = sorted(p[at] for p in pairs if p[at] is not None)
            theirs = sorted(p[at] for p in got.get(index, []))
            out[f"gpu{index}.{name}"] = {
                "ours_mib_s": [mine[0], mine[len(mine) // 2], mine[-1]] if mine else None,
                "dmon": [theirs[0], theirs[len(theirs) // 2], theirs[-1]] if theirs else None,
            }
    return out


def main(out: str) -> None:
    from specdash.host.remote import gpu_nvml, gpu_smi

    reader = gpu_nvml.Nvml()
    count = len(reader.sample())
    looped = gpu_smi.Smi(gpu_smi.find() or "nvidia-smi")
    told: dict[str, Any] = {"gpus": count, "driver": reader.driver, "phases": {}}
    bad: list[str] = []
    tally: dict[str, list[int]] = {}
    for phase in ("idle", "matmul", "to_gpu", "from_gpu"):
        seconds = SETTLE_S + 18
        loads = []
        if phase != "idle":
            loads = [
                subprocess.Popen(
                    [sys.executable, "-c", LOAD, phase, str(i), str(seconds)],
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for i in range(count)
            ]
            for load in loads:
                assert load.stdout is not None and load.stdout.readline().strip() == "ready", (
                    "the load did not start"
                )
        time.sleep(SETTLE_S)
        row: dict[str, Any] = {"fields": compare(reader, bad, tally, phase), "pcie": pcie(reader)}
        looped_now = looped.sample()
        row["loop_reader"] = [
            {k: g[k] for k in ("memory_used_mib", "power_w", "throttle", "sm_clock_mhz")} for g in looped_now
        ]
        for load in loads:
            load.wait()
        row["load_mib_s"] = [load.communicate()[0] for load in loads]
        told["phases"][phase] = row
    told["agree_differ"], told["differences"] = tally, bad
    looped.close()
    with open(out, "w") as f:
        json.dump(told, f, indent=1, default=str)
    print(json.dumps({"agree_differ": tally, "differences": bad[:40]}, indent=1))


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    main(sys.argv[2])
