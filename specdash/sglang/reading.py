"""All that was read of one SGLang, together: version, algorithms, flags, plugins, model architectures.

It travels as JSON from the host, and is kept as JSON in a cache.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from specdash.sglang import algorithms as algorithms_
from specdash.sglang import architectures as architectures_
from specdash.sglang import flags as flags_
from specdash.sglang import locate, notes, plugins, theory
from specdash.sglang.algorithms import Algorithms
from specdash.sglang.architectures import Architectures
from specdash.sglang.flags import FlagTable
from specdash.sglang.plugins import Plugin
from specdash.sglang.tree import Source, Tree, Unread

FORMAT = locate.FORMAT


@dataclass(frozen=True)
class Reading:
    """One SGLang, read from its files. `unread` says what could not be made out; everything else still holds."""

    version: str
    """Empty: no file tells."""
    algorithms: Algorithms
    flags: FlagTable
    plugins: Tuple[Plugin, ...] = ()
    architectures: Architectures = field(default_factory=lambda: Architectures({}))
    theory: Tuple[theory.Answer, ...] = ()
    unread: Tuple[Unread, ...] = ()

    @property
    def names(self) -> Optional[Tuple[str, ...]]:
        """Algorithms on offer, plugins' included; None: unknown."""
        if self.algorithms.names is None:
            return None
        extra = [n for p in self.plugins if p.enabled and self.algorithms.registry for n in p.algorithms]
        return tuple(dict.fromkeys((*self.algorithms.names, *extra)))

    @property
    def accepted(self) -> Tuple[str, ...]:
        """What the parser itself allows for --speculative-algorithm; empty when it takes any text."""
        flag = self.flags.get("--speculative-algorithm")
        return tuple(str(c) for c in flag.choices) if flag is not None and flag.choices else ()


def read(tree: Tree, sites: Sequence[Tree] = (), enabled_plugins: str = "", version: str = "") -> Reading:
    """Read everything. `sites` are the folders whose packages can be plugins. Never raises."""
    source = Source(tree)
    found = algorithms_.read(tree, source)
    table = flags_.read(tree, source)
    models = architectures_.read(tree, source)
    added = plugins.read(sites or [tree], enabled_plugins)
    unread = [*found.unread, *table.unread, *models.unread]
    if found.registry and found.style != "register_calls":
        unread.extend(plugins.unread(added))
    told = version or locate.version(tree)[0]
    return Reading(told, found, table, added, models, theory.answer(tree, found, table), tuple(unread))


def resolve_name(reading: Reading, name: str) -> Optional[str]:
    """The algorithm that a name means here (NEXTN → EAGLE), or None when it is not offered."""
    upper = name.upper()
    known = reading.names or ()
    if upper in known:
        return upper
    if upper in reading.algorithms.aliases:
        return reading.algorithms.aliases[upper] or upper
    if upper in reading.accepted:
        return "EAGLE" if upper == "NEXTN" else upper
    return None


def judge_algorithm(reading: Reading, name: str) -> Tuple[str, str, str, Tuple[str, ...]]:
    """(status, category, sentence, near names) of asking this SGLang for an algorithm."""
    accepted = reading.accepted
    if accepted and name not in accepted:
        near = tuple(difflib.get_close_matches(name.upper(), accepted, n=3, cutoff=0.5))
        sentence = "This version takes {}; {} is refused.".format(", ".join(accepted), name)
        return "block", "unknown_algorithm", sentence, near
    names = reading.names
    if name.upper() == "NONE":
        sentence = "NONE is no way to turn speculation off: the engine takes it for a name and goes wrong."
        return "block", "unknown_algorithm", sentence, ()
    if resolve_name(reading, name) is not None:
        meant = resolve_name(reading, name)
        told = "" if meant == name.upper() else " (it runs as {})".format(meant)
        return "ok", "", "{} is in this build{}.".format(name.upper(), told), ()
    if names is None:
        why = reading.algorithms.unread[0].reason if reading.algorithms.unread else "unknown reason"
        return "not_checked", "probe_unknown", "The algorithms could not be read: {}.".format(why), ()
    if reading.algorithms.style == "absent":
        return "block", "unknown_algorithm", "This SGLang has no speculative decoding at all.", ()
    unsure = [p.name for p in reading.plugins if p.enabled and (p.reason or p.dynamic)]
    dynamic = list(reading.algorithms.unread)
    if (unsure and reading.algorithms.registry) or dynamic:
        what = "plugin " + ", ".join(unsure) if unsure else dynamic[0].reason
        sentence = "{} is not in the files; {} may add it. A deep probe asks the engine.".format(name, what)
        return "not_checked", "probe_unknown", sentence, ()
    near = tuple(difflib.get_close_matches(name.upper(), names, n=3, cutoff=0.5))
    skipped = [p.name for p in reading.plugins if not p.enabled and name.upper() in p.algorithms]
    told = " The plugin {} has it, but SGLANG_PLUGINS leaves it out.".format(skipped[0]) if skipped else ""
    sentence = "This build has no {}; it has {}.{}".format(name, ", ".join(names), told)
    return "block", "unknown_algorithm", sentence, near


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


def from_json(data: Mapping[str, Any]) -> Reading:
    """Back from `as_json`."""
    parts = data.get("unread_by") or {}
    builtin = data.get("builtin")
    found = Algorithms(
        tuple(builtin) if builtin is not None else None,
        dict(data.get("aliases") or {}),
        str(data.get("style") or "unknown"),
        tuple(data.get("members") or ()),
        tuple((str(e[0]), str(e[1]), int(e[2])) for e in data.get("evidence") or ()),
        bool(data.get("registry")),
        _read_unread(parts.get("algorithms")),
    )
    table = flags_.from_json(data.get("flags") or {}, _read_unread(parts.get("flags")))
    models = Architectures(dict(data.get("architectures") or {}), _read_unread(parts.get("architectures")))
    added = tuple(_plugin(p) for p in data.get("plugins") or ())
    answers = tuple(
        theory.Answer(a["technique"], a["what"], a["status"], a["sentence"], tuple(a.get("evidence") or ()))
        for a in data.get("theory") or ()
    )
    return Reading(
        str(data.get("version") or ""), found, table, added, models, answers, _read_unread(data.get("unread"))
    )


def _plugin(data: Mapping[str, Any]) -> Plugin:
    values: Dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in Plugin.__dataclass_fields__
    }
    return Plugin(**values)


def _unread(items: Sequence[Unread]) -> List[Dict[str, str]]:
    return [{"path": u.path, "reason": u.reason} for u in items]


def _read_unread(items: Any) -> Tuple[Unread, ...]:
    return tuple(Unread(str(i["path"]), str(i["reason"])) for i in items or ())
