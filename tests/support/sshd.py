"""A real OpenSSH sshd for tests: its own keys and config in a temporary folder, on a free loopback port.

`python tests/support/sshd.py` starts one and prints the host settings, for trying things by hand.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncssh

from specdash.config.hosts import Host

PROGRAM = shutil.which("sshd") or "/usr/sbin/sshd"
DEADLINE_S = 15.0


def missing() -> str:
    """Why no sshd can be started here; empty when one can."""
    if not Path(PROGRAM).exists():
        return "OpenSSH's sshd is not installed (Debian: openssh-server)"
    return ""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _end_with_parent() -> None:
    """In the child: SIGKILL when we are gone, so that an interrupted test run leaves no server."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def processes_below(pid: int) -> list[int]:
    """All living descendants of a process."""
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for word in (task / "children").read_text().split():
                found += [int(word), *processes_below(int(word))]
    except OSError:
        pass
    return found


class Sshd:
    """`options`: sshd_config lines that win over ours."""

    def __init__(self, *options: str) -> None:
        # Readable for other accounts: sshd reads authorized_keys as the account that logs in.
        self.folder = Path(tempfile.mkdtemp(prefix="specdash-sshd-"))
        self.folder.chmod(0o755)
        self.port = free_port()
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.log = self.folder / "sshd.log"
        self.identity = self.folder / "id"
        self.known_hosts = self.folder / "known_hosts"
        self.new_host_key()
        key = asyncssh.generate_private_key("ssh-ed25519")
        self.identity.write_bytes(key.export_private_key())
        self.identity.chmod(0o600)
        (self.folder / "authorized_keys").write_bytes(key.export_public_key())

    def new_host_key(self, algorithm: str = "ssh-ed25519", *, known: bool = True, **kwargs: Any) -> None:
        """What a host that was set up anew, or somebody in between, shows. Restart to use it."""
        key = asyncssh.generate_private_key(algorithm, **kwargs)
        path = self.folder / "host_key"
        path.write_bytes(key.export_private_key())
        path.chmod(0o600)
        self.host_public = key.export_public_key().decode().strip()
        self.fingerprint = key.get_fingerprint("sha256")
        if known:
            self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {self.host_public}\n")

    def start(self) -> Sshd:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        config = self.folder / "sshd_config"
        config.write_text(
            "\n".join(
                [
                    *self._options,
                    f"Port {self.port}",
                    "ListenAddress 127.0.0.1",
                    f"HostKey {self.folder}/host_key",
                    f"AuthorizedKeysFile {self.folder}/authorized_keys",
                    "PasswordAuthentication no",
                    "KbdInteractiveAuthentication no",
                    "PermitRootLogin yes",
                    "PidFile none",
                    "UsePAM no",
                    "StrictModes no",
                    "LogLevel VERBOSE",
                    "AcceptEnv LANG LC_*",
                ]
            )
            + "\n"
        )
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [PROGRAM, "-D", "-e", "-f", str(config)],
                stderr=log,
                stdin=subprocess.DEVNULL,
                preexec_fn=_end_with_parent,
            )
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"sshd ended: {self.log.read_text()}")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return self
            time.sleep(0.02)
        raise RuntimeError(f"sshd does not listen: {self.log.read_text()}")

    def children(self) -> list[int]:
        """The processes of all sessions."""
        return processes_below(self._process.pid) if self._process else []

    def kill_sessions(self) -> int:
        """Cuts every connection the hard way: kills the sshd processes that hold them."""
        assert self._process is not None
        killed = 0
        for pid in self.children():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().strip().startswith("sshd"):
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
        return killed

    def stop(self) -> None:
        if self._process is not None:
            below = self.children()
            self._process.kill()
            self._process.wait()
            for pid in below:
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{pid}/comm").read_text().strip().startswith("sshd"):
                        os.kill(pid, signal.SIGKILL)
            self._process = None

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def host(self, **changes: Any) -> Host:
        """A Host that gets in. `user` is whoever runs the tests."""
        settings: dict[str, Any] = {
            "name": "box",
            "ssh": "127.0.0.1",
            "port": self.port,
            "user": pwd.getpwuid(os.getuid()).pw_name,
            "known_hosts": str(self.known_hosts),
            "identity": str(self.identity),
            "ssh_config": os.devnull,
        }
        settings.update(changes)
        return Host(**settings)


@contextlib.contextmanager
def running(*options: str) -> Iterator[Sshd]:
    server = Sshd(*options)
    try:
        yield server.start()
    finally:
        server.remove()


@contextlib.contextmanager
def account(shell: str, startup: dict[str, str] | None = None) -> Iterator[str]:
    """A fresh account with a login shell and startup files (name below its home → text); needs root."""
    name = "sd" + secrets.token_hex(4)
    home = Path("/tmp") / f"home-{name}"
    # "*" and not "!": sshd without PAM takes "!" for a locked account.
    subprocess.run(
        ["useradd", "-m", "-d", str(home), "-s", shell, "-p", "*", name], check=True, capture_output=True
    )
    try:
        uid = pwd.getpwnam(name).pw_uid
        for path, text in (startup or {}).items():
            file = home / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            for made in [file, *file.parents]:
                if made == home:
                    break
                os.chown(made, uid, uid)
        yield name
    finally:
        _end_of(uid)
        subprocess.run(["userdel", "-r", "-f", name], check=False, capture_output=True)
        shutil.rmtree(home, ignore_errors=True)


def _end_of(uid: int) -> None:
    """Ends what an account of ours left: it was made here, so all its processes are ours."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == uid:
                    os.kill(int(entry.name), signal.SIGKILL)


if __name__ == "__main__":
    with running() as server:
        print(server.host().model_dump_json(indent=1), flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
