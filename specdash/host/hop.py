"""One SSH connection on the way to a host: keys of both sides, time limits, and errors as sentences."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path
from typing import Any

import asyncssh
from asyncssh.encryption import get_default_encryption_algs
from asyncssh.public_key import get_default_certificate_algs, get_default_public_key_algs

from specdash.errors import (
    AuthRefused,
    HostBusy,
    HostKeyChanged,
    HostKeyUnknown,
    HostUnknown,
    LinkError,
    SshConfigUnsupported,
)
from specdash.host import knownhosts
from specdash.host.jumps import Hop
from specdash.host.link import AskHostKey
from specdash.host.ourkeys import auth_error, expand

KEEPALIVE_S = 10.0
KEEPALIVE_COUNT = 3
_TRIES = 3
_PAUSE_S = 0.5


class _Client(asyncssh.SSHClient):
    """Notes what the handshake showed: asyncssh's errors do not carry it."""

    def __init__(self) -> None:
        self.reached = False
        self.key: asyncssh.SSHKey | None = None
        self.looked_up: tuple[str, int | None] = ("", None)
        self.entries: list[knownhosts.Entry] = []

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        self.reached = True

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        self.key = key
        return False


class HopConnector:
    """Connects one hop; `accepted` holds key lines that the operator said yes to but no file could keep."""

    def __init__(
        self,
        hop: Hop,
        ask: AskHostKey | None,
        timeout_s: float,
        known_hosts: str | None,
        identity: str | None,
    ) -> None:
        self.hop = hop
        self.name = hop.name
        self._ask = ask
        self._timeout_s = timeout_s
        self._identity = identity
        told = hop.explained
        own = (known_hosts,) if known_hosts else told.known_hosts
        self._files = knownhosts.DEFAULT_FILES if own is None else tuple(own)
        shared = () if known_hosts else (told.global_known_hosts or knownhosts.DEFAULT_GLOBAL)
        self._all_files = (*self._files, *shared)
        self._accepted: list[asyncssh.SSHKey] = []

    async def connect(self, tunnel: asyncssh.SSHClientConnection | None) -> asyncssh.SSHClientConnection:
        """Raises LinkError's family. The time that the operator thinks about a key does not count."""
        asked = False
        attempt = 0
        while True:
            attempt += 1
            client = _Client()
            try:
                return await self._once(client, tunnel)
            except asyncssh.HostKeyNotVerifiable as error:
                if asked:
                    raise self._key_error(client, str(error)) from None
                asked = True
                await self._ask_key(client, str(error))
            except asyncssh.KeyExchangeFailed as error:
                raise LinkError(f"{self.name}: no common SSH algorithms: {error.reason}.") from None
            except asyncssh.ConnectionLost as error:
                # sshd drops logins when too many are under way (MaxStartups): that host is busy, not down.
                if attempt >= _TRIES:
                    raise HostBusy(
                        f"{self.name} closed the connection before the login, {attempt} times ({error.reason}).",
                        "Too many logins at once (MaxStartups), or a firewall: try again in a moment.",
                    ) from None
                await asyncio.sleep(_PAUSE_S * attempt)

    async def _once(
        self, client: _Client, tunnel: asyncssh.SSHClientConnection | None
    ) -> asyncssh.SSHClientConnection:
        told = self.hop.explained
        options = self._options(client)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncssh.connect(
                    told.alias, client_factory=lambda: client, tunnel=tunnel, **options
                )
        except TimeoutError:
            stage = (
                "it took the TCP connection but did not finish the SSH login"
                if client.reached
                else f"no answer from {told.host} port {told.port}"
            )
            raise LinkError(
                f"{self.name}: {stage} within {self._timeout_s:g} s.",
                "Is the address right, is a VPN needed?",
            ) from None
        except socket.gaierror as error:
            raise HostUnknown(
                f"{self.name}: the name {told.host} cannot be resolved ({error.strerror}).",
                "Check the host's `ssh` setting and ~/.ssh/config.",
            ) from None
        except asyncssh.ChannelOpenError as error:
            raise LinkError(
                f"{self.name}: the jump host cannot reach {told.host}:{told.port}: {error.reason}."
            ) from None
        except asyncssh.PermissionDenied as error:
            raise auth_error(self.name, self.hop.explained, self._identity, error.reason) from None
        except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
            raise AuthRefused(f"{self.name}: a key cannot be read: {error}.", "Check IdentityFile.") from None
        except asyncssh.ConfigParseError as error:
            raise SshConfigUnsupported(f"{self.name}: {error}.") from None
        except (asyncssh.HostKeyNotVerifiable, asyncssh.KeyExchangeFailed, asyncssh.ConnectionLost):
            raise
        except asyncssh.DisconnectError as error:
            if "too many authentication" in error.reason.lower():
                raise AuthRefused(
                    f"{self.name} refused after too many keys.",
                    "Set IdentityFile and `IdentitiesOnly yes` for it.",
                ) from None
            raise LinkError(f"{self.name}: the SSH server ended the connection: {error.reason}.") from None
        except ConnectionResetError as error:
            raise asyncssh.ConnectionLost(str(error)) from None
        except OSError as error:
            # asyncio's own text says only that a call failed.
            why = os.strerror(error.errno) if error.errno else str(error)
            raise LinkError(
                f"{self.name}: {told.host} port {told.port}: {why}.", "Is sshd running there?"
            ) from None

    def _options(self, client: _Client) -> dict[str, Any]:
        told = self.hop.explained

        def trusted(host: str, _addr: str, port: int | None) -> Any:
            client.looked_up = (host, port)
            client.entries = knownhosts.lookup(self._all_files, host, port)
            plain, authorities, revoked = (
                _keys([entry for entry in client.entries if entry.marker == marker])
                for marker in ("", "cert-authority", "revoked")
            )
            return [*self._accepted, *plain], authorities, revoked

        options: dict[str, Any] = {
            "config": [told.config] if told.config else [],
            "known_hosts": trusted,
            "username": told.user,
            "port": told.port,
            "ignore_encrypted": True,
            "agent_forwarding": False,
            "x11_forwarding": False,
            "keepalive_interval": told.keepalive_s or KEEPALIVE_S,
            "keepalive_count_max": told.keepalive_count or KEEPALIVE_COUNT,
            "connect_timeout": None,
            "login_timeout": self._timeout_s,
        }
        if not told.ciphers:
            options["encryption_algs"] = _ciphers()
        names = (self._identity,) if self._identity else told.identities
        if names:
            # OpenSSH passes over key files that are not there; asyncssh would give up.
            options["client_keys"] = [name for name in map(expand, names) if Path(name).is_file()]
        order = self._key_order(
            knownhosts.lookup(self._all_files, told.host_key_alias or told.host, told.port)
        )
        if order:
            options["server_host_key_algs"] = order
        return options

    def _key_order(self, entries: list[knownhosts.Entry]) -> list[str]:
        """Algorithms of the known keys first, then all others: a host with only another kind is shown, not dropped."""
        known = [key for entry in entries if not entry.marker for key in _keys([entry])]
        if not known:
            return []
        first = [name for key in known for name in key.sig_algorithms]
        if any(entry.marker == "cert-authority" for entry in entries):
            first = [*get_default_certificate_algs(), *first]
        return [name.decode() for name in dict.fromkeys([*first, *get_default_public_key_algs()])]

    # ---- the host's key ----

    async def _ask_key(self, client: _Client, reason: str) -> None:
        """Returns when the key was accepted and remembered; raises otherwise."""
        error = self._key_error(client, reason)
        if not isinstance(error, HostKeyUnknown) or self._ask is None or client.key is None:
            raise error
        if not await self._ask(self.name, error.fingerprint):
            raise error
        self._accepted.append(client.key)
        try:
            knownhosts.remember(self._files[0] if self._files else os.devnull, error.known_hosts_line)
        except OSError as failure:
            raise LinkError(
                f"The key of {self.name} was accepted but {self._files[0]} could not be written: {failure.strerror}."
            ) from None

    def _key_error(self, client: _Client, reason: str) -> LinkError:
        key = client.key
        if key is None or "revoked" in reason:
            return HostKeyChanged(f"{self.name}: {reason}.", "Do not connect before you know why.")
        host, port = client.looked_up
        name = knownhosts.host_name(host, port)
        fingerprint = key.get_fingerprint("sha256")
        algorithm = key.get_algorithm()
        plain = [entry for entry in client.entries if not entry.marker]
        same = [entry for entry in plain if entry.algorithm == algorithm]
        if same:
            wrong = same[0]
            return HostKeyChanged(
                f"The key of {self.name} changed: it now shows {algorithm} {fingerprint}, but {wrong.path} line "
                f"{wrong.line} has another. Somebody may be listening in, or the host was set up anew.",
                f"If you know that it was: `ssh-keygen -R '{name}' -f {wrong.path}` (line {wrong.line}).",
            )
        others = f" Keys of other kinds are known: {', '.join(e.algorithm for e in plain)}." if plain else ""
        return HostKeyUnknown(
            f"{self.name} ({name}) was never seen before; its key is {algorithm} {fingerprint}.{others}",
            "Compare the fingerprint with the host's own (`ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub` there); then "
            f"run this in a terminal and say yes, or add the key to {self._files[0] if self._files else 'known_hosts'}.",
            fingerprint=fingerprint,
            known_hosts_line=f"{name} {key.export_public_key().decode().strip().rsplit(' comment', 1)[0]}",
        )


def _ciphers() -> list[str]:
    """AES-GCM first, then asyncssh's own order.

    asyncssh sets up ChaCha20-Poly1305 three times a packet: a third of the time that a fast log takes on its way.
    """
    names = [name.decode() for name in get_default_encryption_algs()]
    return sorted(names, key=lambda name: "gcm" not in name)


def _keys(entries: list[knownhosts.Entry]) -> list[asyncssh.SSHKey]:
    """The entries' keys, without those of a kind that we cannot use."""
    keys = []
    for entry in entries:
        with contextlib.suppress(asyncssh.KeyImportError):
            keys.append(asyncssh.import_public_key(entry.text))
    return keys
