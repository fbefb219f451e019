"""A local link with its own run root, free ports, launches of the simulated engine, and a clean end of all of it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from specdash.config.hosts import Host
from specdash.host.open import open_link
from specdash.sglang.commandline import LaunchSpec
from tests.support.hostkit import STUB, free_port, root

__all__ = ["free_port", "root"]


@pytest.fixture
async def link(root: Path) -> AsyncIterator[Any]:
    host = Host(name="local", run_root=str(root / "specdash"), python=sys.executable)
    one = await open_link(host)
    yield one
    await one.close()


@pytest.fixture
def stub(root: Path, free_port: int) -> Callable[..., LaunchSpec]:
    def make(
        *flags: str, profile: str = "stub", algorithm: str = "", port: int = 0, **more: Any
    ) -> LaunchSpec:
        pairs: list[tuple[str, Any]] = [("--port", port or free_port), ("--host", "127.0.0.1")]
        it = iter(flags)
        for word in it:
            name, _, value = word.partition("=")
            pairs.append((name, value if value else True))
        env = {"TEST_ROOT_MARK": str(root), **more.pop("env", {})}
        return LaunchSpec(
            profile,
            "local",
            sys.executable,
            ("-B", str(STUB)),
            tuple(pairs),
            env=env,
            algorithm=algorithm,
            **more,
        )

    return make
