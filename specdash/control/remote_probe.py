# ruff: noqa: PTH100, PTH109, PTH110, PTH111, PTH112, PTH113, PTH116, PTH118, PTH120, PTH123, PTH208, E402
"""Runs on the host, in the profile's interpreter, where `python -m sglang.launch_server` would: what is there.

The one place with I/O for `specdash.sglang`. Python 3.8, standard library and `specdash.sglang` only; it never
imports SGLang (only `deep` does, in a child of its own). Everything it returns is JSON.
"""

from __future__ import annotations

import os
import sys

# Our own imports must not come from the working directory: a `json.py` in it would run here.
_PATH = list(sys.path)
_HERE = os.getcwd()
sys.path[:] = [entry for entry in _PATH if entry not in ("", _HERE)]

import errno
import hashlib
import importlib.util
import json
import platform
import socket
import struct
import time
from collections.abc import Iterable
from typing import Any

try:
    import resource
except ImportError:  # pragma: no cover - Linux has it
    resource = None  # type: ignore[assignment]

import builtins

from specdash.sglang import architectures, locate, modelconfig
from specdash.sglang.tree import Source

sys.path[:] = _PATH

MAX_FILE = 16_000_000
MAX_CONFIG = 2_000_000
MAX_INDEX = 64_000_000
MAX_SHARDS = 4096
MAX_HEADER = 100_000_000


class FolderTree:
    """A tree on disk. `packages`: the folders that are the package `sglang`; `site`: what lies beside it."""

    def __init__(self, packages: builtins.list[str], site: str) -> None:
        self.packages = packages
        self.site = site

    def read(self, path: str) -> bytes | None:
        for full in self._places(path):
            try:
                with open(full, "rb") as file:
                    return file.read(MAX_FILE)
            except OSError:
                continue
        return None

    def list(self, folder: str) -> builtins.list[str]:
        names: dict[str, None] = {}
        for full in self._places(folder):
            try:
                names.update(dict.fromkeys(os.listdir(full)))
            except OSError:
                continue
        return sorted(names)

    def _places(self, path: str) -> builtins.list[str]:
        parts = [part for part in path.split("/") if part]
        if ".." in parts:
            return []
        if parts[:1] == ["sglang"]:
            return [os.path.join(package, *parts[1:]) for package in self.packages]
        return [os.path.join(self.site, *parts)]


def local_tree(folder: str) -> FolderTree | None:
    """The tree in a folder: an unpacked wheel, a site folder, a git clone, or the package itself."""
    folder = os.path.abspath(os.path.expanduser(folder))
    below = locate.package_below(lambda path: os.path.exists(os.path.join(folder, path)))
    if below is None:
        return None
    package = os.path.normpath(os.path.join(folder, below))
    return FolderTree([package], os.path.dirname(package))


def find() -> dict[str, Any]:
    """Where `import sglang` would come from, and every other copy on the path. Imports nothing."""
    copies: list[dict[str, Any]] = []
    for entry in sys.path:
        base = entry or os.getcwd()
        package = os.path.join(base, "sglang")
        if os.path.isdir(package) and not any(c["path"] == package for c in copies):
            regular = os.path.isfile(os.path.join(package, "__init__.py"))
            whole = os.path.exists(os.path.join(package, *locate.MARK.split("/")))
            version = locate.version(FolderTree([package], base))[0]
            copies.append(
                {"path": package, "regular": regular, "whole": whole, "version": version, "wins": False}
            )
        elif os.path.isfile(package + ".py"):
            copies.append(
                {"path": package + ".py", "regular": True, "whole": False, "version": "", "wins": False}
            )
    problem = ""
    try:
        spec = importlib.util.find_spec("sglang")
    except (ImportError, ValueError, AttributeError, OSError) as error:
        spec, problem = None, f"{type(error).__name__}: {error}"
    folders: list[str] = []
    if spec is not None and spec.submodule_search_locations is not None:
        folders = [os.path.abspath(p) for p in spec.submodule_search_locations]
    elif spec is not None:
        problem = f"sglang is a single file, {spec.origin}, and no package"
    for folder in folders:
        known = next((c for c in copies if os.path.abspath(c["path"]) == folder), None)
        if known is None:
            version = locate.version(FolderTree([folder], os.path.dirname(folder)))[0]
            whole = os.path.exists(os.path.join(folder, *locate.MARK.split("/")))
            known = {"path": folder, "regular": True, "whole": whole, "version": version, "wins": False}
            copies.append(known)  # an editable install's finder knows a folder that is not on the path
        known["wins"] = True
    namespace = bool(folders) and (spec is None or spec.origin is None)
    return {
        "found": bool(folders),
        "folders": folders,
        "copies": copies,
        "namespace": namespace,
        "problem": problem,
    }


