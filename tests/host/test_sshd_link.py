"""Everything over a real OpenSSH sshd: keys, tails, cut connections, jumps, and what goes wrong at the door."""

# ruff: noqa: ASYNC220, ASYNC221  (short helpers of OpenSSH)
from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import re
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import asyncssh
import pytest
from sshd import free_port

from specdash.errors import (
    AuthRefused,
    HostBusy,
    HostKeyChanged,
    HostKeyUnknown,
    HostUnknown,
    LinkError,
    LinkLost,
    NoPython,
)
from specdash.host.link import HttpRequest, TailPosition
from specdash.host.open import open_link

pytestmark = pytest.mark.sshd


@contextlib.asynccontextmanager
async def relay(port: int) -> AsyncIterator[tuple[int, asyncio.Event]]:
    """A TCP relay; with `flows` cleared, bytes stop and nothing is closed, like a pulled cable."""
    flows = asyncio.Event()
    flows.set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await flows.wait()
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, back), pump(there, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], flows
    finally:
        server.close()


def comm(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


async def read_until(link, path: Path, size: int, position: TailPosition | None, keep: bytearray) -> None:
    stream = link.tail(str(path), position)
    try:
        async for chunk in stream:
            assert chunk.offset == len(keep) and chunk.generation == 0
            keep += chunk.data
            if len(keep) >= size:
                return
    finally:
        await stream.aclose()


async def test_calls_and_a_tail_of_50_mb_are_exact(sshd, tmp_path):
    log = tmp_path / "log"
    log.write_bytes(random.Random(1).randbytes(50_000_000))
    async with await open_link(sshd().host()) as link:
        assert link.name == "box" and link.hello["missing_modules"] == {}
        done = await link.call("exec", {"argv": ["sh", "-c", "tty; printf '\\377'"]})
        assert done["blob"] == b"not a tty\n\xff"
        kept = bytearray()
        await asyncio.wait_for(read_until(link, log, 50_000_000, None, kept), 60)
        assert hashlib.sha256(kept).hexdigest() == hashlib.sha256(log.read_bytes()).hexdigest()


async def test_cut_in_the_middle_of_a_tail_then_resumed_byte_for_byte(sshd, tmp_path, until):
    server = sshd()
    log = tmp_path / "log"
    log.write_bytes(random.Random(2).randbytes(30_000_000))
    kept = bytearray()
    link = await open_link(server.host())
    stream = link.tail(str(log))
    call = asyncio.create_task(link.call("exec", {"argv": ["sleep", "50"], "timeout": 60}, timeout=60))
    inode = 0
    with pytest.raises(LinkLost):
        async for chunk in stream:
            kept += chunk.data
            inode, device = chunk.inode, chunk.device
            if 10_000_000 < len(kept) < 11_000_000 and server.kill_sessions():
                with log.open("ab") as file:
                    file.write(b"written while away")
    with pytest.raises(LinkLost):
        await call
    with pytest.raises(LinkLost):
        await link.http(HttpRequest("GET", "/", 1))
    assert 10_000_000 < len(kept) < 30_000_000
    await link.close()
    await until(lambda: not server.children(), "no agent is left")
    async with await open_link(server.host()) as again:
        position = TailPosition(len(kept), device, inode, 0, bytes(kept[-64:]))
        await asyncio.wait_for(read_until(again, log, 30_000_018, position, kept), 60)
    assert kept == log.read_bytes()


async def test_closing_leaves_no_process_on_the_host(sshd, until):
    server = sshd()
    link = await open_link(server.host())
    assert server.children()
    await link.close()
    await until(lambda: not server.children(), "sshd's session and the agent are gone")


async def test_a_silent_network_is_noticed(sshd, monkeypatch):
    monkeypatch.setattr("specdash.host.mux.PING_EVERY_S", 0.2)
    monkeypatch.setattr("specdash.host.mux.SILENT_AFTER_S", 1.0)
    server = sshd()
    async with relay(server.port) as (port, flows):
        server.known_hosts.write_text(f"[127.0.0.1]:{port} {server.host_public}\n")
        link = await open_link(server.host(port=port))
        stream = link.sample("host", 0.2)
        await anext(stream)
        flows.clear()
        with pytest.raises(LinkLost, match="no answer for"):
            async with asyncio.timeout(10):
                async for _ in stream:
                    pass
        flows.set()
        await link.close()


async def test_two_links_at_once(sshd, tmp_path):
    server = sshd()
    log = tmp_path / "log"
    log.write_bytes(random.Random(3).randbytes(8_000_000))
    async with await open_link(server.host()) as one, await open_link(server.host()) as two:
        assert one.hello["agent_pid"] != two.hello["agent_pid"]
        first, second = bytearray(), bytearray()
        await asyncio.gather(
            read_until(one, log, 8_000_000, None, first), read_until(two, log, 8_000_000, None, second)
        )
        assert first == second == log.read_bytes()
        await one.close()
        assert await two.ping() > 0


async def test_the_agent_runs_under_old_and_new_python(sshd, python):
    async with await open_link(sshd().host(python=python)) as link:
        assert link.hello["python"] in python or python.endswith(
            ".".join(link.hello["python"].split(".")[:2])
        )
        assert link.hello["missing_modules"] == {}


# ---- the host's key ----


async def test_an_unknown_key_is_never_accepted_silently(sshd):
    server = sshd()
    server.known_hosts.unlink()
    with pytest.raises(HostKeyUnknown) as caught:
        await open_link(server.host())
    assert caught.value.fingerprint == server.fingerprint
    assert caught.value.known_hosts_line == f"[127.0.0.1]:{server.port} {server.host_public}"
    assert not server.known_hosts.exists()

    async def no(host: str, fingerprint: str) -> bool:
        return False

    with pytest.raises(HostKeyUnknown):
        await open_link(server.host(), ask=no)
    assert not server.known_hosts.exists()


async def test_an_unknown_key_is_asked_about_and_remembered(sshd):
    server = sshd()
    server.known_hosts.write_text("other.example ssh-ed25519 AAAA")
    asked = []

    async def yes(host: str, fingerprint: str) -> bool:
        asked.append((host, fingerprint))
        await asyncio.sleep(1.2)  # longer than the time limit: thinking does not count
        return True

    async with await open_link(server.host(), ask=yes, timeout_s=5):
        pass
    assert asked == [("box", server.fingerprint)]
    assert server.known_hosts.read_text() == (
        f"other.example ssh-ed25519 AAAA\n[127.0.0.1]:{server.port} {server.host_public}\n"
    )
    assert stat.S_IMODE(server.known_hosts.stat().st_mode) == 0o600
    async with await open_link(server.host()):
        pass


async def test_a_changed_key_is_refused_whatever_the_operator_says(sshd):
    server = sshd()
    known = "# my hosts\n" + server.known_hosts.read_text()
    server.stop()
    server.new_host_key(known=False)
    server.known_hosts.write_text(known)
    server.start()

    async def never(host: str, fingerprint: str) -> bool:
        raise AssertionError("must not ask")

    with pytest.raises(HostKeyChanged) as caught:
        await open_link(server.host(), ask=never)
    assert f"{server.known_hosts} line 2" in caught.value.sentence
    assert server.fingerprint in caught.value.sentence and "ssh-keygen -R" in caught.value.step
    assert server.known_hosts.read_text() == known


async def test_a_key_of_another_kind_is_a_question_not_a_hang(sshd):
    server = sshd()
    server.stop()
    known = server.known_hosts.read_text()
    server.new_host_key("ecdsa-sha2-nistp256", known=False)
    server.known_hosts.write_text(known)
    server.start()
    with pytest.raises(HostKeyUnknown, match="Keys of other kinds are known: ssh-ed25519"):
        await open_link(server.host())


async def test_hashed_known_hosts_are_read(sshd):
    server = sshd()
    subprocess.run(["ssh-keygen", "-H", "-f", str(server.known_hosts)], check=True, capture_output=True)
    assert server.known_hosts.read_text().startswith("|1|")
    async with await open_link(server.host()):
        pass


async def test_a_revoked_key_is_refused(sshd):
    server = sshd()
    server.known_hosts.write_text(server.known_hosts.read_text() + f"@revoked * {server.host_public}\n")
    with pytest.raises(HostKeyChanged, match="revoked"):
        await open_link(server.host())


# ---- our keys ----


async def test_a_wrong_key_is_refused_with_a_sentence(sshd, tmp_path):
    other = tmp_path / "other"
    other.write_bytes(asyncssh.generate_private_key("ssh-ed25519").export_private_key())
    with pytest.raises(AuthRefused, match="accepted no key of ours") as refused:
        await open_link(sshd().host(identity=str(other)))
    # "box" is a name of our config: `ssh box` would go nowhere.
    assert re.search(rf"`ssh -v -i {other} -p \d+ \w+@127\.0\.0\.1`", refused.value.step)
    with pytest.raises(AuthRefused, match=r"key file .*/none is missing"):
        await open_link(sshd().host(identity=str(tmp_path / "none")))


async def test_a_locked_key_names_ssh_add_and_the_agent_then_helps(sshd, tmp_path, monkeypatch, until):
    server = sshd()
    locked = tmp_path / "locked"
    locked.write_bytes(server.identity.read_bytes())
    locked.chmod(0o600)
    subprocess.run(
        ["ssh-keygen", "-p", "-N", "secret words", "-f", str(locked)], check=True, capture_output=True
    )
    with pytest.raises(AuthRefused) as caught:
        await open_link(server.host(identity=str(locked)))
    assert caught.value.step == f"Run `ssh-add {locked}`."
    if shutil.which("ssh-agent") is None:
        pytest.skip("no ssh-agent")
    sock = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(sock)], stdout=subprocess.DEVNULL)
    try:
        await until(sock.exists, "the agent listens")
        env = {**os.environ, "SSH_AUTH_SOCK": str(sock)}
        subprocess.run(["ssh-add", str(server.identity)], env=env, check=True, capture_output=True)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(sock))
        async with await open_link(server.host(identity=str(locked))):
            pass
        async with await open_link(server.host(identity=None)):
            pass
    finally:
        agent.send_signal(signal.SIGTERM)
        agent.wait()


