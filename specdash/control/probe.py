"""Ask the SGLang that a profile's interpreter would import: on a host, or in a folder of this machine.

One call to the host reads everything; what was read is kept under the operator's state folder by interpreter,
working directory and the fingerprint of the files, so that the next probe only compares.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdash.config import paths
from specdash.errors import RemoteError, UsageError
from specdash.host.bundle import pack
from specdash.host.link import Link
from specdash.sglang import probe_json
from specdash.sglang import reading as reading_
from specdash.sglang.reading import Reading

MODULES = (
    "specdash.control.remote_probe",
    "specdash.control.remote_models",
    "specdash.control.remote_host",
    *(
        f"specdash.sglang.{name}"
        for name in (
            "algorithms",
            "architectures",
            "constants",
            "enum_members",
            "flag_fields",
            "flag_making",
            "flag_source",
            "flags",
            "locate",
            "modelconfig",
            "plugins",
            "reading",
            "tree",
            "versions",
        )
    ),
)
DEEP = "specdash.control.remote_deep"
LOOK_S = 60.0
DEEP_S = 180.0
MOST_REMEMBERED = 50


@dataclass(frozen=True, slots=True)
class Copy:
    """One sglang on the path. `whole` False: it lacks `srt/server_args.py`."""

    path: str
    version: str
    wins: bool
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Probe:
    """What an interpreter would run, and what was read of it. `reading` None: there is no SGLang."""

    host: str
    python: str
    """The interpreter's version."""
    executable: str
    reading: Reading | None
    version_from: str = ""
    copies: tuple[Copy, ...] = ()
    namespace: bool = False
    problem: str = ""
    """Not empty: why there is no sglang to import."""
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Path as asked → facts of a model folder (`remote_models.model`)."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """`remote_host.host_facts`, when asked for."""
    cached: bool = False
    took_s: float = 0.0
    now_unix: float | None = None
    deep: Mapping[str, Any] | None = None

    @property
    def winner(self) -> Copy | None:
        return next((c for c in self.copies if c.wins), None)

    @property
    def unread_sentence(self) -> str:
        """Empty, or what could not be read, for people."""
        if self.reading is None or not self.reading.unread:
            return ""
        return "; ".join(f"{u.path}: {u.reason}" for u in self.reading.unread[:5])


async def probe(
    link: Link,
    python: str,
    cwd: str = "",
    env: Mapping[str, str] | None = None,
    *,
    models: Sequence[str] = (),
    host: Mapping[str, Any] | None = None,
    deep: bool = False,
    use_cache: bool = True,
) -> Probe:
    """Read the SGLang of an interpreter on a host. Raises RemoteError (no interpreter, too old, no folder)."""
    where = cwd or str(link.hello.get("home") or "/")
    if where.startswith("~"):
        where = str(link.hello.get("home") or "/") + where[1:]
    interpreter = python or "python3"
    cache = _cache_file(link, interpreter, where, env or {})
    known = _load(cache) if use_cache else None
    params = {
        "python": interpreter,
        "cwd": where,
        "env": dict(env or {}),
        "module": "specdash.control.remote_probe",
        "func": "look",
        "args": {
            "known": known[0] if known is not None else "",
            "models": list(models),
            "host": dict(host) if host is not None else None,
        },
        "timeout": LOOK_S,
    }
    bundle = pack(MODULES)
    answer = (await link.call("py.run", params, timeout=LOOK_S + 5, blob=bundle))["result"]
    reading, cached = _reading(answer["reading"]), False
    if reading is None and answer["sglang"]["found"] and known is not None:
        reading, cached = known[1], True
    elif reading is not None and use_cache:
        kept = {"fingerprint": answer["fingerprint"], "host": link.name, "reading": answer["reading"]}
        _store(cache, kept)
    asked: Mapping[str, Any] | None = None
    if deep and answer["sglang"]["found"]:
        params.update(module=DEEP, func="deep", args={"timeout_s": DEEP_S}, timeout=DEEP_S + 10)
        asked = (await link.call("py.run", params, timeout=DEEP_S + 20, blob=pack((DEEP,))))["result"]
    return _made(link.name, answer, reading, cached, asked)


def remembered(host: str = "") -> Reading | None:
    """What was read last, of this host or of any; for when nobody can be asked. It can be out of date."""
    try:
        files = sorted(_folder().glob("*.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    except OSError:
        return None
    for file in files[:MOST_REMEMBERED]:
        try:
            named = json.loads(file.read_bytes()).get("host")
        except (OSError, ValueError, AttributeError):
            continue
        found = _load(file) if not host or named == host else None
        if found is not None:
            return found[1]
    return None


async def probe_tree(folder: str | Path) -> Probe:
    """Read an unpacked SGLang of this machine. Raises UsageError when the folder holds none."""
    from specdash.control import remote_probe

    answer = await asyncio.to_thread(remote_probe.look, tree=os.fspath(folder))
    reading = _reading(answer["reading"])
    if reading is None:
        raise UsageError(
            f"{folder} holds no SGLang tree.",
            "Name a folder that has srt/server_args.py in it, in sglang/ or in python/sglang/.",
        )
    return _made("", answer, reading, False, None)


def _reading(data: Mapping[str, Any] | None) -> Reading | None:
    """Raises RemoteError when it is none of ours."""
    try:
        return reading_.from_wire(data) if data is not None else None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RemoteError(
            "bad_answer", f"the probe gave an answer that is no reading ({error!r:.80})"
        ) from None


def _made(
    host: str,
    answer: Mapping[str, Any],
    reading: Reading | None,
    cached: bool,
    deep: Mapping[str, Any] | None,
) -> Probe:
    found = answer["sglang"]
    return Probe(
        host=host,
        python=str(answer["python"]),
        executable=str(answer["executable"]),
        reading=reading,
        version_from=str(found.get("version_from") or ""),
        copies=tuple(Copy(c["path"], c["version"], c["wins"], c["whole"]) for c in found["copies"]),
        namespace=bool(found["namespace"]),
        problem=str(found["problem"] or ("" if found["found"] else "there is no sglang on its path")),
        models=dict(answer["models"]),
        facts=dict(answer.get("host") or {}),
        cached=cached,
        took_s=float(answer["took_s"]),
        now_unix=answer.get("now_unix"),
        deep=deep,
    )


def as_json(probe: Probe) -> dict[str, Any]:
    """The documented JSON: `version`, `algorithms`, `aliases`, `flags`, `plugins`, `unread`, and more."""
    reading = probe.reading
    nothing: dict[str, Any] = {"version": "", "algorithms": None, "aliases": {}, "flags": {}, "plugins": []}
    nothing["unread"] = [{"path": "sglang", "reason": probe.problem}]
    out = probe_json.as_json(reading) if reading is not None else nothing
    out.update(
        host=probe.host,
        python=probe.python,
        executable=probe.executable,
        version_from=probe.version_from,
        copies=[
            {"path": c.path, "version": c.version, "wins": c.wins, "whole": c.whole} for c in probe.copies
        ],
        namespace=probe.namespace,
        problem=probe.problem,
        cached=probe.cached,
        took_s=probe.took_s,
        deep=dict(probe.deep) if probe.deep is not None else None,
    )
    return out


def _cache_file(link: Link, python: str, cwd: str, env: Mapping[str, str]) -> Path:
    """One file per host, interpreter, working directory and what of the environment moves imports."""
    moving = [
        f"{k}={env[k]}" for k in sorted(env) if k.startswith(("PYTHON", "SGLANG_PLUGINS", "VIRTUAL_ENV"))
    ]
    words = "\0".join([str(link.hello.get("machine_id")), str(link.hello.get("user")), python, cwd, *moving])
    name = hashlib.sha256(words.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return _folder() / f"{name}.json"


def _folder() -> Path:
    return paths.state_dir() / "probes"


def _load(file: Path) -> tuple[str, Reading] | None:
    """(fingerprint, what was read then); None too when it is of another format or damaged."""
    try:
        data = json.loads(file.read_bytes())
        if data["reading"]["format"] != reading_.FORMAT:
            return None
        found = _reading(data["reading"])
        return (str(data["fingerprint"]), found) if found is not None else None
    except (OSError, ValueError, KeyError, TypeError, RemoteError):
        return None


def _store(file: Path, data: Mapping[str, Any]) -> None:
    """Best effort: a cache that cannot be written costs time, nothing else."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = file.with_name(f"{file.name}.{os.getpid()}.new")
        new.write_text(json.dumps(data), "utf-8")
        new.replace(file)
    except OSError:
        pass


__all__ = ["Copy", "Probe", "RemoteError", "as_json", "probe", "probe_tree"]