def version_of(tree: FolderTree, folder: str) -> tuple[str, str]:
    """(version, who says so): the files beside the winner, then the interpreter's metadata."""
    told, where = locate.version(tree)
    if told:
        return told, where
    try:
        import importlib.metadata  # 40 ms, and seldom needed

        return importlib.metadata.version("sglang"), "metadata of the interpreter"
    except Exception:  # any broken metadata on the path raises what it likes
        return "", ""


def fingerprint(tree: FolderTree, version: str, sites: Iterable[str], enabled: str) -> str:
    """Changes when any file that the reading came from may have changed: paths, sizes, times."""
    digest = hashlib.sha256()
    words = [str(locate.FORMAT), sys.executable, platform.python_version(), version, enabled, *tree.packages]
    digest.update("\0".join(words).encode("utf-8", "surrogateescape"))
    names = [
        "",
        "_version.py",
        "version.py",
        "srt/server_args.py",
        "srt/speculative",
        "srt/models",
        "srt/plugins",
    ]
    for package in tree.packages:
        for name in names:
            _stamp(digest, os.path.join(package, name))
        for folder in ("srt/speculative", "srt/models"):
            _stamp_folder(digest, os.path.join(package, folder), 1)
        _stamp_folder(digest, os.path.join(package, "srt/arg_groups"), 3)
    for site in sites:
        # Not the folder's own time: the working directory is among them and changes all the time.
        try:
            names = sorted(n for n in os.listdir(site) if n.endswith((".dist-info", ".egg-info")))
        except OSError:
            continue
        for name in names[:5000]:
            _stamp(digest, os.path.join(site, name, "entry_points.txt"))
    return digest.hexdigest()


def _stamp(digest: Any, path: str) -> None:
    try:
        facts = os.stat(path)
    except OSError:
        digest.update(b"-")
        return
    digest.update(f"{path}:{facts.st_size}:{facts.st_mtime_ns};".encode("utf-8", "surrogateescape"))


def _stamp_folder(digest: Any, folder: str, depth: int) -> None:
    try:
        entries = sorted(os.scandir(folder), key=lambda e: e.name)
    except OSError:
        return
    for entry in entries[:5000]:
        if entry.name.endswith(".py"):
            _stamp(digest, entry.path)
        elif depth > 1 and entry.name != "__pycache__" and entry.is_dir():
            _stamp_folder(digest, entry.path, depth - 1)


