"""The agent's calls about runs and switches: thin; what they do is in runstore.py and switches.py."""

from __future__ import annotations

from typing import Any, Callable, Dict

from specdash.host.remote import hots, procs, runstore, sockets, switches


def _create(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    """{base, run, files: {name: size}, set_aside} + blob → the run's `record`."""
    files = runstore.unpack(dict(params.get("files") or {}), blob)
    return runstore.create(
        runstore.base_of(params), dict(params["run"]), files, bool(params.get("set_aside", True))
    )


def _list(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    return {
        "runs": runstore.listing(runstore.base_of(params)),
        "boot_id": procs.boot_id(),
        "now_boot": procs.boot_now(),
    }


def _read(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    return runstore.read(
        runstore.base_of(params), str(params.get("id") or ""), dict(params.get("positions") or {})
    )


def _command(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    """{base, id, order: {cmd: stop|abort|status, …}} → the supervisor's reply."""
    return runstore.command(runstore.base_of(params), str(params.get("id") or ""), dict(params["order"]))


def _prune(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    return {
        "removed": runstore.prune(
            runstore.base_of(params), int(params.get("keep", 200)), int(params.get("max_bytes", 20 << 30))
        )
    }


_positions: Dict[Any, Dict[str, Any]] = {}


def _sample_run(params: Dict[str, Any]) -> Dict[str, Any]:
    """{base, id, positions, stream}: `read`, from where the same `stream` (any word) left off."""
    key = (params.get("stream"), params.get("id"))
    positions = _positions.get(key) if params.get("stream") else None
    out = runstore.read(
        runstore.base_of(params),
        str(params.get("id") or ""),
        dict(positions or params.get("positions") or {}),
    )
    if params.get("stream"):
        _positions[key] = out["positions"]
    return out


def _sample_runs(params: Dict[str, Any]) -> Dict[str, Any]:
    return _list(params, b"")


CALLS: Dict[str, Callable[[Dict[str, Any], bytes], Dict[str, Any]]] = {
    "runs.create": _create,
    "runs.list": _list,
    "runs.read": _read,
    "runs.command": _command,
    "runs.prune": _prune,
    **sockets.CALLS,
    **switches.CALLS,
    **hots.CALLS,
}
SAMPLES: Dict[str, Callable[[Dict[str, Any]], Dict[str, Any]]] = {"run": _sample_run, "runs": _sample_runs}
