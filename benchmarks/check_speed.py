"""How long `specdash --check` takes over a real sshd on loopback, beside ssh with what one would type by hand.

    python benchmarks/check_speed.py [N] [PYTHON]     N runs each (7); PYTHON of the host (python3)

Prints best and median wall, and the CPU that this side used (on a busy machine that is what to compare). The limits
are the issue's: --version under 150 ms, --check under 1 s beside its sampling. Exit code 1 where one is not held.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.check.test_states_real import IDLE  # noqa: E402
from tests.support.http_fake import HttpFake  # noqa: E402
from tests.support.sshd import running  # noqa: E402


def timed(words: list[str], times: int, env: dict[str, str]) -> tuple[list[float], float]:
    """(wall seconds of each run, least CPU seconds of one). The first run, which warms caches, does not count."""
    walls, cpus = [], []
    for _ in range(times + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        done = subprocess.run(words, capture_output=True, text=True, env=env)
        walls.append(time.perf_counter() - began)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpus.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert done.returncode in (0, 127), (words, done.returncode, done.stdout, done.stderr)
    return walls[1:], min(cpus[1:])


def main(times: int, python: str) -> int:
    with running() as server, HttpFake(IDLE) as fake, tempfile.TemporaryDirectory() as folder:
        host = server.host()
        config = Path(folder, "config.toml")
        config.write_text(
            f'[hosts.box]\nssh = "127.0.0.1"\nport = {server.port}\nuser = "{host.user}"\nssh-config = "/dev/null"\n'
            f'known-hosts = "{host.known_hosts}"\nidentity = "{host.identity}"\npython = "{python}"\n'
            f'run-root = "{folder}/runs"\n'
        )
        env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        env |= {"SPECDASH_CONFIG": str(config), "XDG_STATE_HOME": folder, "PYTHONPATH": str(ROOT)}
        specdash = [sys.executable, "-m", "specdash"]
        ssh = [
            "ssh",
            "-F",
            "/dev/null",
            "-p",
            str(server.port),
            "-i",
            str(host.identity),
            "-o",
            "BatchMode=yes",
        ]
        ssh += ["-o", f"UserKnownHostsFile={host.known_hosts}", f"{host.user}@127.0.0.1"]
        by_hand = f"nvidia-smi --query-gpu=index,memory.used --format=csv; curl -s -m 3 http://127.0.0.1:{fake.port}"
        rows = [
            ("python -c pass", [sys.executable, "-c", "pass"], 0.0),
            ("specdash --version", [*specdash, "--version"], 0.150),
            ("specdash --check HOST", [*specdash, "--check", "box"], 1.0),
            ("specdash --check HOST:PORT", [*specdash, "--check", f"box:{fake.port}"], 1.0),
            ("specdash --check http://…", [*specdash, "--check", f"http://127.0.0.1:{fake.port}"], 1.0),
            ("ssh HOST true", [*ssh, "true"], 0.0),
            (
                "ssh HOST 'nvidia-smi …; curl …'",
                [*ssh, f"{by_hand}/ready {by_hand.split()[-1]}/v1/loads || true"],
                0.0,
            ),
        ]
        held = True
        print(f"{'':34}{'best':>9}{'median':>9}{'CPU here':>10}{'limit':>9}")
        for name, words, limit in rows:
            walls, cpu = timed(words, times, env)
            held = held and (not limit or min(walls) < limit)
            told = f"{limit * 1000:6.0f} ms" if limit else ""
            best, median = min(walls) * 1000, statistics.median(walls) * 1000
            print(f"{name:34}{best:6.0f} ms{median:6.0f} ms{cpu * 1000:7.0f} ms{told:>9}", flush=True)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 7, sys.argv[2] if len(sys.argv) > 2 else "python3")
    )