def look(
    known: str = "",
    models: Iterable[str] = (),
    tree: str | None = None,
    host: dict[str, Any] | None = None,
    environ: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Everything static in one call. `known`: the fingerprint that the caller has a reading for.

    → {python, executable, sglang: {found, copies, …, version}, fingerprint, reading (None: as known),
    models: {path: …}, host: {…}, now_unix, took_s}. Problems are sentences in it, not exceptions.
    """
    began = time.monotonic()
    env = dict(os.environ) if environ is None else environ
    out: dict[str, Any] = {"python": platform.python_version(), "executable": sys.executable, "reading": None}
    found = find() if tree is None else _given(tree)
    out["sglang"] = found
    source: Source | None = None
    if found["found"]:
        folder = found["folders"][0]
        files = FolderTree(found["folders"], os.path.dirname(folder))
        found["version"], found["version_from"] = version_of(files, folder)
        paths = [files.site] + [p for p in sys.path if os.path.isdir(p) and p != files.site]
        sites = paths if tree is None else [files.site]
        enabled = env.get("SGLANG_PLUGINS", "")
        out["fingerprint"] = fingerprint(files, found["version"], sites, enabled)
        source = Source(files)
        if out["fingerprint"] != known:
            trees = [FolderTree([], site) for site in sites]
            trees[0] = files
            reading = _reading()
            done = reading.read(files, trees, enabled, found["version"])
            out["reading"] = reading.as_json(done)
    out["models"] = {path: model(path, source) for path in models}
    if host is not None:
        out["host"] = host_facts(host)
    out["now_unix"] = time.time()
    out["took_s"] = time.monotonic() - began
    return out


def _reading() -> Any:
    """The reader is imported only when something is read: a warm probe compares and needs none of it."""
    path = list(sys.path)
    sys.path[:] = [entry for entry in path if entry not in ("", _HERE)]
    try:
        from specdash.sglang import flag_source, reading

        assert flag_source
        return reading
    finally:
        sys.path[:] = path


def _given(folder: str) -> dict[str, Any]:
    tree = local_tree(folder)
    packages = tree.packages if tree is not None else []
    return {"found": tree is not None, "folders": packages, "copies": [], "namespace": False, "problem": ""}


def model(path: str, source: Source | None = None) -> dict[str, Any]:
    """One model folder (or config.json, or hub id): config, shards against the index, bytes, tensors that tell."""
    full = os.path.abspath(os.path.expanduser(path))
    out: dict[str, Any] = {"path": path, "full": full, "kind": "missing", "problem": ""}
    if not os.path.exists(full):
        cached = _hub_cache(path)
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
        out["captures"] = {
            name: architectures.has_method(source, known, arch, method)
            for name, method in (
                ("EAGLE3", architectures.EAGLE3_METHOD),
                ("DFLASH", architectures.DFLASH_METHOD),
                ("DSPARK", architectures.DSPARK_METHOD),
            )
        }
    return out


def _hub_cache(name: str) -> str | None:
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
        with open(path, "rb") as file:
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
        with open(path, "rb") as file:
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


def host_facts(wanted: dict[str, Any]) -> dict[str, Any]:
    """{log_folder, ports: [[address, port]], …} → disk, /dev/shm, limits, ports, PID 1, locks of other runs."""
    out: dict[str, Any] = {"disk": {}, "ports": {}}
    for name, path in (("log", wanted.get("log_folder")), ("tmp", "/tmp"), ("shm", "/dev/shm")):
        out["disk"][name] = _disk(path)
    out["limits"] = _limits()
    for address, port in wanted.get("ports") or []:
        out["ports"][f"{address}:{port}"] = _bind(str(address), int(port))
    out["pid1"] = _pid1()
    out["locks"] = _locks()
    return out


def _disk(path: str | None) -> dict[str, Any] | None:
    if not path:
        return None
    here = os.path.abspath(os.path.expanduser(path))
    while not os.path.exists(here) and os.path.dirname(here) != here:
        here = os.path.dirname(here)
    try:
        usage = os.statvfs(here)
    except OSError:
        return None
    writable = os.access(here, os.W_OK | os.X_OK)
    return {
        "path": here,
        "free_bytes": usage.f_bavail * usage.f_frsize,
        "total_bytes": usage.f_blocks * usage.f_frsize,
        "writable": writable,
    }


def _limits() -> dict[str, list[int] | None]:
    out: dict[str, list[int] | None] = {}
    for name in ("NOFILE", "MEMLOCK", "NPROC", "AS", "STACK"):
        code = getattr(resource, "RLIMIT_" + name, None)
        out[name.lower()] = list(resource.getrlimit(code)) if code is not None else None
    return out


def _bind(address: str, port: int) -> dict[str, Any]:
    """Whether a server could listen there now: {free, problem}. Nothing listens, the socket is closed at once."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, port))
        return {"free": True, "problem": ""}
    except (OSError, OverflowError, ValueError) as error:
        number = getattr(error, "errno", None)
        problem = {
            errno.EADDRINUSE: "in use",
            errno.EACCES: "not allowed",
            errno.EADDRNOTAVAIL: "no such address",
        }
        return {"free": False, "problem": problem.get(number or 0, str(error))}


REAPERS = (
    "systemd",
    "init",
    "tini",
    "dumb-init",
    "docker-init",
    "catatonit",
    "s6-svscan",
    "runit",
    "bash",
    "sh",
    "dash",
    "supervisord",
    "runsvdir",
    "zsh",
    "conmon",
    "launchd",
)


def _pid1() -> dict[str, Any]:
    """{name, reaps (by its name; None: cannot tell), zombies: those that already wait for it}."""
    name = (_read("/proc/1/comm", 64) or b"").decode("utf-8", "replace").strip()
    zombies = 0
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if entry.isdigit():
            data = _read(f"/proc/{entry}/stat", 1000) or b""
            fields = data.rpartition(b")")[2].split()
            if len(fields) > 1 and fields[0] == b"Z" and fields[1] == b"1":
                zombies += 1
    reaps: bool | None = True if name in REAPERS else None
    if name in ("python", "python3", "sleep", "tail", "node", "java", "sshd", "jupyter-lab", "cat"):
        reaps = False
    return {"name": name, "reaps": reaps, "zombies": zombies}


def _locks() -> list[dict[str, Any]]:
    """Living supervisors of every user: their abstract sockets. The kernel names the owner; none is ever stale."""
    out: list[dict[str, Any]] = []
    for line in (_read("/proc/net/unix", 4_000_000) or b"").splitlines()[1:]:
        name = line.split(b" ")[-1]
        if not name.startswith(b"@specdash/"):
            continue
        parts = name.decode("utf-8", "replace").split("/")
        if len(parts) != 4 or any(o["kind"] == parts[2] and o["id"] == parts[3] for o in out):
            continue
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(0.5)
            try:
                sock.connect(b"\0" + name[1:])
                pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            except (OSError, AttributeError):
                continue
        out.append(
            {"kind": parts[2], "id": parts[3], "pid": pid, "uid": uid, "user": _user(uid), "age_s": _age(pid)}
        )
    return out


def _user(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _age(pid: int) -> float | None:
    data = _read(f"/proc/{pid}/stat", 1000) or b""
    fields = data.rpartition(b")")[2].split()
    up = (_read("/proc/uptime", 100) or b"").split()
    if len(fields) < 20 or not up:
        return None
    return max(0.0, float(up[0]) - int(fields[19]) / os.sysconf("SC_CLK_TCK"))


_DEEP = """
import json, os, sys
out = {"algorithms": None, "aliases": {}, "plugins_loaded": None, "problem": ""}
try:
    try:
        from sglang.srt.plugins import load_plugins
        load_plugins()
        out["plugins_loaded"] = True
    except ImportError:
        out["plugins_loaded"] = False
    from sglang.srt.speculative import spec_info
    kind = spec_info.SpeculativeAlgorithm
    names = [member.name for member in kind]
    try:
        from sglang.srt.speculative import spec_registry
        names += [name for name in spec_registry._REGISTRY if name not in names]
    except (ImportError, AttributeError):
        pass
    out["algorithms"] = [name for name in names if name != "NONE"]
    for alias in ("NEXTN",):
        try:
            found = kind.from_string(alias)
            out["aliases"][alias] = getattr(found, "name", str(found))
        except Exception:
            pass
except BaseException as error:
    out["problem"] = "%s: %s" % (type(error).__name__, str(error)[:500])
    if isinstance(error, ImportError) and "speculative" in str(error):
        out["algorithms"] = []
with os.fdopen(int(sys.argv[1]), "w") as pipe:
    pipe.write(json.dumps(out))
os._exit(0)
"""


def deep(timeout_s: float = 120.0) -> dict[str, Any]:
    """Import SGLang in a child and list what it really registered, plugins included. Seconds to minutes.

    → {algorithms (None: it failed), aliases, plugins_loaded, problem, took_s}.
    """
    import subprocess

    began = time.monotonic()
    reader, writer = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-c", _DEEP, str(writer)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(writer,),
        start_new_session=True,
    )
    os.close(writer)
    problem = ""
    try:
        child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        problem = f"the import did not end within {timeout_s:g} s"
        os.killpg(child.pid, 9)
        child.wait()
    os.set_blocking(reader, False)
    try:
        data = os.read(reader, 1_000_000)
    except OSError:
        data = b""
    os.close(reader)
    out: dict[str, Any] = {"algorithms": None, "aliases": {}, "plugins_loaded": None, "problem": problem}
    try:
        out.update(json.loads(data.decode("utf-8")))
    except ValueError:
        out["problem"] = problem or f"the child ended with code {child.returncode} and said nothing"
    out["took_s"] = time.monotonic() - began
    return out
