"""Facts of a whole log beside its story: its text as drawn, the rank of each record, means, cached prompt tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from specdash.sglang import lines, prefix
from specdash.sglang.explain import Explanation, explain
from specdash.sglang.story import Story


def text(data: bytes) -> str:
    """As it is drawn: no carriage returns, no control characters."""
    return "\n".join(lines.visible(row) for row in data.split(b"\n"))


def ranks(data: bytes) -> List[Optional[str]]:
    """The rank that each record says it comes from; None for a record that names none."""
    heads = [prefix.read(part) for row in data.split(b"\n") for _, part in lines.unglue(lines.clean(row))]
    return [head.rank or None for head in heads if head]


def means(story: Story) -> Dict[str, Optional[float]]:
    """`accept_len_mean_N` and `tok_s_mean_N` of the last N decode lines; `dropped_first_window`: the tok/s that is not
    among them, because the first line after idle holds waiting time."""
    steady = [line for line in story.decodes if not line.first_after_idle]
    out: Dict[str, Optional[float]] = {}
    for n in range(1, len(steady) + 1):
        out["accept_len_mean_{}".format(n)] = sum(line.accept_len or 0.0 for line in steady[-n:]) / n
        out["tok_s_mean_{}".format(n)] = sum(line.tok_s or 0.0 for line in steady[-n:]) / n
    out["dropped_first_window"] = next((line.tok_s for line in story.decodes if line.first_after_idle), None)
    return out


def cached_share(story: Story) -> Optional[float]:
    """Share 0..1 of the prompt tokens, over the prefills that are kept, that the prefix cache had; None: none told."""
    told = [p for p in story.prefills if p.new_tokens is not None and p.cached_tokens is not None]
    cached = sum(p.cached_tokens or 0 for p in told)
    total = cached + sum(p.new_tokens or 0 for p in told)
    return cached / total if total else None


@dataclass(frozen=True)
class WholeLog:
    """One log and everything that is concluded from it, for a report or a test."""

    found: Explanation
    story: Story
    text: str
    """As it is drawn."""
    longest: int
    """Characters of its longest line, as drawn."""
    faithful: bool
    """The drawn text is the log's own bytes: nothing had to be taken out."""
    ranks: Tuple[Optional[str], ...]
    """Of each record."""
    ranks_seen: Tuple[str, ...]
    numbers: Dict[str, Any]
    """What the log measured, what its cause names, and `means`."""
    folded: int
    """How often the most frequent repeated line came."""
    loaded: bool
    """Weights began to load."""
    crashed: bool
    includes_bonus: bool = True
    """In a decode line `accept len` counts the bonus token, in every version."""


def read(
    data: bytes,
    exit_code: Optional[int] = None,
    signal: Optional[int] = None,
    version: Optional[str] = None,
    http_port: Optional[int] = None,
) -> WholeLog:
    """All of it, from bytes and what is known beside them."""
    found = explain(data, exit_code, signal, version, http_port=http_port)
    story, cause, drawn = found.story, found.cause, text(data)
    return WholeLog(
        found,
        story,
        drawn,
        max(map(len, drawn.split("\n"))),
        drawn.encode("utf-8", "surrogateescape") == data,
        tuple(ranks(data)),
        tuple(sorted(story.ranks)),
        {**story.numbers, **(cause.numbers if cause else {}), **means(story)},
        max((note.seen for note in story.notes), default=0),
        any(phase.name == "loading_weights" for phase in story.phases),
        cause.crashed if cause else found.phase == "exited",
    )
