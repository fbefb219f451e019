"""Exit codes: an interface that scripts rely on. `--check` follows the Monitoring Plugins contract."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit code of every specdash command.

    `--check` uses only 0 to 3 and 130; verbs use all. Usage errors are 3, never argparse's 2, since a
    monitoring system reads 2 as CRITICAL.
    """

    OK = 0
    """Done, or healthy."""
    WARNING = 1
    """`--check`: degraded. Verbs: done, with warnings that the output names."""
    CRITICAL = 2
    """`--check`: down. Verbs: the thing asked for failed on the host (launch died, stop unproven)."""
    UNKNOWN = 3
    """Usage error, unreadable config or profile, or an internal error."""
    REFUSED = 4
    """Not done because a check blocks it, read-only is on, or nobody confirmed. Nothing changed."""
    UNREACHABLE = 5
    """Verbs: the host could not be reached. (`--check` says 2.)"""
    ROLLED_BACK = 6
    """`switch`: the next drafter failed and the previous one serves again."""
    INTERRUPTED = 130
    """Control-C."""
