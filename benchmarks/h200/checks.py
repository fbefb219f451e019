"""A thousand checks of a real server on a GPU, over a real sshd, and what they leave behind.

    ROOT/venv/bin/python benchmarks/h200/checks.py OUT ROOT --python PYTHON [--checks 1000] [--lanes 4]   (after setup.sh)

LANES shells run checks in a row, all at once; each tenth asks for a generation. Told: exit codes, seconds, the most
generations at a time by the engine's own log, and processes, files and the server before and after.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import drive
from desk import Desk, Smi, gpu_base


def family() -> Counter[str]:
    """Processes by command, without what changes by itself."""
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout.splitlines()
    return Counter(
        line[:80] for line in listed if "sshd:" not in line and "ps -eo" not in line and "[" not in line[:1]
    )


def files(home: Path) -> list[str]:
    """All files of the host's side and of ours, logs that grow by themselves left out."""
    return sorted(
        str(p.relative_to(home)) for p in home.rglob("*") if p.is_file() and "/profiles/" not in str(p)
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("root", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--checks", type=int, default=1000)
    parser.add_argument("--lanes", type=int, default=4)
    args = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from tests.support import sshd as sshds

    home = args.root.absolute() / "desk"
    desk = Desk(args.out.absolute(), home, 600)
    port, sshd = sshds.free_port(), sshds.Sshd().start()
    base = gpu_base(args.root.absolute(), args.python, port).replace(
        "[env]", "disable-cuda-graph = true\n[env]"
    )
    (home / "profiles" / "base.toml").write_text(base)
    (home / "config.toml").write_text(drive.config(home, sshd, args.python, "/usr/bin/python3"))
    smi = Smi(desk.out)
    told: dict[str, Any] = {}
    try:
        story = drive.Story(desk, smi, port, 64, 5)
        story.launch("base")
        run = story.live("base")
        log = story.folder(run["id"]) / "server.log"
        for words in (("check", "base"), ("check", "base", "--generate")):
            desk.run("first", *words)  # what is made once
        posted = log.read_text("utf-8", "replace").count("POST /generate")
        before, there = family(), files(home)
        codes: Counter[int] = Counter()
        lines: Counter[str] = Counter()
        took: list[float] = []

        def lane(number: int) -> None:
            for at in range(args.checks // args.lanes):
                words = [sys.executable, "-m", "specdash", "--check", "base", "--timeout", "20"]
                if (at + number) % 10 == 0:
                    words.append("--generate")
                began = time.monotonic()
                done = subprocess.run(words, env=desk.env(), cwd=home, capture_output=True, text=True)
                took.append(time.monotonic() - began)
                codes[done.returncode] += 1
                lines[re.sub(r"[\d.]+", "N", done.stdout.split("|")[0])[:150]] += 1

        lanes = [threading.Thread(target=lane, args=(n,)) for n in range(args.lanes)]
        began = time.monotonic()
        for one in lanes:
            one.start()
        for one in lanes:
            one.join()
        told["seconds"] = round(time.monotonic() - began, 1)
        told["exit codes"] = dict(codes)
        told["lines"] = lines.most_common(6)
        took.sort()
        told["check s, median and worst"] = [round(took[len(took) // 2], 2), round(took[-1], 2)]
        told["generations asked for"] = log.read_text("utf-8", "replace").count("POST /generate") - posted
        time.sleep(5)
        after = family()
        told["processes more"], told["processes fewer"] = dict(after - before), dict(before - after)
        told["files more"] = sorted(set(files(home)) - set(there))
        told["files fewer"] = sorted(set(there) - set(files(home)))
        story.under_load("base", 2)
        story.stop("base")
    finally:
        for one in drive.Story(desk, smi, port, 64, 5).runs():
            if not one.get("ended"):
                desk.run(
                    "clean", "stop", one["id"], "--host", "gpu", "--yes", "--confirm", one["id"], timeout=60
                )
        smi.end()
        sshd.remove()
        desk.say(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
