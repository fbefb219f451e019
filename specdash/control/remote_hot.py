# ruff: noqa: PTH100, PTH108, PTH110, PTH111, PTH112, PTH116, PTH118, PTH120, PTH123, PTH202, PTH208
"""Runs on the host in the engine's interpreter: reads two drafters from their files, and proves a payload.

`look` reads headers and small tensors and imports no torch. `prove` is the one place that does: it lets the
installed engine serialise tensors that lie in shared-memory files of ours, and reads the payload back with the
engine's own reader, so that what the scheduler cannot take is found out here and not there. No GPU is touched.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib
import json
import os
import secrets
import struct
from typing import Any

from specdash.control import remote_models, remote_probe
from specdash.sglang import hot_fit, modelconfig, tune
from specdash.sglang.tree import Source

MAX_TENSORS = 20_000
MAX_HASHED = 16 << 30
SIZES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I16": 2}
TORCH = {
    "BF16": "bfloat16",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}
HEADER = 64
"""Bytes before the data in a shared file: torch counts its users in the first four."""


def look(now: str = "", new: str = "") -> dict[str, Any]:
    """{capability, tune, version, now: `drafter`, new: `drafter`}. Problems are words in it, not exceptions."""
    found = remote_probe.find()
    out: dict[str, Any] = {"capability": {"able": False, "missing": ["sglang"], "evidence": []}, "tune": {}}
    if found["found"]:
        folder = found["folders"][0]
        tree = remote_probe.FolderTree(found["folders"], os.path.dirname(folder))
        source = Source(tree)
        out["capability"] = hot_fit.capability(source)
        out["tune"] = tune.capability(source)
        out["version"] = remote_probe.version_of(tree, folder)[0]
    for name, path in (("now", now), ("new", new)):
        out[name] = drafter(path) if path else None
    return out


def drafter(path: str) -> dict[str, Any]:
    """{path, full, problem, config, tensors: {name: {dtype, shape, file, offset, bytes}}, stamps: {file: [bytes,
    mtime ns]}, hashes: {name: sha256} of what must be equal, size_bytes}."""
    full = os.path.abspath(os.path.expanduser(path))
    if not os.path.isdir(full):
        full = remote_models.hub_cache(path) or full
    out: dict[str, Any] = {"path": path, "full": full, "problem": "", "config": None, "hashes": {}}
    out.update(tensors={}, stamps={}, size_bytes=0)
    try:
        _read_drafter(full, out)
    except OSError as error:
        out["problem"] = f"{error.filename or full} cannot be read ({error.strerror})"
    except (
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        RecursionError,
        struct.error,
    ) as error:
        out["problem"] = f"a header cannot be read ({type(error).__name__})"
    return out


def _read_drafter(full: str, out: dict[str, Any]) -> None:
    with open(os.path.join(full, "config.json"), "rb") as file:
        data = file.read(modelconfig.MAX_BYTES + 1)
    _stamp(os.path.join(full, "config.json"), out)
    out["config"], out["problem"] = modelconfig.parse(data)
    if out["config"] is None or out["problem"]:
        return
    for path in _files(full):
        real = os.path.realpath(path)
        _stamp(real, out)
        for name, one in _table(real).items():
            if name in out["tensors"]:
                out["problem"] = f"{name} is in two files"
                return
            out["tensors"][name] = one
            out["size_bytes"] += one["bytes"]
    if not out["tensors"] or len(out["tensors"]) > MAX_TENSORS:
        out["problem"] = f"{len(out['tensors'])} tensors in safetensors files"
        return
    wanted = hot_fit.not_sent(out["config"], out["tensors"])
    if sum(out["tensors"][name]["bytes"] for name in wanted) > MAX_HASHED:
        out["problem"] = "too much would have to be read to compare it"
        return
    for name in wanted:
        out["hashes"][name] = digest(out["tensors"][name])


def _files(full: str) -> list[str]:
    """The files that the engine loads: those of the index where there is one, else all."""
    index = os.path.join(full, "model.safetensors.index.json")
    if os.path.exists(index):
        with open(index, "rb") as file:
            table = json.loads(file.read(remote_models.MAX_INDEX).decode("utf-8"))["weight_map"]
        names = sorted({str(name) for name in table.values()})
        if any("/" in name or name.startswith(".") for name in names):
            raise ValueError("the index names files elsewhere")
        return [os.path.join(full, name) for name in names]
    return [os.path.join(full, name) for name in sorted(os.listdir(full)) if name.endswith(".safetensors")]


def _stamp(path: str, out: dict[str, Any]) -> None:
    facts = os.stat(path)
    out["stamps"][path] = [facts.st_size, facts.st_mtime_ns]


def _table(path: str) -> dict[str, dict[str, Any]]:
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        if length > min(remote_models.MAX_HEADER, size - 8):
            raise ValueError("the header is longer than the file")
        header = json.loads(file.read(length).decode("utf-8"))
    found = {}
    for name, one in header.items():
        if name == "__metadata__":
            continue
        shape = [int(n) for n in one["shape"]]
        start, end = (int(n) for n in one["data_offsets"])
        count = 1
        for n in shape:
            count *= n
        wanted = count * SIZES.get(str(one["dtype"]), 1)
        if end - start != wanted or start < 0 or wanted <= 0 or 8 + length + end > size:
            raise ValueError("a tensor's place does not fit its shape")
        found[str(name)] = {
            "dtype": str(one["dtype"]),
            "shape": shape,
            "file": path,
            "offset": 8 + length + start,
            "bytes": wanted,
        }
    return found


def digest(one: dict[str, Any]) -> str:
    made, left = hashlib.sha256(), int(one["bytes"])
    with open(one["file"], "rb") as file:
        file.seek(one["offset"])
        while left > 0:
            part = file.read(min(left, 8 << 20))
            if not part:
                raise ValueError("the file ends early")
            made.update(part)
            left -= len(part)
    return made.hexdigest()


def prove(tensors: list[dict[str, Any]], token: str) -> dict[str, Any]:
    """tensors: [{name, dtype, shape, shm, sha256}] whose bytes lie in shared files that have `token` in their names
    → {payload (base64), torch}.

    Raises when the engine's serializer or reader does not take them exactly. What is read back are links to the
    files under other names: torch's own manager removes every name that a process of it has opened, once that
    process ends, and the real names must outlive us.
    """
    os.nice(10)  # a server works beside us
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch  # type: ignore[import-not-found, unused-ignore]

    serializer: Any = None
    for module in ("sglang.srt.utils.common", "sglang.srt.utils"):
        try:
            serializer = importlib.import_module(module).MultiprocessingSerializer
            break
        except (ImportError, AttributeError):
            continue
    if serializer is None:
        raise RuntimeError("the installed SGLang has no MultiprocessingSerializer")
    reductions = importlib.import_module("torch.multiprocessing.reductions")
    pickler = importlib.import_module("multiprocessing.reduction").ForkingPickler
    torch.multiprocessing.set_sharing_strategy("file_system")
    named, places = [], {}
    for one in tensors:
        made = torch.empty(one["shape"], dtype=getattr(torch, TORCH[one["dtype"]]))
        places[made.untyped_storage().data_ptr()] = one["shm"].encode("ascii")
        named.append((one["name"], made))

    def reduce(storage: Any) -> Any:
        # What torch's file_system strategy writes, but with our file, which no dying process takes along; the
        # empty manager lets the reader use its own.
        where = places[storage._untyped_storage.data_ptr()]
        numbers = storage._untyped_storage.nbytes() // storage._element_size()
        return reductions.rebuild_storage_filename, (type(storage), b"", where, numbers, storage.dtype)

    pickler.register(torch.storage.TypedStorage, reduce)
    payload = serializer.serialize(named)
    other = secrets.token_hex(len(token) // 2)
    links = []
    try:
        for one in tensors:
            links.append("/dev/shm" + one["shm"].replace(token, other))
            os.link("/dev/shm" + one["shm"], links[-1])
        if payload.count(token.encode()) != len(tensors):
            raise RuntimeError("the payload does not name each file once")
        _compare(torch, serializer.deserialize(payload.replace(token.encode(), other.encode())), tensors)
    finally:
        for link in links:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(link)
    return {"payload": base64.b64encode(payload).decode("ascii"), "torch": torch.__version__}


def _compare(torch: Any, got: Any, tensors: list[dict[str, Any]]) -> None:
    if [name for name, _ in got] != [one["name"] for one in tensors]:
        raise RuntimeError("the engine's reader gives other names")
    for (name, tensor), one in zip(got, tensors):  # noqa: B905  (Python 3.8)
        raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
        same = list(tensor.shape) == list(one["shape"]) and tensor.dtype == getattr(
            torch, TORCH[one["dtype"]]
        )
        if not same or hashlib.sha256(memoryview(raw)).hexdigest() != one["sha256"]:
            raise RuntimeError(f"the engine's reader gives another {name}")
