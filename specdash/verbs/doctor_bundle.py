"""The support bundle: what a stranger needs to understand a problem, and nothing that opens a door.

Secrets go by two nets. By value: everything that a reference of a profile stands for, the stored secrets, secret
variables of this environment, and what the hosts' run folders hold; also as they look quoted, escaped or encoded.
By name and shape: `specdash.sglang.redact`. A text that was cut loses its first line, whose name may be cut off.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
import tarfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

from specdash.errors import Refused, SpecdashError
from specdash.sglang import redact

if TYPE_CHECKING:
    from specdash.host.link import Link
    from specdash.verbs.context import Context

RUNS = 5
LOG_TAIL = 256 * 1024
EVENTS_TAIL = 128 * 1024
TRACES = 20
QUEUES = 5
SHORTEST = 4
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_SAFE = re.compile(r"[^A-Za-z0-9._-]+")


def place(name: str) -> Path:
    """The path of a bundle to be. Raises Refused before any work when it is there, or its folder is not."""
    path = Path(name).expanduser()
    if path.is_symlink() or path.exists():
        raise Refused(f"{path} is there already.", "Name another file: nothing is overwritten.")
    if not path.parent.is_dir():
        raise Refused(f"There is no folder {path.parent}.", "Make it, or name another.")
    return path


async def write(context: Context, path: Path, report: Mapping[str, Any], links: Sequence[Link]) -> list[str]:
    """Collects, redacts and writes. Returns the names in the archive. Raises Refused when it cannot be written."""
    known = set(_known_here(context))
    hosts = {}
    for link in links:
        try:
            hosts[link.name] = await _host(link, known)
        except Exception as problem:  # what one host sends must not cost the bundle of all
            hosts[link.name] = {"problem.txt": f"{type(problem).__name__}: {problem}"}
    nets = variants(known)
    files: dict[str, str] = {
        "doctor.json": _json(report, nets),
        "versions.json": _json(versions(), nets),
        **_config(context, nets),
        **_traces(nets),
    }
    for name, found in hosts.items():
        for file, content in found.items():
            text = _json(content, nets) if not isinstance(content, str) else clean(content, nets)
            files[f"hosts/{_safe(name)}/{file}"] = text
    _put(path, files)
    return sorted(files)


def _put(path: Path, files: Mapping[str, str]) -> None:
    packed = io.BytesIO()
    now = int(time.time())
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in sorted(files.items()):
            data = text.encode("utf-8", "replace")
            entry = tarfile.TarInfo(f"specdash-bundle/{name}")
            entry.size, entry.mode, entry.mtime = len(data), 0o600, now
            archive.addfile(entry, io.BytesIO(data))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        handle = os.open(path, flags, 0o600)
    except FileExistsError:
        raise Refused(f"{path} is there already.", "Name another file: nothing is overwritten.") from None
    except OSError as problem:
        raise Refused(f"{path} cannot be written: {problem.strerror}.", "Name another file.") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(packed.getvalue())
    except OSError as problem:
        path.unlink(missing_ok=True)
        raise Refused(f"{path} cannot be written: {problem.strerror}.", "Name another file.") from None


# -- what is secret


def _known_here(context: Context) -> Iterable[str]:
    """Secret values that this machine knows: stored ones, those that profiles refer to, secret variables."""
    from specdash.config import inherit, paths, secrets
    from specdash.config.settings import Settings
    from specdash.control import profiles

    for name, value in os.environ.items():
        if secrets.is_secret_env(name) or redact.is_secret_key(name):
            yield value
    folder = paths.secrets_dir()
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        yield _read(file, 65_536).strip("\n")
    try:
        settings = context.settings
    except SpecdashError:
        settings = Settings()
    for name in inherit.names():
        try:
            spec = profiles.resolve(name, settings)
        except SpecdashError:
            continue
        for reference in (*spec.secret_flags.values(), *spec.secret_env.values()):
            try:
                yield secrets.resolve(reference).value or ""
            except SpecdashError:
                # One that was given literally is no reference, and is the secret itself.
                yield "" if secrets.is_reference(reference) else reference


def variants(known: Iterable[str]) -> list[str]:
    """Each value, its lines, and how it looks quoted, escaped or encoded."""
    out: set[str] = set()
    for value in known:
        for one in (value, value.strip(), *value.splitlines()):
            if len(one) < SHORTEST:
                continue
            raw = one.encode("utf-8", "surrogateescape")
            out |= {one, json.dumps(one)[1:-1], json.dumps(one, ensure_ascii=False)[1:-1], repr(one)[1:-1]}
            out |= {quote(raw, safe=""), quote(raw), quote_plus(raw), raw.hex()}
            out |= {base64.b64encode(raw).decode(), base64.urlsafe_b64encode(raw).decode().rstrip("=")}
    return sorted((one for one in out if len(one) >= SHORTEST), key=len, reverse=True)


def hide(text: str, nets: Iterable[str]) -> str:
    """By value, the longest first."""
    for value in nets:
        text = text.replace(value, redact.MARK)
    return text


def clean(text: str, nets: Sequence[str]) -> str:
    """A text with colours and secrets taken out. JSON lines are redacted as data."""
    from specdash.config.secrets import is_secret_env

    lines = []
    for line in redact.private_keys(hide(_ANSI.sub("", text), nets)).splitlines():
        bare = line.strip()
        if bare.startswith("{"):
            try:
                lines.append(json.dumps(_tree(redact.json_value(json.loads(bare)))))
                continue
            except (ValueError, RecursionError):
                pass
        line = re.sub(
            r"\b([A-Z][A-Z0-9_]{2,})(=)([^\s;]+)",
            lambda m: f"{m[1]}{m[2]}{redact.MARK}" if is_secret_env(m[1]) else m[0],
            line,
        )
        lines.append(redact.text(line))
    # Once more: data was written anew, and may be spelled in another way now.
    return hide("\n".join(lines) + "\n", nets)


def _json(value: Any, nets: Sequence[str]) -> str:
    return hide(json.dumps(_tree(redact.json_value(value)), indent=1, default=str), nets) + "\n"


def _tree(value: Any, name: str = "") -> Any:
    """Data with what is secret by the names of options and variables taken out; references stay."""
    from specdash.config.secrets import is_reference, is_secret_env, is_secret_option

    if isinstance(value, Mapping):
        return {key: _tree(one, str(key)) for key, one in value.items()}
    secret = is_secret_option(name) or is_secret_env(name)
    if isinstance(value, list):
        return [_tree(one, name if secret else "") for one in value]
    if secret and isinstance(value, str) and value and not is_reference(value):
        return redact.MARK
    return value


# -- what goes in


def versions() -> dict[str, Any]:
    import platform
    import sys
    from importlib import metadata

    from specdash import __version__

    packages = {
        str(one.metadata["Name"]): one.version for one in metadata.distributions() if one.metadata["Name"]
    }
    return {
        "specdash": __version__,
        "python": sys.version,
        "platform": platform.platform(),
        "packages": dict(sorted(packages.items(), key=lambda item: item[0].lower())),
    }


def _config(context: Context, nets: Sequence[str]) -> dict[str, str]:
    """The config file and the operator's profiles (not those that came with specdash)."""
    from specdash.config import paths

    found = {"config.toml": toml(paths.config_file(), nets)} if paths.config_file().is_file() else {}
    for folder in paths.profile_dirs():
        if folder == paths.packaged_profiles():
            continue
        for file in sorted(folder.glob("*.toml"))[:200]:
            found.setdefault(f"profiles/{_safe(file.name)}", toml(file, nets))
    return found


