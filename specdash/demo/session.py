"""Start a demo host and say how to reach it: a `Host` like any other, and profiles to launch on it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdash.config.hosts import Host
from specdash.config.paths import packaged_profiles
from specdash.errors import LinkError

NAME = "demo"
PORT = 31900
"""The engine's port in the shipped profiles; each demo has its own in its copy of them."""
START_S = 30.0
END_S = 10.0


@dataclass
class DemoSession:
    """A running demo. `close` ends it with all its processes, unless it was started to be kept."""

    host: Host
    profiles_dir: Path
    """`demo-*.toml`, to be resolved by path (`profile("demo-base")`) or through `config_file`."""
    config_file: Path
    """A config that has this one host; its folder's `profiles/` is `profiles_dir`."""
    folder: Path
    pid: int
    keep: bool = False
    found: bool = False
    """It was running already, kept by an earlier `specdash demo --keep`."""
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def profile(self, name: str) -> str:
        """Path of a profile, as `control.profiles.resolve` takes it."""
        return str(self.profiles_dir / f"{name}.toml")

    @property
    def engine_port(self) -> int:
        """The port of all its profiles."""
        found = re.search(r"(?m)^port = (\d+)$", Path(self.profile("demo-base")).read_text())
        return int(found.group(1)) if found else PORT

    def environment(self) -> dict[str, str]:
        """What a process needs to see this demo and nothing of the user's own: config, profiles, state and cache."""
        return {
            "SPECDASH_CONFIG": str(self.config_file),
            "SPECDASH_PROFILES": str(self.profiles_dir),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
        }

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """This process with that environment; afterwards as it was, so that an unexpected error is kept where it belongs."""
        before = {name: os.environ.get(name) for name in self.environment()}
        os.environ.update(self.environment())
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    def settings(self) -> Any:
        """`config.settings.Settings` with the demo host alone."""
        from specdash.config.settings import load

        return load(self.config_file)

    def close(self) -> None:
        """Safe to repeat. Returns when no process of the demo is left and its folder is gone."""
        if self.keep:
            if self.process is not None and self.process.stdin is not None:
                self.process.stdin.close()
            return
        if self.process is None:
            with contextlib.suppress(OSError):
                if _is_ours(self.pid, self.folder):
                    os.kill(self.pid, signal.SIGTERM)
            _until(lambda: not _is_ours(self.pid, self.folder), END_S)
        else:
            if self.process.stdin is not None:
                self.process.stdin.close()
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.process.kill()  # engines follow: they hold a socket to it
                self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> DemoSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start(speed: float = 1.0, keep: bool = False, *, join: bool = True) -> DemoSession:
    """Start a demo host, or join the one that an earlier `--keep` left. Blocks for about a second.

    Raises LinkError when it cannot be started. `speed` scales load times only, never tokens per second.
    `join=False`: always a new one, which leaves a kept one alone.
    """
    if not sys.platform.startswith("linux"):
        raise LinkError("The demo host needs Linux: it runs real processes.", "Try it on a Linux machine.")
    kept = _kept() if join else None
    if kept is not None:
        kept.keep = keep
        return kept
    folder = Path(tempfile.mkdtemp(prefix="specdash-demo-"))
    argv = [sys.executable, "-m", "specdash.demo.host", str(folder), "--speed", str(speed)]
    log = (folder / "host.log").open("wb")
    with log:
        process = subprocess.Popen(
            argv + ["--keep"] * keep,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            env=_environment(),
        )
    try:
        told = json.loads(_line(process))
        session = _session(folder, int(told["port"]), process.pid, keep, process)
    except (OSError, ValueError, KeyError) as e:
        process.kill()
        process.wait()
        said = (folder / "host.log").read_text("utf-8", "replace").strip().splitlines()[-1:]
        shutil.rmtree(folder, ignore_errors=True)
        raise LinkError(f"The demo host did not start: {(said or ['no answer'])[0]}", "") from e
    if keep:
        _keep_file().parent.mkdir(parents=True, exist_ok=True)
        port = session.host.port
        _keep_file().write_text(json.dumps({"folder": str(folder), "port": port, "pid": process.pid}))
    return session


def _session(folder: Path, port: int, pid: int, keep: bool, process: Any = None) -> DemoSession:
    """The files that make the host and its profiles configured like any other."""
    config = folder / "config"
    profiles = config / "profiles"
    host = Host(
        name=NAME,
        ssh="127.0.0.1",
        port=port,
        label="simulated",
        identity=str(folder / "client_key"),
        known_hosts=str(folder / "known_hosts"),
        ssh_config=str(config / "ssh_config"),
    )
    if not profiles.is_dir():
        profiles.mkdir(parents=True)
        (config / "ssh_config").write_text("")
        lines = [f"[hosts.{NAME}]", *(f"{k} = {json.dumps(v)}" for k, v in _told(host).items())]
        (config / "config.toml").write_text("\n".join(lines) + "\n")
        free = _free_port()
        for source in sorted((packaged_profiles() or Path("profiles")).glob("demo-*.toml")):
            text = re.sub(rf"(?m)^port = {PORT}$", f"port = {free}", source.read_text())
            (profiles / source.name).write_text(text)
    return DemoSession(host, profiles, config / "config.toml", folder, pid, keep, process is None, process)


def _told(host: Host) -> dict[str, Any]:
    values = host.model_dump(exclude_defaults=True)
    return {name.replace("_", "-"): value for name, value in values.items()}


def _kept() -> DemoSession | None:
    try:
        told = json.loads(_keep_file().read_text())
        folder, port, pid = Path(told["folder"]), int(told["port"]), int(told["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not _is_ours(pid, folder):
        _keep_file().unlink(missing_ok=True)
        return None
    return _session(folder, port, pid, True)


def _keep_file() -> Path:
    from specdash.config.paths import state_dir

    return state_dir() / "demo.json"


def _is_ours(pid: int, folder: Path) -> bool:
    """Whether that pid is the demo host of that folder: its command line says so."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"specdash.demo.host" in words and str(folder).encode() in words


def _environment() -> dict[str, str]:
    """The demo host imports the specdash that this is, wherever it runs from."""
    root = str(Path(__file__).resolve().parent.parent.parent)
    path = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def _free_port() -> int:
    """Below the range that outgoing connections take, so that it is still free at the launch."""
    for _ in range(200):
        port = random.randint(20000, 30000)
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port
    raise OSError("no free port on loopback")


def _line(process: subprocess.Popen[bytes]) -> bytes:
    """The first line of its stdout; ValueError when it ends or is too slow."""
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], START_S)[0]:
        raise ValueError("too slow")
    return process.stdout.readline()


def _until(done: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not done() and time.monotonic() < end:
        time.sleep(0.05)
