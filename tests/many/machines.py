"""Machines for tests: network namespaces with own addresses, names, machine ids and /dev/shm, a real sshd in each.

SGLang takes two ranks that share /dev/shm for one machine, so each has its own. Needs root and `ip netns`; all
that is made is named by this process's pid and gone at the end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from tests.support.sshd import DEADLINE_S, PROGRAM, Sshd, _end_with_parent

NIC = "eth1"


def missing() -> str:
    """Why no such machine can be made here; empty when one can."""
    if os.getuid() != 0:
        return "network namespaces need root"
    if not shutil.which("ip") or not shutil.which("unshare"):
        return "iproute2 or util-linux is not installed"
    if not Path(PROGRAM).exists():
        return "OpenSSH's sshd is not installed"
    name = f"sdtry{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    if done.returncode:
        return f"no network namespace can be made: {done.stderr.decode().strip()}"
    subprocess.run(["ip", "netns", "del", name], check=False)
    return ""


def ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, capture_output=not check)


class Machine(Sshd):
    """One of them: `address` is reached from this process and from the others; `cut` takes its cable out."""

    def __init__(self, number: int, subnet: int) -> None:
        super().__init__()
        self.name = "abcdefgh"[number]
        self.netns = f"sd{os.getpid()}{self.name}"
        self.address = f"10.99.{subnet}.{number + 2}"
        self.cable = f"v{os.getpid()}{self.name}"
        self.port = 22
        self.home = self.folder / "home"
        self.home.mkdir()
        self.machine_id = self.folder / "machine-id"
        self.machine_id.write_text(uuid.uuid4().hex + "\n")
        self.known_hosts.write_text(f"{self.address} {self.host_public}\n")

    def plug(self, bridge: str) -> None:
        ip("netns", "add", self.netns)
        ip("link", "add", self.cable, "type", "veth", "peer", "name", NIC, "netns", self.netns)
        ip("link", "set", self.cable, "master", bridge, "up")
        for words in (("link", "set", "lo", "up"), ("link", "set", NIC, "up")):
            ip("netns", "exec", self.netns, "ip", *words)
        ip("netns", "exec", self.netns, "ip", "addr", "add", f"{self.address}/24", "dev", NIC)

    def start(self) -> Machine:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        config = self.folder / "sshd_config"
        lines = [
            f"ListenAddress {self.address}:22",
            f"HostKey {self.folder}/host_key",
            f"AuthorizedKeysFile {self.folder}/authorized_keys",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PermitRootLogin yes",
            "PidFile none",
            "UsePAM no",
            "StrictModes no",
        ]
        config.write_text("\n".join(lines) + "\n")
        inside = (
            "mount -t tmpfs -o size=512m tmpfs /dev/shm && "
            f"mount --bind {self.machine_id} /etc/machine-id && "
            f"hostname machine-{self.name} && exec {PROGRAM} -D -e -f {config}"
        )
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["ip", "netns", "exec", self.netns, "unshare", "-u", "sh", "-c", inside],
                stderr=log,
                stdin=subprocess.DEVNULL,
                preexec_fn=_end_with_parent,
            )
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"sshd ended: {self.log.read_text()}")
            with contextlib.suppress(OSError), socket.create_connection((self.address, 22), 1):
                return self
            time.sleep(0.05)
        raise RuntimeError(f"sshd does not listen: {self.log.read_text()}")

    def cut(self) -> None:
        """Its cable is out: no connection of any kind, none is reset."""
        ip("link", "set", self.cable, "down")

    def mend(self) -> None:
        ip("link", "set", self.cable, "up")

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A command in its network."""
        return subprocess.run(
            ["ip", "netns", "exec", self.netns, *words], check=check, capture_output=True, text=True
        )

    def remove(self) -> None:
        super().remove()
        ip("link", "del", self.cable, check=False)
        ip("netns", "del", self.netns, check=False)

    def table(self) -> str:
        """Its table of config.toml."""
        return f"""
[hosts.{self.name}]
ssh = "{self.address}"
user = "root"
identity = "{self.identity}"
known-hosts = "{self.known_hosts}"
python = "{sys.executable}"
run-root = "{self.home}/specdash"
"""


@contextlib.contextmanager
def machines(count: int = 2) -> Iterator[list[Machine]]:
    """So many machines on one network, reached from here through its bridge."""
    subnet = os.getpid() % 250
    bridge = f"br{os.getpid()}"
    made = [Machine(number, subnet) for number in range(count)]
    try:
        ip("link", "add", bridge, "type", "bridge")
        ip("addr", "add", f"10.99.{subnet}.1/24", "dev", bridge)
        ip("link", "set", bridge, "up")
        for one in made:
            one.plug(bridge)
            one.start()
        yield made
    finally:
        for one in made:
            one.remove()
        ip("link", "del", bridge, check=False)
