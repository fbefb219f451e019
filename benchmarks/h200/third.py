"""The third visit: a server over two GPUs, switches that are kept, and a drafter replaced hot on every rank.

    ROOT/venv/bin/python benchmarks/h200/third.py OUT ROOT --python PYTHON        (after setup.sh; two GPUs)

Steps as `drive.py` (whose parts it uses): OUT/summary.txt, OUT/figures.json, OUT/steps, OUT/runs.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import drive
from desk import EAGLE, Desk, Load, Smi, gpu_base, shell


def profiles(root: Path) -> dict[str, str]:
    models = root / "models"
    eagle = f'[speculation]\nalgorithm = "EAGLE3"\n{EAGLE}\ndraft-model-path = "{models}/'
    return {
        "ngram": '[speculation]\nalgorithm = "NGRAM"\nnum-draft-tokens = 8',
        "copy": eagle + 'eagle3-copy"',
        "worse": eagle + 'eagle3-worse"',
        "misfit": eagle + 'eagle3-misfit"',
    }


def kept(s: drive.Story, old: str, new: str, slower: str = "keep") -> None:
    """A switch under four steady streams, which are counted."""
    load = Load(s.port, 4, 45, 128)
    time.sleep(2)
    s.desk.run("before-" + new, "status", "gpu")
    code, _out, took = s.desk.run(
        f"switch-{old}-{new}", "switch", old, new, "--yes", "--confirm", old, "--settle", "5", "--slower", slower, timeout=300
    )  # fmt: skip
    told = load.end()
    s.figures[f"switch {old} {new}"] = {"exit": code, "seconds": round(took, 1), "clients": told}
    s.desk.say(f"  clients over the switch: {told}")


def hot(s: drive.Story, serves: str, new: str) -> None:
    load = Load(s.port, 4, 30, 128)
    time.sleep(2)
    code, _out, took = s.desk.run(
        f"hot-{new}",
        "switch",
        serves,
        new,
        "--hot",
        "--yes",
        "--confirm",
        serves,
        "--at-least",
        "1.02",
        timeout=120,
    )
    told = load.end()
    s.figures[f"hot {new}"] = {"exit": code, "seconds": round(took, 1), "clients": told}
    s.desk.say(f"  clients over the hot switch: {told}")
    s.desk.run(f"status-hot-{new}", "status", "gpu")


def memory(s: drive.Story) -> None:
    """RssAnon, RssFile and Pss of the agent while a status watches."""
    watch = subprocess.Popen(
        [sys.executable, "-m", "specdash", "status", "gpu", "--watch", "1", "--json"],
        env=s.desk.env(), cwd=s.desk.home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        time.sleep(8)
        found: dict[str, Any] = {}
        for (pid, what), (_cpu, rss) in drive.ours(watch.pid):
            with contextlib.suppress(OSError):
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
                table = {line.split(":")[0]: int(line.split()[1]) // 1024 for line in lines}
                found[f"{what} {pid}"] = {
                    "rss_mb": round(rss),
                    **{k: table.get(k) for k in ("Pss", "Pss_Anon", "Pss_File")},
                }
        s.figures["memory"] = found
        s.desk.say(f"  memory MiB: {found}")
    finally:
        watch.terminate()
        watch.wait(20)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("root", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--deadline", type=float, default=560)
    args = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from tests.support import sshd as sshds

    home = args.root.absolute() / "desk"
    shutil.rmtree(home, ignore_errors=True)
    desk = Desk(args.out.absolute(), home, args.deadline)
    port, sshd = sshds.free_port(), sshds.Sshd().start()
    base = gpu_base(args.root.absolute(), args.python, port).replace("[env]", f"tp-size = {args.tp}\n[env]")
    (home / "profiles" / "base.toml").write_text(base)
    for name, table in profiles(args.root.absolute()).items():
        (home / "profiles" / f"{name}.toml").write_text(f'extends = "base"\n{table}\n')
    (home / "config.toml").write_text(drive.config(home, sshd, args.python, "/usr/bin/python3"))
    smi = Smi(desk.out)
    s, step = drive.Story(desk, smi, port, 256, 22), desk.step
    try:
        step("preflight", lambda: desk.run("preflight-copy", "preflight", "copy") and None)
        step("launch base", lambda: s.launch("base"), 60)
        step("base 4", lambda: s.under_load("base", 4), 40)
        step("base 8", lambda: s.under_load("base", 8), 40)
        step("base to copy", lambda: kept(s, "base", "copy"), 120)
        step("copy 4", lambda: s.under_load("copy", 4, True), 40)
        step("hot to worse", lambda: hot(s, "copy", "worse"), 40)
        step("worse 4", lambda: s.under_load("copy", 4), 30)
        step("hot back", lambda: hot(s, "copy", "copy"), 40)
        step("memory", lambda: memory(s), 20)
        step("copy to ngram", lambda: kept(s, "copy", "ngram"), 100)
        step("ngram 4", lambda: s.under_load("ngram", 4, True), 40)
        step("stop", lambda: s.stop(s.live()["profile"]), 20)
    finally:
        for run in s.runs():
            if not run.get("ended"):
                desk.run(
                    "clean", "stop", run["id"], "--host", "gpu", "--yes", "--confirm", run["id"], timeout=60
                )
        desk.run("runs", "runs", "gpu")
        drive.collect(desk, s)
        smi.end()
        sshd.remove()
        desk.keep("nvidia-smi.txt", shell(["nvidia-smi"]))
        desk.say("the end")


if __name__ == "__main__":
    main()
