"""`[keys]` of the config: which names there are, and the command palette, which shows the keys as remapped."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from textual.app import SystemCommand
from textual.binding import Binding

from specdash.tui.actions import ACTIONS, Action, key_word
from specdash.tui.logview import LogView
from specdash.tui.side import Side

PAGES = ("page", "plan", "decide", "ask", "text", "stacks", "runs", "profiles", "edit", "hostkey")
"""First words of the names that keys of pages have. The pages are loaded when first opened, so they are not asked."""


def unknown(keys: dict[str, str]) -> Iterator[str]:
    """A sentence for each name that nothing on the screen has, with the nearest one; it is taken out of `keys`."""
    from difflib import get_close_matches

    known = {action.id for action in ACTIONS}
    for kind in (LogView, Side):
        known |= {binding.id for binding in kind.BINDINGS if isinstance(binding, Binding) and binding.id}
    for name in [name for name in keys if name not in known and name.partition(".")[0] not in PAGES]:
        near = get_close_matches(name, known, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        del keys[name]
        yield f"[keys] names no action of the screen: {name}.{hint}"


def commands(
    why_not: Callable[[Action], str], keys: dict[str, str], run: Callable[[str], Awaitable[Any]]
) -> Iterator[SystemCommand]:
    """Every action for the palette; one that cannot be done now says why."""
    for action in ACTIONS:
        if action.id == "palette":
            continue
        why = why_not(action)
        words = f"{action.help}. Not now: {why}" if why else action.help
        key = key_word(keys.get(action.id, action.key), first_only=True)
        yield SystemCommand(f"{action.title}  ({key})", words, _runner(action, run))


def _runner(action: Action, run: Callable[[str], Awaitable[Any]]) -> Callable[[], Any]:
    async def go() -> None:
        await run(action.call)

    return go
