"""Figures of a fleet: `python benchmarks/fleet.py [screen] [check] [status] [--hosts 64] [--dead 0 10] [--seconds 20]`.

The hosts are simulated GPU hosts (8 GPUs each), reached over real SSH connections with an agent each, sampled at 1 Hz.
They are served by SERVERS demo processes of this machine, so that what is measured is the specdash process alone; a
machine with few cores is kept busy by the hosts themselves, and wall times are then its, not specdash's.
Dead hosts: a third refuses, a third takes the connection and says nothing, a third drops it at once.

- screen: the dashboard on a pseudo-terminal of 160x50: first paint, share of a core and memory at 1 Hz, key to paint.
- check, status: `--check --all` and `status --all --json` over all of them: seconds and exit codes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
SERVERS = 8


@contextlib.contextmanager
def dead_ports(count: int) -> Iterator[list[int]]:
    """Ports of hosts that are dead in three ways."""
    held: list[socket.socket] = []
    ports: list[int] = []

    def drop(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock.accept()[0].close()

    for number in range(count):
        sock = socket.create_server(("127.0.0.1", 0), backlog=128)
        ports.append(int(sock.getsockname()[1]))
        if number % 3 == 0:
            sock.close()
            continue
        held.append(sock)
        if number % 3 == 2:
            threading.Thread(target=drop, args=(sock,), daemon=True).start()
    try:
        yield ports
    finally:
        for sock in held:
            sock.close()


@contextlib.contextmanager
def fleet(hosts: int, dead: int) -> Iterator[Path]:
    """A config of so many hosts, `dead` of them dead, spread among the living."""
    from specdash.demo.session import DemoSession, start

    sessions: list[DemoSession] = []
    with tempfile.TemporaryDirectory(prefix="specdash-fleet-") as folder, dead_ports(dead) as ports:
        home = Path(folder)
        try:
            for _ in range(min(SERVERS, hosts - dead)):
                sessions.append(start(20.0, join=False))
            rows, gone = [], list(ports)
            for number in range(hosts):
                host = sessions[number % len(sessions)].host
                is_dead = bool(gone) and number % max(1, hosts // max(1, dead)) == 1
                port = gone.pop() if is_dead else host.port
                rows += [
                    f"[hosts.h{number:02d}]",
                    'ssh = "127.0.0.1"',
                    f"port = {port}",
                    f'identity = "{host.identity}"',
                    f'known-hosts = "{host.known_hosts}"',
                    f'ssh-config = "{host.ssh_config}"',
                    f'run-root = "{home}/roots/{number}"',
                    'label = "simulated"',
                ]
            assert not gone, "all dead hosts are among them"
            config = home / "config.toml"
            config.write_text("\n".join(rows) + "\n")
            yield config
        finally:
            for session in sessions:
                session.close()


def environment(config: Path) -> dict[str, str]:
    home = str(config.parent)
    return {"HOME": home, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": f"{home}/state"}


def screen(config: Path, hosts: int, dead: int, seconds: float) -> None:
    from benchmarks.screen import Screen

    argv = [sys.executable, "-m", "specdash", "--config", str(config)]
    one = Screen(argv=argv, **environment(config))
    try:
        seen, first = one.read(60, b"h00")
        assert b"h00" in seen, seen[-2000:]
        one.read(30.0)
        before = one.cpu_s()
        sent, took = one.read(seconds)
        core = 100 * (one.cpu_s() - before) / took
        waits = []
        for turn in range(60):
            key, words = ((b"?", b"Keys"), (b"H", b"Fleet"))[turn % 2]
            one.read(0.2)
            os.write(one.master, key)
            got, waited = one.read(3, words)
            if words in got:
                waits.append(1000 * waited)
            os.write(one.master, b"\x1b")
            one.read(0.4)
        waits.sort()
        told = (
            f"p50 {waits[len(waits) // 2]:.0f} ms, p99 {waits[int(len(waits) * 0.99) - 1]:.0f} ms of {len(waits)}"
            if waits
            else "none"
        )
        print(
            f"screen, {hosts} hosts, {dead} dead: first paint {first:.2f} s; {core:.0f} % of a core,"
            f" {one.rss_mib():.0f} MiB, {len(sent) / took:.0f} bytes/s to the terminal; key to paint {told}",
            flush=True,
        )
        with contextlib.suppress(OSError):
            (config.parent / "seen").write_bytes(seen)
    finally:
        one.close()


def verb(words: list[str], config: Path, what: str) -> str:
    began, before = time.perf_counter(), os.times()
    done = subprocess.run(
        [sys.executable, "-m", "specdash", *words, "--config", str(config)],
        env={**os.environ, **environment(config)},
        capture_output=True,
        text=True,
        timeout=180,
    )
    took, after = time.perf_counter() - began, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    print(f"{what}: {took:.1f} s, {cpu:.1f} s of CPU, exit {done.returncode}", flush=True)
    assert done.returncode in (0, 1, 2, 5), done.stderr
    return done.stdout


def check(config: Path, hosts: int, dead: int, timeout_s: float) -> None:
    out = verb(
        ["check", "--all", "--json", "--timeout", f"{timeout_s:g}"],
        config,
        f"--check --all, {hosts} hosts, {dead} dead",
    )
    states: dict[str, int] = {}
    for one in json.loads(out)["targets"]:
        states[str(one["state"])] = states.get(str(one["state"]), 0) + 1
    print(f"  states: {states}", flush=True)


def status(config: Path, hosts: int, dead: int) -> None:
    out = verb(["status", "--all", "--json"], config, f"status --all --json, {hosts} hosts, {dead} dead")
    links: dict[str, int] = {}
    data = json.loads(out)["hosts"]
    for one in data.values() if isinstance(data, dict) else data:
        word = str(one["link"]["status"])
        links[word] = links.get(word, 0) + 1
    print(f"  links: {links}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", default=["screen", "check", "status"])
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--dead", type=int, nargs="+", default=[0, 10], help="each of these is measured")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--timeout", type=float, default=10.0)
    args = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    for dead in args.dead:
        with fleet(args.hosts, dead) as config:
            if "screen" in args.what:
                screen(config, args.hosts, dead, args.seconds)
            if "check" in args.what:
                check(config, args.hosts, dead, args.timeout)
            if "status" in args.what:
                status(config, args.hosts, dead)


if __name__ == "__main__":
    main()