# ---- what stands in ssh_config ----


async def test_alias_from_the_config_with_a_jump_and_remote_command(sshd, tmp_path):
    target, jump = sshd(), sshd()
    user = target.host().user
    known = tmp_path / "known"
    known.write_text(target.known_hosts.read_text() + jump.known_hosts.read_text())
    config = tmp_path / "config"
    config.write_text(
        f"Host *\n  User {user}\n  UserKnownHostsFile {known}\n"
        f"Host gpubox\n  HostName 127.0.0.1\n  Port={target.port}\n  ProxyJump me@nowhere:1,b2\n"
        f"  IdentityFile {tmp_path}/not-there\n  IdentityFile {target.identity}\n"
        "  RemoteCommand tmux new -A -s main\n  RequestTTY yes\n"
        f"Host b2\n  HostName 127.0.0.1\n  Port {jump.port}\n  IdentityFile {jump.identity}\n"
    )
    text = config.read_text()
    config.write_text(text.replace("me@nowhere:1,b2", "b2"))
    host = target.host(
        ssh="gpubox", user=None, port=None, known_hosts=None, identity=None, ssh_config=str(config)
    )
    async with await open_link(host) as link:
        done = await link.call("exec", {"argv": ["sh", "-c", "echo $SSH_CONNECTION; tty"]})
        assert str(target.port).encode() in done["blob"] and b"not a tty" in done["blob"]
        assert target.children() and jump.children()
    # Two hops: out of the first one again and into it a second time, then on to the target.
    config.write_text(
        text.replace("me@nowhere:1,b2", f"{user}@first:{jump.port},b2")
        + f"Host first\n  HostName 127.0.0.1\n  IdentityFile {jump.identity}\n"
    )
    async with await open_link(host) as link:
        assert await link.ping() > 0
        assert len([pid for pid in jump.children() if comm(pid) == "sshd"]) >= 2
    # A hop that cannot go on is named.
    config.write_text(text.replace("me@nowhere:1,b2", "b2"))
    with pytest.raises(LinkError, match="the jump host cannot reach"):
        await open_link(host.model_copy(update={"port": free_port()}))
    known.write_text(target.known_hosts.read_text())
    asked = []

    async def yes(name: str, fingerprint: str) -> bool:
        asked.append((name, fingerprint))
        return True

    async with await open_link(host, ask=yes):
        pass
    assert asked == [("b2", jump.fingerprint)], "a jump host's key is asked about too"