def toml(file: Path, nets: Sequence[str]) -> str:
    """A TOML file as redacted data; where it cannot be parsed, as lines with every quoted value taken out."""
    import tomllib

    text = _read(file, 1 << 20)
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as problem:
        lines = [f"# not TOML: {problem}"]
        for number, line in enumerate(text.splitlines(), 1):
            key = re.match(r"\s*(\[[^\]\"']*\]|[A-Za-z0-9_.-]+\s*=)", line)
            lines.append(
                f"{number}: {key.group(1)}{'' if key.group(1)[0] == '[' else ' ' + redact.MARK}"
                if key
                else f"{number}:"
            )
        return clean("\n".join(lines), nets)
    shown = _merge(_tree(redact.json_value(data)), _references(data))
    return f"# {file}, as data\n" + hide(json.dumps(shown, indent=1, default=str), nets) + "\n"


def _references(data: Any) -> Any:
    """The shape of `data` with only its references left: they name secrets, and help to find a wrong one."""
    from specdash.config.secrets import is_reference

    if isinstance(data, Mapping):
        return {key: _references(value) for key, value in data.items()}
    return data if is_reference(data) else None


def _merge(shown: Any, kept: Any) -> Any:
    if isinstance(shown, dict) and isinstance(kept, dict):
        return {key: _merge(value, kept.get(key)) for key, value in shown.items()}
    return kept if isinstance(kept, str) else shown


