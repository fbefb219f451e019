"""How long a preflight takes over a real sshd on loopback, of a real SGLang with a target and a drafter.

    python benchmarks/preflight.py /opt/specdash-engine [--runs 5]

*cold*: nothing is known and nothing is open: connect, send the agent, read SGLang, judge. *warm*: the link is open
and SGLang was read before, as on the screen. *verb cold*, *verb warm*: the whole `specdash preflight`, its own start
and connect included. Medians of wall-clock seconds. Exits 1 when cold is above 2 s or warm above 1 s.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from specdash.config.hosts import Host
from specdash.control import preflight
from specdash.host.open import open_link
from specdash.sglang.commandline import LaunchSpec
from tests.support.sshd import running

SHIMS = Path(__file__).parents[1] / "tests" / "engine_kit" / "shims"


def spec_of(engine: Path) -> LaunchSpec:
    flags = (
        ("--model-path", str(engine / "models/base")),
        ("--device", "cpu"),
        ("--port", 30000),
        ("--speculative-algorithm", "EAGLE3"),
        ("--speculative-draft-model-path", str(engine / "models/eagle3")),
        ("--speculative-num-steps", 3),
        ("--speculative-eagle-topk", 1),
        ("--speculative-num-draft-tokens", 4),
    )
    return LaunchSpec(
        "bench",
        "h",
        str(engine / "venv/bin/python"),
        ("-m", "sglang.launch_server"),
        flags,
        {"PYTHONPATH": str(SHIMS)},
        algorithm="EAGLE3",
        drafter=str(engine / "models/eagle3"),
    )


async def in_process(host: Host, spec: LaunchSpec, runs: int) -> dict[str, float]:
    connect: list[float] = []
    cold: list[float] = []
    warm: list[float] = []
    for _ in range(runs):
        began = time.perf_counter()
        link = await open_link(host)
        connect.append(time.perf_counter() - began)
        await preflight.preflight(link, spec, use_cache=False)
        cold.append(time.perf_counter() - began)
        await link.close()
    link = await open_link(host)
    checks = await preflight.preflight(link, spec)
    for _ in range(runs):
        began = time.perf_counter()
        assert await preflight.preflight(link, spec) is not None
        warm.append(time.perf_counter() - began)
    await link.close()
    assert preflight.worst(checks) != "block", checks
    return {
        name: statistics.median(took)
        for name, took in (("connect_s", connect), ("cold_s", cold), ("warm_s", warm))
    }


def as_verb(host: Host, spec: LaunchSpec, folder: Path, runs: int) -> dict[str, float]:
    """The command, as somebody types it: a new process each time."""
    config = folder / "config" / "specdash"
    (config / "profiles").mkdir(parents=True)
    fields = host.model_dump(mode="json", exclude_defaults=True, exclude={"name"})
    (config / "config.toml").write_text(
        "[hosts.h]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in fields.items())
    )
    server = {name.removeprefix("--").replace("-", "_"): value for name, value in spec.flags}
    table = "".join(f"{k} = {json.dumps(v)}\n" for k, v in server.items())
    (config / "profiles" / "bench.toml").write_text(
        f'host = "h"\npython = "{spec.python}"\n[env]\nPYTHONPATH = "{SHIMS}"\n[server]\n{table}'
    )
    env = {**os.environ, "XDG_CONFIG_HOME": str(folder / "config"), "XDG_STATE_HOME": str(folder / "state")}
    out: dict[str, float] = {}
    for name, extra in (("cold", ["--fresh"]), ("warm", [])):
        took = []
        for _ in range(runs):
            began = time.perf_counter()
            argv = [sys.executable, "-m", "specdash", "preflight", "bench", *extra]
            done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
            took.append(time.perf_counter() - began)
            assert done.returncode in (0, 1), done.stdout + done.stderr
        out[f"verb_{name}_s"] = statistics.median(took)
    return out


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("engine", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    spec = spec_of(args.engine.absolute())
    with tempfile.TemporaryDirectory() as folder, running() as server:
        os.environ["XDG_STATE_HOME"] = str(Path(folder) / "state")
        host = server.host(name="h")
        took = asyncio.run(in_process(host, spec, args.runs))
        took |= as_verb(host, spec, Path(folder), args.runs)
    print(json.dumps({name: round(value, 3) for name, value in took.items()}, indent=2))
    return 1 if took["cold_s"] > 2 or took["warm_s"] > 1 else 0


if __name__ == "__main__":
    sys.exit(main())
