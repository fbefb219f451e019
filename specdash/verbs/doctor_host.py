"""What `specdash doctor HOST` looks at on a host: the link, Python, GPUs, disk, clock, and each profile's SGLang."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from specdash.verbs.doctor_here import Item

if TYPE_CHECKING:
    from specdash.host.link import Link
    from specdash.sglang.commandline import LaunchSpec
    from specdash.verbs.context import Context

_WRITABLE = 'd=$1; while [ ! -e "$d" ]; do d=$(dirname "$d"); done; [ -w "$d" ] && [ -x "$d" ]'


async def look(context: Context, name: str, timeout_s: float) -> tuple[list[Item], Link | None]:
    """All items of one host, within `timeout_s`, and its link where there is one (the caller closes it)."""
    from specdash.errors import SpecdashError

    items: list[Item] = []
    link: Link | None = None
    try:
        async with asyncio.timeout(timeout_s):
            began = time.monotonic()
            link = await context.open_link(name, timeout_s=timeout_s)
            took = time.monotonic() - began
            rtt = await link.ping()
            items.append(Item(name, "link", "ok", f"Connected in {took:.1f} s, round trip {rtt:.0f} ms."))
            async for item in _checks(context, name, link):
                items.append(item)
    except SpecdashError as problem:
        items.append(Item(name, "link", "fail", problem.sentence, problem.step))
    except TimeoutError:
        said = f"It did not answer everything within {timeout_s:g} s."
        items.append(Item(name, "link", "fail", said, "Raise --timeout if it is only slow."))
    return items, link


async def _checks(context: Context, name: str, link: Link) -> AsyncIterator[Item]:
    hello = link.hello
    said = f"Python {hello.get('python')} ({hello.get('executable')}) as {hello.get('user')}@{hello.get('hostname')}."
    yield Item(name, "python", "ok", said)
    if hello.get("http_via") == "agent":
        said = "The SSH server forbids forwarding: HTTP to the engine goes through the agent."
        yield Item(name, "forwarding", "ok", said)
    skew = float(hello.get("now_unix") or time.time()) - time.time()
    if abs(skew) > 60:
        said = f"Its clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} ours."
        yield Item(name, "clock", "warn", said, "Turn on time synchronisation (chrony, systemd-timesyncd).")
    if hello.get("kill_user_processes") and not hello.get("linger"):
        said = (
            "systemd-logind ends a user's processes at logout (KillUserProcesses=yes): it would end servers."
        )
        yield Item(name, "logout", "fail", said, f"loginctl enable-linger {hello.get('user')}")
    yield await _gpus(name, link)
    yield await _disk(name, link)
    async for item in _sglang(context, name, link):
        yield item


async def _gpus(name: str, link: Link) -> Item:
    from specdash.monitor.alarms import NO_GPUS

    board = await link.call("gpu.static", {}, timeout=20)
    gpus = board.get("gpus")
    source = f" by {board['source']}" if board.get("source") else ""
    if gpus:
        bad = [str(gpu.get("problem")) for gpu in gpus if gpu.get("problem")]
        if bad:
            return Item(name, "gpus", "fail", " ".join(bad), "See: specdash status " + name)
        driver = f", driver {board['driver']}" if board.get("driver") else ""
        return Item(
            name, "gpus", "ok", f"{len(gpus)} x {gpus[0].get('name') or 'GPU'}{driver}, read{source}."
        )
    said = str(board.get("problem") or "No GPU is told of.")
    if board.get("category") in NO_GPUS:
        return Item(name, "gpus", "warn", said, "Fine for a host without GPUs; else install the driver.")
    return Item(name, "gpus", "fail", said, "Run nvidia-smi there.")


async def _disk(name: str, link: Link) -> Item:
    from specdash.check.findings import LEAST_DISK

    base = str(link.hello.get("base"))
    can = await link.call("exec", {"argv": ["sh", "-c", _WRITABLE, "sh", base], "timeout": 10}, timeout=15)
    if can.get("code") != 0:
        return Item(
            name, "disk", "fail", f"{base} cannot be written there.", "Correct run_root of this host."
        )
    stream = link.sample("host", 1.0, {"path": base})
    sample: dict[str, Any] = await anext(stream, {})
    await stream.aclose()  # type: ignore[attr-defined]
    free = sample.get("disk_free_bytes")
    if not isinstance(free, (int, float)):
        return Item(name, "disk", "warn", f"How much room {base} has is not told.")
    said = f"{free / (1 << 30):.1f} GiB are free where runs are kept ({base})."
    if free < LEAST_DISK[0]:
        return Item(
            name, "disk", "fail" if free < LEAST_DISK[1] else "warn", said, "Make room, or change run_root."
        )
    return Item(name, "disk", "ok", said)


async def _sglang(context: Context, name: str, link: Link) -> AsyncIterator[Item]:
    """Each different way in which a profile of this host would import SGLang."""
    from specdash.control.probe import probe
    from specdash.errors import RemoteError

    specs = specs_of(context, name)
    ways: dict[tuple[Any, ...], tuple[LaunchSpec, list[str]]] = {}
    for spec in specs:
        key = (spec.python, spec.cwd, tuple(sorted(spec.env.items())))
        ways.setdefault(key, (spec, []))[1].append(spec.profile)
    if not ways:
        yield Item(name, "sglang", "ok", "No profile names this host: no SGLang was looked for.")
    for spec, names in ways.values():
        who = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        try:
            found = await probe(link, spec.python, spec.cwd, spec.env)
        except RemoteError as problem:
            yield Item(name, "sglang", "fail", f"{who}: {problem.sentence}", problem.step)
            continue
        if found.reading is None:
            said = f"{who}: {spec.python} cannot import sglang: {found.problem}."
            yield Item(
                name, "sglang", "fail", said, "Correct `python` or `cwd` of the profile, or install it."
            )
        elif found.unread_sentence:
            yield Item(name, "sglang", "warn", f"{who}: not all could be read: {found.unread_sentence}.")
        else:
            where = found.winner.path if found.winner else found.executable
            yield Item(name, "sglang", "ok", f"{who}: SGLang {found.reading.version} in {where}.")


def specs_of(context: Context, name: str) -> list[LaunchSpec]:
    """The profiles of a host; one that cannot be read is told of elsewhere."""
    from specdash.config import inherit
    from specdash.control import profiles
    from specdash.errors import SpecdashError

    found = []
    for profile in inherit.names():
        try:
            spec = profiles.resolve(profile, context.settings)
        except SpecdashError:
            continue
        if spec.host == name:
            found.append(spec)
    return found