def _traces(nets: Sequence[str]) -> dict[str, str]:
    from specdash.config import paths

    found = {}
    for name, pattern, most in (("errors", "*.txt", TRACES), ("queues", "*.json", QUEUES)):
        folder = paths.state_dir() / name
        files = [file for file in folder.glob(pattern) if file.is_file()] if folder.is_dir() else []
        for file in sorted(files, key=lambda one: one.stat().st_mtime)[-most:]:
            text = _read(file, 1 << 20)
            try:
                found[f"{name}/{_safe(file.name)}"] = _json(json.loads(text), nets)
            except ValueError:
                found[f"{name}/{_safe(file.name)}"] = clean(text, nets)
    return found


async def _host(link: Link, known: set[str]) -> dict[str, Any]:
    """Records of the newest runs and switches, and the ends of their logs. Secrets of the runs go to `known`."""
    base = str(link.hello["base"])
    runs = (await link.call("runs.list", {"base": base}, timeout=30))["runs"][:RUNS]
    found: dict[str, Any] = {"hello.json": dict(link.hello), "runs.json": runs}
    found["switches.json"] = (await link.call("switches.list", {"base": base}, timeout=30))["switches"]
    for run in runs:
        folder = f"{base}/runs/{run['id']}"
        for name in ("auth", "secrets.yaml", "env"):
            raw = await _tail(link, f"{folder}/{name}", 1 << 20)
            known |= secret_values(name, raw.decode("utf-8", "surrogateescape"))
        for name, size in (("server.log", LOG_TAIL), ("events.jsonl", EVENTS_TAIL)):
            raw = await _tail(link, f"{folder}/{name}", size)
            text = raw.decode("utf-8", "replace")
            if len(raw) >= size:  # cut: the name of a secret may be missing from its first line
                text = "(cut)\n" + text.partition("\n")[2]
            found[f"{_safe(str(run['id']))}/{name}"] = text
    return found


def secret_values(name: str, text: str) -> set[str]:
    """The secret values in a file of a run folder."""
    from specdash.config.secrets import is_secret_env

    if name == "auth":
        return {text.strip()}
    if name == "env":
        pairs = (entry.partition("=") for entry in text.split("\0"))
        return {value for key, _, value in pairs if is_secret_env(key) or redact.is_secret_key(key)}
    found = set()
    for line in text.splitlines():
        value = line.partition(":")[2].strip()
        try:
            value = json.loads(value)
        except ValueError:
            pass
        found.add(str(value))
    return found


async def _tail(link: Link, path: str, size: int) -> bytes:
    try:
        found = await link.call("file.stat", {"path": path})
        if not found.get("size"):  # not there, or empty
            return b""
        whole = int(found["size"])
        asked = {"path": path, "offset": max(0, whole - size), "max_bytes": size}
        return bytes((await link.call("file.read", asked, timeout=30))["blob"])
    except SpecdashError:
        return b""


def _read(file: Path, limit: int) -> str:
    try:
        with file.open("rb") as handle:
            return handle.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""


def _safe(name: str) -> str:
    return _SAFE.sub("-", name).lstrip(".-")[:120] or "unnamed"
