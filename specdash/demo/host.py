"""`python -m specdash.demo.host FOLDER`: the simulated GPU host, one process with an SSH server on loopback.

It speaks first: one line of JSON on stdout when it can be reached. It ends when its stdin ends (the dashboard
is gone, however it went) or on TERM, and takes every process that ever began under it with it: it is their
subreaper, and engines hold a socket to it besides, for the case that it is itself killed. With `--keep` the
end of stdin means nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import json
import os
import pwd
import shutil
import signal
import socket
from pathlib import Path

import asyncssh

from specdash.demo import house

PR_SET_CHILD_SUBREAPER = 36
REAP_EVERY_S = 0.5
_libc = ctypes.CDLL(None)


class Door(asyncssh.SSHServer):
    """Public key only (asyncssh checks `authorized_client_keys`); tunnels to this machine only."""

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        return dest_host in ("127.0.0.1", "localhost", "::1")


class DemoHost:
    def __init__(self, folder: Path, speed: float) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.speed = speed
        self.ours: set[int] = set()
        self.leashed: set[socket.socket] = set()

    async def open(self) -> int:
        """Builds the home and listens. The SSH port."""
        house.build(self.home, self.speed)
        host_key = asyncssh.generate_private_key("ssh-ed25519", "specdash demo host")
        client_key = asyncssh.generate_private_key("ssh-ed25519", "specdash demo client")
        _secret(self.folder / "client_key", client_key.export_private_key())
        _secret(self.folder / "authorized_keys", client_key.export_public_key())
        server = await asyncssh.listen(
            "127.0.0.1",
            0,
            server_host_keys=[host_key],
            authorized_client_keys=str(self.folder / "authorized_keys"),
            server_factory=Door,
            process_factory=self.command,
            encoding=None,
            keepalive_interval=30,
        )
        port = int(server.get_port())
        public = host_key.export_public_key().decode().split()
        _secret(self.folder / "known_hosts", f"[127.0.0.1]:{port} {public[0]} {public[1]}\n".encode())
        self._hold_leash()
        return port

    async def command(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        """One exec request, as sshd would run it: a real process of a real shell."""
        argv = ["/bin/sh", "-c", process.command] if process.command else ["/bin/sh", "-l"]
        child = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self.home,
            env=self.environment(),
            start_new_session=True,
        )
        self.ours.add(child.pid)
        try:
            await process.redirect(child.stdin, child.stdout, child.stderr, send_eof=False)
            code = await child.wait()
            # Whoever else holds the pipes (`command &`) keeps the channel open, as with sshd.
            await process.stdout.drain()
            await process.stderr.drain()
        finally:
            self.ours.discard(child.pid)
        if code < 0:
            process.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"))
        else:
            process.exit(code)

    def environment(self) -> dict[str, str]:
        user = pwd.getpwuid(os.getuid()).pw_name
        path = f"{self.home / house.ENV / 'bin'}:{self.home / 'bin'}:/usr/local/bin:/usr/bin:/bin"
        return {
            "HOME": str(self.home),
            "PATH": path,
            "USER": user,
            "LOGNAME": user,
            "SHELL": "/bin/sh",
            "LANG": "C.UTF-8",
        }

    def _hold_leash(self) -> None:
        """Engines connect here and are told nothing: the end of the connection is the message."""
        door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        door.bind(str(self.home / ".sim" / "leash"))
        door.listen(64)
        door.setblocking(False)

        def take() -> None:
            with contextlib.suppress(OSError):
                self.leashed.add(door.accept()[0])

        asyncio.get_running_loop().add_reader(door, take)

    async def reap(self) -> None:
        """Orphans come to us: collect those that ended, but not asyncio's own children."""
        while True:
            for pid in children(os.getpid()):
                if pid not in self.ours and _state(pid) == "Z":
                    _collect(pid)
            await asyncio.sleep(REAP_EVERY_S)


def children(pid: int) -> list[int]:
    """Direct children of all threads of a process."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def _collect(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rsplit(")", 1)[1].split()[0]
    except (OSError, IndexError):
        return ""


def end_all() -> None:
    """KILL every process under this one, until there is none. Only what is below us is ever signalled."""
    while True:
        below: list[int] = []
        layer = children(os.getpid())
        while layer:
            below += layer
            layer = [pid for parent in layer for pid in children(parent)]
        for pid in below:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)  # what lost its parent has become ours by now
        except ChildProcessError:
            return


def _secret(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "wb") as f:
        f.write(data)


async def serve(folder: Path, speed: float, keep: bool) -> None:
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    demo = DemoHost(folder, speed)
    port = await demo.open()
    reaper = asyncio.create_task(demo.reap())
    if not keep:
        os.set_blocking(0, False)

        def gone() -> None:
            with contextlib.suppress(BlockingIOError):
                if not os.read(0, 1024):
                    loop.remove_reader(0)
                    over.set()

        loop.add_reader(0, gone)
    os.write(1, json.dumps({"port": port, "pid": os.getpid()}).encode() + b"\n")
    await over.wait()
    reaper.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(prog="specdash.demo.host")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        asyncio.run(serve(args.folder, args.speed, args.keep))
    finally:
        end_all()
        shutil.rmtree(args.folder, ignore_errors=True)


if __name__ == "__main__":
    main()
