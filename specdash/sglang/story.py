"""The story that a server's log tells. Placeholder types; the log room fills them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Story:
    """Immutable; grown by `feed(story, data)`."""
