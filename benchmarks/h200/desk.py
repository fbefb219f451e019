"""What the story needs: hosts, profiles, `specdash` as a command, and a record of each step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
EAGLE = "num-steps = 3\neagle-topk = 1\nnum-draft-tokens = 4"
CARRIED = ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CPATH", "LIBRARY_PATH")
"""Of this environment into the profiles: a login by SSH does not have what a container image sets."""


def gpu_base(root: Path, python: str, port: int) -> str:
    env = {
        **{k: os.environ[k] for k in CARRIED if os.environ.get(k)},
        **{
            k: v
            for k, v in os.environ.items()
            if k.startswith(("NCCL_", "NVIDIA_", "NVSHMEM_", "TORCH_SYMM"))
        },
        "PYTHONPATH": str(root / "site"),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in env.items())
    return f"""
host = "gpu"
python = "{python}"
cwd = "{root}"
[server]
model-path = "{root}/models/target"
host = "127.0.0.1"
port = {port}
attention-backend = "triton"
sampling-backend = "pytorch"
grammar-backend = "none"
mem-fraction-static = 0.5
cuda-graph-max-bs = 32
decode-log-interval = 40
enable-metrics = true
log-level = "info"
[env]
{lines}
"""


def gpu_profiles(root: Path) -> dict[str, str]:
    models = root / "models"
    return {
        "ngram": '[speculation]\nalgorithm = "NGRAM"\nnum-draft-tokens = 8',
        "standalone": f'[speculation]\nalgorithm = "STANDALONE"\ndraft-model-path = "{models}/draft-small"\n{EAGLE}',
        "eagle3": f'[speculation]\nalgorithm = "EAGLE3"\ndraft-model-path = "{models}/eagle3"\n{EAGLE}',
        "misfit": f'[speculation]\nalgorithm = "EAGLE3"\ndraft-model-path = "{models}/eagle3-misfit"\n{EAGLE}',
        "oom": "[server]\nmem-fraction-static = 0.999\nmax-total-tokens = 999999999",
        "pool": "[server]\nmem-fraction-static = 0.005",
    }


class Desk:
    """`run` is one command of an operator; everything that it said is kept in OUT/steps."""

    def __init__(self, out: Path, home: Path, deadline_s: float) -> None:
        self.out, self.home = out, home
        self.ends = time.time() + deadline_s
        self.number = 0
        self.began = time.time()
        (out / "steps").mkdir(parents=True, exist_ok=True)
        (home / "profiles").mkdir(parents=True, exist_ok=True)

    def left(self) -> float:
        return self.ends - time.time()

    def say(self, text: str) -> None:
        line = f"[{time.time() - self.began:6.1f}] {text}"
        print(line, flush=True)
        with (self.out / "summary.txt").open("a") as f:
            f.write(line + "\n")

    def keep(self, name: str, text: str) -> None:
        self.number += 1
        (self.out / "steps" / f"{self.number:02d}-{name}").write_text(text)

    def env(self) -> dict[str, str]:
        mine = {
            "SPECDASH_CONFIG": str(self.home / "config.toml"),
            "HOME": str(self.home),
            "PYTHONUNBUFFERED": "1",
        }
        mine |= {f"XDG_{k.upper()}_HOME": str(self.home / k) for k in ("cache", "state", "data")}
        return {**os.environ, **mine}

    def run(self, name: str, *words: str, timeout: float = 300) -> tuple[int, str, float]:
        """(exit code, stdout, seconds). Exit code -1: not ended within `timeout`."""
        began = time.time()
        command = [sys.executable, "-m", "specdash", *words]
        try:
            done = subprocess.run(
                command, env=self.env(), cwd=self.home, capture_output=True, text=True,
                stdin=subprocess.DEVNULL, timeout=max(10.0, min(timeout, self.left())),
            )  # fmt: skip
            code, stdout, stderr = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired as e:
            code = -1
            stdout, stderr = (_text(part) for part in (e.stdout, e.stderr))
        took = time.time() - began
        shown = " ".join(words)
        self.keep(
            f"{name}.txt",
            f"$ specdash {shown}\nexit {code} after {took:.1f} s (unix {began:.2f} to {began + took:.2f})\n"
            f"--- stdout\n{stdout}\n--- stderr\n{stderr}\n",
        )
        tail = [line for line in (stdout + "\n" + stderr).splitlines() if line.strip()]
        self.say(
            f"{name}: exit {code} in {took:.1f} s | {'' if '--json' in words or not tail else tail[-1][:200]}"
        )
        return code, stdout, took

    def json(self, name: str, *words: str, timeout: float = 300) -> Any:
        _code, stdout, _took = self.run(name, *words, "--json", timeout=timeout)
        try:
            return json.loads(stdout)
        except ValueError:
            return {}

    def step(self, name: str, what: Callable[[], None], needs_s: float = 5) -> None:
        """A step that fails is told and does not end the story; one for which no time is left is left out."""
        if self.left() < needs_s:
            self.say(f"SKIPPED {name}: {self.left():.0f} s left, needs {needs_s:.0f}")
            return
        try:
            what()
        except Exception as e:
            import traceback

            self.keep(f"{name}-failed.txt", traceback.format_exc())
            self.say(f"FAILED {name}: {e!r}")


def _text(part: str | bytes | None) -> str:
    return part.decode("utf-8", "replace") if isinstance(part, bytes) else part or ""


class Load:
    """`load.py` beside whatever is looked at."""

    def __init__(self, port: int, streams: int, seconds: float, tokens: int) -> None:
        words = [sys.executable, str(HERE / "load.py"), *map(str, (port, streams, seconds, tokens))]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)

    def end(self) -> dict[str, Any]:
        stdout, _ = self.process.communicate(timeout=180)
        found: dict[str, Any] = json.loads(stdout)
        return found


class Smi:
    """nvidia-smi's own word, twice a second, with the time we read it: to compare with."""

    FIELDS = (
        "index,memory.used,memory.total,utilization.gpu,power.draw,enforced.power.limit,temperature.gpu,"
        "clocks.sm,clocks.mem"
    )

    def __init__(self, out: Path) -> None:
        self.rows: list[tuple[float, list[float]]] = []
        self.file = (out / "nvidia-smi.csv").open("w")
        self.file.write("unix," + self.FIELDS + "\n")
        words = ["nvidia-smi", f"--query-gpu={self.FIELDS}", "--format=csv,noheader,nounits", "-lms", "500"]
        self.process: subprocess.Popen[str] | None = None
        try:
            self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        except OSError:
            return
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process is not None and self.process.stdout is not None
        for line in self.process.stdout:
            now = time.time()
            self.file.write(f"{now:.3f},{line}")
            try:
                self.rows.append((now, [float(part) for part in line.split(",")]))
            except ValueError:
                continue

    def around(self, when: float, s: float = 1.0) -> dict[str, list[float]]:
        """[lowest, highest] of each field within ±s."""
        rows = [values for at, values in list(self.rows) if abs(at - when) <= s]
        names = self.FIELDS.split(",")
        return (
            {n: [min(r[i] for r in rows), max(r[i] for r in rows)] for i, n in enumerate(names)}
            if rows
            else {}
        )

    def level(self) -> float | None:
        return self.rows[-1][1][1] if self.rows else None

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.file.close()


def shell(words: Sequence[str], timeout: float = 30) -> str:
    try:
        done = subprocess.run(list(words), capture_output=True, text=True, timeout=timeout)
        return f"$ {' '.join(words)}\n{done.stdout}{done.stderr}"
    except (OSError, subprocess.TimeoutExpired) as e:
        return f"$ {' '.join(words)}\n{e!r}\n"
