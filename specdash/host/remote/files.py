"""Reading, writing, looking at and listing files. Bytes as they are; every answer is bounded."""

from __future__ import annotations

import os
import stat
import tempfile
from typing import Any, Dict, List

from specdash.host.remote import wire

MAX_READ = 64 * 1024 * 1024
MAX_ENTRIES = 10000

_KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


def _path(params: Dict[str, Any]) -> str:
    path = params.get("path")
    if not isinstance(path, str) or not path or "\0" in path:
        raise wire.CallError("bad_call", "a path is needed")
    return os.path.expanduser(path)


def _facts(info: os.stat_result) -> Dict[str, Any]:
    return {
        "kind": _KINDS.get(stat.S_IFMT(info.st_mode), "other"),
        "size": info.st_size,
        "mode": stat.S_IMODE(info.st_mode),
        "uid": info.st_uid,
        "mtime_unix": info.st_mtime,
        "device": info.st_dev,
        "inode": info.st_ino,
    }


def read(params: Dict[str, Any], _blob: bytes) -> Dict[str, Any]:
    """`file.read` {path, offset (negative: from the end), max_bytes} → facts + {offset, eof} + blob."""
    path = _path(params)
    limit = min(int(params.get("max_bytes") or 1024 * 1024), MAX_READ)
    try:
        # O_NONBLOCK: a named pipe must not hang us.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise wire.os_error(error, "read " + path) from None
    try:
        info = os.fstat(fd)
        if stat.S_ISDIR(info.st_mode):
            raise wire.CallError("is_a_folder", "could not read %s: it is a folder" % path)
        if not stat.S_ISREG(info.st_mode):
            raise wire.CallError("not_a_file", "could not read %s: it is not a regular file" % path)
        offset = int(params.get("offset") or 0)
        if offset < 0:
            offset = max(info.st_size + offset, 0)
        data = bytearray()
        eof = False
        while len(data) < limit:
            piece = os.pread(fd, min(limit - len(data), 1 << 20), offset + len(data))
            if not piece:
                eof = True
                break
            data += piece
        result = _facts(info)
        result.update(offset=offset, eof=eof or offset + len(data) == info.st_size, blob=bytes(data))
        return result
    except OSError as error:
        raise wire.os_error(error, "read " + path) from None
    finally:
        os.close(fd)


def write(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    """`file.write` {path, mode (default 0o600), replace (default true), parents} + blob → facts.

    All or nothing: written beside, synced and renamed. `replace` false: code "exists" when it is there.
    """
    path = os.path.realpath(_path(params))
    mode = int(params.get("mode", 0o600))
    folder = os.path.dirname(path)
    beside = ""
    try:
        if params.get("parents"):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        fd, beside = tempfile.mkstemp(prefix=".specdash-", dir=folder)
        with os.fdopen(fd, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(blob)
            file.flush()
            os.fsync(file.fileno())
        if params.get("replace", True):
            os.rename(beside, path)
            beside = ""
        else:
            os.link(beside, path)
        return _facts(os.stat(path))
    except OSError as error:
        raise wire.os_error(error, "write " + path) from None
    finally:
        if beside:
            try:
                os.unlink(beside)
            except OSError:
                pass


def look(params: Dict[str, Any], _blob: bytes) -> Dict[str, Any]:
    """`file.stat` {path} → {exists} and, when it does, facts of what it leads to; `link` when it is one."""
    path = _path(params)
    result: Dict[str, Any] = {"path": path, "link": None}
    try:
        if os.path.islink(path):
            result["link"] = os.readlink(path)
        result.update(_facts(os.stat(path)), exists=True, real=os.path.realpath(path))
    except FileNotFoundError:
        result["exists"] = False
    except NotADirectoryError:
        result["exists"] = False
    except OSError as error:
        raise wire.os_error(error, "look at " + path) from None
    return result


def listing(params: Dict[str, Any], _blob: bytes) -> Dict[str, Any]:
    """`file.list` {path, max_entries} → {entries: [facts + name], truncated}, sorted by name."""
    path = _path(params)
    limit = min(int(params.get("max_entries") or MAX_ENTRIES), MAX_ENTRIES)
    entries: List[Dict[str, Any]] = []
    truncated = False
    try:
        with os.scandir(path) as found:
            for entry in found:
                if len(entries) >= limit:
                    truncated = True
                    break
                try:
                    facts = _facts(entry.stat())
                except OSError:
                    try:
                        facts = _facts(entry.stat(follow_symlinks=False))
                    except OSError:
                        continue  # gone since the folder was read
                facts["name"] = entry.name
                entries.append(facts)
    except OSError as error:
        raise wire.os_error(error, "list " + path) from None
    entries.sort(key=lambda entry: str(entry["name"]))
    return {"path": path, "entries": entries, "truncated": truncated}


CALLS = {"file.read": read, "file.write": write, "file.stat": look, "file.list": listing}
SAMPLES: Dict[str, Any] = {}
