"""The keys and the environment of a living run, from its own 0600 files. Nothing of it is logged."""

from __future__ import annotations

import json
import os
from typing import Dict, List

from specdash.host.remote import folder as folders
from specdash.host.remote import procs

ADMIN = "admin-api-key"


def client(run_folder: str) -> str:
    """The key that a client of the engine sends; "" when it has none."""
    raw = procs.read_bytes(os.path.join(run_folder, "auth"), 65536) or b""
    return raw.decode("utf-8", "replace").strip()


def admin(run_folder: str, argv: List[str]) -> str:
    """The key of the administrative endpoints: the admin key where there is one, else the client's."""
    raw = procs.read_bytes(os.path.join(run_folder, "secrets.yaml"), 1 << 20) or b""
    for line in raw.decode("utf-8", "replace").splitlines():
        name, colon, value = line.partition(":")
        if colon and name.strip() == ADMIN:
            try:
                return str(json.loads(value))
            except ValueError:
                return value.strip()
    for at, word in enumerate(argv):
        if word == "--" + ADMIN and at + 1 < len(argv):
            return argv[at + 1]
        if word.startswith("--%s=" % ADMIN):
            return word.partition("=")[2]
    return client(run_folder)


def environment(run_folder: str, pid: int) -> Dict[str, str]:
    """What the engine was started with, so that its interpreter finds the same SGLang."""
    env = folders.read_env(run_folder) or (procs.environ(pid) if pid else None) or {}
    return {os.fsdecode(k): os.fsdecode(v) for k, v in env.items() if not k.startswith(b"SPECDASH_")}