async def test_what_asyncssh_cannot_read_is_read_by_openssh(sshd, tmp_path):
    server = sshd()
    config = tmp_path / "config"
    config.write_text(
        f"Host gpubox\n  HostName 127.0.0.1\n  ServerAliveInterval 1m\n  Port {server.port}\n"
        f"  UserKnownHostsFile {server.known_hosts}\n  IdentityFile {server.identity}\n"
    )
    host = server.host(ssh="gpubox", port=None, known_hosts=None, identity=None, ssh_config=str(config))
    async with await open_link(host) as link:
        assert (
            "ServerAliveInterval" in link.hello["ssh_config_note"] and "1m" in link.hello["ssh_config_note"]
        )


# ---- the door ----


async def test_errors_at_the_door_are_sentences(sshd):
    server = sshd()
    with pytest.raises(HostUnknown, match="cannot be resolved"):
        await open_link(server.host(ssh="no-such-host.invalid"))
    with pytest.raises(LinkError, match="Connection refused"):
        await open_link(server.host(port=free_port()))
    with pytest.raises(NoPython, match="no Python at '/no/python'"):
        await open_link(server.host(python="/no/python"))


async def test_a_half_open_handshake_ends_in_time():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        from specdash.config.hosts import Host

        host = Host(name="mute", ssh="127.0.0.1", port=sock.getsockname()[1], ssh_config=os.devnull)
        began = time.monotonic()
        with pytest.raises(LinkError, match="took the TCP connection but did not finish"):
            await open_link(host, timeout_s=1.0)
        assert time.monotonic() - began < 3


