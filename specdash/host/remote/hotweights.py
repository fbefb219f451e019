"""Weights of a file as shared memory that another process on this host reads, and that no dying process takes along.

Each tensor is one file in /dev/shm of our own user: a header of 64 bytes whose first four count users (so high
that no reader ever removes it), then the bytes. What the receiver gets are the files' names; a payload with
them is proven once by the engine's own code, later ones differ in one word of the same length.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import struct
from typing import Any, Dict, List, Tuple

from specdash.host.remote import folder as folders
from specdash.host.remote import journal, pyrun
from specdash.host.remote.wire import CallError

SHM = "/dev/shm"
HEADER = 64
USERS = 1 << 20
SPARE = 64 << 20
"""Bytes of /dev/shm that stay free: the engine's own ranks need some."""
PROOF = "hot-proof.json"
PROOF_S = 300.0


def prefix(run_folder: str) -> str:
    """torch takes names below 60 bytes."""
    return "specdash-%s-" % folders.run_lock(run_folder)[:16]


def room() -> Dict[str, int]:
    found = os.statvfs(SHM)
    return {"free_bytes": found.f_bavail * found.f_frsize, "total_bytes": found.f_blocks * found.f_frsize}


def place(run_folder: str, tensors: List[Dict[str, Any]], stamps: Dict[str, Any]) -> Dict[str, Any]:
    """Copy tensors ({name, dtype, shape, file, offset, bytes}) into shared files.

    → {token, tensors (with "shm" and "sha256"), sha256 of all}. Raises CallError when a file is not what it was
    when it was compared, or there is no room; then nothing stays behind.
    """
    unchanged(stamps)
    need = sum(int(one["bytes"]) + HEADER for one in tensors)
    free = room()["free_bytes"]
    if need + SPARE > free:
        text = "/dev/shm has %.1f GB free, the weights need %.1f GB."
        raise CallError("no_room", text % (free / 1e9, need / 1e9), "Use the ordinary switch.")
    token = secrets.token_hex(6)
    whole = hashlib.sha256()
    placed = []
    try:
        for number, one in enumerate(tensors):
            name = "%s%s-%05d" % (prefix(run_folder), token, number)
            placed.append(dict(one, shm="/" + name, sha256=_copy(one, os.path.join(SHM, name))))
            whole.update(placed[-1]["sha256"].encode("ascii"))
        unchanged(stamps)
    except (OSError, CallError) as error:
        sweep(run_folder)
        if isinstance(error, CallError):
            raise
        raise CallError("failed", "The weights cannot be read: %s." % error, "") from None
    return {"token": token, "tensors": placed, "sha256": whole.hexdigest()}


def there(placed: Dict[str, Any]) -> None:
    """The last look before the engine is told: a name that is gone would kill it. Raises CallError."""
    for one in placed["tensors"]:
        try:
            facts = os.stat(SHM + one["shm"])
        except OSError:
            raise CallError("failed", "The shared file of %s is gone." % one["name"], "") from None
        if facts.st_size != int(one["bytes"]) + HEADER or facts.st_uid != os.getuid():
            raise CallError("failed", "The shared file of %s is not ours any more." % one["name"], "")


def _copy(one: Dict[str, Any], target: str) -> str:
    made, left = hashlib.sha256(), int(one["bytes"])
    fresh = 0 if target == os.devnull else os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    handle = os.open(target, os.O_WRONLY | os.O_CLOEXEC | fresh, 0o600)
    with os.fdopen(handle, "wb") as out, open(one["file"], "rb") as file:
        out.write(struct.pack("=i", USERS).ljust(HEADER, b"\0"))
        file.seek(int(one["offset"]))
        while left > 0:
            part = file.read(min(left, 8 << 20))
            if not part:
                raise CallError("failed", "%s ends early." % one["file"], "")
            made.update(part)
            out.write(part)
            left -= len(part)
    return made.hexdigest()


def digest(tensors: List[Dict[str, Any]]) -> str:
    """What `place` says of the same tensors, without placing them."""
    whole = hashlib.sha256()
    for one in tensors:
        whole.update(_copy(one, os.devnull).encode("ascii"))
    return whole.hexdigest()


def unchanged(stamps: Dict[str, Any]) -> None:
    """`stamps`: file → [bytes, mtime in ns], as when the drafters were compared."""
    for path, (size, mtime) in stamps.items():
        try:
            facts = os.stat(path)
        except OSError as error:
            raise CallError(
                "changed", "%s cannot be read any more: %s." % (path, error.strerror), ""
            ) from None
        if [facts.st_size, facts.st_mtime_ns] != [size, mtime]:
            raise CallError("changed", "%s has changed since it was compared." % path, "Plan it anew.")


def sweep(run_folder: str) -> int:
    """Remove every shared file of this run. Only when no update can be under way. Returns how many."""
    gone = 0
    for name in os.listdir(SHM):
        if name.startswith(prefix(run_folder)):
            try:
                os.unlink(os.path.join(SHM, name))
                gone += 1
            except OSError:
                continue
    return gone


def payload(
    run_folder: str,
    placed: Dict[str, Any],
    engine: List[Any],
    proof: Dict[str, Any],
    bundle: bytes,
    env: Dict[str, str],
) -> Tuple[bytes, bool]:
    """(what the engine is sent, whether it was proven just now). `engine`: identity of the server's process.

    `proof`: {python, cwd, module, func}: the program that lets the installed engine make and read the payload.
    """
    table = [[one["name"], one["dtype"], one["shape"]] for one in placed["tensors"]]
    key = hashlib.sha256(json.dumps([table, engine, proof["python"]]).encode("utf-8")).hexdigest()
    path = os.path.join(run_folder, PROOF)
    known = journal.load(path, 64 << 20)
    if isinstance(known, dict) and known.get("key") == key:
        raw = base64.b64decode(known["payload"])
        if raw.count(known["token"].encode()) == len(table):
            return raw.replace(known["token"].encode(), placed["token"].encode()), False
    asked = {k: proof[k] for k in ("python", "cwd", "module", "func")}
    tensors = [{k: one[k] for k in ("name", "dtype", "shape", "shm", "sha256")} for one in placed["tensors"]]
    answer = pyrun.run(
        dict(asked, env=env, args={"tensors": tensors, "token": placed["token"]}, timeout=PROOF_S), bundle
    )
    text = str(answer["result"]["payload"])
    raw = base64.b64decode(text)
    journal.save(path, {"key": key, "token": placed["token"], "payload": text})
    return raw, True
