"""A real SGLang (CPU, tiny models) as profiles of a host reached over a real sshd, and specdash as a command.

The engine's folder is made by `.ci/engine DIR` and named by SPECDASH_ENGINE.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.sshd import Sshd, free_port

KIT = Path(__file__).parent.parent / "engine_kit"
WORDS = "the quick brown fox jumps over the lazy dog and then runs away from the slow cat "


def folder() -> Path | None:
    """Where the engine is, or None when this machine has none."""
    found = Path(os.environ.get("SPECDASH_ENGINE", ""))
    return found if os.environ.get("SPECDASH_ENGINE") and (found / "venv/bin/python").exists() else None


def python(engine: Path) -> str:
    return str(engine / "venv/bin/python")


def environment() -> dict[str, str]:
    """What the kit's serve.sh sets, for a profile's [env]."""
    return {
        "SGLANG_USE_CPU_ENGINE": "1",
        "PYTHONPATH": str(KIT / "shims"),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "",
    }


def base_profile(engine: Path, port: int, host: str = "gpu") -> str:
    env = "\n".join(f'{key} = "{value}"' for key, value in environment().items())
    return f'''
host = "{host}"
python = "{python(engine)}"
cwd = "{engine}"
[server]
model-path = "models/base"
device = "cpu"
attention-backend = "intel_amx"
host = "127.0.0.1"
port = {port}
max-total-tokens = 16384
mem-fraction-static = 0.1
grammar-backend = "none"
cuda-graph-backend-decode = "disabled"
cuda-graph-backend-prefill = "disabled"
enable-metrics = true
decode-log-interval = 10
log-requests = true
log-requests-level = 0
[env]
{env}
'''


DRAFTERS = {
    "engine-ngram": 'algorithm = "NGRAM"\nnum-draft-tokens = 8',
    "engine-standalone": 'algorithm = "STANDALONE"\ndraft-model-path = "models/draft"\n'
    "num-steps = 3\neagle-topk = 1\nnum-draft-tokens = 4",
    "engine-eagle3": 'algorithm = "EAGLE3"\ndraft-model-path = "models/eagle3"\n'
    "num-steps = 3\neagle-topk = 1\nnum-draft-tokens = 4",
    "engine-unknown": 'algorithm = "MEDUSA"',
    "engine-misfit": 'algorithm = "EAGLE3"\ndraft-model-path = "models/draft"\n'
    "num-steps = 3\neagle-topk = 1\nnum-draft-tokens = 4",
}


@dataclass
class Desk:
    """An operator's desk: a config with one host, profiles, and `specdash` as a command."""

    home: Path
    sshd: Sshd
    engine: Path
    port: int = field(default_factory=free_port)

    def __post_init__(self) -> None:
        profiles = self.home / "profiles"
        profiles.mkdir(parents=True)
        (self.home / "config.toml").write_text(
            f'''
[hosts.gpu]
ssh = "127.0.0.1"
port = {self.sshd.port}
user = "root"
identity = "{self.sshd.identity}"
known-hosts = "{self.sshd.known_hosts}"
python = "{sys.executable}"
run-root = "{self.home}/host"
'''
        )
        (profiles / "engine-base.toml").write_text(base_profile(self.engine, self.port))
        for name, table in DRAFTERS.items():
            (profiles / f"{name}.toml").write_text(f'extends = "engine-base"\n[speculation]\n{table}\n')

    def env(self) -> dict[str, str]:
        # HOME is a new folder: nothing of the machine's own ssh or specdash settings may leak in.
        return {
            **os.environ,
            "SPECDASH_CONFIG": str(self.home / "config.toml"),
            "HOME": str(self.home),
            "XDG_CACHE_HOME": str(self.home / "cache"),
            "XDG_STATE_HOME": str(self.home / "state"),
            "XDG_DATA_HOME": str(self.home / "data"),
        }

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "specdash", *words]

    def run(self, *words: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            env=self.env(),
            cwd=self.home,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout,
        )

    def json(self, *words: str, code: int = 0, timeout: float = 240) -> dict[str, Any]:
        """A verb's `--json`; its exit code must be `code`."""
        done = self.run(*words, "--json", timeout=timeout)
        assert done.returncode == code, f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def logs(self) -> list[Path]:
        """server.log of every run so far; each names the requests that its server began (`log-requests`)."""
        return list((self.home / "host").glob("hosts/*/runs/*/server.log"))

    def generate(self, prompt: str = WORDS, tokens: int = 64) -> dict[str, Any]:
        """One request straight to the engine: what any user of the server does."""
        return post(
            self.port, {"text": prompt, "sampling_params": {"max_new_tokens": tokens, "temperature": 0}}
        )


def post(port: int, body: Mapping[str, Any], path: str = "/generate", timeout: float = 60) -> dict[str, Any]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        found: dict[str, Any] = json.loads(answer.read())
    return found


def marked(run_id: str) -> Sequence[int]:
    """Living processes that carry the run's mark in their environment (its value is `RUN:FOLDER`)."""
    wanted = f"SPECDASH_RUN={run_id}:".encode()
    found = []
    for pid in _pids():
        raw = _read(pid, "environ")
        if raw.startswith(wanted) or b"\0" + wanted in raw:
            found.append(pid)
    return found


def family(run_id: str, root: int) -> dict[int, str]:
    """Living processes of a run, pid → command line: by its mark, its session, or its group.

    An engine that sets its title overwrites its environment in /proc: the mark alone would miss it.
    """
    wanted = set(marked(run_id))
    for pid in _pids():
        fields = _read(pid, "stat").rpartition(b")")[2].split()
        if len(fields) > 3 and root in (int(fields[2]), int(fields[3])):
            wanted.add(pid)
    found = {}
    for pid in sorted(wanted):
        fields = _read(pid, "stat").rpartition(b")")[2].split()
        if fields and fields[0] not in (b"Z", b"X"):
            found[pid] = _read(pid, "cmdline").replace(b"\0", b" ").decode("utf-8", "replace")
    return found


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def live(runs_json: str) -> list[str]:
    """Ids of runs that have not ended, from `specdash runs --json`."""
    return [str(run["id"]) for run in json.loads(runs_json)["runs"] if not run.get("ended")]
