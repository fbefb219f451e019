"""Launch, wait and stop in tests of this room."""

from __future__ import annotations

import asyncio
import time

from specdash.control import launch, stop


async def events_of(run):
    return [event async for event in run]


async def up(link, spec, **more):
    plan = await launch.plan(link, spec, precheck=False)
    events = await events_of(launch.run(link, plan, **more))
    return plan, events


async def until(check, seconds=20.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = check()
        value = await value if asyncio.iscoroutine(value) else value
        if value:
            return value
        await asyncio.sleep(0.05)
    raise AssertionError("it did not come to it")


async def down(link, run_id, **more):
    plan = await stop.plan(link, run_id, **more)
    return await events_of(stop.run(link, plan))
