# ruff: noqa: PTH100, PTH110, PTH111, PTH112, PTH113, PTH118
"""Runs on the host, for `remote_probe`: what a model folder holds. Python 3.8, standard library and `specdash.sglang`."""

from __future__ import annotations

import json
import os
import struct
from typing import Any

from specdash.control.remote_probe import regular
from specdash.sglang import architectures, modelconfig
from specdash.sglang.tree import Source

MAX_CONFIG = 2_000_000
MAX_INDEX = 64_000_000
MAX_SHARDS = 4096
MAX_HEADER = 100_000_000


def model(path: str, source: Source | None = None) -> dict[str, Any]:
    """One model folder (or config.json, or hub id): config, shards against the index, bytes, tensors that tell."""
    full = os.path.abspath(os.path.expanduser(path))
    out: dict[str, Any] = {"path": path, "full": full, "kind": "missing", "problem": ""}
    if not os.path.exists(full):
        cached = hub_cache(path)
        if cached is None:
            is_id = path.count("/") == 1 and not path.startswith((".", "/", "~"))
            out["kind"] = "hub_id" if is_id else "missing"
            out["problem"] = "it is in no cache here" if is_id else "there is no such folder"
            return out
        full = cached
        out["full"] = full
    config_path = full if os.path.isfile(full) else os.path.join(full, "config.json")
    out["kind"] = "file" if os.path.isfile(full) else "folder"
    config, problem = modelconfig.parse(_read(config_path, modelconfig.MAX_BYTES + 1))
    out["problem"] = problem
    if config is not None and len(json.dumps(config)) > MAX_CONFIG:
        config, out["problem"] = None, "config.json is larger than specdash takes"
    out["config"] = config
    if out["kind"] == "folder":
        out.update(_weights(full))
        out["tokenizer"] = any(
            os.path.exists(os.path.join(full, name))
            for name in ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")
        )
    if source is not None and config is not None:
        arch = modelconfig.architecture(config)
        known = architectures.read(source.tree, source)
        eagle3, dflash, dspark = (
            architectures.has_method(source, known, arch, method)
            for method in (
                architectures.EAGLE3_METHOD,
                architectures.DFLASH_METHOD,
                architectures.DSPARK_METHOD,
            )
        )
        out["captures"] = {"EAGLE3": eagle3, "DFLASH": dflash, "DSPARK": dspark or dflash}
    return out


def hub_cache(name: str) -> str | None:
    """The snapshot folder of a hub id in the local cache, or None."""
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        return None
    home = os.environ.get("HF_HUB_CACHE") or os.path.join(
        os.environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface"), "hub"
    )
    folder = os.path.join(home, "models--" + name.replace("/", "--"))
    commit = (_read(os.path.join(folder, "refs", "main"), 200) or b"").decode("ascii", "replace").strip()
    snapshot = os.path.join(folder, "snapshots", commit)
    return snapshot if commit and os.path.isdir(snapshot) else None


def _read(path: str, limit: int) -> bytes | None:
    try:
        with open(path, "rb", opener=regular) as file:
            return file.read(limit)
    except OSError:
        return None


def _weights(folder: str) -> dict[str, Any]:
    """{size_bytes, shards: {expected, missing, broken}, tensor_count, tensors (names that rules ask for)}."""
    names: dict[str, int] = {}
    partial: list[str] = []
    try:
        entries = list(os.scandir(folder))
    except OSError as error:
        return {"problem": f"the folder cannot be read ({error.strerror})"}
    for entry in entries[:20000]:
        try:
            size = entry.stat().st_size
        except OSError:
            if entry.is_symlink():
                partial.append(entry.name)  # a link into a cache whose blob is gone
            continue
        if entry.name.endswith((".incomplete", ".part", ".tmp", ".aria2", ".lock")):
            partial.append(entry.name)
        elif entry.name.endswith((".safetensors", ".bin", ".pt", ".pth", ".gguf")):
            names[entry.name] = size
    expected: list[str] = []
    tensors: list[str] = []
    problem = ""
    for index in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        data = _read(os.path.join(folder, index), MAX_INDEX)
        if data is None:
            continue
        try:
            table = json.loads(data.decode("utf-8", "replace"))["weight_map"]
            expected = sorted({str(v) for v in table.values()})[:MAX_SHARDS]
            tensors = [str(k) for k in table]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            problem = f"{index} cannot be read"
        break
    broken: list[str] = []
    for name in sorted(names)[:MAX_SHARDS]:
        if name.endswith(".safetensors"):
            fault, inside = _header(os.path.join(folder, name), names[name], not expected)
            tensors.extend(inside)
            if fault:
                broken.append(f"{name}: {fault}")
    missing = [n for n in expected if n not in names]
    words = ("d2t", "t2d", "nextn", "mtp", "eagle", "fc.", "midlayer")
    return {
        "size_bytes": sum(names.values()),
        "shards": {
            "found": len(names),
            "expected": len(expected),
            "missing": missing[:50],
            "broken": broken[:50],
        },
        "missing_count": len(missing),
        "partial": partial[:20],
        "tensor_count": len(tensors) or None,
        "tensors": [t for t in tensors if any(w in t for w in words)][:500] if tensors else None,
        "weights_problem": problem,
    }


def _header(path: str, size: int, names: bool) -> tuple[str, list[str]]:
    """(what is wrong with a safetensors file, tensor names): the header says how long the file must be."""
    try:
        with open(path, "rb", opener=regular) as file:
            first = file.read(8)
            if len(first) < 8:
                return "it is empty or cut off", []
            length = struct.unpack("<Q", first)[0]
            if length > min(MAX_HEADER, max(size - 8, 0)):
                return "its header is longer than the file (a cut-off or foreign file)", []
            header = json.loads(file.read(length).decode("utf-8", "replace"))
        end = max((int(v["data_offsets"][1]) for k, v in header.items() if k != "__metadata__"), default=0)
    except OSError as error:
        return f"it cannot be read ({error.strerror})", []
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return "its header cannot be read", []
    if end + 8 + length > size:
        return f"{size} of {end + 8 + length} bytes are there", []
    return "", [k for k in header if k != "__metadata__"] if names else []
