"""All that was read of one SGLang, together: version, algorithms, flags, plugins, model architectures.

It travels from the host, and is kept in a cache, as compact JSON (`to_wire`). What we know beside the files (notes,
theory, judgement, the documented JSON) is in `offer.py` and `probe_json.py`, and stays at home: a probe is short.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple

from specdash.sglang import algorithms as algorithms_
from specdash.sglang import architectures as architectures_
from specdash.sglang import flags as flags_
from specdash.sglang import locate, plugins
from specdash.sglang.algorithms import Algorithms
from specdash.sglang.architectures import Architectures
from specdash.sglang.flags import FlagTable
from specdash.sglang.plugins import Plugin
from specdash.sglang.tree import Source, Tree, Unread

if TYPE_CHECKING:
    from specdash.sglang.theory import Answer

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
    files: Tuple[str, ...] = ()
    """Names of the files beside the algorithms and the models: hints of techniques that are no algorithm."""
    unread: Tuple[Unread, ...] = ()

    @property
    def theory(self) -> Tuple[Answer, ...]:
        """One answer per technique of the theory table."""
        from specdash.sglang import theory

        return theory.answer(self.files, self.algorithms, self.flags)

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
    files = tree.list(algorithms_.SPEC_FOLDER) + tree.list(architectures_.MODELS)
    return Reading(told, found, table, added, models, tuple(files), tuple(unread))


def to_wire(reading: Reading) -> Dict[str, Any]:
    """Compact JSON of all of it."""
    found, models = reading.algorithms, reading.architectures
    return {
        "format": FORMAT,
        "version": reading.version,
        "algorithms": {**vars(found), "unread": _unread(found.unread)},
        "flags": flags_.to_wire(reading.flags),
        "plugins": [vars(p) for p in reading.plugins],
        "architectures": {"files": models.files, "unread": _unread(models.unread)},
        "files": reading.files,
        "unread": _unread(reading.unread),
    }


def from_wire(data: Mapping[str, Any]) -> Reading:
    """Back from `to_wire`."""
    given = data["algorithms"]
    found = Algorithms(
        tuple(given["names"]) if given["names"] is not None else None,
        dict(given["aliases"]),
        str(given["style"]),
        tuple(given["members"]),
        tuple((str(e[0]), str(e[1]), int(e[2])) for e in given["evidence"]),
        bool(given["registry"]),
        _read_unread(given["unread"]),
    )
    models = data["architectures"]
    return Reading(
        str(data["version"]),
        found,
        flags_.from_wire(data["flags"]),
        tuple(_plugin(p) for p in data["plugins"]),
        Architectures(dict(models["files"]), _read_unread(models["unread"])),
        tuple(data["files"]),
        _read_unread(data["unread"]),
    )


def _plugin(data: Mapping[str, Any]) -> Plugin:
    values: Dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in Plugin.__dataclass_fields__
    }
    return Plugin(**values)


def _unread(items: Sequence[Unread]) -> List[List[str]]:
    return [[u.path, u.reason] for u in items]


def _read_unread(items: Any) -> Tuple[Unread, ...]:
    return tuple(Unread(str(path), str(reason)) for path, reason in items)
