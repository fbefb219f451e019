"""What speculation did for one request or several, by their own `meta_info`.

Names by version: `spec_verify_ct` since 0.4.3; correct and proposed drafts have five spellings; the histogram of
correct drafts per verify step is `spec_accept_histogram` (0.5.9) and `spec_correct_drafts_histogram` (0.5.13 on).
"""

from __future__ import annotations

from typing import Any, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

CORRECT = (
    "spec_num_correct_drafts",
    "spec_accepted_drafts",
    "spec_accept_token_num",
    "spec_accepted_tokens",
)
PROPOSED = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")
HISTOGRAMS = ("spec_correct_drafts_histogram", "spec_accept_histogram")
MOST_POSITIONS = 256


class Acceptance(NamedTuple):
    """Over all requests together. None: not told, which is never 0."""

    tokens: int = 0
    verify_steps: Optional[int] = None
    accept_length: Optional[float] = None
    """Tokens per verify step, bonus token included."""
    drafts_per_step: Optional[float] = None
    """Correct draft tokens per verify step: without the bonus token."""
    proposed_per_step: Optional[float] = None
    accept_rate: Optional[float] = None
    """Correct drafts / proposed drafts, 0..1."""
    positions: Optional[Tuple[float, ...]] = None
    """P(at least i drafts of a step are correct) for i = 1, 2, …; falls with i."""
    histogram: Optional[Tuple[int, ...]] = None
    """Verify steps with 0, 1, 2, … correct drafts."""


def of(metas: Iterable[Mapping[str, Any]]) -> Acceptance:
    """Sum up `meta_info` objects. One that tells no verify steps takes the whole to "not told"."""
    given = list(metas)
    counts = [_whole(meta.get("completion_tokens")) for meta in given]
    tokens = sum(count or 0 for count in counts)
    steps = _total([_whole(meta.get("spec_verify_ct")) for meta in given])
    if not steps:
        return Acceptance(tokens)
    correct = _total([_first(meta, CORRECT) for meta in given])
    proposed = _total([_first(meta, PROPOSED) for meta in given])
    histogram = _added([_histogram(meta) for meta in given])
    counted = sum(histogram) if histogram else 0
    if correct is None and histogram and counted:
        correct = sum(index * count for index, count in enumerate(histogram))
    return Acceptance(
        tokens,
        steps,
        None if None in counts else tokens / steps,
        None if correct is None else correct / steps,
        None if proposed is None else proposed / steps,
        None if correct is None or not proposed else correct / proposed,
        shares(histogram),
        tuple(histogram) if counted else None,
    )


def shares(histogram: Optional[Sequence[int]]) -> Optional[Tuple[float, ...]]:
    """Verify steps with 0, 1, 2, … correct drafts → P(at least 1), P(at least 2), …; None with nothing counted."""
    counted = sum(histogram) if histogram else 0
    if not histogram or not counted:
        return None
    return tuple(sum(histogram[i:]) / counted for i in range(1, len(histogram)))


def _whole(value: Any) -> Optional[int]:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62 else None


def _first(meta: Mapping[str, Any], names: Tuple[str, ...]) -> Optional[int]:
    return next((found for found in (_whole(meta.get(name)) for name in names) if found is not None), None)


def _total(values: List[Optional[int]]) -> Optional[int]:
    told = [value for value in values if value is not None]
    return sum(told) if told and len(told) == len(values) else None


def _histogram(meta: Mapping[str, Any]) -> List[int]:
    listed: List[Any] = next((meta[name] for name in HISTOGRAMS if isinstance(meta.get(name), list)), [])
    counts = [_whole(item) for item in listed[:MOST_POSITIONS]]
    return [] if None in counts else [count for count in counts if count is not None]


def _added(rows: List[List[int]]) -> List[int]:
    """Histograms together; nothing when one of the requests has none."""
    if not rows or not all(rows):
        return []
    width = max(len(row) for row in rows)
    return [sum(row[i] if i < len(row) else 0 for row in rows) for i in range(width)]
