"""The documented JSON of a reading: what `specdash probe --json` prints (keys: `specdash probe --help`, docs)."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

from specdash.sglang import flags as flags_
from specdash.sglang import notes
from specdash.sglang.reading import FORMAT, Reading
from specdash.sglang.tree import Unread


def as_json(reading: Reading, with_help: bool = True) -> Dict[str, Any]:
    """The documented JSON of a probe: every option string is a key of `flags`."""
    names = reading.names
    described: Dict[str, Any] = {}
    for name in names or ():
        note = notes.get(name)
        described[name] = {
            "evidence": reading.algorithms.where(name),
            "from_plugin": name not in (reading.algorithms.names or ()),
            "known": note is not None,
        }
        if note is not None:
            described[name].update(
                what=note.what,
                draft=note.draft,
                draft_sentence=note.draft_sentence,
                since=note.since,
                internal=note.internal,
                flags=notes.flags_read(note, list(reading.flags.by_string)),
                changes=notes.changes(note, reading.version),
            )
    return {
        "format": FORMAT,
        "version": reading.version,
        "algorithms": list(names) if names is not None else None,
        "aliases": dict(reading.algorithms.aliases),
        "accepted": list(reading.accepted),
        "style": reading.algorithms.style,
        "members": list(reading.algorithms.members),
        "builtin": list(reading.algorithms.names) if reading.algorithms.names is not None else None,
        "registry": reading.algorithms.registry,
        "evidence": [list(e) for e in reading.algorithms.evidence],
        "algorithm_notes": described,
        "flags": flags_.as_json(reading.flags, with_help),
        "plugins": [vars(p) for p in reading.plugins],
        "architectures": dict(reading.architectures.files),
        "theory": [vars(a) for a in reading.theory],
        "unread": _unread(reading.unread),
        "unread_by": {
            "algorithms": _unread(reading.algorithms.unread),
            "flags": _unread(reading.flags.unread),
            "architectures": _unread(reading.architectures.unread),
        },
    }


def _unread(items: Sequence[Unread]) -> List[Dict[str, str]]:
    return [{"path": u.path, "reason": u.reason} for u in items]
