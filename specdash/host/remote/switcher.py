"""A switch on the host (being written)."""

from __future__ import annotations


def main(folder: str) -> int:
    raise NotImplementedError
