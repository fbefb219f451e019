"""Which processes belong to a run, also after its launcher died and they were handed to another parent.

Three marks, any one is enough: descends from the run's root (now, or when last seen), is in the run's own
session, or carries SPECDASH_RUN=<mark> in its environment. Engines that rewrite their title clobber their
environment in /proc, so the last mark alone would miss them; a session alone would miss who calls setsid.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Set, Tuple

from specdash.host.remote import procs

MARK = b"SPECDASH_RUN"
Row = Dict[str, Any]


class Kin:
    """Membership of one run. `own_session`: the run's root was started as leader of a session of its own."""

    def __init__(self, mark: str, root: int, start: int, own_session: bool = True) -> None:
        self.mark = mark
        self.root = root
        self.start = start
        self.own_session = own_session
        self.seen: Set[Tuple[int, int]] = {(root, start)}
        self.ever: Set[Tuple[int, int]] = {(root, start)}
        """Every identity that was a member: who may still be named as a holder of GPU memory."""

    def members(self, deep: bool = False) -> List[Row]:
        """Rows (`procs.stat`) of the run's processes, zombies too. `deep` also reads every environment."""
        rows = procs.snapshot()
        skip = {os.getpid(), os.getppid()}
        found: Set[int] = set()
        for pid, row in rows.items():
            if pid in skip or row["start"] < self.start:
                continue
            in_session = self.own_session and self.root in (
                row["sid"],
                row["pgid"],
            )  # an id in use is never recycled
            if (pid, row["start"]) in self.seen or in_session or (deep and self._marked(pid)):
                found.add(pid)
        for pid in list(found):
            found.update(procs.tree(pid, rows))
        found -= skip
        members = [rows[pid] for pid in sorted(found)]
        self.seen = {(self.root, self.start)} | {(row["pid"], row["start"]) for row in members}
        if len(self.ever) < 20000:
            self.ever |= self.seen
        return members

    def _marked(self, pid: int) -> bool:
        env = procs.environ(pid)
        return env is not None and env.get(MARK) == self.mark.encode()


def living(rows: List[Row]) -> List[Row]:
    """Without zombies (and the dying X): those hold nothing."""
    return [row for row in rows if row["state"] not in ("Z", "X")]


def name(row: Row) -> Dict[str, Any]:
    """A process that is left, named: pid, start, user, title, state, rss_kb, parent (pid and name, for zombies)."""
    pid = row["pid"]
    command = procs.argv(pid) or []
    parent = procs.stat(row["ppid"])
    return {
        "pid": pid,
        "start": row["start"],
        "user": procs.user_of(pid)["user"],
        "title": (" ".join(command) or row["comm"])[:200],
        "state": row["state"],
        "rss_kb": row["rss_kb"],
        "parent": {"pid": row["ppid"], "comm": parent["comm"] if parent else ""},
    }
