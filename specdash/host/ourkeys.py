"""Why a host took no key of ours: locked, missing, or simply not known there."""

from __future__ import annotations

import shlex
from pathlib import Path

import asyncssh

from specdash.errors import AuthRefused
from specdash.host.sshconfig import Explained


def auth_error(name: str, told: Explained, identity: str | None, reason: str) -> AuthRefused:
    """Why no key of ours was taken, as far as it can be seen from here."""
    names = [identity] if identity else list(told.identities)
    given = bool(names)
    if not names:
        names = [f"~/.ssh/{file}" for file in ("id_ed25519", "id_ecdsa", "id_rsa")]
    locked = [file for file in names if Path(expand(file)).is_file() and _is_encrypted(expand(file))]
    missing = [file for file in names if given and not Path(expand(file)).is_file()]
    sentence = f"{name} accepted no key of ours for user {told.user} ({reason})."
    if locked:
        return AuthRefused(
            f"{sentence} {locked[0]} has a passphrase and is not in the ssh agent.",
            f"Run `ssh-add {locked[0]}`.",
        )
    if missing:
        return AuthRefused(f"{sentence} The key file {missing[0]} is missing.", _correct(identity))
    if "controlmaster" in (option.lower() for option in told.ignored):
        return AuthRefused(
            f"{sentence} ~/.ssh/config shares one login by ControlMaster; that does not work here.",
            "specdash logs in itself: a host that asks for a one-time code needs a key that it takes without.",
        )
    look = ssh_line(told.alias, told.user, told.port, identity, "-v")
    return AuthRefused(sentence, f"Look with `{look}`; is the public key in authorized_keys there?")


def _correct(identity: str | None) -> str:
    return "Correct `identity` of the host in the config." if identity else "Correct IdentityFile."


def ssh_line(target: str, user: str | None, port: int | None, identity: str | None, *options: str) -> str:
    """The `ssh` command that goes where we went: a host's own name in our config is no name to `ssh`."""
    words = ["ssh", *options]
    if identity:
        words += ["-i", expand(identity)]
    if port and port != 22:
        words += ["-p", str(port)]
    return shlex.join([*words, f"{user}@{target}" if user and "@" not in target else target])


def expand(name: str) -> str:
    """A path with the home folder put in."""
    return str(Path(name).expanduser())


def _is_encrypted(path: str) -> bool:
    try:
        asyncssh.read_private_key(path)
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
        return "assphrase" in str(error)
    except OSError:
        return False
    return False
