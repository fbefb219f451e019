"""Opens the way to a host."""

from __future__ import annotations

from specdash.config.hosts import Host
from specdash.host import libraries
from specdash.host.agentlink import AgentLink
from specdash.host.link import AskHostKey


async def open_link(host: Host, *, ask: AskHostKey | None = None, timeout_s: float = 15.0) -> AgentLink:
    """A link with a living agent. Raises LinkError's family; `timeout_s` does not count the time of `ask`.

    `ask(host, "SHA256:…")` is asked about a host key that was never seen; None: never accept one.
    """
    if host.is_local:
        from specdash.host.local import open_local

        return await open_local(host, timeout_s)
    warm_up()
    from specdash.host.gate import turn
    from specdash.host.ssh import open_ssh

    async with turn():
        return await open_ssh(host, ask=ask, timeout_s=timeout_s)


def warm_up() -> None:
    """Imports what SSH needs, which takes a fifth of a second: not for a local host."""
    with libraries.by_files():
        import specdash.host.ssh  # noqa: F401
