"""Runs of the simulated engine on this machine, with a config file of their own."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from specdash.config.hosts import Host
from specdash.host.open import open_link
from tests.monitor.conftest import free_port, host, root, start_run  # noqa: F401  (fixtures)


@pytest.fixture
async def link(host: Host) -> AsyncIterator[Any]:  # noqa: F811
    one = await open_link(host)
    yield one
    await one.close()


@pytest.fixture
def config(root: Path) -> Path:  # noqa: F811
    path = root / "config.toml"
    path.write_text(f'[hosts.box]\nssh = ""\npython = "{sys.executable}"\nrun_root = "{root}/specdash"\n')
    return path
