"""A run folder: names of its files, and what they say together. The folder is the run."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import struct
from typing import Any, Dict, List, Optional

from specdash.host.remote import journal, procs

EVENTS, SAMPLES, LOG, RUN, ENV, EXIT, PYZ = (
    "events.jsonl",
    "samples.jsonl",
    "server.log",
    "run.json",
    "env",
    "exit",
    "supervisor.pyz",
)
SECRETS = (ENV, "auth", "secrets.yaml")
"""Files that hold secret values, 0600; removed when the run has ended."""


def path(folder: str, name: str) -> str:
    return os.path.join(folder, name)


def lock_name(kind: str, ident: str) -> str:
    """Abstract unix socket of a run, switch or host lock. Never stale: it goes with the process."""
    return "\0specdash/%d/%s/%s" % (os.getuid(), kind, ident)


def run_lock(folder: str) -> str:
    """What names a run's lock: its folder, so that two base folders never meet."""
    return hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()[:24]


def mark(run_id: str, folder: str) -> str:
    """Value of SPECDASH_RUN in the environment of a run's processes: no other run's on this machine."""
    return "%s:%s" % (run_id, run_lock(folder))


def peer(sock: socket.socket) -> Dict[str, int]:
    """{"pid", "uid", "gid"} of the process at the other end, by the kernel's word."""
    pid, uid, gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return {"pid": pid, "uid": uid, "gid": gid}


def hold(kind: str, ident: str) -> Optional[socket.socket]:
    """Take the lock: a listening socket to keep, or None when somebody holds it."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(lock_name(kind, ident))
        sock.listen(16)
        return sock
    except OSError:
        sock.close()
        return None


def ask(kind: str, ident: str, question: Dict[str, Any], timeout: float = 5.0) -> Optional[Dict[str, Any]]:
    """One command to the holder of a lock; its answer with "peer" added, or None when nobody (of us) holds it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(timeout)
        try:
            sock.connect(lock_name(kind, ident))
            who = peer(sock)
            if who["uid"] not in (os.getuid(), 0):
                return None
            sock.sendall(json.dumps(question).encode("ascii") + b"\n")
            data = b""
            while not data.endswith(b"\n") and len(data) < journal.MAX_LINE:
                part = sock.recv(65536)
                if not part:
                    break
                data += part
        except OSError:
            return None
    try:
        answer: Dict[str, Any] = json.loads(data.decode("utf-8", "replace"))
    except ValueError:
        return None
    return dict(answer, peer=who)


def answer(sock: socket.socket, handle: Any) -> None:
    """Serve one command of one client. Only our own user and root are heard."""
    with sock:
        sock.settimeout(2.0)
        try:
            who = peer(sock)
            if who["uid"] not in (os.getuid(), 0):
                return
            data = b""
            while not data.endswith(b"\n") and len(data) < 65536:
                part = sock.recv(65536)
                if not part:
                    break
                data += part
            question = json.loads(data.decode("utf-8", "replace"))
            reply = handle(question, who)
            sock.sendall(json.dumps(reply).encode("ascii") + b"\n")
        except (OSError, ValueError, TypeError, KeyError):
            return


def read_env(folder: str) -> Dict[bytes, bytes]:
    return parse_env(procs.read_bytes(path(folder, ENV), 4 << 20) or b"")


def parse_env(raw: bytes) -> Dict[bytes, bytes]:
    return dict(part.split(b"=", 1) for part in raw.split(b"\0") if b"=" in part)


def pack_env(env: Dict[bytes, bytes]) -> bytes:
    return b"".join(b"%s=%s\0" % pair for pair in env.items())


def remove_secrets(folder: str) -> List[str]:
    """Remove the files that hold secret values. Returns their names."""
    gone = []
    for name in SECRETS:
        try:
            os.unlink(path(folder, name))
            gone.append(name)
        except OSError:
            continue
    return gone


def headline(folder: str) -> Dict[str, Any]:
    """What the events say of the run, folded: the last record of each kind that a list needs.

    Keys: pid, start, boot_id, started_boot_s, ready_boot_s, ended_boot_s, exit_code, exit_signal, stop_asked,
    phase (created, starting, ready, stopping, exited, failed), sentence, proof, leftovers (count), drafter_now
    (after a hot switch: drafter, algorithm, by, unix, boot_s, …).
    """
    out: Dict[str, Any] = {"phase": "created", "stop_asked": False}
    records = journal.parse(procs.read_bytes(path(folder, EVENTS), 4 << 20) or b"")
    for record in records:
        kind = record.get("event")
        if kind == "started":
            out.update({k: record.get(k) for k in ("pid", "start", "boot_id", "own_session")})
            out.update(phase="starting", started_boot_s=record.get("boot_s"), started_unix=record.get("unix"))
        elif kind == "failed":
            out.update(phase="failed", sentence=record.get("sentence"), step=record.get("step"))
        elif kind == "ready":
            out.update(phase="ready", ready_boot_s=record.get("boot_s"), ready_unix=record.get("unix"))
        elif kind == "bind_failed":
            out.update(sentence=record.get("sentence"), bind_failed=True)
        elif kind == "stop_asked" and out["phase"] != "exited":
            # One that is asked after the end (a switch that clears up) does not make a crash a stop.
            out.update(stop_asked=True, phase="stopping")
        elif kind == "stop_aborted":
            out.update(stop_asked=False, phase="ready" if out.get("ready_boot_s") else "starting")
        elif kind == "exited":
            out.update(
                phase="exited",
                exit_code=record.get("code"),
                exit_signal=record.get("signal"),
                ended_boot_s=record.get("boot_s"),
                ended_unix=record.get("unix"),
            )
        elif kind == "hot_switched":  # the command line does not tell any longer which drafter serves
            keys = ("drafter", "full", "algorithm", "by", "unix", "boot_s", "hot", "stamps")
            out["drafter_now"] = {k: record.get(k) for k in keys}
        elif kind == "leftovers":
            out["leftovers"] = len(record.get("processes") or ())
        elif kind == "stopped":
            out["proof"] = record.get("proof")
        elif kind == "ended":
            out.update(ended=True, leftovers=0)
            if record.get("proof"):
                out["proof"] = record.get("proof")
    return out