async def test_no_free_session_is_busy_and_not_down(sshd):
    with pytest.raises(HostBusy, match="gives no session"):
        await open_link(sshd("MaxSessions 0").host())


async def test_a_server_with_too_many_logins_under_way_is_busy_and_let_in_when_it_has_room(sshd, until):
    server = sshd("MaxStartups 1:100:1", "LoginGraceTime 60")
    held = socket.socket()

    def hold() -> bool:
        nonlocal held
        held.close()
        held = socket.create_connection(("127.0.0.1", server.port), timeout=5)
        return held.recv(100).startswith(b"SSH-2.0")

    try:
        await until(hold, "sshd has forgotten the fixture's own look at its port")
        with pytest.raises(HostBusy, match="closed the connection before the login"):
            await open_link(server.host())
        opening = asyncio.create_task(open_link(server.host()))
        await asyncio.sleep(0.2)
    finally:
        held.close()
    async with await opening:
        pass


async def test_one_session_is_enough_for_everything(sshd, tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"x" * 1000)
    async with await open_link(sshd("MaxSessions 1").host()) as link:
        kept = bytearray()
        await asyncio.gather(
            read_until(link, log, 1000, None, kept),
            *(link.call("exec", {"argv": ["echo", "hi"]}) for _ in range(20)),
        )
        assert kept == log.read_bytes()


async def test_a_forced_command_is_said(sshd):
    with pytest.raises(LinkError, match="only backups here") as said:
        await open_link(sshd("ForceCommand echo only backups here").host())
    assert "@127.0.0.1 /bin/sh -c true`" in said.value.step
