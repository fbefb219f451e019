"""The embedded simulated GPU host, for trying specdash out and for tests. Injected by the command line only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdash.check import Target
    from specdash.demo.session import DemoSession
    from specdash.host.link import Link


@dataclass(frozen=True)
class DemoTarget:
    """What `specdash --check demo` checks: a ready server on a demo host."""

    session: DemoSession
    link: Link
    run_id: str
    profile: str


@asynccontextmanager
async def check_demo(profile: str = "demo-base", speed: float = 20.0) -> AsyncIterator[DemoTarget]:
    """Start a demo host, launch a profile as any launch is done, wait until it is ready; end all afterwards.

    Raises LinkError, Refused, or ActionFailed when the launch does not get ready.
    """
    import asyncio

    from specdash.control import launch, profiles
    from specdash.demo.session import start
    from specdash.errors import ActionFailed
    from specdash.host.open import open_link

    session = await asyncio.to_thread(start, speed, join=False)
    try:
        link = await open_link(session.host)
        try:
            spec = profiles.resolve(session.profile(profile), session.settings())
            plan = await launch.plan(link, spec)
            async for event in launch.run(link, plan):
                if event.final and event.final != "done":
                    raise ActionFailed(f"{profile} did not get ready on the demo host: {event.sentence}")
            yield DemoTarget(session, link, str(plan.spec["run_id"]), profile)
        finally:
            await link.close()
    finally:
        await asyncio.to_thread(session.close)


@asynccontextmanager
async def as_check_target() -> AsyncIterator[Target]:
    """`specdash --check demo`: the ready demo server as a target like any other. The command line injects it."""
    from specdash.check import Target

    async with check_demo() as ready:
        session = ready.session
        yield Target("demo", "profile", session.host, ready.profile, port=session.engine_port)
