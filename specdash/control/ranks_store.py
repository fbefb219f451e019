"""What this operator's specdash remembers of servers over several hosts: who their members are, and what of a stop
is not proven yet. One small file a server, under the state folder; the runs themselves are on their hosts.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdash.config import paths

KEEP = 200


@dataclass(frozen=True, slots=True)
class Member:
    """One rank's run."""

    rank: int
    host: str
    run: str
    role: str = ""
    """Of a prefill/decode pair: router, prefill, decode. Empty: one of equal ranks."""

    @property
    def title(self) -> str:
        return self.role or f"rank {self.rank}"

    @property
    def name(self) -> str:
        return f"{self.title} on {self.host}"

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Member:
        words = (str(data.get(key) or "") for key in ("host", "run", "role"))
        return cls(int(data.get("rank") or 0), *words)

    def as_json(self) -> dict[str, Any]:
        role = {"role": self.role} if self.role else {}
        return {"rank": self.rank, "host": self.host, "run": self.run, **role}


@dataclass(frozen=True, slots=True)
class Server:
    """One server over several hosts. `unproven`: host → why its rank is not proven to be stopped."""

    id: str
    profile: str
    members: tuple[Member, ...]
    unproven: Mapping[str, str]
    state: str = "launched"
    """launched | stopped | unproven"""
    at_unix: float = 0.0

    def member(self, host: str) -> Member | None:
        return next((one for one in self.members if one.host == host), None)


def members_of(together: Mapping[str, Any]) -> tuple[Member, ...]:
    """The members that a run.json's `together` names; empty where it names none."""
    found = together.get("members")
    return tuple(Member.from_json(one) for one in found) if isinstance(found, list) else ()


def put(server: Server) -> None:
    """Remember, replacing what was known. A state folder that cannot be written is no reason to fail a launch."""
    folder = _folder()
    data = {
        "id": server.id,
        "profile": server.profile,
        "members": [one.as_json() for one in server.members],
        "unproven": dict(server.unproven),
        "state": server.state,
        "at_unix": round(time.time(), 1),
    }
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        beside = folder / f".{server.id}.{os.getpid()}"
        beside.write_text(json.dumps(data))
        beside.replace(folder / f"{server.id}.json")
        for old in _files()[KEEP:]:
            found = _read(old)
            if found is None or found.state == "stopped":
                old.unlink(missing_ok=True)


def settled(server: Server, unproven: Mapping[str, str]) -> Server:
    """The server after a stop, remembered: stopped, or unproven on the hosts that are named."""
    after = Server(
        server.id, server.profile, server.members, dict(unproven), "unproven" if unproven else "stopped"
    )
    put(after)
    return after


def get(all_id: str) -> Server | None:
    return _read(_folder() / f"{all_id}.json") if "/" not in all_id else None


def find(name: str) -> Server | None:
    """By its id, a rank's run id, a unique beginning of an id, or the newest of a profile that is not stopped."""
    known = listing()
    for one in known:
        if name == one.id or any(name == member.run for member in one.members):
            return one
    open_ = [one for one in known if one.profile == name and one.state != "stopped"]
    if open_:
        return open_[0]
    begins = [one for one in known if one.id.startswith(name)]
    return begins[0] if len(begins) == 1 else None


def unproven() -> tuple[Server, ...]:
    return tuple(one for one in listing() if one.state == "unproven")


def listing() -> tuple[Server, ...]:
    """All that are known, newest first."""
    return tuple(one for one in map(_read, _files()) if one is not None)


def _folder() -> Path:
    return paths.state_dir() / "together"


def _files() -> list[Path]:
    def age(path: Path) -> float:
        try:
            return path.stat().st_mtime
        except OSError:
            return 0.0

    found: Iterable[Path] = _folder().glob("*.json")
    return sorted(found, key=age, reverse=True)


def _read(path: Path) -> Server | None:
    try:
        data = json.loads(path.read_text())
        members = tuple(Member.from_json(one) for one in data["members"])
        return Server(
            str(data["id"]),
            str(data.get("profile") or ""),
            members,
            {str(k): str(v) for k, v in (data.get("unproven") or {}).items()},
            str(data.get("state") or "launched"),
            float(data.get("at_unix") or 0.0),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
